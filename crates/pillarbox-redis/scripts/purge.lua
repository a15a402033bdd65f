-- Deletes all messages.
--
-- Reads: pending, invisible, meta. Writes: pending, invisible, data, meta, call.
-- Reply: how many there were.
-- Twice: see common.lua. Works when the server is out of memory.
local again = answered()
if again then return tonumber(again) end

local sent = redis.call('HGET', meta, '#sent')
local about = redis.call('HGET', meta, '#about')
local purged = redis.call('LLEN', pending) + redis.call('ZCOUNT', invisible, '-inf', '(+inf')
local never = redis.call('ZRANGEBYSCORE', invisible, '+inf', '+inf')
redis.call('UNLINK', pending, invisible, data, meta)
if sent then redis.call('HSET', meta, '#sent', sent) end
if about then redis.call('HSET', meta, '#about', about) end
if #never > 0 then redis.call('ZADD', invisible, '+inf', never[1]) end
remember(purged)
return purged
