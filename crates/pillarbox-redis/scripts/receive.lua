-- Delivers ready messages to one or several receivers and starts a lease on each.
--
-- Arguments after the common ones: 4 secrets for receipts, 16 characters for each message that may be
--   delivered; then for each receiver the most messages that it takes, and the microseconds of its
--   leases.
-- Reads: pending, data, meta, invisible. Writes: pending, invisible, meta, call.
-- Reply: microseconds until the next message becomes ready, if none is: -1 for never, 0 for at once;
--   then for each delivery, in order, its id, its delivery count and its data. The first receiver
--   gets as many as it takes, then the second, and so on; the n-th delivery has the n-th secret.
-- Twice: see common.lua. What is remembered are the ids; a second run reads the messages anew, and
--   leaves out (no data) those whose lease is not the one given then.
local again = answered()
if again then
  local ids = {}
  for id in string.gmatch(again, '%S+') do ids[#ids + 1] = id end
  local bodies = redis.call('HMGET', data, unpack(ids))
  local known = redis.call('HMGET', meta, unpack(ids))
  local reply = {0}
  for n, id in ipairs(ids) do
    local secret = string.sub(ARGV[4], 16 * n - 15, 16 * n)
    local mine = known[n] and string.sub(known[n], 1, 16) == secret
    reply[#reply + 1] = id
    reply[#reply + 1] = mine and tonumber(string.sub(known[n], 17)) or 0
    reply[#reply + 1] = mine and bodies[n]
  end
  return reply
end

local wanted = 0
for n = 5, #ARGV, 2 do wanted = wanted + ARGV[n] end
local line = redis.call('LRANGE', pending, -wanted, -1)
-- All that is due became ready after all that is pending.
if #line < wanted and promote() > 0 then line = redis.call('LRANGE', pending, -wanted, -1) end
local taken = #line
if taken == 0 then
  local first = redis.call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2]
  first = first and tonumber(first) or math.huge
  if first == math.huge then return {-1} end
  return {math.ceil(math.max(first - now, 0))}
end

local ids = {}
for n = taken, 1, -1 do ids[#ids + 1] = line[n] end
local bodies = redis.call('HMGET', data, unpack(ids))
local known = redis.call('HMGET', meta, unpack(ids))
local reply, leases, counts, delivered, lost = {0}, {}, {}, {}, {}
local receiver, left = 5, tonumber(ARGV[5])
for n, id in ipairs(ids) do
  if bodies[n] then
    while left == 0 do
      receiver = receiver + 2
      left = tonumber(ARGV[receiver])
    end
    left = left - 1
    local place = #delivered
    delivered[place + 1] = id
    local count = (tonumber(known[n] or 0) or 0) + 1
    reply[#reply + 1] = id
    reply[#reply + 1] = count
    reply[#reply + 1] = bodies[n]
    -- A quarter of a microsecond apart, so that leases which end together keep their order.
    leases[2 * place + 1] = now + ARGV[receiver + 1] + place / 4
    leases[2 * place + 2] = id
    counts[2 * place + 1] = id
    counts[2 * place + 2] = string.sub(ARGV[4], 16 * place + 1, 16 * place + 16) .. count
  else
    lost[#lost + 1] = id
  end
end
redis.call('LTRIM', pending, 0, -taken - 1)
if #lost > 0 then redis.call('HDEL', meta, unpack(lost)) end
if #delivered > 0 then
  redis.call('ZADD', invisible, unpack(leases))
  redis.call('HSET', meta, unpack(counts))
  remember(table.concat(delivered, ' '))
end
return reply
