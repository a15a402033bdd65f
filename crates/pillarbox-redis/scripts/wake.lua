-- Wakes those who wait: there is something to deliver, or something will be sooner than they know.
redis_call('PUBLISH', sub(pending, 1, -8) .. 'wake', '')
