-- Spreads a queue over as many partitions as a person has said. Those that are no longer sent to are
-- received from until they are empty.
--
-- Keys: see layout.lua. Arguments: 1 how many.
-- Reads: partitions. Writes: partitions; and those of partition 0 do not expire where there are others.
-- Reply: partitions as it is then.
-- Twice: the second time only the time of the change is another.
local stored = redis.call('GET', KEYS[1]) or '1 1 0 0'
local held_in, version = string.match(stored, '^%d+ (%d+) (%d+) %d$')
if not version then return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is not ours') end
local more_in = math.max(held_in, ARGV[1])
-- @lasting
-- @version
stored = string.format('%d %d %s 1', ARGV[1], more_in, version)
redis.call('SET', KEYS[1], stored)
local message = 'p'
-- @wake
return stored
