//! Diagnoses and repairs a database.

use std::io;
use std::path::Path;
use std::time::Instant;

use pillarbox_core::{Diagnosis, Finding, Repair, Severity, Timestamp};
use rusqlite::TransactionBehavior;

use crate::checkpoint;
use crate::connection::{BUSY_TIMEOUT, open_to_read, open_to_write};
use crate::database_files::DatabaseFiles;
use crate::failure::{Failure, is_damage};
use crate::file::OpenDatabase;
use crate::log_watch;
use crate::options::{SqliteOptions, Synchronous};
use crate::schema;
use crate::verify::{self, Problem, ProblemKind};
use crate::write_lock::LockWait;

/// Size of the part of the log that cannot be checkpointed from which on a reader is to blame.
const LONG_LOG: u64 = 64 << 20;
/// Free space below which a disk is full: the log alone needs as much.
const FULL_DISK: u64 = 4 << 20;
/// Free space below which a disk is nearly full.
const NEARLY_FULL_DISK: u64 = 64 << 20;
/// Unused space in the file below which no warning is given.
const MUCH_UNUSED: u64 = 64 << 20;

/// Rebuilds the other tables from the messages.
const REPAIRS: &str = include_str!("repair.sql");

/// Returns the diagnosis of queues in memory.
pub(crate) fn in_memory() -> Diagnosis {
    Diagnosis::new("messages are gone when this process ends")
        .with_fact("backend", format!("SQLite {}, in memory", rusqlite::version()))
}

/// Verifies a database completely, and repairs it if `repair` is set.
pub(crate) fn diagnose(
    files: &DatabaseFiles,
    options: &SqliteOptions,
    repair: bool,
) -> Result<Diagnosis, Failure> {
    let path = &files.database.path;
    let opened = files
        .check()
        .and_then(|_| OpenDatabase::reopen(files, options.permissions))
        .and_then(|file| {
            check_content(&file)?;
            Ok(file)
        });
    let file = match opened {
        Ok(file) => file,
        // The file at the path is not the open one, so its content says nothing about it.
        Err(
            failure @ (Failure::Replaced
            | Failure::LogGone(_)
            | Failure::Linked(_)
            | Failure::OtherDevice(_)
            | Failure::Overwritten(_)),
        ) => return Ok(misplaced(path, options, &failure)),
        Err(failure) => return Err(failure),
    };
    let mut found = verify::find_problems(path)?;
    let mut remaining = found.clone();
    if repair {
        // One kind after the other, since some problems hide others.
        for _ in 0..3 {
            let Some(first) = remaining.first() else { break };
            repair_kind(&file, first.kind)?;
            let now = verify::find_problems(path)?;
            if now == remaining {
                break;
            }
            found.extend(now.iter().filter(|problem| !remaining.contains(problem)).cloned());
            remaining = now;
        }
    }
    let mut diagnosis = describe(&file, options)?;
    let mut findings = Vec::new();
    for problem in &found {
        let repair = match problem.kind {
            _ if !repair => Repair::Possible,
            kind if remaining.iter().any(|remaining| remaining.kind == kind) => continue,
            _ => Repair::Done,
        };
        findings.push(finding(path, problem, repair));
    }
    if repair {
        findings.extend(remaining.iter().map(|problem| finding(path, problem, Repair::Manual)));
    }
    diagnosis.findings.splice(0..0, findings);
    Ok(diagnosis)
}

/// Fails if another file was copied over the database. Not checked if another program does not release the write
/// lock.
fn check_content(file: &OpenDatabase) -> Result<(), Failure> {
    let connection = open_to_read(&file.files.database.path)?;
    // A connection opens the log when it first reads.
    let _ = schema::content(&connection);
    let start = Instant::now();
    match file.lock_for_writing(&mut LockWait::new(&|| start.elapsed() > BUSY_TIMEOUT)) {
        Ok(_guard) => file.check_content(&connection),
        Err(Failure::Locked(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// Returns the diagnosis of a file that was replaced or linked.
fn misplaced(path: &Path, options: &SqliteOptions, failure: &Failure) -> Diagnosis {
    let mut diagnosis = base_diagnosis(path, options);
    diagnosis.findings.push(Finding {
        severity: Severity::Problem,
        text: failure.to_string(),
        advice: "no message can be sent, received or settled until this is fixed".to_owned(),
        repair: Repair::Manual,
    });
    diagnosis
}

/// Repairs problems of this kind, if possible.
fn repair_kind(file: &OpenDatabase, kind: ProblemKind) -> Result<(), Failure> {
    let path = &file.files.database.path;
    match kind {
        // An index can be rebuilt from its table, unless that is damaged too.
        ProblemKind::Pages => run_sql(file, "REINDEX").or_else(|failure| match &failure {
            Failure::Sqlite(error) if is_damage(error) => Ok(()),
            _ => Err(failure),
        }),
        ProblemKind::Missing => {
            let missing = schema::missing(&open_to_read(path)?)?;
            let all: Vec<_> = missing.into_iter().map(|(_, sql)| sql).collect();
            run_sql(file, &all.join(";\n"))
        }
        ProblemKind::Tables(_) => run_sql(file, REPAIRS),
    }
}

fn finding(path: &Path, problem: &Problem, repair: Repair) -> Finding {
    let advice = match (problem.kind, repair) {
        (_, Repair::Manual) => format!(
            "the disk or the memory has damaged the file: restore it from a backup, or export the \
             readable part: pillarbox dump QUEUE, or sqlite3 {} .recover | sqlite3 NEW",
            path.display()
        ),
        (ProblemKind::Pages, _) => {
            "only an index can be rebuilt: if that does not help, restore the file from a backup"
                .to_owned()
        }
        (ProblemKind::Missing | ProblemKind::Tables(_), _) => {
            "a repair makes the tables consistent and deletes no message".to_owned()
        }
    };
    Finding { severity: Severity::Problem, text: problem.text.clone(), advice, repair }
}

/// Runs SQL in one transaction, while no other process of ours writes.
fn run_sql(file: &OpenDatabase, sql: &str) -> Result<(), Failure> {
    let mut wait = LockWait::new(&|| false);
    let guard = file.lock_for_writing(&mut wait)?;
    let mut connection = open_to_write(&file.files.database.path)?;
    wait.retry(|| {
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute_batch(sql)?;
        Ok(transaction.commit()?)
    })?;
    drop(guard);
    Ok(())
}

/// Checkpoints, and returns the number of pages that could not be copied. A log that is only long, as after many
/// deletes, has none: its space is reused.
fn stuck_pages(file: &OpenDatabase) -> Result<u64, Failure> {
    let connection = open_to_write(&file.files.database.path)?;
    schema::content(&connection)?;
    let start = Instant::now();
    // No process of ours writes to the log meanwhile.
    let _guard = file.lock_for_writing(&mut LockWait::new(&|| start.elapsed() > BUSY_TIMEOUT))?;
    file.check_content(&connection)?;
    file.during_checkpoint(&connection, || checkpoint::checkpoint(&connection));
    let stuck = checkpoint::log_pages(&connection).map_or(0, |(pages, moved)| pages - moved);
    Ok(stuck.unsigned_abs())
}

/// Returns the free bytes of the disk that a file is on. `None` if unknown.
#[cfg(unix)]
fn free_space(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(not(unix))]
fn free_space(_: &Path) -> Option<u64> {
    None
}

/// Returns a diagnosis with version, path and durability.
fn base_diagnosis(path: &Path, options: &SqliteOptions) -> Diagnosis {
    let (setting, promise) = match options.synchronous {
        Synchronous::Full => (
            "full",
            "every confirmed send and settle is on the disk; a power failure loses no message",
        ),
        Synchronous::Normal => (
            "normal",
            "every confirmed operation survives the end of any process; a power failure may lose the \
             last moments, but not the file",
        ),
    };
    Diagnosis::new(promise)
        .with_fact("backend", format!("SQLite {}", rusqlite::version()))
        .with_fact("file", path.display().to_string())
        .with_fact("schema", format!("version {}", schema::VERSION))
        .with_fact("synchronous", setting)
}

/// Returns a diagnosis with versions, sizes, settings and warnings.
fn describe(file: &OpenDatabase, options: &SqliteOptions) -> Result<Diagnosis, Failure> {
    let path = &file.files.database.path;
    let connection = open_to_read(path)?;
    // Unreadable numbers are shown as 0; the findings say why.
    let number = |sql: &str| -> Result<u64, Failure> {
        match connection.query_row(sql, [], |row| row.get(0)) {
            Err(error) if is_damage(&error) => Ok(0),
            number => Ok(number?),
        }
    };
    let queues = number("SELECT count(*) FROM pillarbox_queue WHERE name IS NOT NULL")?;
    let messages =
        number("SELECT coalesce(sum(total), 0) FROM pillarbox_queue WHERE name IS NOT NULL")?;
    let page = number("PRAGMA page_size")?;
    let free = page * number("PRAGMA freelist_count")?;
    let size = page * number("PRAGMA page_count")?;
    let log = file.log_len();
    let now = Timestamp::now();
    let ahead = number(&format!(
        "SELECT count(*) FROM pillarbox_message AS m JOIN pillarbox_queue AS q USING (queue)
            WHERE q.name IS NOT NULL AND m.enqueued_at > {}",
        now.as_nanos().saturating_add(60_000_000_000)
    ))?;

    let mut diagnosis = base_diagnosis(path, options)
        .with_fact(
            "size",
            format!("{}, {} of it free; log {}", size_of(size), size_of(free), size_of(log)),
        )
        .with_fact("messages", messages.to_string())
        .with_fact("queues", queues.to_string())
        .with_fact("clock", "this machine");
    let mut warn = |text: String, advice: String| {
        let (severity, repair) = (Severity::Warning, Repair::Manual);
        diagnosis.findings.push(Finding { severity, text, advice, repair });
    };
    // This connection itself must not be the reader that is to blame.
    drop(connection);
    let stuck = if log > LONG_LOG { page * stuck_pages(file).unwrap_or(0) } else { 0 };
    if stuck > LONG_LOG {
        warn(
            format!("{} of the log cannot be checkpointed", size_of(stuck)),
            "a program has had a read transaction open for long: end its transaction".to_owned(),
        );
    }
    if free > MUCH_UNUSED && free > size / 2 {
        warn(
            format!("{} of the {} of the file are unused", size_of(free), size_of(size)),
            format!("the space is reused; to shrink the file: sqlite3 {} VACUUM", path.display()),
        );
    }
    if ahead > 0 {
        warn(
            format!("{ahead} messages were sent in the future"),
            "the clock was set back, or they came from a machine whose clock is ahead: their age \
             is shown as zero"
                .to_owned(),
        );
    }
    if let Err(error) = log_watch::check(file.files.log_path())
        && error.kind() != io::ErrorKind::Unsupported
    {
        warn(
            format!("the log cannot be watched: {error}"),
            "waiters poll the file instead, which takes more CPU time and some milliseconds: raise \
             fs.inotify.max_user_instances or max_user_watches, or the limit on open files"
                .to_owned(),
        );
    }
    if let Some(space) = free_space(path) {
        let advice = "sends, receives and acknowledgements need space for the log: free some. Confirmed \
                      operations are safe meanwhile";
        if space < FULL_DISK {
            diagnosis.findings.push(Finding {
                severity: Severity::Problem,
                text: format!("the disk is full: {} are free", size_of(space)),
                advice: advice.to_owned(),
                repair: Repair::Manual,
            });
        } else if space < NEARLY_FULL_DISK {
            diagnosis.findings.push(Finding {
                severity: Severity::Warning,
                text: format!("the disk is nearly full: {} are free", size_of(space)),
                advice: advice.to_owned(),
                repair: Repair::Manual,
            });
        }
    }
    Ok(diagnosis)
}

/// Formats a size in KiB or MiB.
fn size_of(bytes: u64) -> String {
    match bytes {
        0..0x10_0000 => format!("{} KiB", bytes.div_ceil(1 << 10)),
        _ => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::path::PathBuf;
    use std::time::Duration;

    use pillarbox_core::{Mailbox, Mailboxes, Outgoing, QueueOptions, Receive, SendOptions};
    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;
    use crate::SqliteBackend;

    /// Statements that make the tables inconsistent in different ways, and delete no message.
    const DAMAGES: &[&str] = &[
        "UPDATE pillarbox_queue SET total = 5",
        "UPDATE pillarbox_queue SET in_flight = 0, delayed = 7, requeued = 0, sent = 0",
        "DELETE FROM pillarbox_queue",
        "DELETE FROM pillarbox_queue; DELETE FROM pillarbox_expiry; DELETE FROM pillarbox_requeued",
        "DELETE FROM pillarbox_timer",
        "DELETE FROM pillarbox_requeued",
        "INSERT INTO pillarbox_timer
            VALUES ((SELECT max(key) + 9 FROM pillarbox_message), 1, 1, 1, 1, NULL, 0, 0, 0)",
        "INSERT INTO pillarbox_requeued
            SELECT key + 100, message, 1, 0, 0 FROM pillarbox_requeued",
        "INSERT INTO pillarbox_requeued
            SELECT key + 1000, key, 1, 0, 0 FROM pillarbox_timer",
        "UPDATE pillarbox_queue SET cursor = next_place",
        "UPDATE pillarbox_queue SET cursor = next_place + 1000",
        "UPDATE pillarbox_message SET attributes = 'none'",
        "UPDATE pillarbox_message SET id = substr(id, 2) WHERE key % 2 = 1",
        "UPDATE pillarbox_queue SET name = 'a b'",
        "DROP INDEX pillarbox_message_id; DROP VIEW pillarbox; UPDATE pillarbox_queue SET total = 1",
        "DROP TABLE pillarbox_expiry",
        "DROP TABLE pillarbox_requeued",
        "UPDATE pillarbox_message SET queue = 7 WHERE key = (SELECT min(key) FROM pillarbox_message)",
        "INSERT INTO pillarbox_queue VALUES (2, 'r', 9, 0, 1, 0, 0, 0, 1, 1);
         INSERT INTO pillarbox_requeued VALUES ((2 << 45) + 4, (1 << 45) + 1, 1, 0, 0)",
        "UPDATE pillarbox_queue SET cursor = 0",
        "DELETE FROM pillarbox_expiry",
        "UPDATE pillarbox_queue SET next_place = 1",
        "UPDATE pillarbox_timer SET unsettled = 7; UPDATE pillarbox_requeued SET unsettled = -7",
        "UPDATE pillarbox_timer SET uncounted = -7; UPDATE pillarbox_requeued SET uncounted = 7",
    ];

    fn directory() -> (TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("jobs.db");
        (directory, path)
    }

    async fn open(path: &Path) -> Mailboxes {
        Mailboxes::new(SqliteBackend::open(SqliteOptions::new(path)).await.unwrap())
    }

    /// Creates a database with messages 1 to 9 in every state: in flight, ready again, delayed, never delivered.
    async fn create_database(path: &Path) {
        let backend = open(path).await;
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
    async fn a_repair_makes_the_tables_consistent_and_loses_nothing() {
        for damage in DAMAGES {
            let (_directory, path) = directory();
            create_database(&path).await;
            Connection::open(&path).unwrap().execute_batch(damage).unwrap();
            assert!(!verify::find_problems(&path).unwrap().is_empty(), "{damage}");

            let backend = open(&path).await;
            // The writer caches the queue before the repair.
            let known: Mailbox<u32> = backend.mailbox("q").unwrap();
            // It fails if a table is missing.
            let _ = known.counts().await;
            let before = backend.diagnose(false).await.unwrap();
            assert!(before.problems().all(|one| one.repair == Repair::Possible), "{before:?}");
            assert!(before.problems().count() > 0, "{damage}");
            let after = backend.diagnose(true).await.unwrap();
            assert_eq!(after.problems().count(), 0, "{damage}: {after:?}");
            assert_eq!(backend.diagnose(false).await.unwrap().findings, [], "{damage}");

            // After the leases and delays have ended, each message is delivered once.
            Connection::open(&path)
                .unwrap()
                .execute_batch(
                    "UPDATE pillarbox_timer SET due_at = 1; DELETE FROM pillarbox_expiry;
                     INSERT INTO pillarbox_expiry
                        SELECT key >> 45, 0, min(key), max(key) FROM pillarbox_timer GROUP BY 1",
                )
                .unwrap();
            let names = backend.queues().await.unwrap();
            let name = names.iter().find(|name| name.as_str() != "r").unwrap();
            let queue: Mailbox<u32> = backend.mailbox(name).unwrap();
            queue.send(&10).await.unwrap();
            let got = queue.receive(Receive::up_to(100)).await.unwrap();
            let bodies: Vec<u32> = got.messages().iter().map(|message| *message.body()).collect();
            let distinct: HashSet<u32> = bodies.iter().copied().collect();
            assert_eq!(distinct, (1..=10).collect(), "{damage}: {bodies:?}");
            assert_eq!(bodies.len(), 10, "{damage}: {bodies:?}");
            drop(got);
            backend.close().await;
            assert_eq!(verify::find_problems(&path).unwrap(), [], "{damage}");
        }
    }

    #[tokio::test]
    async fn an_intact_file_is_diagnosed_with_its_promise() {
        let (_directory, path) = directory();
        create_database(&path).await;
        let options = SqliteOptions::new(&path).synchronous(Synchronous::Normal);
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        let diagnosis = backend.diagnose(true).await.unwrap();
        assert_eq!(diagnosis.findings, []);
        assert!(diagnosis.promise.contains("may lose the last moments"), "{diagnosis:?}");
        let fact = |name| &diagnosis.facts.iter().find(|fact| fact.name == name).unwrap().value;
        assert_eq!((fact("messages").as_str(), fact("queues").as_str()), ("9", "1"));
    }

    #[tokio::test]
    async fn a_damaged_index_is_rebuilt() {
        let (_directory, path) = directory();
        create_database(&path).await;
        let connection = Connection::open(&path).unwrap();
        // An index that does not match its table, as a bad disk would leave it.
        connection
            .execute_batch(
                "PRAGMA writable_schema = ON;
                 UPDATE sqlite_schema SET sql = replace(sql, '(id, queue)', '(id, enqueued_at)')
                    WHERE name = 'pillarbox_message_id';",
            )
            .unwrap();
        drop(connection);
        let backend = open(&path).await;
        let before = backend.diagnose(false).await.unwrap();
        assert!(before.problems().count() > 0, "{before:?}");
        let after = backend.diagnose(true).await.unwrap();
        assert_eq!(after.problems().count(), 0, "{after:?}");
        assert!(after.findings.iter().all(|finding| finding.repair == Repair::Done), "{after:?}");
    }

    #[tokio::test]
    async fn damaged_pages_are_reported_as_beyond_repair() {
        let (_directory, path) = directory();
        create_database(&path).await;
        // The root page of the messages, as a bad disk would leave it.
        let root: u64 = Connection::open(&path)
            .unwrap()
            .query_row(
                "SELECT rootpage FROM sqlite_schema WHERE name = 'pillarbox_message'",
                [],
                |row| row.get(0),
            )
            .unwrap();
        let mut bytes = fs::read(&path).unwrap();
        let start = (root as usize - 1) * 4096;
        bytes[start..start + 4096].fill(0x5a);
        fs::write(&path, bytes).unwrap();
        let backend = open(&path).await;
        let diagnosis = backend.diagnose(true).await.unwrap();
        let problem = diagnosis.problems().next().unwrap();
        assert_eq!(problem.repair, Repair::Manual);
        assert!(problem.advice.contains("restore it from a backup"), "{problem:?}");
    }

    /// A repair takes linear time.
    #[tokio::test]
    async fn a_large_file_is_repaired_without_keeping_others_waiting() {
        let (_directory, path) = directory();
        let backend = open(&path).await;
        for number in 0..200 {
            let queue: Mailbox<u32> = backend.mailbox(format!("q{number}")).unwrap();
            let bodies: Vec<u32> = (0..200).collect();
            queue.send_batch(&bodies).await.unwrap().all().unwrap();
        }
        let damage = "DELETE FROM pillarbox_queue WHERE queue % 2 = 0;
            UPDATE pillarbox_queue SET cursor = next_place";
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let start = std::time::Instant::now();
        let after = backend.diagnose(true).await.unwrap();
        assert_eq!(after.problems().count(), 0, "{after:?}");
        // In quadratic time it would take minutes.
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
        let names = backend.queues().await.unwrap();
        assert_eq!(names.iter().filter(|name| name.as_str().starts_with("recovered")).count(), 100);
        for name in names {
            let queue: Mailbox<u32> = backend.mailbox(&name).unwrap();
            assert_eq!(queue.receive(Receive::up_to(1000)).await.unwrap().messages().len(), 200);
        }
    }

    /// Purged messages stay deleted, and running leases can be settled.
    #[tokio::test]
    async fn a_repair_restores_no_purged_message_and_ends_no_lease() {
        let (_directory, path) = directory();
        let backend = open(&path).await;
        let queue: Mailbox<u32> = backend.mailbox("q").unwrap();
        queue.send_batch(&[1, 2, 3]).await.unwrap().all().unwrap();
        let held = queue.receive(Receive::one()).await.unwrap().into_iter().next().unwrap();
        let damage = "
            INSERT INTO pillarbox_queue VALUES (9, NULL, 5, 0, 1, 2, 0, 0, 0, 2);
            INSERT INTO pillarbox_message VALUES (9 << 45 | 1, 9, x'0000000000000000000000000000000a', 0, NULL, NULL, x'31');
            UPDATE pillarbox_queue SET total = 17 WHERE name = 'q'";
        Connection::open(&path).unwrap().execute_batch(damage).unwrap();
        let after = backend.diagnose(true).await.unwrap();
        assert_eq!(after.problems().count(), 0, "{after:?}");
        assert_eq!(backend.queues().await.unwrap().len(), 1);
        assert_eq!(queue.approximate_count().await.unwrap(), 3);
        held.acknowledge().await.unwrap();
        let rest = queue.receive(Receive::up_to(10)).await.unwrap();
        let bodies: Vec<u32> = rest.messages().iter().map(|message| *message.body()).collect();
        assert_eq!(bodies, [2, 3]);
        assert!(rest.messages().iter().all(|message| message.delivery_count() == 1));
    }

    /// A log keeps its length until it is restarted.
    #[tokio::test]
    async fn a_reader_is_blamed_for_a_long_log_while_it_reads_and_not_afterwards() {
        let (_directory, path) = directory();
        let backend = open(&path).await;
        let queue = backend.queue("q", QueueOptions::new()).unwrap();
        queue.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM pillarbox_queue").unwrap();
        let body = bytes::Bytes::from(vec![7; 1 << 20]);
        for _ in 0..80 {
            queue.send(vec![Outgoing::new(body.clone())]).await.unwrap().remove(0).unwrap();
        }
        let blamed = backend.diagnose(false).await.unwrap().findings;
        assert_eq!(blamed.len(), 1, "{blamed:?}");
        assert!(blamed[0].advice.contains("end its transaction"), "{blamed:?}");
        reader.execute_batch("COMMIT").unwrap();
        let log = fs::metadata(path.with_file_name("jobs.db-wal")).unwrap().len();
        assert!(log > LONG_LOG, "{log}");
        assert_eq!(backend.diagnose(false).await.unwrap().findings, []);
        queue.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
        assert_eq!(verify::find_problems(&path).unwrap(), []);
    }

    #[tokio::test]
    async fn queues_without_a_file_can_be_diagnosed() {
        let backend = SqliteBackend::open(SqliteOptions::in_memory()).await.unwrap();
        let diagnosis = Mailboxes::new(backend).diagnose(true).await.unwrap();
        assert_eq!(diagnosis.promise, "messages are gone when this process ends");
    }
}
