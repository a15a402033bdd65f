-- Finds up to at_once messages whose time has come, for promote; promoted says how many. Where a key is of
-- another type, wrong is the error, and nothing must be written.
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
