-- Part: publishes a wake-up: there is a message to deliver, or one will be ready sooner than waiters know; or, if
-- message is 'p', the layout has changed. It is the last thing that a script does, and may fail: the user may
-- lack the channel, and a server before 7 has no sharded channels.
-- Uses locals: message. Defines locals: channel; published, an error table if no waiter was woken.
local channel = string.match(KEYS[1], '^.*:') .. 'wake'
local published = redis.pcall('SPUBLISH', channel, message)
if type(published) == 'table' then
  published = redis.pcall('PUBLISH', channel, message)
end
