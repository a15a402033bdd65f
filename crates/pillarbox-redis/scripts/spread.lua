-- Sets the number of partitions that are sent to, as an operator requested. Those that are no longer sent to are
-- received from until they are empty.
--
-- Keys: see layout.lua. Arguments: 1 the number.
-- Reads: partitions. Writes: partitions; removes the time to live of partition 0 if there are others.
-- Reply: partitions afterwards.
-- Idempotence: a second run changes only the time of the change.
local stored = redis.call('GET', KEYS[1]) or '1 1 0 0'
local received_from, version = string.match(stored, '^%d+ (%d+) (%d+) %d$')
if not version then return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is not ours') end
local more_in = math.max(received_from, ARGV[1])
-- @persist
-- @version
stored = string.format('%d %d %s 1', ARGV[1], more_in, version)
redis.call('SET', KEYS[1], stored)
local message = 'p'
-- @wake
return stored
