-- Counts the messages by state.
--
-- Reads and writes: what promote does; reads data.
-- Reply: whether more is due than one script moves (then ask again); ready, in flight, delayed, ever
--   sent; the time now in microseconds; the first bytes of the data of the next message.
-- Twice: changes nothing that time has not changed already.
local moved = promote()
local ready = redis.call('LLEN', pending)
local members = redis.call('ZCARD', invisible)
local delayed = tonumber(redis.call('HGET', meta, '#delayed') or 0)
local sent = tonumber(redis.call('HGET', meta, '#sent') or 0)
if sent > 0 and members > 0 then members = members - redis.call('ZCOUNT', invisible, '+inf', '+inf') end
local oldest = false
if ready > 0 then
  oldest = redis.call('HGET', data, redis.call('LINDEX', pending, -1))
  if oldest then oldest = string.sub(oldest, 1, 20) end
end
return {moved, ready, members - delayed, delayed, sent, string.format('%.0f', now), oldest}
