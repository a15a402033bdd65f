-- Finds when the next message becomes ready by time alone.
-- Reads: invisible. Writes: nothing.
local first = tonumber(redis_call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2] or math.huge)
wait = first == math.huge and -1 or math.ceil(first - now_text)
