-- Shows messages: the ready ones in order of delivery, then the others by the time at which they become ready.
--
-- Arguments after the common ones: 4 maximum number of messages; 5 'r' or 'i', the part in which the last page
--   ended; 6 number of messages of that part that were shown, or the score of the last one; 7 its id, or
--   nothing.
-- Reads and writes: as due and promote; reads data.
-- Reply: 'm' alone if more messages may be due (ask again while it is). Otherwise 'r' or 'i' for the part in
--   which this page ended; the number of ready messages shown in all pages; 1 if there may be more messages, or
--   0; then for each message its id, its score ('' if it is ready), its meta and its data. The data are at most
--   most_bytes, unless the first message has more: then it is the only one.
-- Idempotence: changes nothing that time has not changed already.
-- @due
if wrong then return wrong end
-- @promote
if promoted == at_once then return {'m'} end
local wanted, part, last = tonumber(ARGV[4]), ARGV[5], ARGV[7]
-- Maximum number of bytes that one call shows, as receive delivers.
local most_bytes = 1048576
local ids, scores = {}, {}
local skip, ready = 0, 0
if part == 'r' then
  skip = tonumber(ARGV[6])
  if last ~= '' then
    -- The list changes between pages: continue after the current position of the last message shown.
    local place = redis_call('LPOS', pending, last, 'RANK', -1, 'MAXLEN', 10000)
    if place then skip = redis_call('LLEN', pending) - place end
  end
  local listed = redis_call('LRANGE', pending, -skip - wanted, -skip - 1)
  ready = #listed
  for n = ready, 1, -1 do
    ids[#ids + 1] = listed[n]
    scores[#scores + 1] = ''
  end
end
if ready < wanted then
  local from, offset = '-inf', 0
  if part == 'i' then
    from = '(' .. ARGV[6]
    local rank = redis_call('ZRANK', invisible, last)
    if rank then from, offset = '-inf', rank + 1 end
  end
  local timed = redis_call('ZRANGEBYSCORE', invisible, from, '(+inf', 'WITHSCORES', 'LIMIT', offset,
    wanted - ready)
  for n = 1, #timed, 2 do
    ids[#ids + 1] = timed[n]
    scores[#scores + 1] = timed[n + 1]
  end
end
local fits, bytes = 0, 0
for n = 1, #ids do
  bytes = bytes + redis_call('HSTRLEN', data, ids[n])
  if bytes > most_bytes and n > 1 then break end
  fits = n
end
local more = (fits < #ids or fits == wanted) and 1 or 0
local reply = {fits > ready and 'i' or part, skip + math.min(fits, ready), more}
if fits > 0 then
  local bodies = redis_call('HMGET', data, unpack(ids, 1, fits))
  local known = redis_call('HMGET', meta, unpack(ids, 1, fits))
  for n = 1, fits do
    reply[#reply + 1] = ids[n]
    reply[#reply + 1] = scores[n]
    reply[#reply + 1] = known[n] or ''
    reply[#reply + 1] = bodies[n]
  end
end
return reply
