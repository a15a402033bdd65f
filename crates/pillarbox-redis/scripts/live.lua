-- Lets the queue live on, if it is one that does not live for ever. All of its keys: one that is made anew
-- would otherwise outlive the others.
if ARGV[3] ~= '0' then
  for key = 1, 4 do redis_call('PEXPIRE', KEYS[key], ARGV[3]) end
end
