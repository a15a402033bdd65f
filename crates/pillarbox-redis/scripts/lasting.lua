-- Partitions are not used together, so none of a queue that has several may expire by itself: another program
-- may have named a time for the queue while it was whole.
if more_in > 1 then
  for key = 2, 5 do redis.call('PERSIST', KEYS[key]) end
end
