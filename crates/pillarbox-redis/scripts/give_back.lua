-- Part: puts ids back at the head of pending; the first is the next to be delivered.
-- Uses locals: redis_call, pending, ids.
-- Writes: pending.
for n = #ids, 1, -1 do redis_call('RPUSH', pending, ids[n]) end
