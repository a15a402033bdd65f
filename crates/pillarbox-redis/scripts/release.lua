-- Takes deliveries back that nobody has seen: the messages are the next to be delivered again, and
-- the deliveries are not counted.
--
-- Arguments after the common ones: for each delivery, in order, the id of its message and the 16
--   secret characters of its receipt.
-- Reads: invisible, meta, pending. Writes: invisible, pending, meta.
-- Reply: how many were taken back.
-- Twice: a receipt that was taken back is no longer current. Works when the server is out of memory.
local ids = {}
for n = 4, #ARGV, 2 do ids[#ids + 1] = ARGV[n] end
local scores = redis_call('ZMSCORE', invisible, unpack(ids))
local known = redis_call('HMGET', meta, unpack(ids))
local empty = redis_call('LLEN', pending) == 0
local back, counts, never = {}, {}, {}
-- The first is pushed last, so that it is the next to be delivered.
for n = #ids, 1, -1 do
  local current = known[n]
  if scores[n] and tonumber(scores[n]) > tonumber(now_text) and current and #current > 16
    and sub(current, 1, 16) == ARGV[2 * n + 3] then
    back[#back + 1] = ids[n]
    local count, rest = string.match(current, '^(%d+)(:?%d*)', 17)
    if tonumber(count) > 1 then
      counts[#counts + 1] = ids[n]
      counts[#counts + 1] = string.format('%.0f', count - 1) .. rest
    else
      never[#never + 1] = ids[n]
    end
  end
end
if #back == 0 then return 0 end
redis_call('ZREM', invisible, unpack(back))
redis_call('RPUSH', pending, unpack(back))
-- @live
if #counts > 0 then redis_call('HSET', meta, unpack(counts)) end
if #never > 0 then redis_call('HDEL', meta, unpack(never)) end
if empty then
  -- @wake
end
return #back
