//! Verifies a database completely.

use std::path::Path;

use pillarbox_core::Result;
use rusqlite::Connection;

use crate::connection::open_to_read;
use crate::failure::{Failure, is_damage};
use crate::schema::{self, Content};

/// Problems: the version of the schema from which on each applies, its text, and the query that counts it.
const PROBLEMS: &[(i64, &str, &str)] = &[
    (
        1,
        "queues whose counts do not match their messages",
        "WITH
            message(queue, messages) AS (
                SELECT key >> 45, count(*) FROM pillarbox_message GROUP BY key >> 45),
            timer(queue, in_flight, delayed) AS (
                SELECT key >> 45, count(nonce), count(*) - count(nonce)
                FROM pillarbox_timer GROUP BY key >> 45),
            requeued(queue, messages) AS (
                SELECT key >> 45, count(*) FROM pillarbox_requeued GROUP BY key >> 45)
        SELECT count(*) FROM pillarbox_queue AS q
            LEFT JOIN message USING (queue)
            LEFT JOIN timer USING (queue)
            LEFT JOIN requeued USING (queue)
            WHERE name IS NOT NULL AND (
                total <> coalesce(message.messages, 0)
                OR q.in_flight <> coalesce(timer.in_flight, 0)
                OR q.delayed <> coalesce(timer.delayed, 0)
                OR q.requeued <> coalesce(requeued.messages, 0))",
    ),
    (
        2,
        "queues that hold more messages than were sent",
        "SELECT count(*) FROM pillarbox_queue WHERE name IS NOT NULL AND sent < total",
    ),
    (
        1,
        "messages without a queue",
        "SELECT count(*) FROM pillarbox_message AS m
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_queue WHERE queue = m.queue)
            OR m.queue <> m.key >> 45",
    ),
    (
        1,
        "messages whose id or attributes cannot be read",
        "SELECT count(*) FROM pillarbox_message AS m
            JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
            WHERE length(m.id) <> 16 OR m.attributes IS NOT NULL
            AND CASE WHEN json_valid(m.attributes) THEN json_type(m.attributes) <> 'object'
                ELSE TRUE END",
    ),
    (
        1,
        "queues with an invalid name",
        "SELECT count(*) FROM pillarbox_queue
            WHERE name GLOB '*[^A-Za-z0-9_.:/-]*' OR length(name) NOT BETWEEN 1 AND 80",
    ),
    (
        1,
        "timers without a message",
        "SELECT count(*) FROM pillarbox_timer AS t
            JOIN pillarbox_queue AS q ON q.queue = t.key >> 45 AND q.name IS NOT NULL
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_message WHERE key = t.key)",
    ),
    (
        1,
        "messages that are ready twice, or ready entries without a message",
        "SELECT count(*) FROM (SELECT r.message AS message, count(*) AS times
            FROM pillarbox_requeued AS r
            JOIN pillarbox_queue AS q ON q.queue = r.key >> 45 AND q.name IS NOT NULL
            GROUP BY r.message) AS line
            WHERE times > 1
            OR NOT EXISTS (SELECT 1 FROM pillarbox_message WHERE key = line.message)
            OR EXISTS (SELECT 1 FROM pillarbox_timer WHERE key = line.message)",
    ),
    (
        1,
        "messages that are ready in another queue",
        "SELECT count(*) FROM pillarbox_requeued AS r
            JOIN pillarbox_queue AS q ON q.queue = r.key >> 45 AND q.name IS NOT NULL
            WHERE r.key >> 45 <> r.message >> 45",
    ),
    (
        1,
        "messages that no receive can find",
        "SELECT count(*) FROM pillarbox_message AS m
            JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
            WHERE (m.key >> 44 & 1 = 1 OR m.key & 0xFFFFFFFFFFF <= q.cursor)
            AND m.key NOT IN (SELECT key FROM pillarbox_timer)
            AND m.key NOT IN (SELECT message FROM pillarbox_requeued)",
    ),
    (
        1,
        "delivered or delayed messages past the cursor",
        "SELECT count(*) FROM pillarbox_message AS m
            JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
            WHERE m.key >> 44 & 1 = 0 AND m.key & 0xFFFFFFFFFFF > q.cursor
            AND (m.key IN (SELECT key FROM pillarbox_timer)
                OR m.key IN (SELECT message FROM pillarbox_requeued))",
    ),
    (
        3,
        "messages with more unsettled than ended deliveries",
        "SELECT (SELECT count(*) FROM pillarbox_timer
                WHERE unsettled < 0 OR unsettled > deliveries - (nonce IS NOT NULL))
            + (SELECT count(*) FROM pillarbox_requeued
                WHERE unsettled < 0 OR unsettled > deliveries)",
    ),
    (
        4,
        "messages with more uncounted than ended deliveries",
        "SELECT (SELECT count(*) FROM pillarbox_timer
                WHERE uncounted < 0 OR uncounted > deliveries - (nonce IS NOT NULL) - unsettled)
            + (SELECT count(*) FROM pillarbox_requeued
                WHERE uncounted < 0 OR uncounted > deliveries - unsettled)",
    ),
    (
        1,
        "queues whose next place is taken",
        "WITH used(queue, place) AS (
                SELECT key >> 45, key & 0xFFFFFFFFFFF FROM pillarbox_message
                UNION ALL SELECT key >> 45, key & 0xFFFFFFFFFFF FROM pillarbox_requeued),
            last(queue, place) AS (SELECT queue, max(place) FROM used GROUP BY queue)
        SELECT count(*) FROM pillarbox_queue AS q LEFT JOIN last USING (queue)
            WHERE q.name IS NOT NULL
            AND (coalesce(last.place, 0) >= q.next_place OR q.cursor >= q.next_place)",
    ),
    (
        1,
        "timers that no sweep can find",
        "SELECT count(*) FROM pillarbox_timer AS t
            JOIN pillarbox_queue AS q ON q.queue = t.key >> 45 AND q.name IS NOT NULL
            WHERE NOT EXISTS (SELECT 1 FROM pillarbox_expiry AS e WHERE e.queue = q.queue
                AND e.bucket = t.due_at / 100000000 AND t.key BETWEEN e.lo AND e.hi)",
    ),
];

/// Verifies a database and returns the problems: those of SQLite's own integrity check, and inconsistencies between
/// the tables of the queues.
///
/// Reads the whole file. Other processes may use it meanwhile, while the write-ahead log grows.
pub fn verify(path: impl AsRef<Path>) -> Result<Vec<String>> {
    let problems =
        find_problems(path.as_ref()).map_err(|failure| failure.during("verify", None))?;
    Ok(problems.into_iter().map(|problem| problem.text).collect())
}

/// A problem of a database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    pub(crate) kind: ProblemKind,
    pub(crate) text: String,
}

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    /// SQLite's own integrity check has failed.
    Pages,
    /// A table, an index or a view is missing.
    Missing,
    /// Our tables are inconsistent, as the query with this index has found.
    Tables(usize),
}

/// Finds the problems of a database. If pages are damaged or something is missing, the tables are not queried: their
/// results could not be trusted.
pub(crate) fn find_problems(path: &Path) -> Result<Vec<Problem>, Failure> {
    let mut connection = open_to_read(path)?;
    // One snapshot for all queries.
    let snapshot = connection.transaction()?;
    let damage = match check_pages(&snapshot) {
        Err(error) if is_damage(&error) => vec![error.to_string()],
        checked => checked?,
    };
    if !damage.is_empty() {
        return Ok(damage
            .into_iter()
            .map(|text| Problem { kind: ProblemKind::Pages, text })
            .collect());
    }
    let version = match schema::content(&snapshot)? {
        Content::Ours(version @ 1..) => version,
        // The queries fail if something is missing.
        _ => schema::VERSION,
    };
    if version == schema::VERSION {
        let missing = schema::missing(&snapshot)?;
        if !missing.is_empty() {
            let text = |name: String| format!("{name} is missing");
            let missing = missing.into_iter().map(|(name, _)| text(name));
            return Ok(missing.map(|text| Problem { kind: ProblemKind::Missing, text }).collect());
        }
    }
    let mut problems = Vec::new();
    for (index, (since, problem, query)) in PROBLEMS.iter().enumerate() {
        if *since > version {
            continue;
        }
        let found: u64 = snapshot.query_row(query, [], |row| row.get(0))?;
        if found > 0 {
            let text = format!("{problem}: {found}");
            problems.push(Problem { kind: ProblemKind::Tables(index), text });
        }
    }
    Ok(problems)
}

fn check_pages(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut check = connection.prepare("PRAGMA integrity_check")?;
    let lines = check.query_map([], |row| row.get::<_, String>(0))?;
    lines.filter(|line| line.as_ref().map_or(true, |line| line != "ok")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Verifies a database with a message in every state, damaged by one statement.
    fn damaged(damage: &str) -> Vec<String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("verify.db");
        let mut file = Connection::open(&path).unwrap();
        crate::schema::migrate(&mut file).unwrap();
        let rows = "
            INSERT INTO pillarbox_queue VALUES (1, 'q', 9, 3, 3, 4, 1, 1, 1, 6);
            INSERT INTO pillarbox_message VALUES
                (1 << 45 | 2, 1, x'00000000000000000000000000000001', 0, NULL, NULL, x''),
                (1 << 45 | 3, 1, x'00000000000000000000000000000002', 0, NULL, NULL, x''),
                (1 << 45 | 4, 1, x'00000000000000000000000000000003', 0, NULL, NULL, x''),
                ((1 << 45) + (1 << 44) + 5, 1, x'00000000000000000000000000000004', 0, NULL, NULL, x'');
            INSERT INTO pillarbox_timer VALUES
                (1 << 45 | 2, 70000000000, 1, 2, 2, x'00', 1, 0, 1),
                ((1 << 45) + (1 << 44) + 5, 80000000000, 2, 0, 5, NULL, 0, 0, 0);
            INSERT INTO pillarbox_requeued VALUES (1 << 45 | 8, 1 << 45 | 3, 1, 1, 0);
            INSERT INTO pillarbox_expiry VALUES
                (1, 700, 1 << 45 | 2, 1 << 45 | 2),
                (1, 800, (1 << 45) + (1 << 44) + 5, (1 << 45) + (1 << 44) + 5);";
        file.execute_batch(rows).unwrap();
        file.execute_batch(damage).unwrap();
        verify(&path).unwrap()
    }

    #[test]
    fn every_kind_of_damage_is_found() {
        assert_eq!(damaged(""), [""; 0]);
        let finds = |damage: &str, problem: &str| {
            let found = damaged(damage);
            assert!(found.iter().any(|found| found.contains(problem)), "{damage}: {found:?}");
        };
        finds("UPDATE pillarbox_queue SET total = 5", "counts");
        finds("UPDATE pillarbox_queue SET in_flight = 0", "counts");
        finds("UPDATE pillarbox_queue SET requeued = 0", "counts");
        finds("UPDATE pillarbox_queue SET sent = 3", "more messages than were sent");
        finds("DELETE FROM pillarbox_queue", "without a queue");
        finds(
            "DELETE FROM pillarbox_message WHERE id = x'00000000000000000000000000000001'",
            "timers without a message",
        );
        finds(
            "DELETE FROM pillarbox_message WHERE id = x'00000000000000000000000000000002'",
            "ready entries without a message",
        );
        finds(
            "INSERT INTO pillarbox_requeued SELECT key + 1, message, 1, 0, 0 FROM pillarbox_requeued",
            "twice",
        );
        finds("DELETE FROM pillarbox_timer WHERE nonce IS NULL", "no receive");
        finds("UPDATE pillarbox_queue SET cursor = 4", "no receive");
        finds("UPDATE pillarbox_queue SET cursor = 1", "past the cursor");
        finds("UPDATE pillarbox_queue SET next_place = 8", "next place");
        finds("UPDATE pillarbox_timer SET unsettled = 2 WHERE nonce IS NOT NULL", "unsettled");
        finds("UPDATE pillarbox_timer SET unsettled = 1 WHERE nonce IS NULL", "unsettled");
        finds("UPDATE pillarbox_requeued SET unsettled = 2", "unsettled");
        finds("UPDATE pillarbox_requeued SET unsettled = -1", "unsettled");
        finds("UPDATE pillarbox_timer SET uncounted = 2 WHERE nonce IS NOT NULL", "uncounted");
        finds("UPDATE pillarbox_requeued SET uncounted = -1", "uncounted");
        finds("UPDATE pillarbox_message SET attributes = 'none'", "cannot be read");
        finds("UPDATE pillarbox_message SET attributes = '[]'", "cannot be read");
        finds("UPDATE pillarbox_message SET id = substr(id, 2)", "cannot be read");
        finds("UPDATE pillarbox_queue SET name = 'a b'", "name");
        finds("DROP INDEX pillarbox_message_id", "pillarbox_message_id is missing");
        finds("DROP VIEW pillarbox", "pillarbox is missing");
        finds("UPDATE pillarbox_queue SET cursor = 9", "next place");
        finds(
            "UPDATE pillarbox_requeued SET key = (2 << 45) + 8;
            INSERT INTO pillarbox_queue VALUES (2, 'r', 9, 0, 1, 0, 0, 0, 1, 0)",
            "another queue",
        );
        finds("DELETE FROM pillarbox_expiry WHERE bucket = 700", "no sweep");
    }

    #[test]
    fn a_file_that_was_not_migrated_can_be_verified() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("verify.db");
        let mut file = Connection::open(&path).unwrap();
        schema::make_version(&mut file, 1);
        assert_eq!(verify(&path).unwrap(), [""; 0]);
        let row = "INSERT INTO pillarbox_queue VALUES (1, 'q', 9, 3, 3, 4, 1, 1, 1)";
        file.execute(row, []).unwrap();
        assert_eq!(verify(&path).unwrap().len(), 1);
    }
}
