-- Part: finds when the next message becomes ready by time alone.
-- Uses locals: redis_call, tonumber, invisible, now_text. Sets the local wait, in microseconds; -1 for never.
--   Defines the local first.
-- Reads: invisible. Writes: nothing.
local first = tonumber(redis_call('ZRANGE', invisible, 0, 0, 'WITHSCORES')[2] or math.huge)
wait = first == math.huge and -1 or math.ceil(first - now_text)
