//! Verifying a file from end to end.

use std::path::Path;

use pillarbox_core::Result;
use rusqlite::{Connection, OpenFlags};

use crate::failure::Failure;
use crate::file::BUSY_TIMEOUT;

/// What must not be found, and the question that finds it.
const PROBLEMS: &[(&str, &str)] = &[
    (
        "queues whose counts are not those of their messages",
        "SELECT count(*) FROM pillarbox_queue AS q WHERE name IS NOT NULL AND (
            total <> (SELECT count(*) FROM pillarbox_message WHERE queue = q.queue)
            OR in_flight <> (SELECT count(*) FROM pillarbox_timer
                WHERE key >> 45 = q.queue AND nonce IS NOT NULL)
            OR delayed <> (SELECT count(*) FROM pillarbox_timer
                WHERE key >> 45 = q.queue AND nonce IS NULL)
            OR requeued <> (SELECT count(*) FROM pillarbox_requeued WHERE key >> 45 = q.queue))",
    ),
    (
        "messages of no queue",
        "SELECT count(*) FROM pillarbox_message AS m
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_queue WHERE queue = m.queue)
            OR m.queue <> m.key >> 45",
    ),
    (
        "timers without a message",
        "SELECT count(*) FROM pillarbox_timer AS t
            JOIN pillarbox_queue AS q ON q.queue = t.key >> 45 AND q.name IS NOT NULL
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_message WHERE key = t.key)",
    ),
    (
        "messages in line twice, or in line without being there",
        "SELECT count(*) FROM (SELECT r.message AS message, count(*) AS times
            FROM pillarbox_requeued AS r
            JOIN pillarbox_queue AS q ON q.queue = r.key >> 45 AND q.name IS NOT NULL
            GROUP BY r.message) AS line
            WHERE times > 1
            OR NOT EXISTS (SELECT 1 FROM pillarbox_message WHERE key = line.message)
            OR EXISTS (SELECT 1 FROM pillarbox_timer WHERE key = line.message)",
    ),
    (
        "messages that no receive will ever find",
        "SELECT count(*) FROM pillarbox_message AS m
            JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
            WHERE (m.key >> 44 & 1 = 1 OR m.key & 0xFFFFFFFFFFF <= q.cursor)
            AND NOT EXISTS (SELECT 1 FROM pillarbox_timer WHERE key = m.key)
            AND NOT EXISTS (SELECT 1 FROM pillarbox_requeued WHERE message = m.key)",
    ),
    (
        "messages that were delivered or delayed and are past the cursor",
        "SELECT count(*) FROM pillarbox_message AS m
            JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
            WHERE m.key >> 44 & 1 = 0 AND m.key & 0xFFFFFFFFFFF > q.cursor
            AND (EXISTS (SELECT 1 FROM pillarbox_timer WHERE key = m.key)
                OR EXISTS (SELECT 1 FROM pillarbox_requeued WHERE message = m.key))",
    ),
    (
        "timers that no sweep will ever find",
        "SELECT count(*) FROM pillarbox_timer AS t
            JOIN pillarbox_queue AS q ON q.queue = t.key >> 45 AND q.name IS NOT NULL
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_expiry AS e WHERE e.queue = q.queue
                AND e.bucket = t.due_at / 100000000 AND t.key BETWEEN e.lo AND e.hi)",
    ),
];

/// Looks for everything that must not be in a file, and says what was found: SQLite's own
/// integrity check, and whether the tables of the queues agree with each other.
///
/// Reads the whole file, and may be used while others use it. No problem means an empty list.
pub fn verify(path: impl AsRef<Path>) -> Result<Vec<String>> {
    look(path.as_ref()).map_err(|failure| failure.during("verify", None))
}

fn look(path: &Path) -> Result<Vec<String>, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // All questions are about the same moment.
    let snapshot = connection.transaction()?;
    let mut problems = Vec::new();
    let mut check = snapshot.prepare("PRAGMA integrity_check")?;
    for line in check.query_map([], |row| row.get::<_, String>(0))? {
        problems.extend(Some(line?).filter(|line| line != "ok"));
    }
    for (problem, question) in PROBLEMS {
        let found: u64 = snapshot.query_row(question, [], |row| row.get(0))?;
        if found > 0 {
            problems.push(format!("{found} {problem}"));
        }
    }
    Ok(problems)
}
