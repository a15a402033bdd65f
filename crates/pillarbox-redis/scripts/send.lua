-- Stores messages, ready or delayed. One whose id is here already is not stored again.
--
-- Arguments after the common ones: 4 the most messages that the queue may hold, or nothing;
--   then for each message its id, its head and its body. The head is empty for most, or: delay in
--   microseconds, space, nanosecond at which it was first sent or '-', and a space and JSON if there
--   is any.
-- Reads: data, pending, invisible. Writes: meta, data, invisible, pending, call.
-- Reply: for each message a character: 1 stored, 0 was here already, F full.
-- Twice: see common.lua. Refused as a whole, with nothing changed, when the server is out of memory.
local again = answered()
if again then return again end

local ids = {}
for n = 5, #ARGV, 3 do ids[#ids + 1] = ARGV[n] end
local here = redis.call('HMGET', data, unpack(ids))
local length = redis.call('LLEN', pending)
local first = tonumber(redis.call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2] or math.huge)
local room = math.huge
if ARGV[4] ~= '' then room = tonumber(ARGV[4]) - redis.call('HLEN', data) end

local sent_at = string.format('%s%06d000', time[1], time[2])
local answers, stored, line, timed, fresh = {}, {}, {}, {}, {}
local earliest = math.huge
for n, id in ipairs(ids) do
  local head, body = ARGV[3 * n + 3], ARGV[3 * n + 4]
  if here[n] or fresh[id] then
    answers[n] = '0'
  elseif room <= 0 then
    answers[n] = 'F'
  else
    answers[n] = '1'
    room = room - 1
    fresh[id] = true
    stored[#stored + 1] = id
    if head == '' then
      stored[#stored + 1] = sent_at .. '\n' .. body
      line[#line + 1] = id
    else
      local delay, at, extra = string.match(head, '^(%d+) (%S+)(.*)$')
      if at == '-' then at = sent_at end
      stored[#stored + 1] = at .. extra .. '\n' .. body
      if delay == '0' then
        line[#line + 1] = id
      else
        local due = now + delay + #timed / 8
        if due < earliest then earliest = due end
        timed[#timed + 1] = due
        timed[#timed + 1] = id
      end
    end
  end
end
answers = table.concat(answers)
if #stored == 0 then return answers end

local total = redis.call('HINCRBY', meta, '#sent', #stored / 2)
if total == #stored / 2 then
  redis.call('HSET', meta, '#about', 'pillarbox queue, format 1; each field: '
    .. '[16 characters of the receipt, if in flight] times delivered')
  redis.call('ZADD', invisible, '+inf', 'a member that is never due, long enough to have this set '
    .. 'stored as a tree')
end
redis.call('HSET', data, unpack(stored))
local became_ready = #line
if first <= now then
  local promoted = promote()
  became_ready = became_ready + promoted
  if promoted == 200 then
    -- There may be more, which became ready before these: they line up behind them.
    for n, id in ipairs(line) do
      timed[#timed + 1] = now + n / 4
      timed[#timed + 1] = id
    end
    line = {}
  end
end
if #line > 0 then redis.call('LPUSH', pending, unpack(line)) end
if #timed > 0 then
  redis.call('ZADD', invisible, unpack(timed))
  redis.call('HINCRBY', meta, '#delayed', #timed / 2)
end
remember(answers)
if (length == 0 and became_ready > 0) or earliest < first then wake() end
return answers
