-- Moves up to 200 messages whose time has come to the tail of pending; promoted says how many. If it is
-- less than 200, meta has a secret for exactly those messages whose lease runs.
-- Reads: invisible, pending, meta. Writes: invisible, pending, meta.
local promoted = redis_call('ZCOUNT', invisible, '-inf', now_text)
if promoted > 0 then
  redis_call('LLEN', pending)
  local due = redis_call('ZRANGEBYSCORE', invisible, '-inf', now_text, 'LIMIT', '0', '200')
  local known = redis_call('HMGET', meta, unpack(due))
  local ended, delayed = {}, 0
  for n, id in ipairs(due) do
    if known[n] and #known[n] > 16 then
      ended[#ended + 1] = id
      ended[#ended + 1] = sub(known[n], 17)
    else
      delayed = delayed + 1
    end
  end
  promoted = #due
  redis_call('ZREM', invisible, unpack(due))
  redis_call('LPUSH', pending, unpack(due))
  if #ended > 0 then redis_call('HSET', meta, unpack(ended)) end
  if delayed > 0 then redis_call('HINCRBY', meta, '#delayed', -delayed) end
end
