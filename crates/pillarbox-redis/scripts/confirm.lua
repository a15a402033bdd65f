-- Checks whether this server has the effect of a call, and writes, so that a WAIT that follows covers it.
--
-- Keys: 1 call, see header.lua. Arguments: 1 number of the call; 2 milliseconds for which its answer is
--   remembered.
-- Reads: call. Writes: call.
-- Reply: 1 if the effect is here. If not, a server has taken over that does not have it.
-- Idempotence: changes nothing.
local record = redis.call('GET', KEYS[1])
if not record or record < ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
