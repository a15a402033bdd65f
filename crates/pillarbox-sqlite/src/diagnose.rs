//! What a file tells of itself, and putting right what is wrong with it.

use std::fs;
use std::path::{Path, PathBuf};

use pillarbox_core::{Diagnosis, Finding, Repair, Severity, Timestamp};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};

use crate::failure::Failure;
use crate::file::{self, BUSY_TIMEOUT, Patience, beside};
use crate::options::{SqliteOptions, Synchronous};
use crate::schema;
use crate::verify::{self, Kind, Problem};

/// A log that is longer than this grows behind a reader.
const LONG_LOG: u64 = 64 << 20;
/// Free space below this is not worth a word.
const MUCH_SPACE: u64 = 64 << 20;

/// Makes the tables agree with each other again, by what the messages themselves say. Each step
/// relies on those before it; no step deletes a message.
const REPAIRS: &str = "
    -- Messages belong to the queue that their key says. One that has no row gets one.
    UPDATE OR IGNORE pillarbox_message SET queue = key >> 45 WHERE queue <> key >> 45;
    INSERT INTO pillarbox_queue
        (queue, name, next_place, cursor, next_timer, total, in_flight, delayed, requeued, sent)
        SELECT DISTINCT m.key >> 45, 'recovered-' || lower(hex(randomblob(4))), 1, 0,
            (SELECT coalesce(max(timer), 0) + 1 FROM pillarbox_timer), 0, 0, 0, 0, 0
        FROM (SELECT DISTINCT key >> 45 << 45 AS key FROM pillarbox_message) AS m
        WHERE m.key >> 45 NOT IN (SELECT queue FROM pillarbox_queue);

    -- A message is in flight or delayed, or in line once; nothing else is.
    DELETE FROM pillarbox_timer WHERE key NOT IN (SELECT key FROM pillarbox_message);
    DELETE FROM pillarbox_requeued
        WHERE message NOT IN (SELECT key FROM pillarbox_message)
        OR message IN (SELECT key FROM pillarbox_timer)
        OR key <> (SELECT min(key) FROM pillarbox_requeued AS r
            WHERE r.message = pillarbox_requeued.message);

    -- New places come after all that are used.
    UPDATE pillarbox_queue SET next_place = max(next_place,
        1 + coalesce((SELECT max(key & 0xFFFFFFFFFFF) FROM pillarbox_message AS m
            WHERE m.queue = pillarbox_queue.queue), 0),
        1 + coalesce((SELECT max(key & 0xFFFFFFFFFFF) FROM pillarbox_requeued
            WHERE key >> 45 = pillarbox_queue.queue), 0));

    -- What was delivered is behind the cursor.
    UPDATE pillarbox_queue SET cursor = max(cursor, coalesce((
        SELECT max(key & 0xFFFFFFFFFFF) FROM pillarbox_message AS m
            WHERE m.queue = pillarbox_queue.queue AND m.key >> 44 & 1 = 0
            AND (m.key IN (SELECT key FROM pillarbox_timer)
                OR m.key IN (SELECT message FROM pillarbox_requeued))), 0));

    -- What is behind the cursor, or was sent with a delay, and is nowhere else, goes to the tail.
    CREATE TEMP TABLE stranded AS
        SELECT m.key AS key, m.queue AS queue, 1 - (m.key >> 44 & 1) AS deliveries,
            row_number() OVER (PARTITION BY m.queue ORDER BY m.key & 0xFFFFFFFFFFF) - 1 AS after
        FROM pillarbox_message AS m
        JOIN pillarbox_queue AS q ON q.queue = m.queue AND q.name IS NOT NULL
        WHERE (m.key >> 44 & 1 = 1 OR m.key & 0xFFFFFFFFFFF <= q.cursor)
        AND m.key NOT IN (SELECT key FROM pillarbox_timer)
        AND m.key NOT IN (SELECT message FROM pillarbox_requeued);
    INSERT INTO pillarbox_requeued (key, message, deliveries)
        SELECT (s.queue << 45) + q.next_place + s.after, s.key, s.deliveries
        FROM stranded AS s JOIN pillarbox_queue AS q USING (queue);
    UPDATE pillarbox_queue SET next_place = next_place
        + (SELECT count(*) FROM stranded WHERE stranded.queue = pillarbox_queue.queue);
    DROP TABLE stranded;

    -- Every timer is found by its tenth of a second.
    DELETE FROM pillarbox_expiry;
    INSERT INTO pillarbox_expiry (queue, bucket, lo, hi)
        SELECT key >> 45, due_at / 100000000, min(key), max(key)
        FROM pillarbox_timer GROUP BY 1, 2;

    -- Counts are those of the rows.
    UPDATE pillarbox_queue SET
        total = (SELECT count(*) FROM pillarbox_message AS m
            WHERE m.queue = pillarbox_queue.queue),
        in_flight = (SELECT count(nonce) FROM pillarbox_timer
            WHERE key >> 45 = pillarbox_queue.queue),
        delayed = (SELECT count(*) - count(nonce) FROM pillarbox_timer
            WHERE key >> 45 = pillarbox_queue.queue),
        requeued = (SELECT count(*) FROM pillarbox_requeued
            WHERE key >> 45 = pillarbox_queue.queue)
        WHERE name IS NOT NULL;
    UPDATE pillarbox_queue SET sent = max(sent, total) WHERE name IS NOT NULL;
";

/// What there is to say of queues that are in no file.
pub(crate) fn in_memory() -> Diagnosis {
    Diagnosis::new("messages are gone when this process ends")
        .with_fact("backend", format!("SQLite {}, in memory", rusqlite::version()))
}

/// Looks at a file from end to end, and repairs it if told to.
pub(crate) fn diagnose(
    path: &Path,
    options: &SqliteOptions,
    repair: bool,
) -> Result<Diagnosis, Failure> {
    let found = verify::look(path)?;
    let repaired = repair && found.iter().any(|problem| problem.kind == Kind::Tables);
    if repaired {
        self::repair(path)?;
    }
    let remaining = if repaired { verify::look(path)? } else { Vec::new() };
    let mut diagnosis = describe(path, options)?;
    let findings = found.into_iter().map(|problem| finding(path, problem, repaired, &remaining));
    diagnosis.findings.splice(0..0, findings);
    Ok(diagnosis)
}

fn finding(path: &Path, problem: Problem, repaired: bool, remaining: &[Problem]) -> Finding {
    let path = path.display();
    let repair = match problem.kind {
        Kind::Tables if !repaired => Repair::Possible,
        Kind::Tables if !remaining.contains(&problem) => Repair::Done,
        _ => Repair::Manual,
    };
    let advice = match problem.kind {
        Kind::Tables => "repairing the file makes its tables agree again and deletes no message",
        Kind::Pages => "the disk or the memory has damaged the file: restore it from a backup",
    };
    let advice = match repair {
        Repair::Manual => {
            format!("{advice}; or get out what can be read: sqlite3 {path} .recover | sqlite3 NEW")
        }
        Repair::Possible | Repair::Done => advice.to_owned(),
    };
    Finding { severity: Severity::Problem, text: problem.text, advice, repair }
}

/// Repairs the tables in one transaction, while no other process of ours writes.
fn repair(path: &Path) -> Result<(), Failure> {
    let mut patience = Patience::new(&|| false);
    let lock = file::lock_file(path)?;
    let turn = file::take_turn(&lock, &mut patience)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch("PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY")?;
    patience.retry(|| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(REPAIRS)?;
        Ok(transaction.commit()?)
    })?;
    drop(turn);
    Ok(())
}

/// Versions, sizes, settings, and what could be better.
fn describe(path: &Path, options: &SqliteOptions) -> Result<Diagnosis, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let number = |sql: &str| -> Result<u64, Failure> {
        Ok(connection.query_row(sql, [], |row| row.get(0))?)
    };
    let queues = number("SELECT count(*) FROM pillarbox_queue WHERE name IS NOT NULL")?;
    let messages = number("SELECT coalesce(sum(total), 0) FROM pillarbox_queue")?;
    let page = number("PRAGMA page_size")?;
    let free = page * number("PRAGMA freelist_count")?;
    let size = page * number("PRAGMA page_count")?;
    let log = fs::metadata(beside(path, "-wal")).map_or(0, |log| log.len());
    let now = Timestamp::now();
    let ahead = number(&format!(
        "SELECT count(*) FROM pillarbox_message WHERE enqueued_at > {}",
        now.as_nanos().saturating_add(60_000_000_000)
    ))?;

    let (setting, promise) = match options.synchronous {
        Synchronous::Full => {
            ("full", "what was answered is on the disk; a power failure loses nothing")
        }
        Synchronous::Normal => (
            "normal",
            "what was answered survives the end of any process; a power failure may lose the last \
             moments, never the file",
        ),
    };
    let mut diagnosis = Diagnosis::new(promise)
        .with_fact("backend", format!("SQLite {}", rusqlite::version()))
        .with_fact("file", path.display().to_string())
        .with_fact("schema", format!("version {}", schema::VERSION))
        .with_fact("synchronous", setting)
        .with_fact("size", format!("{}, {} of it free; log {}", mib(size), mib(free), mib(log)))
        .with_fact("holds", format!("{messages} messages in {queues} queues"));
    diagnosis.clock = Some(now);
    let mut warn = |text: String, advice: String| {
        let (severity, repair) = (Severity::Warning, Repair::Manual);
        diagnosis.findings.push(Finding { severity, text, advice, repair });
    };
    if log > LONG_LOG {
        warn(
            format!("the log has grown to {}", mib(log)),
            "a program has been reading for long and keeps it from being moved into the file: end \
             its transaction"
                .to_owned(),
        );
    }
    if free > MUCH_SPACE && free > size / 2 {
        warn(
            format!("{} of the {} of the file are free", mib(free), mib(size)),
            format!("they are used again; to give them back: sqlite3 {} VACUUM", path.display()),
        );
    }
    if ahead > 0 {
        warn(
            format!("{ahead} messages were sent at a time that is still to come"),
            "the clock was set back, or they came from a machine whose clock is ahead: their age \
             is shown as none"
                .to_owned(),
        );
    }
    Ok(diagnosis)
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

/// The file that is open under this path, by a name that stays true if the program changes its
/// directory.
pub(crate) fn place(options: &SqliteOptions) -> Option<PathBuf> {
    let path = options.path.as_deref()?;
    Some(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use pillarbox_core::{Mailbox, Mailboxes, Receive, SendOptions};
    use std::time::Duration;

    use super::*;
    use crate::SqliteBackend;

    /// Each makes the tables disagree in another way, and takes away no message.
    const DAMAGES: &[&str] = &[
        "UPDATE pillarbox_queue SET total = 5",
        "UPDATE pillarbox_queue SET in_flight = 0, delayed = 7, requeued = 0, sent = 0",
        "DELETE FROM pillarbox_queue",
        "DELETE FROM pillarbox_queue; DELETE FROM pillarbox_expiry; DELETE FROM pillarbox_requeued",
        "DELETE FROM pillarbox_timer",
        "DELETE FROM pillarbox_requeued",
        "INSERT INTO pillarbox_timer
            VALUES ((SELECT max(key) + 9 FROM pillarbox_message), 1, 1, 1, 1, NULL)",
        "INSERT INTO pillarbox_requeued
            SELECT key + 100, message, 1 FROM pillarbox_requeued",
        "INSERT INTO pillarbox_requeued
            SELECT key + 1000, key, 1 FROM pillarbox_timer",
        "UPDATE pillarbox_queue SET cursor = next_place",
        "UPDATE pillarbox_queue SET cursor = 0",
        "DELETE FROM pillarbox_expiry",
        "UPDATE pillarbox_queue SET next_place = 1",
    ];

    /// A file with messages 1 to 9 in every state: in flight, ready again, delayed, fresh.
    async fn file(path: &Path) {
        let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(path)).await.unwrap());
        let queue: Mailbox<u32> = backend.mailbox("q").unwrap();
        queue.send_batch(&[1, 2, 3, 4]).await.unwrap().all().unwrap();
        let hour = Duration::from_secs(3600);
        let held = queue.receive(Receive::up_to(4).visibility(hour)).await.unwrap();
        for message in held.into_iter().take(2) {
            message.nack(Duration::ZERO).await.unwrap();
        }
        queue.send_with(&5, SendOptions::new().delay(hour)).await.unwrap();
        queue.send_batch(&[6, 7, 8, 9]).await.unwrap().all().unwrap();
        backend.close().await;
    }

    #[tokio::test]
    async fn a_repair_makes_the_tables_agree_and_loses_nothing() {
        for damage in DAMAGES {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("repair.db");
            file(&path).await;
            Connection::open(&path).unwrap().execute_batch(damage).unwrap();
            assert!(!verify::look(&path).unwrap().is_empty(), "{damage}");

            let backend =
                Mailboxes::new(SqliteBackend::open(SqliteOptions::new(&path)).await.unwrap());
            // The writer has looked at the file before it is repaired.
            backend.queues().await.unwrap();
            let before = backend.diagnose(false).await.unwrap();
            assert!(before.problems().all(|one| one.repair == Repair::Possible), "{before:?}");
            assert!(before.problems().count() > 0, "{damage}");
            let after = backend.diagnose(true).await.unwrap();
            assert_eq!(after.problems().count(), 0, "{damage}: {after:?}");
            assert_eq!(backend.diagnose(false).await.unwrap().findings, [], "{damage}");

            // With the leases and delays over, all of them come, each once.
            Connection::open(&path)
                .unwrap()
                .execute_batch(
                    "UPDATE pillarbox_timer SET due_at = 1; DELETE FROM pillarbox_expiry;
                     INSERT INTO pillarbox_expiry
                        SELECT key >> 45, 0, min(key), max(key) FROM pillarbox_timer GROUP BY 1",
                )
                .unwrap();
            let name = backend.queues().await.unwrap().remove(0);
            let queue: Mailbox<u32> = backend.mailbox(&name).unwrap();
            queue.send(&10).await.unwrap();
            let got = queue.receive(Receive::up_to(100)).await.unwrap();
            let bodies: Vec<u32> = got.messages().iter().map(|message| *message.body()).collect();
            let distinct: HashSet<u32> = bodies.iter().copied().collect();
            assert_eq!(distinct, (1..=10).collect(), "{damage}: {bodies:?}");
            assert_eq!(bodies.len(), 10, "{damage}: {bodies:?}");
            drop(got);
            backend.close().await;
            assert_eq!(verify::look(&path).unwrap(), [], "{damage}");
        }
    }

    #[tokio::test]
    async fn a_sound_file_says_what_it_promises() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("sound.db");
        file(&path).await;
        let options = SqliteOptions::new(&path).synchronous(Synchronous::Normal);
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        let diagnosis = backend.diagnose(true).await.unwrap();
        assert_eq!(diagnosis.findings, []);
        assert!(diagnosis.promise.contains("may lose the last moments"), "{diagnosis:?}");
        let holds = diagnosis.facts.iter().find(|fact| fact.name == "holds").unwrap();
        assert_eq!(holds.value, "9 messages in 1 queues");
    }

    #[tokio::test]
    async fn damaged_pages_are_beyond_repair_and_said_to_be() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pages.db");
        file(&path).await;
        let connection = Connection::open(&path).unwrap();
        // An index that is not that of its table, as a bad disk would leave it.
        connection
            .execute_batch(
                "PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = replace(sql, '(id, queue)', '(id, enqueued_at)')
                    WHERE name = 'pillarbox_message_id';",
            )
            .unwrap();
        drop(connection);
        let diagnosis = diagnose(&path, &SqliteOptions::new(&path), true).unwrap();
        let problem = diagnosis.problems().next().unwrap();
        assert_eq!(problem.repair, Repair::Manual);
        assert!(problem.advice.contains("restore it from a backup"), "{problem:?}");
    }

    #[tokio::test]
    async fn queues_without_a_file_can_be_diagnosed() {
        let backend = SqliteBackend::open(SqliteOptions::in_memory()).await.unwrap();
        let diagnosis = Mailboxes::new(backend).diagnose(true).await.unwrap();
        assert_eq!(diagnosis.promise, "messages are gone when this process ends");
    }
}
