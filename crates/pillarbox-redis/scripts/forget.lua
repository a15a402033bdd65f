-- Deletes what is left of a queue that holds no message, so that short-lived queues do not pile up.
--
-- Reads: meta, data, pending, invisible: none of another type is deleted. Writes: pending, invisible, data, meta.
-- Reply: 1 if nothing is left of it, 0 if it holds messages.
-- Twice: what is deleted stays so.
redis_call('HLEN', meta)
if redis_call('HLEN', data) > 0 or redis_call('LLEN', pending) > 0
  or redis_call('ZCOUNT', invisible, '-inf', '(+inf') > 0 then
  return 0
end
redis_call('UNLINK', pending, invisible, data, meta)
return 1
