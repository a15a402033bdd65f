-- Deletes what is left of a queue without messages, so that short-lived queues do not accumulate.
--
-- Reads: meta, data, pending, invisible; fails if one has another type. Writes: pending, invisible, data, meta.
-- Reply: 1 if nothing is left, 0 if it holds messages.
-- Idempotence: deletes what is there.
redis_call('HLEN', meta)
if redis_call('HLEN', data) > 0 or redis_call('LLEN', pending) > 0
  or redis_call('ZCOUNT', invisible, '-inf', '(+inf') > 0 then
  return 0
end
redis_call('UNLINK', pending, invisible, data, meta)
return 1
