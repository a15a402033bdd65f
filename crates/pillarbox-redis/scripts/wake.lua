-- Wakes those who wait: there is something to deliver, or something will be sooner than they know. It is
-- the last thing that a script does, and may fail: a user may lack the channel.
redis.pcall('PUBLISH', sub(pending, 1, -8) .. 'wake', '')
