-- Lets the queue live on: for the time that the caller names, or for ever where it names none. All of its keys: one
-- that is made anew would otherwise outlive the others, and the time that another program has named would end
-- a queue that is in use.
if ARGV[3] ~= '0' then
  for key = 1, 4 do redis_call('PEXPIRE', KEYS[key], ARGV[3]) end
elseif redis_call('PERSIST', meta) == 1 then
  for key = 1, 3 do redis_call('PERSIST', KEYS[key]) end
end
