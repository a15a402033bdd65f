-- Removes the last partitions from the layout, unless it was changed since it was read: a sender that creates a
-- partition changes it.
--
-- Keys: 1 partitions, see layout.lua. Arguments: 1 the microsecond of the last change, as it was read; 2 how
--   many partitions may still hold messages, or 0 if none does and the queue is deleted.
-- Reads: partitions. Writes: partitions.
-- Reply: 1 if it was not changed meanwhile.
-- Idempotence: after the first run, the layout has changed.
local stored = redis.call('GET', KEYS[1])
if not stored then return 0 end
local sent_to, received_from, version, kept = string.match(stored, '^(%d+) (%d+) (%d+) (%d)$')
if version ~= ARGV[1] then return 0 end
local left = math.max(sent_to, ARGV[2])
if kept == '0' and (ARGV[2] == '0' or left == 1) then
  redis.call('DEL', KEYS[1])
elseif left < tonumber(received_from) then
  -- @version
  redis.call('SET', KEYS[1], string.format('%d %d %s %s', sent_to, left, version, kept))
end
return 1
