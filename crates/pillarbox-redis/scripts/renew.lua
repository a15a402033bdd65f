-- Part: stores the answer of this call if nothing else was changed. The record is deleted first: that is never
-- refused for lack of memory, and allows the writes that follow.
-- Uses locals: those of remember.
-- Writes: as remember.
redis_call('DEL', call)
-- @remember
