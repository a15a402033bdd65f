-- Says over how many partitions a queue is spread, and spreads it further if it must be.
--
-- Keys: 1 partitions, a STRING of four numbers: how many partitions are sent to, how many may hold
--   messages, the microsecond at which that was changed, and 1 if a person has said so, 0 if a program
--   has. No such key: the queue is whole, and has only the partition 0; 2 to 5 the keys of partition 0, see
--   header.lua.
-- Arguments: 1 how many partitions must be sent to, at least, unless a person has said how many; 2 how many may hold messages, at least;
--   3 1 to count as a change whatever there is: a partition has come into being that somebody may be
--   about to take away.
-- Reads: partitions. Writes: partitions; and those of partition 0 do not expire where there are others.
-- Reply: partitions as it is then, or nothing.
-- Twice: the second time nothing is changed, unless it must count as a change.
local stored = redis.call('GET', KEYS[1])
local sent_to, held_in, version, kept = string.match(stored or '1 1 0 0', '^(%d+) (%d+) (%d+) (%d)$')
if not kept then return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is not ours') end
local more_to = math.max(sent_to, kept == '1' and 1 or ARGV[1])
local more_in = math.max(held_in, ARGV[2], more_to)
-- @lasting
local must_change = ARGV[3] == '1' and (stored or more_in > 1)
if more_to == tonumber(sent_to) and more_in == tonumber(held_in) and not must_change then
  return stored
end
-- @version
stored = string.format('%d %d %s %s', more_to, more_in, version, kept)
redis.call('SET', KEYS[1], stored)
local message = 'p'
-- @wake
return stored
