-- Part: finds up to at_once messages that are due, for promote.
-- Uses locals: redis_call, unpack, invisible, pending, meta, now_text, at_once.
-- Defines locals: due, the ids; due_known, their fields in meta; promoted, their number; wrong, the error if a
--   key has another type (then nothing may be written), or false.
-- Reads: invisible, pending, meta. Writes: nothing.
local due, due_known
local promoted = redis.pcall('ZCOUNT', invisible, '-inf', now_text)
local wrong = type(promoted) == 'table' and promoted
if not wrong and promoted > 0 then
  local length = redis.pcall('LLEN', pending)
  due = redis_call('ZRANGEBYSCORE', invisible, '-inf', now_text, 'LIMIT', 0, at_once)
  due_known = redis.pcall('HMGET', meta, unpack(due))
  promoted = #due
  wrong = type(length) == 'table' and length or due_known.err and due_known
end
