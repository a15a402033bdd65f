-- Counts the messages by state.
--
-- Reads and writes: as due and promote; reads data.
-- Reply: 1 if more messages may be due, and 0 if not (ask again while it is 1); ready, in flight, delayed,
--   ever sent; the time in microseconds; the first bytes of the data of the next message.
-- Idempotence: changes nothing that time has not changed already.
-- @due
if wrong then return wrong end
-- @promote
local ready = redis_call('LLEN', pending)
local members = redis_call('ZCOUNT', invisible, '-inf', '(+inf')
local delayed = tonumber(redis_call('HGET', meta, '#delayed') or 0)
local sent = tonumber(redis_call('HGET', meta, '#sent') or 0)
local oldest = false
if ready > 0 then
  oldest = redis_call('HGET', data, redis_call('LINDEX', pending, -1))
  if oldest then oldest = sub(oldest, 1, 20) end
end
return {promoted == at_once and 1 or 0, ready, members - delayed, delayed, sent, now_text, oldest}
