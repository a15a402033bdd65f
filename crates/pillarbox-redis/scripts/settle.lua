-- Ends or extends leases, each only if its receipt is the current one and still runs.
--
-- Arguments after the common ones: for each entry the id of its message and its token: the 16 secret
--   characters of the receipt to acknowledge; with 'n' and microseconds to give back, ready after so
--   long; with 'e' and microseconds to extend.
-- Reads: invisible, meta, pending. Writes: data, invisible, meta, pending, call.
-- Reply: for each entry a character: 1 done, 0 refused.
-- Twice: see common.lua. Works when the server is out of memory.
local again = answered()
if again then return again end

local ids = {}
for n = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[n] end
local scores = redis.call('ZMSCORE', invisible, unpack(ids))
local known = redis.call('HMGET', meta, unpack(ids))
local answers, gone, line, timed, moved, given_back = {}, {}, {}, {}, {}, {}
local left, delayed, earliest = {}, 0, math.huge
for n, id in ipairs(ids) do
  local token, current = ARGV[2 * n + 3], known[n]
  local score = left[id]
  if score == nil then score = scores[n] and tonumber(scores[n]) end
  if score and score > now and current and #current > 16
    and string.sub(current, 1, 16) == string.sub(token, 1, 16) then
    answers[n] = '1'
    left[id] = false
    if #token == 16 then
      gone[#gone + 1] = id
    else
      local micros = tonumber(string.sub(token, 18))
      local nack = string.byte(token, 17) == 110
      if nack then
        given_back[#given_back + 1] = id
        given_back[#given_back + 1] = string.sub(current, 17)
      end
      if nack and micros == 0 then
        line[#line + 1] = id
      else
        local due = now + micros + #timed / 8
        if nack then delayed = delayed + 1 else left[id] = due end
        if due < earliest then earliest = due end
        timed[#timed + 1] = due
        timed[#timed + 1] = id
        moved[#moved + 1] = id
      end
    end
  else
    answers[n] = '0'
  end
end
answers = table.concat(answers)

local empty = #line > 0 and redis.call('LLEN', pending) == 0
if #timed > 0 then
  -- Taken out first: that is never refused for lack of memory, and lets what follows pass.
  redis.call('ZREM', invisible, unpack(moved))
  redis.call('ZADD', invisible, unpack(timed))
end
if #gone > 0 then
  redis.call('HDEL', data, unpack(gone))
  redis.call('ZREM', invisible, unpack(gone))
  redis.call('HDEL', meta, unpack(gone))
end
if #line > 0 then
  redis.call('ZREM', invisible, unpack(line))
  if promote() == 200 then
    -- There may be more, which became ready before these: they line up behind them.
    timed = {}
    for n, id in ipairs(line) do
      timed[#timed + 1] = now + n / 4
      timed[#timed + 1] = id
    end
    redis.call('ZADD', invisible, unpack(timed))
    delayed = delayed + #line
  else
    redis.call('LPUSH', pending, unpack(line))
  end
end
if #given_back > 0 then redis.call('HSET', meta, unpack(given_back)) end
if delayed > 0 then redis.call('HINCRBY', meta, '#delayed', delayed) end
if #gone > 0 or #timed > 0 or #line > 0 then remember(answers) end
if empty then
  wake()
elseif earliest < math.huge
  and tonumber(redis.call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2]) >= earliest then
  wake()
end
return answers
