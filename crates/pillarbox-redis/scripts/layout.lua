-- Returns the layout of a queue, and adds partitions if there are fewer than requested.
--
-- Keys: 1 partitions, a STRING of four numbers: how many partitions are sent to, how many may hold messages,
--   the microsecond of the last change, and 1 if an operator has set the number of partitions or 0 if a
--   program has. Without the key, the queue has only partition 0. 2 to 5 the keys of partition 0, see
--   header.lua.
-- Arguments: 1 minimum number of partitions that are sent to, unless an operator has set it; 2 minimum number
--   of partitions that may hold messages; 3 1 to count as a change in any case: a partition was created that
--   another program may be about to remove.
-- Reads: partitions. Writes: partitions; removes the time to live of partition 0 if there are others.
-- Reply: partitions afterwards, or nothing.
-- Idempotence: a second run changes nothing, unless it must count as a change.
local stored = redis.call('GET', KEYS[1])
local sent_to, received_from, version, kept = string.match(stored or '1 1 0 0', '^(%d+) (%d+) (%d+) (%d)$')
if not kept then return redis.error_reply('WRONGTYPE ' .. KEYS[1] .. ' is not ours') end
local more_to = math.max(sent_to, kept == '1' and 1 or ARGV[1])
local more_in = math.max(received_from, ARGV[2], more_to)
-- @persist
local must_change = ARGV[3] == '1' and (stored or more_in > 1)
if more_to == tonumber(sent_to) and more_in == tonumber(received_from) and not must_change then
  return stored
end
-- @version
stored = string.format('%d %d %s %s', more_to, more_in, version, kept)
redis.call('SET', KEYS[1], stored)
local message = 'p'
-- @wake
return stored
