-- Part: sets the time of a change of the layout, later than the last one: two changes never have the same time,
-- and none looks older than the last after a clock was set back.
-- Changes the local version. Defines the locals time, now_text.
local time = redis.call('TIME')
local now_text = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
version = string.format('%.0f', math.max(tonumber(now_text), tonumber(version) + 1))
