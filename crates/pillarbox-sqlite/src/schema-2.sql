-- Version 2: a queue counts the messages that were ever stored in it, purged ones included. Messages
-- deleted before version 2 are not counted.
ALTER TABLE pillarbox_queue ADD COLUMN sent INTEGER NOT NULL DEFAULT 0;
UPDATE pillarbox_queue SET sent = total;

DROP VIEW IF EXISTS pillarbox_queues;
CREATE VIEW pillarbox_queues AS
SELECT name AS queue, total - in_flight - delayed AS ready, in_flight, delayed, total, sent
  FROM pillarbox_queue WHERE name IS NOT NULL ORDER BY name;
