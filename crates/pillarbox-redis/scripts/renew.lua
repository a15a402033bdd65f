-- Stores what this call answers when nothing else was changed. Deleted first: that is never refused for
-- lack of memory, and lets what follows pass.
redis_call('DEL', call)
-- @remember
