-- Wakes those who wait for nothing, to find out whether the user may.
--
-- Keys: 1 any key of a partition.
-- Reads and writes: nothing.
-- Reply: nothing, or why nobody can be woken.
-- Twice: wakes twice.
local message = ''
-- @wake
if type(published) == 'table' then return published.err end
return ''
