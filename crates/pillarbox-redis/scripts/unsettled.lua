-- Makes of the number of a message's deliveries, as text, that of one whose last delivery nobody has settled.
-- Reads and writes: deliveries.
deliveries = tonumber(deliveries) or 0
-- From 2^53 on, numbers are not exact.
if deliveries < 9007194959773696 then deliveries = deliveries + 4294967296 end
deliveries = string.format('%.0f', deliveries)
