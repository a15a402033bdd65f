-- Puts ids back in line, the first of which is the next to be delivered.
for n = #ids, 1, -1 do redis_call('RPUSH', pending, ids[n]) end
