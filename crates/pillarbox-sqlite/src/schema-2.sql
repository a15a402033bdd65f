-- Version 2: a queue knows how many messages were ever stored in it, purged ones included. Of those
-- that left it before version 2, nothing is known.
ALTER TABLE pillarbox_queue ADD COLUMN sent INTEGER NOT NULL DEFAULT 0;
UPDATE pillarbox_queue SET sent = total;

DROP VIEW IF EXISTS pillarbox_queues;
CREATE VIEW pillarbox_queues AS
SELECT name AS queue, total - in_flight - delayed AS ready, in_flight, delayed, total, sent
  FROM pillarbox_queue WHERE name IS NOT NULL ORDER BY name;
