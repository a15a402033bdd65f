-- Stores messages, ready or delayed. A message whose id is here already is not stored again.
--
-- Arguments after the common ones: 4 maximum number of messages in the queue, or nothing; 5 number of messages;
--   then all ids, each only once; then all bodies; then all heads, or none if all are empty. A head is empty, or:
--   delay in microseconds, space, nanosecond at which it was first sent or '-', and a space and JSON if there is
--   any.
-- Reads: data, invisible. Writes: meta, invisible, pending, data, call.
-- Reply: + if all are stored; or for each message a character: 1 stored, 0 was here already, F full. Then a ! if
--   the queue is new, or it is a partition that is not enlisted; then a ~ if the user may not publish, and no
--   waiter was woken.
-- Idempotence: see header.lua. Refused as a whole, with nothing changed, when the server is out of memory.
local record = redis_call('GET', call)
if record and record >= ARGV[1] then return sub(record, 13) end

local count = tonumber(ARGV[5])
local last_id, heads = 5 + count, 5 + 2 * count
local here = redis_call('HMGET', data, unpack(ARGV, 6, last_id))
local room = math.huge
if ARGV[4] ~= '' then room = ARGV[4] - redis_call('HLEN', data) end

local answer, stored, size, ready, timed = '+', {}, 0, nil, nil
if #ARGV == heads and room >= count then
  -- Fast path: all are ready at once, and most often all are new.
  local start = now_text .. '000\n'
  for n = 1, count do
    if here[n] then
      size = 0
      break
    end
    stored[size + 1] = ARGV[5 + n]
    stored[size + 2] = start .. ARGV[last_id + n]
    size = size + 2
  end
end
if size == 0 then
  answer, stored, ready, timed = {}, {}, {}, {}
  for n = 1, count do
    if here[n] then
      answer[n] = '0'
    elseif room <= 0 then
      answer[n] = 'F'
    else
      answer[n] = '1'
      room = room - 1
      local id, head = ARGV[5 + n], ARGV[heads + n] or ''
      local delay, at, extra = string.match(head, '^(%d+) (%S+)(.*)$')
      if not at or at == '-' then at = now_text .. '000' end
      stored[size + 1] = id
      stored[size + 2] = at .. (extra or '') .. '\n' .. ARGV[last_id + n]
      size = size + 2
      if not delay or delay == '0' then
        ready[#ready + 1] = id
      else
        -- A quarter of a microsecond apart: messages that become ready together keep their order.
        timed[#timed + 1] = now_text + delay + #timed / 8
        timed[#timed + 1] = id
      end
    end
  end
  answer = table.concat(answer)
  if size == 0 then
    if string.find(pending, '#', 1, true) and redis_call('HEXISTS', meta, '#enlisted') == 0 then
      answer = answer .. '!'
    end
    -- A call of this caller may still be on its way.
    if KEYS[6] then
      -- @renew
    else
      -- @extend_ttl
    end
    return answer
  end
end

-- @due
if wrong then return wrong end
local is_new = redis_call('HINCRBY', meta, '#sent', size / 2) == size / 2
if is_new then
  redis_call('HSET', meta, '#about', 'pillarbox queue, format 2; each field: [16 characters of the '
    .. 'receipt, if in flight] deliveries + 4294967296 * unsettled [: uncounted] [s, if started]')
  redis_call('ZADD', invisible, '+inf', 'a member that is never due, long enough to have this set '
    .. 'stored as a tree')
end
-- @promote
if promoted == at_once then
  -- More messages may have become ready before these, so these go behind them.
  ready, timed = ready or {unpack(ARGV, 6, last_id)}, timed or {}
  for n = 1, #ready do
    timed[#timed + 1] = now_text + n / 4
    timed[#timed + 1] = ready[n]
  end
  ready = {}
end
local pushed, length = count, nil
if not ready then
  length = redis.pcall('LPUSH', pending, unpack(ARGV, 6, last_id))
elseif #ready > 0 then
  pushed = #ready
  length = redis.pcall('LPUSH', pending, unpack(ready))
end
if type(length) == 'table' then
  -- Pending has another type, and nothing is stored.
  redis_call('HINCRBY', meta, '#sent', -size / 2)
  return length
end
redis_call('HSET', data, unpack(stored))
-- Pending was empty before, or a waiter must look at the clock again.
local news = promoted > 0 or length == pushed
if timed and #timed > 0 then
  local first = redis_call('ZRANGE', invisible, 0, 0)[1]
  redis_call('ZADD', invisible, unpack(timed))
  redis_call('HINCRBY', meta, '#delayed', #timed / 2)
  news = news or redis_call('ZRANGE', invisible, 0, 0)[1] ~= first
end
-- Every send reports this until the partition is enlisted.
if is_new or string.find(pending, '#', 1, true) and redis_call('HEXISTS', meta, '#enlisted') == 0 then
  answer = answer .. '!'
end
-- @remember
if news then
  -- @wake
  if type(published) == 'table' then answer = answer .. '~' end
end
return answer
