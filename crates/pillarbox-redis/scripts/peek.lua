-- Shows messages: the ready ones in order of delivery, then the others by the time at which they become ready.
--
-- Arguments after the common ones: 4 maximum number of messages; 5 'r' or 'i', the part in which the last page
--   ended; 6 number of messages of that part that were shown, or the score of the last one; 7 its id, or
--   nothing.
-- Reads and writes: as due and promote; reads data.
-- Reply: 'm' alone if more messages may be due (ask again while it is). Otherwise 'r' or 'i' for the part in
--   which this page ended, and the number of ready messages shown in all pages; then for each message its id,
--   its score ('' if it is ready), its meta and its data.
-- Idempotence: changes nothing that time has not changed already.
-- @due
if wrong then return wrong end
-- @promote
if promoted == at_once then return {'m'} end
local wanted, part, last = tonumber(ARGV[4]), ARGV[5], ARGV[7]
local ids, scores = {}, {}
local skip = 0
if part == 'r' then
  skip = tonumber(ARGV[6])
  if last ~= '' then
    -- The list changes between pages: continue after the current position of the last message shown.
    local place = redis_call('LPOS', pending, last, 'RANK', -1, 'MAXLEN', 10000)
    if place then skip = redis_call('LLEN', pending) - place end
  end
  local ready = redis_call('LRANGE', pending, -skip - wanted, -skip - 1)
  for n = #ready, 1, -1 do
    ids[#ids + 1] = ready[n]
    scores[#scores + 1] = ''
  end
  skip = skip + #ids
end
if #ids < wanted then
  local from, offset = '-inf', 0
  if part == 'i' then
    from = '(' .. ARGV[6]
    local rank = redis_call('ZRANK', invisible, last)
    if rank then from, offset = '-inf', rank + 1 end
  end
  local timed = redis_call('ZRANGEBYSCORE', invisible, from, '(+inf', 'WITHSCORES', 'LIMIT', offset,
    wanted - #ids)
  for n = 1, #timed, 2 do
    ids[#ids + 1] = timed[n]
    scores[#scores + 1] = timed[n + 1]
    part = 'i'
  end
end
local reply = {part, skip}
if #ids > 0 then
  local bodies = redis_call('HMGET', data, unpack(ids))
  local known = redis_call('HMGET', meta, unpack(ids))
  for n, id in ipairs(ids) do
    reply[#reply + 1] = id
    reply[#reply + 1] = scores[n]
    reply[#reply + 1] = known[n] or ''
    reply[#reply + 1] = bodies[n]
  end
end
return reply
