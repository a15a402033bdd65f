-- Records that the layout contains a partition, so that it is received from. The sender has made sure of that.
--
-- Keys: 1 meta, see header.lua.
-- Reads: nothing. Writes: meta.
-- Reply: 1 if it was not recorded before.
-- Idempotence: sets one field.
return redis.call('HSET', KEYS[1], '#enlisted', 1)
