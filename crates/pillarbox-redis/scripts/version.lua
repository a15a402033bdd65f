-- When the layout is changed, later than it was changed before: two changes are never at the same time, and a
-- clock that was set back makes none look older than the last.
-- Reads and writes: version.
local time = redis.call('TIME')
local now_text = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
version = string.format('%.0f', math.max(tonumber(now_text), tonumber(version) + 1))
