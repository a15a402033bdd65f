-- Returns some of the fields of a hash, without their values.
--
-- Arguments after the common ones: 4 number of the key; 5 cursor, 0 at first.
-- Reads: that key. Writes: nothing.
-- Reply: the next cursor, 0 at the end; then the fields.
-- Idempotence: changes nothing.
local key, count = KEYS[tonumber(ARGV[4])], 1000
if key == data then
  -- HSCAN reads the bodies as well: about a megabyte of them at a time.
  local one = redis_call('HRANDFIELD', data)
  local size = one and redis_call('HSTRLEN', data, one) or 0
  count = math.max(10, math.min(1000, math.floor(1048576 / (size + 1))))
end
local page = redis_call('HSCAN', key, ARGV[5], 'COUNT', count)
local reply = {page[1]}
for n = 1, #page[2], 2 do reply[#reply + 1] = page[2][n] end
return reply
