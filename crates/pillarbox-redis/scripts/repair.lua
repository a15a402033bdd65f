-- Checks messages that looked inconsistent when their keys were read one at a time, and repairs them on request.
-- No message is deleted: what has data is a message.
--
-- Arguments after the common ones: 4 whether to repair, 1 or 0; then ids, or none to count the delayed
--   messages.
-- Reads: all. Writes: all.
-- Reply: for each id a character: . consistent; h ready with a secret: the secret is removed; u has data and no
--   state: made ready; b has two states: keeps that of its lease; n has a state or a delivery count and no
--   data: removed. Without ids: the error of #delayed; nothing if there are too many to count at once.
-- Idempotence: what was repaired is consistent.
local repair = ARGV[4] == '1'
if #ARGV == 4 then
  if redis_call('ZCARD', invisible) > 50000 then return '' end
  local delayed = 0
  local all = redis_call('ZRANGEBYSCORE', invisible, '-inf', '(+inf')
  for n = 1, #all, 1000 do
    local page = {unpack(all, n, math.min(n + 999, #all))}
    for _, known in ipairs(redis_call('HMGET', meta, unpack(page))) do
      if not known or #known <= 16 or string.find(sub(known, 1, 16), ':', 1, true) then
        delayed = delayed + 1
      end
    end
  end
  local off = tonumber(redis_call('HGET', meta, '#delayed') or 0) - delayed
  if repair and off ~= 0 then redis_call('HINCRBY', meta, '#delayed', -off) end
  return tostring(off)
end

local answers = {}
for n = 5, #ARGV do
  local id = ARGV[n]
  local body = redis_call('HEXISTS', data, id) == 1
  local positions = redis_call('LPOS', pending, id, 'COUNT', 0)
  local timed = redis_call('ZSCORE', invisible, id)
  local known = redis_call('HGET', meta, id)
  local is_leased = known and #known > 16 and not string.find(sub(known, 1, 16), ':', 1, true)
  local answer = '.'
  if not body then
    if #positions > 0 or timed or known then answer = 'n' end
    if repair and answer == 'n' then
      redis_call('LREM', pending, 0, id)
      redis_call('ZREM', invisible, id)
      redis_call('HDEL', meta, id)
    end
  elseif #positions == 0 and not timed then
    answer = 'u'
    if repair then
      redis_call('LPUSH', pending, id)
      if is_leased then redis_call('HSET', meta, id, (string.gsub(sub(known, 17), 's$', ''))) end
    end
  elseif #positions > 1 or (#positions == 1 and timed) then
    answer = 'b'
    if repair and timed and is_leased then
      redis_call('LREM', pending, 0, id)
    elseif repair then
      redis_call('ZREM', invisible, id)
      -- LREM with 0 would remove all of them.
      if #positions > 1 then redis_call('LREM', pending, #positions - 1, id) end
    end
  end
  if answer == '.' and #positions > 0 and is_leased then
    answer = 'h'
    if repair then redis_call('HSET', meta, id, (string.gsub(sub(known, 17), 's$', ''))) end
  end
  answers[#answers + 1] = answer
end
if repair then
  -- @wake
end
return table.concat(answers)
