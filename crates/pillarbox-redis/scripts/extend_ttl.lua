-- Part: sets the time to live of the queue to what the caller has passed, or removes it if that is 0. For all
-- of its keys: one that is created again would otherwise outlive the others, and the time to live that another
-- program has set would end a queue in use.
-- Uses locals: redis_call, meta.
-- Writes: pending, invisible, data, meta.
if ARGV[3] ~= '0' then
  for key = 1, 4 do redis_call('PEXPIRE', KEYS[key], ARGV[3]) end
elseif redis_call('PERSIST', meta) == 1 then
  for key = 1, 3 do redis_call('PERSIST', KEYS[key]) end
end
