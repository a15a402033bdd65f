-- Publishes a wake-up without a message, to find out whether the user may.
--
-- Keys: 1 any key of a partition.
-- Reads and writes: nothing.
-- Reply: nothing, or the error.
-- Idempotence: a second wake-up is harmless.
local message = ''
-- @wake
if type(published) == 'table' then return published.err end
return ''
