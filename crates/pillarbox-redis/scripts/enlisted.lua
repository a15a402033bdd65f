-- Notes that the layout says that a partition is received from, which who has sent to it has made sure of.
--
-- Keys: 1 meta, see header.lua.
-- Reads: nothing. Writes: meta.
-- Reply: 1 if that was not known.
-- Twice: it is noted once.
return redis.call('HSET', KEYS[1], '#enlisted', 1)
