-- Says whether there is something to deliver, and delivers nothing.
--
-- Reads and writes: what due and promote do.
-- Reply: how many messages are ready; microseconds until the next one becomes ready: -1 for never, 0 if
--   there may be more at once.
-- Twice: changes nothing that time has not changed already.
-- @due
if wrong then return wrong end
-- @promote
local wait = 0
if promoted < at_once then
  -- @next_due
end
return {redis_call('LLEN', pending), wait}
