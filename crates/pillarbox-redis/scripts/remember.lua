-- Stores what this call answers.
redis_call('SET', call, ARGV[1] .. answer, 'PX', ARGV[2])
-- @live
