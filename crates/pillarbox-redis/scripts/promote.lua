-- Part: moves the messages that due has found to the tail of pending. If there were fewer than at_once, meta then
-- has a secret for exactly the messages with a running lease. An expired delivery is counted in the same step
-- in which its secret is removed.
-- Uses locals: redis_call, unpack, sub, invisible, pending, meta; due, due_known, promoted of due.
-- Writes: invisible, pending, meta.
if promoted > 0 then
  local ended, delayed = {}, 0
  for n, id in ipairs(due) do
    local known = due_known[n]
    if known and #known > 16 and not string.find(sub(known, 1, 16), ':', 1, true) then
      local deliveries = sub(known, 17)
      -- @expired
      ended[#ended + 1] = id
      ended[#ended + 1] = deliveries
    else
      delayed = delayed + 1
    end
  end
  redis_call('ZREM', invisible, unpack(due))
  redis_call('LPUSH', pending, unpack(due))
  -- @extend_ttl
  if #ended > 0 then redis_call('HSET', meta, unpack(ended)) end
  if delayed > 0 then redis_call('HINCRBY', meta, '#delayed', -delayed) end
end
