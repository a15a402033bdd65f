-- Deletes all messages.
--
-- Reads: pending, invisible, meta. Writes: pending, invisible, data, meta, call.
-- Reply: how many there were.
-- Twice: see header.lua. Works when the server is out of memory.
local record = redis_call('GET', call)
if record and record >= ARGV[1] then return tonumber(sub(record, 13)) end

local sent = redis_call('HGET', meta, '#sent')
local about = redis_call('HGET', meta, '#about')
local purged = redis_call('LLEN', pending) + redis_call('ZCOUNT', invisible, '-inf', '(+inf')
local never = redis_call('ZRANGEBYSCORE', invisible, '+inf', '+inf')
redis_call('UNLINK', pending, invisible, data, meta)
if sent then redis_call('HSET', meta, '#sent', sent) end
if about then redis_call('HSET', meta, '#about', about) end
if #never > 0 then redis_call('ZADD', invisible, '+inf', never[1]) end
local answer = purged
-- @remember
return purged
