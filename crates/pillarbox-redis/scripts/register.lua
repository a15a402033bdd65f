-- Puts a queue on the list of queues, or updates the time of its last use.
--
-- Keys: 1 the list, a ZSET of names by the second of their last use. Arguments: 1 the name.
-- Reads: nothing. Writes: the list.
-- Reply: 1 if it was not on the list.
-- Idempotence: a name is on the list once.
return redis.call('ZADD', KEYS[1], redis.call('TIME')[1], ARGV[1])
