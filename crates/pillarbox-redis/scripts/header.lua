-- In front of every script. (In a script, a line "-- @name" stands for the text of name.lua: functions
-- would be made anew in each run, which costs as much as a command.)
--
-- Keys, all under one hash tag: {queue:NAME}, or {queue:NAME#K} of the partition K of a queue that is
-- spread over several:
--   1 pending    LIST  ids of ready messages; sent at the left, delivered from the right
--   2 invisible  ZSET  ids of messages in flight or delayed, by the microsecond at which they
--                      become ready; and one member that never does, which keeps a small set from
--                      being stored as a list that is searched from end to end
--   3 data       HASH  id -> nanosecond at which it was sent, [space, JSON of reply_to and
--                      attributes], newline, body
--   4 meta       HASH  id -> the 16 secret characters of the receipt while it is in flight, then
--                      the number of its deliveries, and 4294967296 for each that was started and
--                      expired; then, if there are any, a colon and the number of those that were no
--                      attempt: released, or expired before they were started. Then an s, while it is
--                      in flight, once it is started. No field before the first delivery. It has a
--                      secret if it is longer than 16 characters and has no colon among the first 16.
--                      #enlisted: the layout says that the partition is received from;
--                      #sent: messages ever stored; #delayed: members of invisible that nobody
--                      holds; #about: what this is, long enough to have fields found by hash from
--                      the first one on
--   5 call       STRING, for some minutes, or as long as a lease: number and answer of the last call of
--                      one caller
--   6 call once more, if a call of this caller may still be on its way: this one, or one that failed
-- Arguments: 1 number of the call, 12 digits; 2 milliseconds for which its answer is remembered;
--   3 milliseconds after which an unused queue is deleted, or 0.
--
-- Why a script may run twice: the answer of a call is stored by the call itself, in the same atomic
-- step. A call that comes again, because its answer was lost or because it was stuck somewhere while
-- the caller repeated it, finds its own number or a later one and changes nothing. An answer that
-- changes nothing is stored only if an earlier call of this caller may still be on its way.
--
-- Redis does not roll back, so: what can fail does so before the first write, or is undone; and the
-- first write is one that is never refused for lack of memory, unless the script stores messages.
--
-- Loops and tables are most of what a message costs the server, beside the storing itself. So ids come
-- in one block that is handed on as it is, and what is usual has a short way.
local redis_call, unpack, sub, tonumber = redis.call, unpack, string.sub, tonumber
local pending, invisible, data, meta, call = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local time = redis_call('TIME')
local now_text = time[1] .. sub('000000', #time[2] + 1) .. time[2]
-- What wake says.
local message = ''
-- The most messages that one script promotes.
local at_once = 200
