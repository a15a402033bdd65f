-- One row: the version of this schema in the file.
CREATE TABLE pillarbox_schema (
    version     INTEGER NOT NULL
) STRICT;

-- A queue, with the counters that need no look at its messages.
-- A purged queue has no name; its rows are deleted a few at a time.
CREATE TABLE pillarbox_queue (
    queue       INTEGER PRIMARY KEY,    -- its number, 1 to 262,143
    name        TEXT UNIQUE,
    next_place  INTEGER NOT NULL,       -- next free place
    cursor      INTEGER NOT NULL,       -- places up to this one were delivered at least once
    next_timer  INTEGER NOT NULL,       -- orders timers that end at the same moment
    total       INTEGER NOT NULL,       -- messages in all states
    in_flight   INTEGER NOT NULL,
    delayed     INTEGER NOT NULL,
    requeued    INTEGER NOT NULL        -- ready messages in pillarbox_requeued
) STRICT;

-- A message: written once, never updated.
CREATE TABLE pillarbox_message (
    key         INTEGER PRIMARY KEY,    -- queue << 45 | sent with a delay << 44 | place
    queue       INTEGER NOT NULL,
    id          BLOB NOT NULL,          -- the UUID
    enqueued_at INTEGER NOT NULL,       -- nanoseconds since 1970, as all times here
    reply_to    TEXT,
    attributes  TEXT,                   -- a JSON object
    body        BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX pillarbox_message_id ON pillarbox_message (id, queue);

-- A message that becomes ready by time alone: in flight, or delayed.
CREATE TABLE pillarbox_timer (
    key         INTEGER PRIMARY KEY,    -- of the message
    due_at      INTEGER NOT NULL,       -- the deadline of the lease, or the end of the delay
    timer       INTEGER NOT NULL,       -- order among timers of the same moment
    deliveries  INTEGER NOT NULL,
    place       INTEGER NOT NULL,       -- place from which it was delivered
    nonce       BLOB                    -- of the receipt. NULL: delayed, not leased
) STRICT;

-- Timers that end within a tenth of a second have keys from lo to hi. Replaces an index on due_at,
-- which would cost every delivery two more writes.
CREATE TABLE pillarbox_expiry (
    queue       INTEGER NOT NULL,
    bucket      INTEGER NOT NULL,       -- tenths of a second since 1970
    lo          INTEGER NOT NULL,
    hi          INTEGER NOT NULL,
    PRIMARY KEY (queue, bucket, lo)
) STRICT, WITHOUT ROWID;

-- A message that is ready again: nacked, expired or due. The other ready messages are those past the
-- cursor of their queue; both are merged by place.
CREATE TABLE pillarbox_requeued (
    key         INTEGER PRIMARY KEY,    -- queue << 45 | place
    message     INTEGER NOT NULL,       -- key of the message
    deliveries  INTEGER NOT NULL
) STRICT;

-- For people: each message with its state. `sqlite3 file.db 'SELECT * FROM pillarbox'`
CREATE VIEW pillarbox AS
WITH clock(now) AS (SELECT CAST((julianday('now') - 2440587.5) * 86400 * 1e9 AS INTEGER))
SELECT queue.name AS queue,
       lower(substr(hex(m.id), 1, 8) || '-' || substr(hex(m.id), 9, 4) || '-'
          || substr(hex(m.id), 13, 4) || '-' || substr(hex(m.id), 17, 4) || '-'
          || substr(hex(m.id), 21)) AS id,
       CASE WHEN t.key IS NULL OR t.due_at <= clock.now THEN 'ready'
            WHEN t.nonce IS NULL THEN 'delayed'
            ELSE 'in flight' END AS state,
       coalesce(t.deliveries, r.deliveries, 0) AS delivery_count,
       strftime('%Y-%m-%dT%H:%M:%fZ', m.enqueued_at / 1e9, 'unixepoch') AS enqueued_at,
       CASE WHEN t.due_at > clock.now
            THEN strftime('%Y-%m-%dT%H:%M:%fZ', t.due_at / 1e9, 'unixepoch') END AS until,
       m.reply_to AS reply_to,
       m.attributes AS attributes,
       length(m.body) AS bytes,
       CAST(m.body AS TEXT) AS body
  FROM clock, pillarbox_message AS m
  JOIN pillarbox_queue AS queue ON queue.queue = m.queue AND queue.name IS NOT NULL
  LEFT JOIN pillarbox_timer AS t ON t.key = m.key
  LEFT JOIN pillarbox_requeued AS r ON r.message = m.key;

-- For people: each queue with its counts as of its last use.
CREATE VIEW pillarbox_queues AS
SELECT name AS queue, total - in_flight - delayed AS ready, in_flight, delayed, total
  FROM pillarbox_queue WHERE name IS NOT NULL ORDER BY name;

INSERT INTO pillarbox_schema VALUES (1);
