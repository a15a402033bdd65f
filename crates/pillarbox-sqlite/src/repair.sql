-- Rebuilds the other tables from the messages themselves. Each step relies on those before it; no step deletes a
-- message. The keys of a queue start at `queue << 45`, so each step reads the rows of one queue and no others.

-- A message belongs to the queue in its key. A queue without a row gets one.
UPDATE OR IGNORE pillarbox_message SET queue = key >> 45 WHERE queue <> key >> 45;
INSERT INTO pillarbox_queue
    (queue, name, next_place, cursor, next_timer, total, in_flight, delayed, requeued, sent)
    SELECT DISTINCT key >> 45, 'recovered-' || lower(hex(randomblob(4))), 1, 0, 1, 0, 0, 0, 0, 0
    FROM (SELECT DISTINCT key >> 45 << 45 AS key FROM pillarbox_message)
    WHERE key >> 45 NOT IN (SELECT queue FROM pillarbox_queue);

-- Unreadable values are replaced by readable ones, and invalid names of queues by valid ones.
UPDATE pillarbox_message SET id = randomblob(16) WHERE length(id) <> 16;
UPDATE pillarbox_message SET attributes = json_object('unreadable', CAST(attributes AS TEXT))
    WHERE attributes IS NOT NULL AND CASE WHEN json_valid(attributes)
        THEN json_type(attributes) <> 'object' ELSE TRUE END;
UPDATE pillarbox_queue SET name = 'recovered-' || lower(hex(randomblob(4)))
    WHERE name GLOB '*[^A-Za-z0-9_.:/-]*' OR length(name) NOT BETWEEN 1 AND 80;

-- A message is either in flight or delayed, or ready again once in its own queue.
DELETE FROM pillarbox_timer WHERE key NOT IN (SELECT key FROM pillarbox_message);
DELETE FROM pillarbox_requeued
    WHERE message NOT IN (SELECT key FROM pillarbox_message)
    OR message IN (SELECT key FROM pillarbox_timer)
    OR key >> 45 <> message >> 45;
DELETE FROM pillarbox_requeued
    WHERE key NOT IN (SELECT min(key) FROM pillarbox_requeued GROUP BY message);

-- Delivered messages are not past the cursor.
UPDATE pillarbox_queue AS q SET cursor = max(cursor, coalesce((
    SELECT max(m.key & 0xFFFFFFFFFFF) FROM pillarbox_message AS m
        WHERE m.key BETWEEN q.queue << 45 AND (q.queue << 45) + 0xFFFFFFFFFFF
        AND (m.key IN (SELECT key FROM pillarbox_timer)
            OR m.key IN (SELECT message FROM pillarbox_requeued))), 0));

-- New places come after all that are or were used; new timers after all existing ones.
UPDATE pillarbox_queue AS q SET
    next_place = 1 + max(next_place - 1, cursor,
        coalesce((SELECT max(key & 0xFFFFFFFFFFF) FROM pillarbox_message
            WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF), 0),
        coalesce((SELECT max(place) FROM pillarbox_timer
            WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF), 0),
        coalesce((SELECT max(key & 0xFFFFFFFFFFF) FROM pillarbox_requeued
            WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF), 0)),
    next_timer = 1 + max(next_timer - 1,
        coalesce((SELECT max(timer) FROM pillarbox_timer
            WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF), 0));

-- Messages that no receive can find become ready, after all others.
CREATE TEMP TABLE stranded AS
    SELECT m.key AS key, q.queue AS queue, 1 - (m.key >> 44 & 1) AS deliveries,
        row_number() OVER (PARTITION BY q.queue ORDER BY m.key & 0xFFFFFFFFFFF) - 1 AS after
    FROM pillarbox_message AS m
    JOIN pillarbox_queue AS q ON q.queue = m.key >> 45 AND q.name IS NOT NULL
    WHERE (m.key >> 44 & 1 = 1 OR m.key & 0xFFFFFFFFFFF <= q.cursor)
    AND m.key NOT IN (SELECT key FROM pillarbox_timer)
    AND m.key NOT IN (SELECT message FROM pillarbox_requeued);
INSERT INTO pillarbox_requeued (key, message, deliveries)
    SELECT (s.queue << 45) + q.next_place + s.after, s.key, s.deliveries
    FROM stranded AS s JOIN pillarbox_queue AS q USING (queue);
UPDATE pillarbox_queue AS q SET next_place = next_place + s.number
    FROM (SELECT queue, count(*) AS number FROM stranded GROUP BY queue) AS s
    WHERE s.queue = q.queue;
DROP TABLE stranded;

-- Unsettled and uncounted deliveries do not exceed those that have ended.
UPDATE pillarbox_timer
    SET unsettled = max(0, min(unsettled, deliveries - (nonce IS NOT NULL)))
    WHERE unsettled < 0 OR unsettled > deliveries - (nonce IS NOT NULL);
UPDATE pillarbox_timer
    SET uncounted = max(0, min(uncounted, deliveries - (nonce IS NOT NULL) - unsettled))
    WHERE uncounted < 0 OR uncounted > deliveries - (nonce IS NOT NULL) - unsettled;
UPDATE pillarbox_requeued SET unsettled = max(0, min(unsettled, deliveries))
    WHERE unsettled < 0 OR unsettled > deliveries;
UPDATE pillarbox_requeued SET uncounted = max(0, min(uncounted, deliveries - unsettled))
    WHERE uncounted < 0 OR uncounted > deliveries - unsettled;

-- Every timer is in the range of its bucket.
DELETE FROM pillarbox_expiry;
INSERT INTO pillarbox_expiry (queue, bucket, lo, hi)
    SELECT key >> 45, due_at / 100000000, min(key), max(key)
    FROM pillarbox_timer GROUP BY 1, 2;

-- Counts match the rows.
UPDATE pillarbox_queue AS q SET
    total = (SELECT count(*) FROM pillarbox_message
        WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF),
    in_flight = (SELECT count(nonce) FROM pillarbox_timer
        WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF),
    delayed = (SELECT count(*) - count(nonce) FROM pillarbox_timer
        WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF),
    requeued = (SELECT count(*) FROM pillarbox_requeued
        WHERE key BETWEEN q.queue << 45 AND (q.queue << 45) + 0x1FFFFFFFFFFF)
    WHERE name IS NOT NULL;
UPDATE pillarbox_queue SET sent = max(sent, total) WHERE name IS NOT NULL;
