-- Counts the ready messages, and delivers nothing.
--
-- Reads and writes: as due and promote.
-- Reply: number of ready messages; microseconds until the next one becomes ready: -1 for never, 0 if there may
--   be more at once.
-- Idempotence: changes nothing that time has not changed already.
-- @due
if wrong then return wrong end
-- @promote
local wait = 0
if promoted < at_once then
  -- @next_due
end
return {redis_call('LLEN', pending), wait}
