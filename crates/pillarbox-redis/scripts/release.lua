-- Takes back deliveries that no caller has received: the messages are the next to be delivered again, and the
-- deliveries are not counted.
--
-- Arguments after the common ones: if the number of the call is 0, for each delivery, in order, the id of its
--   message and the 16 secret characters of its receipt. Otherwise it is the number of a receive of the caller
--   whose answer was lost, and the secrets are those that it was given: its record names what it has
--   delivered; without a record, it must not deliver anything from then on.
-- Reads: invisible, meta, pending, call. Writes: invisible, pending, meta, call.
-- Reply: number of deliveries taken back.
-- Idempotence: a receipt that was taken back is no longer current. Works when the server is out of memory.
local ids, secrets = {}, {}
if tonumber(ARGV[1]) == 0 then
  for n = 4, #ARGV, 2 do
    ids[#ids + 1] = ARGV[n]
    secrets[#secrets + 1] = ARGV[n + 1]
  end
else
  local record = redis_call('GET', call)
  if not record or record < ARGV[1] then
    -- The receive may still be on its way.
    local answer = ''
    -- @renew
  elseif sub(record, 1, 12) == ARGV[1] then
    for id in string.gmatch(sub(record, 13), '%S+') do ids[#ids + 1] = id end
    secrets = {unpack(ARGV, 4)}
  end
  if #ids == 0 then return 0 end
end
local scores = redis_call('ZMSCORE', invisible, unpack(ids))
local known = redis_call('HMGET', meta, unpack(ids))
local empty = redis_call('LLEN', pending) == 0
local back, counts, never = {}, {}, {}
-- The first is pushed last, so that it is the next to be delivered.
for n = #ids, 1, -1 do
  local current = known[n]
  if scores[n] and tonumber(scores[n]) > tonumber(now_text) and current and #current > 16
    and sub(current, 1, 16) == secrets[n] then
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
-- @extend_ttl
if #counts > 0 then redis_call('HSET', meta, unpack(counts)) end
if #never > 0 then redis_call('HDEL', meta, unpack(never)) end
if empty then
  -- @wake
end
return #back
