-- Wakes those who wait: there is something to deliver, or something will be sooner than they know; or,
-- if message says 'p', the queue is spread otherwise. It is the last thing that a script does, and may
-- fail: a user may lack the channel, and a server before 7 has none that belong to one shard.
local channel = string.match(KEYS[1], '^.*:') .. 'wake'
if type(redis.pcall('SPUBLISH', channel, message)) == 'table' then
  redis.pcall('PUBLISH', channel, message)
end
