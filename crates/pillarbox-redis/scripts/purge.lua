-- Deletes all messages.
--
-- Reads: pending, invisible, meta. Writes: pending, invisible, data, meta, call.
-- Reply: number of messages deleted.
-- Idempotence: see header.lua. Works when the server is out of memory.
local record = redis_call('GET', call)
if record and record >= ARGV[1] then return tonumber(sub(record, 13)) end

local sent = redis_call('HGET', meta, '#sent')
local about = redis_call('HGET', meta, '#about')
local purged = redis_call('LLEN', pending) + redis_call('ZCOUNT', invisible, '-inf', '(+inf')
local never = redis_call('ZRANGEBYSCORE', invisible, '+inf', '+inf')
redis_call('UNLINK', pending, invisible, data, meta)
-- These may fail while the slot moves to another node, since keys that this script has deleted are looked for
-- there. The messages are deleted nevertheless, and their number must be returned.
if sent then redis.pcall('HSET', meta, '#sent', sent) end
if about then redis.pcall('HSET', meta, '#about', about) end
if #never > 0 then redis.pcall('ZADD', invisible, '+inf', never[1]) end
local answer = purged
-- @remember
return purged
