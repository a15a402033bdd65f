-- Ends or extends leases, each only if its receipt is the current one and the lease still runs.
--
-- Arguments after the common ones: 4 number of entries; then the ids of all; then their tokens: the 16 secret
--   characters of the receipt and a 1 to acknowledge; instead of the 1 an 'n' and microseconds to nack with that
--   delay, or an 'r' to release, which is no attempt; an 'e' and microseconds to extend, or an 's' to extend and
--   record that the delivery is started.
-- Reads: invisible, meta, pending. Writes: data, invisible, meta, pending, call.
-- Reply: + if all are done; or for each entry a character: 1 done, 0 refused.
-- Idempotence: see header.lua. Works when the server is out of memory.
local record = redis_call('GET', call)
if record and record >= ARGV[1] then return sub(record, 13) end

local count = tonumber(ARGV[4])
local last_id = 4 + count
-- @due
if wrong then return wrong end
-- @promote
local known = redis_call('HMGET', meta, unpack(ARGV, 5, last_id))

-- Fast path: most often all are acknowledged, after their first delivery, and none is there twice. The token of an
-- acknowledgement ends with a 1 because meta does then, with the number of deliveries: one comparison is enough.
local plain = promoted < at_once
for n = 1, count do
  if known[n] ~= ARGV[last_id + n] then
    plain = false
    break
  end
end
if plain and redis_call('HDEL', data, unpack(ARGV, 5, last_id)) == count then
  redis_call('ZREM', invisible, unpack(ARGV, 5, last_id))
  redis_call('HDEL', meta, unpack(ARGV, 5, last_id))
  local answer = '+'
  -- @remember
  return answer
end

-- If not all due messages were promoted, a lease that has ended is known by its score.
local scores = promoted == at_once and redis_call('ZMSCORE', invisible, unpack(ARGV, 5, last_id))
local now = tonumber(now_text)
local answer, gone, ready, timed, moved, given_back = {}, {}, {}, {}, {}, {}
local settled, started, marked, delayed, earliest = {}, {}, {}, 0, math.huge
for n = 1, count do
  local id, token = ARGV[4 + n], ARGV[last_id + n]
  local current = started[id] or known[n]
  local runs = not settled[id] and current and #current > 16
    and sub(current, 1, 16) == sub(token, 1, 16)
  if runs and scores then runs = scores[n] and tonumber(scores[n]) > now end
  if runs then
    answer[n] = '1'
    local kind, micros = string.byte(token, 17), tonumber(sub(token, 18))
    if kind == 49 then
      gone[#gone + 1] = id
      settled[id] = true
    else
      local release = kind == 114
      local back = release or kind == 110
      local deliveries = sub(current, 17)
      local is_started = sub(deliveries, -1) == 's'
      if back then
        if is_started then deliveries = sub(deliveries, 1, -2) end
      elseif kind == 115 and not is_started then
        deliveries = deliveries .. 's'
        -- Further entries of this call may be for the same delivery.
        current = sub(current, 1, 16) .. deliveries
        started[id] = current
        if micros > 0 then
          marked[#marked + 1] = id
          marked[#marked + 1] = current
        end
      end
      if release or not back and micros == 0 then
        -- A lease that is extended by 0 expires, and a release counts like one that was not started.
        -- @expired
      end
      if back or micros == 0 then
        given_back[#given_back + 1] = id
        given_back[#given_back + 1] = deliveries
        settled[id] = true
      end
      if micros == 0 then
        ready[#ready + 1] = id
      else
        local due = now + micros + #timed / 8
        if back then delayed = delayed + 1 end
        if due < earliest then earliest = due end
        timed[#timed + 1] = due
        timed[#timed + 1] = id
        moved[#moved + 1] = id
      end
    end
  else
    answer[n] = '0'
  end
end
answer = table.concat(answer)
if not string.find(answer, '1', 1, true) then return answer end

local empty = #ready > 0 and redis_call('LLEN', pending) == 0
if #timed > 0 then
  -- Removed first: that is never refused for lack of memory, and allows the writes that follow.
  redis_call('ZREM', invisible, unpack(moved))
  redis_call('ZADD', invisible, unpack(timed))
end
-- Before the settled ones: an entry may be started and settled in one call.
if #marked > 0 then redis_call('HSET', meta, unpack(marked)) end
if #gone > 0 then
  redis_call('HDEL', data, unpack(gone))
  redis_call('ZREM', invisible, unpack(gone))
  redis_call('HDEL', meta, unpack(gone))
end
if #ready > 0 then
  redis_call('ZREM', invisible, unpack(ready))
  if promoted == at_once then
    -- More messages may have become ready before these, so these go behind them.
    local behind = {}
    for n = 1, #ready do
      behind[2 * n - 1] = now + n / 4
      behind[2 * n] = ready[n]
    end
    redis_call('ZADD', invisible, unpack(behind))
    delayed = delayed + #ready
  else
    redis_call('LPUSH', pending, unpack(ready))
  end
end
if #given_back > 0 then redis_call('HSET', meta, unpack(given_back)) end
if delayed > 0 then redis_call('HINCRBY', meta, '#delayed', delayed) end
-- @remember
local news = empty
if earliest < math.huge then
  local first = redis_call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2]
  news = news or not first or tonumber(first) >= earliest
end
if news then
  -- @wake
end
return answer
