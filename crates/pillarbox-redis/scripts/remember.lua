-- Part: stores the answer of this call.
-- Uses locals: redis_call, call, answer; those of extend_ttl.
-- Writes: call; as extend_ttl.
redis_call('SET', call, ARGV[1] .. answer, 'PX', ARGV[2])
-- @extend_ttl
