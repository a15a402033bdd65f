-- In front of every script on the keys of a partition. (In a script, a line "-- @name" stands for the text of
-- name.lua, a part: functions would be created in each run, which costs as much as a command. A part lists the
-- locals of the script that it uses, changes and defines.)
--
-- Keys, all with one hash tag: {queue:NAME}, or {queue:NAME#K} for partition K of a queue:
--   1 pending    LIST  ids of ready messages; sent at the left, delivered from the right
--   2 invisible  ZSET  ids of messages in flight or delayed, by the microsecond at which they
--                      become ready; and one member that never does, which keeps a small set from
--                      being stored as a list with linear search
--   3 data       HASH  id -> nanosecond at which it was sent, [space, JSON of reply_to and
--                      attributes], newline, body
--   4 meta       HASH  id -> the 16 secret characters of the receipt while it is in flight, then
--                      the number of its deliveries, and 4294967296 for each that was started and
--                      expired (unsettled); then, if there are any, a colon and the number of those
--                      without an attempt (uncounted): released, or expired before they were started.
--                      Then an s, while it is in flight, once it is started. No field before the first
--                      delivery. It has a secret if it is longer than 16 characters and has no colon
--                      among the first 16.
--                      #enlisted: the layout contains the partition, so it is received from;
--                      #sent: messages ever stored; #delayed: members of invisible without a lease;
--                      #about: a description, long enough to have the hash stored as a hash table from
--                      the first field on
--   5 call       STRING, for some minutes, or until a lease ends: number and answer of the last call of
--                      one caller
--   6 call again, if a call of this caller may still be on its way: this one, or one that failed
-- Arguments: 1 number of the call, 12 digits; 2 milliseconds for which its answer is remembered;
--   3 milliseconds after which an unused queue is deleted, or 0.
--
-- Why a script may run twice: the answer of a call is stored by the call itself, in the same atomic
-- step. A call that arrives again, because its answer was lost or because it was delayed while the caller
-- repeated it, finds its own number or a later one and changes nothing. An answer that changes nothing is
-- stored only if an earlier call of this caller may still be on its way.
--
-- Redis does not roll back, so: what can fail does so before the first write, or is undone; and the
-- first write is one that is never refused for lack of memory, unless the script stores messages.
--
-- Loops and tables are most of what a message costs the server, apart from storing it. So ids come in one
-- block that is passed on as it is, and the common case has a fast path.
local redis_call, unpack, sub, tonumber = redis.call, unpack, string.sub, tonumber
local pending, invisible, data, meta, call = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis_call('TIME')
local now_text = time[1] .. sub('000000', #time[2] + 1) .. time[2]
-- What wake publishes.
local message = ''
-- Maximum number of messages that one script promotes.
local at_once = 200
