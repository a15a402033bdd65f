-- Some of the ids that a hash holds, without their values.
--
-- Arguments after the common ones: 4 which key; 5 where to go on, 0 at first.
-- Reads: that key. Writes: nothing.
-- Reply: where to go on, 0 at the end; then the fields.
-- Twice: changes nothing.
local page = redis_call('HSCAN', KEYS[tonumber(ARGV[4])], ARGV[5], 'COUNT', 1000)
local reply = {page[1]}
for n = 1, #page[2], 2 do reply[#reply + 1] = page[2][n] end
return reply
