-- In front of every script that changes a queue.
--
-- Keys, all under the hash tag {queue:NAME}:
--   1 pending    LIST  ids of ready messages; sent at the left, delivered from the right
--   2 invisible  ZSET  ids of messages in flight or delayed, by the microsecond at which they
--                      become ready; and one member that never does, which keeps a small set from
--                      being stored as a list that is searched from end to end
--   3 data       HASH  id -> nanosecond at which it was sent, [space, JSON of reply_to and
--                      attributes], newline, body
--   4 meta       HASH  id -> the 16 secret characters of the receipt while it is in flight, then
--                      how often it was delivered; no field before the first delivery.
--                      #sent: messages ever stored; #delayed: members of invisible that nobody
--                      holds; #about: what this is, as long as is needed to have fields found by
--                      hash from the first one on
--   5 call       STRING, for some minutes: number and answer of the last call of one caller
-- Arguments: 1 number of the call, 12 digits; 2 milliseconds for which its answer is remembered;
--   3 milliseconds after which an unused queue is deleted, or 0.
--
-- Why a script may run twice: the answer of a call is stored by the call itself, in the same atomic
-- step. A call that comes again, because its answer was lost or because it was stuck somewhere while
-- the caller repeated it, finds its own number or a later one and changes nothing.
--
-- Redis does not roll back, so: whatever can fail is read before the first write, and the first
-- write is one that is never refused for lack of memory, unless the script stores messages.
local pending, invisible, data, meta, call = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

-- Answers of an earlier run of this call, or nil.
local function answered()
  local record = redis.call('GET', call)
  if record and string.sub(record, 1, 12) >= ARGV[1] then
    return string.sub(record, 14)
  end
end

local function remember(answer)
  redis.call('SET', call, ARGV[1] .. ' ' .. answer, 'PX', ARGV[2])
  if ARGV[3] ~= '0' then
    for key = 1, 4 do redis.call('PEXPIRE', KEYS[key], ARGV[3]) end
  end
end

-- Wakes those who wait: there is something to deliver, or something will be sooner than they know.
local function wake()
  redis.call('PUBLISH', string.sub(pending, 1, -8) .. 'wake', '')
end

-- Moves up to 200 messages whose time has come to the tail of pending. Says how many.
-- Reads: invisible, pending, meta. Writes: invisible, pending, meta.
local function promote()
  local due = redis.call('ZRANGEBYSCORE', invisible, '-inf', now, 'LIMIT', 0, 200)
  if #due == 0 then return 0 end
  redis.call('LLEN', pending)
  local known = redis.call('HMGET', meta, unpack(due))
  local ended, delayed = {}, 0
  for n, id in ipairs(due) do
    if known[n] and #known[n] > 16 then
      ended[#ended + 1] = id
      ended[#ended + 1] = string.sub(known[n], 17)
    else
      delayed = delayed + 1
    end
  end
  redis.call('ZREM', invisible, unpack(due))
  redis.call('LPUSH', pending, unpack(due))
  if #ended > 0 then redis.call('HSET', meta, unpack(ended)) end
  if delayed > 0 then redis.call('HINCRBY', meta, '#delayed', -delayed) end
  return #due
end

