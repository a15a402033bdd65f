-- Sees whether a call's effect is at this server, and writes, so that who waits for replicas next waits
-- until they have it.
--
-- Keys: 1 call, see header.lua. Arguments: 1 number of the call; 2 milliseconds for which its answer is
--   remembered.
-- Reads: call. Writes: call.
-- Reply: 1 if the effect is here. Where it is not, another server has taken over that has not got it.
-- Twice: changes nothing.
local record = redis.call('GET', KEYS[1])
if not record or record < ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
