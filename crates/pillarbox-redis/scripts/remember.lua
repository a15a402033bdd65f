-- Stores what this call answers, and lets the queue live on.
redis_call('SET', call, ARGV[1] .. answer, 'PX', ARGV[2])
if ARGV[3] ~= '0' then
  for key = 1, 4 do redis_call('PEXPIRE', KEYS[key], ARGV[3]) end
end
