-- Part: keeps partition 0 from expiring if there are others. Partitions are not used together; another program
-- may have set a time to live while the queue had only one.
-- Uses locals: more_in.
-- Writes: the keys 2 to 5.
if more_in > 1 then
  for key = 2, 5 do redis.call('PERSIST', KEYS[key]) end
end
