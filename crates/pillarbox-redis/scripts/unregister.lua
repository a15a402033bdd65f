-- Removes a queue from the list of queues, unless it was used meanwhile.
--
-- Keys: 1 the list. Arguments: 1 the name; 2 the second of its last use, as it was read.
-- Reads and writes: the list.
-- Reply: number of names removed.
-- Idempotence: a name is removed once.
if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) == tonumber(ARGV[2]) then
  return redis.call('ZREM', KEYS[1], ARGV[1])
end
return 0
