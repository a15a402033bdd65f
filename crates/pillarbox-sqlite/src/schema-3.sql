-- Version 3: a message counts its unsettled deliveries: their lease expired. Deliveries
-- before version 3 are not counted.
ALTER TABLE pillarbox_timer ADD COLUMN unsettled INTEGER NOT NULL DEFAULT 0;
ALTER TABLE pillarbox_requeued ADD COLUMN unsettled INTEGER NOT NULL DEFAULT 0;

DROP VIEW IF EXISTS pillarbox;
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
       coalesce(t.unsettled + (t.nonce IS NOT NULL AND t.due_at <= clock.now),
          r.unsettled, 0) AS unsettled,
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
