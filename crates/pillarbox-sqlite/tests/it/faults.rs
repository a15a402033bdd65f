//! Files that cannot be opened, and what happens to one that is open: each has a clear error, and
//! nothing is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailboxes, Outgoing, Queue, RawMessage, Receive, Settle, SystemClock};
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_sqlite::{FilePermissions, SqliteBackend, SqliteOptions, Synchronous, verify};
use pillarbox_testing::process::{Child, told};
use tempfile::TempDir;

use crate::common::{SmallDisk, open, queue};

fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    (directory, file)
}

/// What opening says, which must be that the file could not be opened.
async fn refusal(options: SqliteOptions) -> String {
    match SqliteBackend::open(options).await {
        Err(error @ Error::Connection { .. }) => error.to_string(),
        other => panic!("expected an error about the file, got {other:?}"),
    }
}

/// Opening is refused with these words, and the file is as it was, byte for byte.
async fn refused_untouched(file: &Path, words: &[&str]) {
    let before = fs::read(file).expect("the file");
    let text = refusal(SqliteOptions::new(file)).await;
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
    assert!(fs::read(file).expect("the file") == before, "the file was changed");
    assert!(!file.with_file_name("jobs.db-lock").exists(), "a file was left beside it");
}

#[tokio::test]
async fn a_missing_directory_is_named_and_opening_works_once_it_is_there() {
    let (directory, _) = directory();
    let folder = directory.path().join("not/yet");
    let text = refusal(SqliteOptions::new(folder.join("jobs.db"))).await;
    assert!(text.contains("not/yet does not exist: create the directory first"), "{text}");
    fs::create_dir_all(&folder).expect("made");
    open(folder.join("jobs.db")).await.close().await;
}

#[tokio::test]
async fn a_directory_is_not_a_file() {
    let (directory, _) = directory();
    let text = refusal(SqliteOptions::new(directory.path())).await;
    assert!(text.contains("is not a file"), "{text}");
}

#[tokio::test]
async fn a_file_that_must_be_there_is_not_made() {
    let (_directory, file) = directory();
    let text = refusal(SqliteOptions::new(&file).create(false)).await;
    assert!(text.contains("there is no file") && !file.exists(), "{text}");
    fs::write(&file, "").unwrap();
    let text = refusal(SqliteOptions::new(&file).create(false)).await;
    assert!(text.contains("it is empty") && fs::read(&file).unwrap().is_empty(), "{text}");
}

#[tokio::test]
async fn a_file_that_is_no_database_is_refused() {
    let (_directory, file) = directory();
    fs::write(&file, "Dear diary, today I wrote more than a hundred bytes. ".repeat(99)).unwrap();
    refused_untouched(&file, &["is not a SQLite database", "was not touched"]).await;
}

#[tokio::test]
async fn a_database_of_another_program_is_refused_unless_adopted() {
    let (_directory, file) = directory();
    Connection::open(&file)
        .unwrap()
        .execute_batch("CREATE TABLE t (x); INSERT INTO t VALUES (7)")
        .unwrap();
    refused_untouched(&file, &["of another program", "was not touched", "adopt=true"]).await;

    let adopted = SqliteBackend::open(SqliteOptions::new(&file).adopt(true)).await;
    let adopted = Mailboxes::new(adopted.expect("adopted"));
    queue(&adopted, "q").send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    adopted.close().await;
    let kept: i64 = Connection::open(&file)
        .unwrap()
        .query_row("SELECT x FROM t", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, 7);
    // From now on it holds queues, and is opened like any other.
    open(&file).await.close().await;
}

#[tokio::test]
async fn a_database_with_names_like_ours_is_refused_even_for_adoption() {
    let (_directory, file) = directory();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE pillarbox_message (x)").unwrap();
    refused_untouched(&file, &["names begin with pillarbox"]).await;
    let before = fs::read(&file).unwrap();
    let text = refusal(SqliteOptions::new(&file).adopt(true)).await;
    assert!(text.contains("names begin with pillarbox"), "{text}");
    assert!(fs::read(&file).unwrap() == before, "the file was changed");
}

#[tokio::test]
async fn a_log_whose_file_was_moved_away_is_not_thrown_away() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    queue(&backend, "jobs").send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    backend.close().await;
    let text = refusal(SqliteOptions::new(&file)).await;
    assert!(text.contains("Put the file back"), "{text}");
    fs::rename(&aside, &file).unwrap();
    assert_eq!(queue(&open(&file).await, "jobs").counts().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_path_that_looks_like_a_uri_is_a_path() {
    let (directory, _) = directory();
    let file = directory.path().join("file:odd.db?mode=memory");
    open(&file).await.close().await;
    assert!(file.exists());
}

#[tokio::test]
async fn a_damaged_file_is_refused() {
    let (_directory, file) = directory();
    open(&file).await.close().await;
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    bytes[100..4096].fill(0xA5);
    fs::write(&file, bytes).unwrap();
    refused_untouched(&file, &["or it is damaged", "was not touched"]).await;
}

/// Of deliveries that ended before, nothing is known; a lease that ends from then on is counted.
#[tokio::test]
async fn a_file_of_version_2_goes_on_and_counts_expired_deliveries_from_then_on() {
    let (_directory, file) = directory();
    let old = Connection::open(&file).unwrap();
    old.execute_batch(include_str!("../../src/schema.sql")).unwrap();
    old.execute_batch(include_str!("../../src/schema-2.sql")).unwrap();
    // In the order of the keys: its lease ended, it is ready again, its lease runs, it is new.
    let rows = "
        UPDATE pillarbox_schema SET version = 2;
        INSERT INTO pillarbox_queue VALUES (1, 'jobs', 9, 3, 3, 4, 2, 0, 1, 6);
        INSERT INTO pillarbox_message VALUES
            (1 << 45 | 1, 1, x'01900000000070008000000000000001', 0, NULL, NULL, x'61'),
            (1 << 45 | 2, 1, x'01900000000070008000000000000002', 0, NULL, NULL, x'62'),
            (1 << 45 | 3, 1, x'01900000000070008000000000000003', 0, NULL, NULL, x'63'),
            (1 << 45 | 4, 1, x'01900000000070008000000000000004', 0, NULL, NULL, x'64');
        INSERT INTO pillarbox_timer VALUES
            (1 << 45 | 1, 70000000000, 1, 3, 1, x'010101010101010101010101'),
            (1 << 45 | 3, 4000000000000000000, 2, 7, 3, x'020202020202020202020202');
        INSERT INTO pillarbox_requeued VALUES (1 << 45 | 8, 1 << 45 | 2, 2);
        INSERT INTO pillarbox_expiry VALUES
            (1, 700, 1 << 45 | 1, 1 << 45 | 1), (1, 40000000000, 1 << 45 | 3, 1 << 45 | 3);";
    old.execute_batch(rows).unwrap();
    drop(old);
    assert_eq!(verify(&file).unwrap(), [""; 0]);

    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let about = |message: &RawMessage| {
        let body = char::from(message.body[0]);
        (body, message.delivery_count, message.uncounted)
    };
    let shown = jobs.peek(10, None).await.unwrap().messages;
    let shown: Vec<_> = shown.iter().map(|peeked| about(&peeked.message)).collect();
    assert_eq!(shown, [('d', 0, 0), ('b', 2, 0), ('a', 3, 1), ('c', 7, 0)]);
    let held = "01900000-0000-7000-8000-000000000003.AgICAgICAgICAgIC".parse().unwrap();
    let nack = Settle::nack(held, Duration::ZERO);
    jobs.settle(vec![nack]).await.unwrap().remove(0).expect("the lease runs on");
    let received = jobs.receive(Receive::up_to(10).visibility(Duration::ZERO)).await.unwrap();
    let received: Vec<_> = received.iter().map(|delivery| about(&delivery.message)).collect();
    assert_eq!(received, [('d', 1, 0), ('b', 3, 0), ('a', 4, 1), ('c', 8, 0)]);
    let received = jobs.receive(Receive::up_to(10)).await.unwrap();
    let received: Vec<_> = received.iter().map(|delivery| about(&delivery.message)).collect();
    assert_eq!(received, [('d', 2, 1), ('b', 4, 1), ('a', 5, 2), ('c', 9, 1)]);
    backend.close().await;
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_refused_and_so_is_writing_to_it() {
    let (_directory, file) = directory();
    let early = open(&file).await;
    let jobs = queue(&early, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let newer = Connection::open(&file).unwrap();
    let version = "SELECT version FROM pillarbox_schema";
    let version: i64 = newer.query_row(version, [], |row| row.get(0)).unwrap();
    newer.execute("UPDATE pillarbox_schema SET version = 99", []).unwrap();

    // The one that had it open before notices.
    let error = jobs.send(vec![Outgoing::new("y")]).await.unwrap_err().to_string();
    assert!(error.contains("version 99") && error.contains("Upgrade this program"), "{error}");
    early.close().await;
    drop(newer);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    refused_untouched(&file, &["version 99", "Upgrade this program"]).await;

    // It goes back, and all is there.
    let back = Connection::open(&file).unwrap();
    back.execute("UPDATE pillarbox_schema SET version = ?1", [version]).unwrap();
    let late = open(&file).await;
    assert_eq!(queue(&late, "jobs").counts().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_while_open_is_noticed() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    let error = jobs.send(vec![Outgoing::new("y")]).await.unwrap_err().to_string();
    assert!(error.contains("was moved, deleted or replaced"), "{error}");
    fs::write(&file, "").unwrap();
    let error = jobs.receive(Receive::one()).await.unwrap_err().to_string();
    assert!(error.contains("was moved, deleted or replaced"), "{error}");
    // Put back, it is served again, and nothing is missing.
    fs::rename(&aside, &file).unwrap();
    assert_eq!(jobs.receive(Receive::one()).await.unwrap().len(), 1);
}

/// Sends a message and gives the words with which that is refused.
async fn refused_send(jobs: &Arc<dyn Queue>) -> String {
    match jobs.send(vec![Outgoing::new("y")]).await {
        Err(error @ Error::Connection { .. }) => error.to_string(),
        other => panic!("a send that cannot be kept was answered: {other:?}"),
    }
}

/// Another connection to the same file, as another process would have it.
async fn open_again(file: &Path) -> pillarbox_core::Result<SqliteBackend> {
    SqliteBackend::open(SqliteOptions::new(file).synchronous(Synchronous::Normal)).await
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_answered_once_the_log_is_deleted_and_closing_saves_what_was() {
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        let (_directory, file) = directory();
        let options = SqliteOptions::new(&file).synchronous(synchronous);
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        let jobs = queue(&backend, "jobs");
        for _ in 0..3 {
            jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
        }
        fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
        let text = refused_send(&jobs).await;
        assert!(text.contains("jobs.db-wal") && text.contains("deleted"), "{text}");
        assert!(jobs.receive(Receive::one()).await.is_err());
        let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
        let problem = diagnosis.problems().next().expect("a problem").text.clone();
        assert!(problem.contains("jobs.db-wal"), "{problem}");
        backend.close().await;
        let backend = open(&file).await;
        assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 3);
        backend.close().await;
        assert_eq!(verify(&file).unwrap(), [""; 0]);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_log_that_is_moved_away_and_put_back_is_written_again() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let log = file.with_file_name("jobs.db-wal");
    let aside = file.with_file_name("aside");
    fs::rename(&log, &aside).unwrap();
    refused_send(&jobs).await;
    // Another log in its place is not the one that is written.
    fs::copy(&aside, &log).unwrap();
    refused_send(&jobs).await;
    fs::rename(&aside, &log).unwrap();
    jobs.send(vec![Outgoing::new("z")]).await.unwrap().remove(0).unwrap();
    let bodies = jobs.peek(10, None).await.unwrap().messages;
    let bodies: Vec<_> = bodies.iter().map(|peeked| &peeked.message.body[..]).collect();
    assert_eq!(bodies, [b"x", b"z"]);
}

/// It would make a log of its own, to which the index of the other's does not apply.
#[cfg(unix)]
#[tokio::test]
async fn nobody_opens_a_file_whose_log_was_deleted_while_another_has_it_open() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
    for _ in 0..2 {
        let text = open_again(&file).await.expect_err("refused").to_string();
        assert!(text.contains("jobs.db-wal") && text.contains("deleted"), "{text}");
    }
    backend.close().await;
    let backend = open(&file).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 1);
    backend.close().await;
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_of_two_names_is_refused_and_works_again_with_one() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let other = file.with_file_name("other.db");
    fs::hard_link(&file, &other).unwrap();
    let text = refused_send(&jobs).await;
    assert!(text.contains("hard link"), "{text}");
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    let problem = diagnosis.problems().next().expect("a problem").text.clone();
    assert!(problem.contains("hard link"), "{problem}");
    for name in [&file, &other] {
        let text = open_again(name).await.expect_err("refused").to_string();
        assert!(text.contains("hard link"), "{text}");
    }
    assert!(!file.with_file_name("other.db-wal").exists(), "a log was made for the other name");
    fs::remove_file(&other).unwrap();
    jobs.send(vec![Outgoing::new("z")]).await.unwrap().remove(0).unwrap();
    assert_eq!(jobs.counts().await.unwrap().total(), 2);
}

/// As where a container is given the file, and not the directory that it is in.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_is_mounted_without_its_log_is_refused() {
    let (_directory, file) = directory();
    open(&file).await.close().await;
    let place = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(place.path()) else {
        println!("left out: this user may not mount a file system");
        return;
    };
    let mounted = disk.0.join("jobs.db");
    fs::write(&mounted, "").unwrap();
    let bind = |args: &[&Path]| Command::new("mount").arg("--bind").args(args).status();
    assert!(bind(&[&file, &mounted]).expect("mount runs").success());
    let opened = SqliteBackend::open(SqliteOptions::new(&mounted)).await;
    let unmounted = || Command::new("umount").arg(&mounted).status().expect("umount runs");
    let text = match opened {
        Err(error) => error.to_string(),
        Ok(backend) => {
            drop(backend);
            unmounted();
            panic!("it was opened with its log on another device");
        }
    };
    assert!(unmounted().success());
    assert!(text.contains("another device") && text.contains("directory"), "{text}");
}

#[tokio::test]
async fn a_file_that_another_is_copied_over_takes_no_more_messages_and_stays_what_it_was() {
    let (_directory, file) = directory();
    let other = file.with_file_name("other.db");
    let backend = open(&other).await;
    queue(&backend, "jobs").send(vec![Outgoing::new("other")]).await.unwrap().remove(0).unwrap();
    backend.close().await;

    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    // The former is in the file, and no longer in the log.
    let mover = Connection::open(&file).unwrap();
    mover.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    drop(mover);
    fs::copy(&other, &file).unwrap();
    for _ in 0..2 {
        let text = refused_send(&jobs).await;
        assert!(text.contains("copied over"), "{text}");
    }
    let text = open_again(&file).await.expect_err("refused").to_string();
    assert!(text.contains("copied over"), "{text}");
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    let problem = diagnosis.problems().next().expect("a problem").text.clone();
    assert!(problem.contains("copied over"), "{problem}");
    backend.close().await;
    // The log still belongs to the former file.
    let text = refusal(SqliteOptions::new(&file)).await;
    assert!(text.contains("copied over") && text.contains("jobs.db-wal"), "{text}");
    assert!(fs::read(&file).unwrap() == fs::read(&other).unwrap(), "the file was written");
    fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
    let backend = open(&file).await;
    let there = queue(&backend, "jobs").peek(10, None).await.unwrap().messages;
    assert_eq!(there.len(), 1);
    assert_eq!(&there[0].message.body[..], b"other");
}

/// Writes pages of the log into the file, in their order, as a checkpoint does before it syncs the file and says
/// that they were moved: `most` of them at most.
fn begin_checkpoint(file: &Path, most: usize) {
    use std::io::{Seek, SeekFrom, Write};
    let log = fs::read(file.with_file_name("jobs.db-wal")).expect("the log");
    let number =
        |at: usize| u32::from_be_bytes(log[at..at + 4].try_into().expect("a number")) as usize;
    let size = number(8);
    let mut pages = std::collections::BTreeMap::new();
    for at in (32..log.len()).step_by(24 + size) {
        if log[at + 8..at + 16] == log[16..24] {
            pages.insert(number(at), &log[at + 24..at + 24 + size]);
        }
    }
    let mut database = fs::OpenOptions::new().write(true).open(file).expect("the file");
    for (page, content) in pages.into_iter().take(most) {
        database.seek(SeekFrom::Start(((page - 1) * size) as u64)).expect("a place");
        database.write_all(content).expect("written");
    }
    // To close it would drop the locks that SQLite has on it in this process.
    std::mem::forget(database);
}

async fn send_some(jobs: &Arc<dyn Queue>, some: usize) {
    for _ in 0..some {
        jobs.send(vec![Outgoing::new("x")]).await.expect("sent").remove(0).expect("sent");
    }
}

/// Sends a message that has pages of its own.
async fn send_long(jobs: &Arc<dyn Queue>) {
    let long = Outgoing::new(vec![b'x'; 50_000]);
    jobs.send(vec![long]).await.expect("sent").remove(0).expect("sent");
}

/// Begins to read: until it ends, only what is in the log by now can be moved, and the log is not started again.
const READ: &str = "BEGIN; SELECT * FROM pillarbox_schema";

/// The database has changed, and the log does not say that any of it was moved.
#[tokio::test]
async fn a_checkpoint_of_another_program_that_is_killed_is_not_taken_for_a_copy() {
    // Before it, another one has moved all of the log but the last messages, or nothing.
    let case = async |all_but: Option<usize>, most: usize| {
        let (_directory, file) = directory();
        let backend = open(&file).await;
        let jobs = queue(&backend, "jobs");
        send_some(&jobs, 2).await;
        let mover = Connection::open(&file).unwrap();
        mover.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        send_long(&jobs).await;
        let reader = Connection::open(&file).unwrap();
        if let Some(last) = all_but {
            reader.execute_batch(READ).unwrap();
            send_some(&jobs, last).await;
            mover.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        }
        send_some(&jobs, 1).await;
        drop((mover, reader));
        begin_checkpoint(&file, most);
        send_some(&jobs, 1).await;
        let again = Mailboxes::new(open_again(&file).await.unwrap());
        send_some(&queue(&again, "jobs"), 1).await;
        begin_checkpoint(&file, most);
        again.close().await;
        backend.close().await;
        let backend = open(&file).await;
        let sent = 6 + all_but.unwrap_or(0) as u64;
        assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), sent);
        backend.close().await;
        assert_eq!(verify(&file).unwrap(), [""; 0]);
    };
    let after = async |all_but| tokio::join!(case(all_but, 3), case(all_but, usize::MAX));
    tokio::join!(after(None), after(Some(0)), after(Some(1)));
}

#[tokio::test]
async fn a_file_that_was_wrongly_taken_for_another_is_opened_again() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 2).await;
    Connection::open(&file).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    send_some(&jobs, 2).await;
    let database = fs::OpenOptions::new().write(true).open(&file).unwrap();
    database.set_modified(std::time::UNIX_EPOCH).unwrap();
    std::mem::forget(database);
    // Nothing of the log is in it, and nothing shows that it is not another file.
    let text = refused_send(&jobs).await;
    let advice = ["If nothing was copied over it", "jobs.db-lock", "jobs.db-wal"];
    let places = advice.map(|words| text.find(words).unwrap_or_else(|| panic!("{text}")));
    assert!(places.is_sorted(), "the harmless comes first: {text}");
    backend.close().await;
    let text = refusal(SqliteOptions::new(&file)).await;
    assert!(text.contains("copied over"), "{text}");
    begin_checkpoint(&file, 3);
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 1).await;
    assert_eq!(jobs.counts().await.unwrap().total(), 5);
    backend.close().await;
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

/// Its counters are the same, and the messages are others.
#[tokio::test]
async fn a_copy_of_a_file_in_which_as_much_has_happened_is_noticed() {
    let (_directory, file) = directory();
    let other = file.with_file_name("other.db");
    let backend = open(&other).await;
    send_some(&queue(&backend, "jobs"), 3).await;
    backend.close().await;
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 2).await;
    Connection::open(&file).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    send_some(&jobs, 1).await;
    fs::copy(&other, &file).unwrap();
    let text = refused_send(&jobs).await;
    assert!(text.contains("copied over"), "{text}");
    backend.close().await;
    assert!(fs::read(&file).unwrap() == fs::read(&other).unwrap(), "the file was written");
}

/// Its pages are in the log, and SQLite no longer looks for them there.
#[tokio::test]
async fn an_earlier_state_of_a_file_that_is_copied_over_it_is_noticed() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 2).await;
    let mover = Connection::open(&file).unwrap();
    mover.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut reader = None;
    let mut move_all = async || {
        send_long(&jobs).await;
        let next = Connection::open(&file).unwrap();
        next.execute_batch(READ).unwrap();
        reader = Some(next);
        mover.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        send_some(&jobs, 1).await;
        fs::read(&file).unwrap()
    };
    let earlier = move_all().await;
    let later = move_all().await;
    assert!(earlier != later, "nothing was moved");
    fs::write(&file, &earlier).unwrap();
    let text = refused_send(&jobs).await;
    assert!(text.contains("copied over"), "{text}");
    // The other is as good as it was.
    fs::write(&file, &later).unwrap();
    send_some(&jobs, 1).await;
    assert_eq!(jobs.counts().await.unwrap().total(), 7);
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

/// To close any handle of a file drops the locks that SQLite has on it. A connection of another program, with an older
/// version of SQLite that looks at nothing else, would then take itself for the last one, and delete the log.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_was_compared_with_its_log_keeps_its_locks() {
    use std::os::unix::fs::MetadataExt;
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 3).await;
    let inode = format!(":{} ", fs::metadata(&file).unwrap().ino());
    let is_locked = || fs::read_to_string("/proc/locks").unwrap().contains(&inode);
    assert!(is_locked());
    begin_checkpoint(&file, usize::MAX);
    send_some(&jobs, 1).await;
    assert!(is_locked());
}

/// A connection of somebody else moves the log into the file: nothing is wrong with that.
#[tokio::test]
async fn a_file_into_which_others_move_the_log_goes_on() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let again = Mailboxes::new(open_again(&file).await.unwrap());
    let there = queue(&again, "jobs");
    let mover = Connection::open(&file).unwrap();
    for mode in ["PASSIVE", "PASSIVE", "FULL", "RESTART", "TRUNCATE", "PASSIVE", "TRUNCATE"] {
        for jobs in [&jobs, &there, &jobs] {
            for _ in 0..3 {
                jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
            }
            mover.execute_batch(&format!("PRAGMA wal_checkpoint({mode})")).unwrap();
        }
        // Another program opens it anew, and finds nothing wrong.
        let one =
            SqliteBackend::open_with_clock(SqliteOptions::new(&file), Arc::new(SystemClock::new()));
        Mailboxes::new(one.await.unwrap()).close().await;
    }
    assert_eq!(jobs.counts().await.unwrap().total(), 7 * 9);
    assert_eq!(verify(&file).unwrap(), [""; 0]);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_a_problem_that_a_diagnosis_tells() {
    use std::io::Write;
    let place = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(place.path()) else {
        println!("left out: this user may not mount a file system");
        return;
    };
    let backend = open(disk.0.join("jobs.db")).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let filler = disk.0.join("filler");
    let fill = || {
        let mut file = fs::File::create(&filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    fill();
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    let problem = diagnosis.problems().next().expect("a problem").text.clone();
    assert!(problem.contains("the disk is full"), "{problem}");
    fs::remove_file(&filler).unwrap();
    assert_eq!(backend.diagnose(false).await.expect("a diagnosis").problems().count(), 0);
    backend.close().await;
    // There is no room for the files that opening makes.
    fill();
    let text = refusal(SqliteOptions::new(disk.0.join("jobs.db"))).await;
    assert!(text.contains("the disk is full"), "{text}");
    fs::remove_file(&filler).unwrap();
    let backend = open(disk.0.join("jobs.db")).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 1);
    backend.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn new_files_are_private_unless_the_umask_is_to_decide() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    let modes = async |file: &Path, options: SqliteOptions| -> Vec<u32> {
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        queue(&backend, "jobs").send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
        let name = |suffix: &str| file.with_file_name(format!("jobs.db{suffix}"));
        let modes = ["", "-wal", "-shm", "-lock"].iter().map(|suffix| mode(&name(suffix)));
        let modes = modes.collect();
        backend.close().await;
        modes
    };
    let (_directory, file) = directory();
    assert_eq!(modes(&file, SqliteOptions::new(&file)).await, [0o600; 4]);

    let (directory, file) = self::directory();
    let plain = directory.path().join("plain");
    fs::write(&plain, "").unwrap();
    let by_umask = SqliteOptions::new(&file).permissions(FilePermissions::Umask);
    assert_eq!(modes(&file, by_umask.clone()).await, [mode(&plain); 4]);

    // A file that is there keeps its mode, and those beside it have the same.
    allow(&file, 0o660);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    assert_eq!(modes(&file, SqliteOptions::new(&file)).await, [0o660; 4]);
    allow(&file, 0o600);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    assert_eq!(modes(&file, by_umask).await, [0o600; 4]);
}

/// Changes the directory, so it has a process of its own: cargo-nextest gives one to each test.
#[tokio::test]
async fn a_relative_path_means_the_same_file_after_a_change_of_directory() {
    let (directory, file) = directory();
    std::env::set_current_dir(directory.path()).unwrap();
    let backend = open("jobs.db").await;
    std::env::set_current_dir("/").unwrap();
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    // Another spelling of the same path is the same file, and shares its thread.
    let same = queue(&open(&file).await, "jobs");
    assert_eq!(same.receive(Receive::one()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_waiter_is_told_that_the_file_is_gone() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let waiter =
        tokio::spawn(
            async move { jobs.receive(Receive::one().wait(Duration::from_secs(600))).await },
        );
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs::remove_file(&file).unwrap();
    let told = tokio::time::timeout(Duration::from_secs(30), waiter).await.expect("it is told");
    let error = told.unwrap().unwrap_err().to_string();
    assert!(error.contains("was moved, deleted or replaced"), "{error}");
}

#[tokio::test]
async fn a_lock_that_another_program_holds_is_waited_for() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let send = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.send(vec![Outgoing::new("x")]).await }
    });
    // Longer than SQLite waits by itself.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!send.is_finished());
    other.execute_batch("COMMIT").unwrap();
    send.await.unwrap().unwrap().remove(0).unwrap();
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[tokio::test]
async fn closing_does_not_wait_for_a_lock_that_another_program_holds() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    jobs.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let send = tokio::spawn(async move { jobs.send(vec![Outgoing::new("y")]).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokio::time::timeout(Duration::from_secs(20), backend.close()).await.expect("it closes");
    assert!(send.await.unwrap().is_err());
}

/// Says what opening and sending come to. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, as a user who may not write"]
fn stranger() {
    let Some((file, _)) = told() else { return };
    pillarbox_testing::block_on(async {
        let said = match SqliteBackend::open(SqliteOptions::new(file)).await {
            Err(error) => error.to_string(),
            Ok(backend) => {
                let jobs = queue(&Mailboxes::new(backend), "jobs");
                match jobs.send(vec![Outgoing::new("x")]).await {
                    Err(error) => error.to_string(),
                    Ok(_) => "sent".to_owned(),
                }
            }
        };
        println!("@ {said}");
    });
}

/// Runs [`stranger`] as a user to whom file permissions apply. They do not apply to root.
#[cfg(unix)]
fn as_stranger(file: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;

    // The program itself may be where a stranger cannot read it.
    let folder = tempfile::tempdir().expect("a directory");
    allow(folder.path(), 0o755);
    let program = folder.path().join("stranger");
    fs::copy(std::env::current_exe().expect("this test"), &program).expect("copied");
    let mut command = Command::new(&program);
    if fs::metadata(&program).expect("the program").uid() == 0 {
        command.uid(65534).gid(65534);
    }
    command.current_dir("/");
    Child::start_by(command, "faults::stranger", file, "").finish().join("\n")
}

#[cfg(unix)]
fn allow(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_cannot_be_written_is_told_and_works_again_once_it_can() {
    let (directory, file) = directory();
    let backend = open(&file).await;
    queue(&backend, "jobs").send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap();
    backend.close().await;
    let lock = directory.path().join("jobs.db-lock");

    allow(&lock, 0o644);
    allow(&file, 0o644);
    allow(directory.path(), 0o755);
    let refused = || {
        let said = as_stranger(&file);
        assert!(said.contains("cannot be written") || said.contains("cannot be opened"), "{said}");
    };
    refused();
    allow(&file, 0o666);
    refused();
    allow(directory.path(), 0o777);
    let said = as_stranger(&file);
    assert!(said.contains("jobs.db-lock") && said.contains("Permission denied"), "{said}");
    allow(&lock, 0o666);
    assert_eq!(as_stranger(&file), "sent");
    assert_eq!(verify(&file).unwrap(), [""; 0]);
    let backend = open(&file).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().ready, 2);
}
