-- When the layout is changed: two changes are never at the same time.
local time = redis.call('TIME')
version = time[1] .. string.sub('000000', #time[2] + 1) .. time[2]
