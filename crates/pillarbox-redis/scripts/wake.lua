-- Wakes those who wait: there is something to deliver, or something will be sooner than they know; or,
-- if message says 'p', the queue is spread otherwise. It is the last thing that a script does, and may
-- fail: a user may lack the channel, and a server before 7 has none that belong to one shard. published is
-- the error if nobody was woken for that reason.
local channel = string.match(KEYS[1], '^.*:') .. 'wake'
local published = redis.pcall('SPUBLISH', channel, message)
if type(published) == 'table' then
  published = redis.pcall('PUBLISH', channel, message)
end
