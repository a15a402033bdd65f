-- Delivers ready messages to one or several receivers and starts a lease on each.
--
-- Arguments after the common ones: 4 maximum number of messages for all receivers together; 5 number of
--   receivers; for each of them its maximum, and the microseconds of its leases; then for each message that may
--   be delivered a token: the 16 secret characters of its receipt and a 1.
-- Reads: pending, data, meta, invisible. Writes: pending, invisible, meta, call.
-- Reply: microseconds until the next message becomes ready, apart from those delivered: -1 for never, 0 if there
--   may be more at once; then, if there are any, the ids, data and meta of the messages as they were before. The
--   first receiver gets its maximum, then the second, and so on; the n-th id has the n-th secret. An entry
--   without data is no message. The data are at most most_bytes, unless the first message has more: then it
--   is the only one.
-- Idempotence: see header.lua. The record holds the ids; a second run reads the messages again, and leaves out
--   the data of those whose lease is not the one given then.
local record = redis_call('GET', call)
-- The tokens are the arguments after this one.
local before_tokens = 5 + 2 * ARGV[5]
if record and record >= ARGV[1] then
  local ids = {}
  for id in string.gmatch(sub(record, 13), '%S+') do ids[#ids + 1] = id end
  if #ids == 0 then return {0} end
  local bodies = redis_call('HMGET', data, unpack(ids))
  local known = redis_call('HMGET', meta, unpack(ids))
  for n = 1, #ids do
    local secret = sub(ARGV[before_tokens + n] or '', 1, 16)
    if known[n] and sub(known[n], 1, 16) == secret then
      local count, rest = string.match(known[n], '^(%d+)(:?%d*)', 17)
      known[n] = string.format('%.0f', count - 1) .. rest
    else
      bodies[n] = false
    end
  end
  return {0, ids, bodies, known}
end

local wanted = tonumber(ARGV[4])
-- Maximum number of bytes that one call delivers: a slow network must transfer them within the response timeout.
local most_bytes = 1048576
local ids = redis_call('RPOP', pending, ARGV[4]) or {}
local wait = 0
if #ids < wanted then
  -- All that is due became ready after all that is pending.
  -- @due
  if not wrong then
    -- @promote
    if promoted > 0 then
      local more = redis_call('RPOP', pending, wanted - #ids) or {}
      for n = 1, #more do ids[#ids + 1] = more[n] end
    end
    if promoted < at_once then
      -- @next_due
    end
  elseif #ids == 0 then
    return wrong
  end
  -- With an error, what was popped is delivered: it could not be pushed back while the slot moves to another
  -- node, since a script must not use a list again that it has emptied. A key of another type is noticed below.
  if #ids == 0 then
    -- A call of this caller may still be on its way.
    if KEYS[6] then
      local answer = ''
      -- @renew
    end
    return {wait}
  end
end

-- Bodies are read in pieces: of those that do not fit, fewer than one piece is read. A piece is smaller if as many
-- of the length of the first would not fit.
local count, fits, bytes, piece, bodies = #ids, 0, 0, 16, nil
if count > 1 then
  local length = redis.pcall('HSTRLEN', data, ids[1])
  if type(length) == 'number' and length * piece > most_bytes then
    piece = math.max(1, math.floor(most_bytes / length))
  end
end
local known
repeat
  local from = fits
  local some = redis.pcall('HMGET', data, unpack(ids, from + 1, math.min(from + piece, count)))
  if some.err then
    known = some
    break
  end
  bodies = bodies or some
  for n = 1, #some do
    bytes = bytes + (some[n] and #some[n] or 0)
    if bytes > most_bytes and fits > 0 then break end
    fits = from + n
    bodies[fits] = some[n]
  end
until fits == count or bytes >= most_bytes
known = known or redis.pcall('HMGET', meta, unpack(ids, 1, fits))
if known.err then
  -- A key has another type: all ids go back.
  -- @give_back
  return known
end
if fits < count then
  -- The rest is the next to be delivered.
  local rest = {}
  for n = count, fits + 1, -1 do rest[#rest + 1] = ids[n] end
  if type(redis.pcall('RPUSH', pending, unpack(rest))) == 'table' then
    -- The slot moves to another node, see above. Pending is empty, so the rest can be due, before all others.
    local first = {}
    for n = fits + 1, count do
      first[#first + 1] = n
      first[#first + 1] = ids[n]
    end
    redis_call('ZADD', invisible, unpack(first))
    redis_call('HINCRBY', meta, '#delayed', count - fits)
  end
  for n = fits + 1, count do ids[n], bodies[n] = nil, nil end
  count, wait = fits, 0
end
local leases, counts, lost = {}, {}, nil
local receiver, left, place, last = 4, 0, 0, ''
-- A sorted set compares bytes; Lua compares by the locale of the server, which may differ.
local by_bytes = 'B' < 'a' and '-' < '0' and 'Z' < '_'
local ends, lease
for n = 1, count do
  local id = ids[n]
  if left == 0 then
    receiver = receiver + 2
    left = tonumber(ARGV[receiver])
    ends = now_text + ARGV[receiver + 1]
    -- Leases of an earlier receiver in this call expire before this one does.
    lease = n == 1 and string.format('%.0f', ends) or ends + n / 4
    last = ''
  end
  left = left - 1
  if bodies[n] then
    -- Of leases that expire at the same moment, the one with the lower id is first. If that is not the
    -- order of delivery, they expire a quarter of a microsecond apart.
    if not by_bytes or id < last then lease = ends + n / 4 end
    last = id
    -- The 1 is the number of deliveries after the first.
    local token = ARGV[before_tokens + n]
    if known[n] then
      local from = #known[n] > 16 and not string.find(sub(known[n], 1, 16), ':', 1, true) and 17 or 1
      local before, rest = string.match(known[n], '^(%d+)(:?%d*)', from)
      token = sub(token, 1, 16) .. string.format('%.0f', (before or 0) + 1) .. (rest or '')
    end
    leases[place + 1] = lease
    leases[place + 2] = id
    counts[place + 1] = id
    counts[place + 2] = token
    place = place + 2
  else
    lost = lost or {}
    lost[#lost + 1] = id
  end
end
if place > 0 then
  local leased = redis.pcall('ZADD', invisible, unpack(leases))
  if type(leased) == 'table' then
    -- This key has another type.
    -- @give_back
    return leased
  end
  redis_call('HSET', meta, unpack(counts))
  local answer = table.concat(ids, ' ')
  -- @remember
end
if lost then redis_call('HDEL', meta, unpack(lost)) end
return {wait, ids, bodies, known}
