//! Databases and logs that are deleted, moved, linked or overwritten while they are open: each has a clear error, and
//! nothing is lost.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailboxes, Outgoing, Queue, Receive, SystemClock};
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous};

use crate::common::{
    SmallDisk, assert_intact, assert_says, database, directory, open, open_again, problem, queue,
    refusal, send,
};

#[tokio::test]
async fn a_file_that_is_deleted_or_replaced_while_open_is_noticed() {
    let (_directory, file, _backend, jobs) = database().await;
    send(&jobs, "x").await;
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    let error = jobs.send(vec![Outgoing::new("y")]).await.unwrap_err().to_string();
    assert_says(&error, &["was moved, deleted or replaced"]);
    fs::write(&file, "").unwrap();
    let error = jobs.receive(Receive::one()).await.unwrap_err().to_string();
    assert_says(&error, &["was moved, deleted or replaced"]);
    // Put back, it is served again, and nothing is missing.
    fs::rename(&aside, &file).unwrap();
    assert_eq!(jobs.receive(Receive::one()).await.unwrap().len(), 1);
}

/// Sends a message and returns the error with which that is refused.
async fn refused_send(jobs: &Arc<dyn Queue>) -> String {
    match jobs.send(vec![Outgoing::new("y")]).await {
        Err(error @ Error::Connection { .. }) => error.to_string(),
        other => panic!("a send that is not durable was confirmed: {other:?}"),
    }
}

#[cfg(unix)]
#[tokio::test]
async fn nothing_is_confirmed_once_the_log_is_deleted_and_closing_saves_what_was() {
    for synchronous in [Synchronous::Full, Synchronous::Normal] {
        let (_directory, file) = directory();
        let options = SqliteOptions::new(&file).synchronous(synchronous);
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        let jobs = queue(&backend, "jobs");
        send_some(&jobs, 3).await;
        fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
        let text = refused_send(&jobs).await;
        assert_says(&text, &["jobs.db-wal", "deleted"]);
        assert!(jobs.receive(Receive::one()).await.is_err());
        assert_says(&problem(&backend).await, &["jobs.db-wal"]);
        backend.close().await;
        let backend = open(&file).await;
        assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 3);
        backend.close().await;
        assert_intact(&file);
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_log_that_is_moved_away_and_put_back_is_written_again() {
    let (_directory, file, _backend, jobs) = database().await;
    send(&jobs, "x").await;
    let log = file.with_file_name("jobs.db-wal");
    let aside = file.with_file_name("aside");
    fs::rename(&log, &aside).unwrap();
    refused_send(&jobs).await;
    // A copy of the log is not the one that is written.
    fs::copy(&aside, &log).unwrap();
    refused_send(&jobs).await;
    fs::rename(&aside, &log).unwrap();
    send(&jobs, "z").await;
    let bodies = jobs.peek(10, None).await.unwrap().messages;
    let bodies: Vec<_> = bodies.iter().map(|peeked| &peeked.message.body[..]).collect();
    assert_eq!(bodies, [b"x", b"z"]);
}

/// A second process would create a new log, which does not match the index of the old one.
#[cfg(unix)]
#[tokio::test]
async fn a_file_whose_log_was_deleted_while_open_cannot_be_opened_again() {
    let (_directory, file, backend, jobs) = database().await;
    send(&jobs, "x").await;
    fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
    for _ in 0..2 {
        let text = open_again(&file).await.expect_err("refused").to_string();
        assert_says(&text, &["jobs.db-wal", "deleted"]);
    }
    backend.close().await;
    let backend = open(&file).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 1);
    backend.close().await;
    assert_intact(&file);
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_with_two_names_is_refused_and_works_again_with_one() {
    let (_directory, file, backend, jobs) = database().await;
    send(&jobs, "x").await;
    let other = file.with_file_name("other.db");
    fs::hard_link(&file, &other).unwrap();
    let text = refused_send(&jobs).await;
    assert_says(&text, &["hard link"]);
    assert_says(&problem(&backend).await, &["hard link"]);
    for name in [&file, &other] {
        let text = open_again(name).await.expect_err("refused").to_string();
        assert_says(&text, &["hard link"]);
    }
    assert!(!file.with_file_name("other.db-wal").exists(), "a log was created for the other name");
    fs::remove_file(&other).unwrap();
    send(&jobs, "z").await;
    assert_eq!(jobs.counts().await.unwrap().total(), 2);
}

/// As in a container into which the file is mounted, and not its directory.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_is_mounted_without_its_log_is_refused() {
    let (_directory, file) = directory();
    open(&file).await.close().await;
    let mount_point = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(mount_point.path()) else { return };
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
    assert_says(&text, &["another device", "directory"]);
}

#[tokio::test]
async fn a_file_that_was_copied_over_takes_no_more_messages_and_is_not_written() {
    let (_directory, file) = directory();
    let other = file.with_file_name("other.db");
    let backend = open(&other).await;
    send(&queue(&backend, "jobs"), "other").await;
    backend.close().await;

    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send(&jobs, "x").await;
    // The first message is in the file, and no longer in the log.
    let other_program = Connection::open(&file).unwrap();
    other_program.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    send(&jobs, "x").await;
    drop(other_program);
    fs::copy(&other, &file).unwrap();
    for _ in 0..2 {
        let text = refused_send(&jobs).await;
        assert_says(&text, &["copied over"]);
    }
    let text = open_again(&file).await.expect_err("refused").to_string();
    assert_says(&text, &["copied over"]);
    assert_says(&problem(&backend).await, &["copied over"]);
    backend.close().await;
    // The log still belongs to the former file.
    let text = refusal(SqliteOptions::new(&file)).await;
    assert_says(&text, &["copied over", "jobs.db-wal"]);
    assert!(fs::read(&file).unwrap() == fs::read(&other).unwrap(), "the file was written");
    fs::remove_file(file.with_file_name("jobs.db-wal")).unwrap();
    let backend = open(&file).await;
    let there = queue(&backend, "jobs").peek(10, None).await.unwrap().messages;
    assert_eq!(there.len(), 1);
    assert_eq!(&there[0].message.body[..], b"other");
}

/// Copies up to `max` pages of the log to the file, in order, as a checkpoint does before it syncs the file and
/// records that.
fn begin_checkpoint(file: &Path, max: usize) {
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
    for (page, content) in pages.into_iter().take(max) {
        database.seek(SeekFrom::Start(((page - 1) * size) as u64)).expect("a position");
        database.write_all(content).expect("written");
    }
    // Closing it would drop the locks that SQLite has on it in this process.
    std::mem::forget(database);
}

async fn send_some(jobs: &Arc<dyn Queue>, count: usize) {
    for _ in 0..count {
        send(jobs, "x").await;
    }
}

/// Sends a message that has pages of its own.
async fn send_long(jobs: &Arc<dyn Queue>) {
    let long = Outgoing::new(vec![b'x'; 50_000]);
    jobs.send(vec![long]).await.expect("sent").remove(0).expect("sent");
}

/// Begins to read: until it ends, only pages that are in the log by now can be checkpointed, and the log is not
/// restarted.
const READ: &str = "BEGIN; SELECT * FROM pillarbox_schema";

/// The database has changed, and the log does not record a checkpoint.
#[tokio::test]
async fn a_killed_checkpoint_of_another_program_is_not_taken_for_an_overwrite() {
    // Before it, another checkpoint has copied all of the log but the last messages, or nothing.
    let case = async |all_but: Option<usize>, max: usize| {
        let (_directory, file, backend, jobs) = database().await;
        send_some(&jobs, 2).await;
        let other_program = Connection::open(&file).unwrap();
        other_program.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        send_long(&jobs).await;
        let reader = Connection::open(&file).unwrap();
        if let Some(last) = all_but {
            reader.execute_batch(READ).unwrap();
            send_some(&jobs, last).await;
            other_program.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        }
        send_some(&jobs, 1).await;
        drop((other_program, reader));
        begin_checkpoint(&file, max);
        send_some(&jobs, 1).await;
        let again = open_again(&file).await.unwrap();
        send_some(&queue(&again, "jobs"), 1).await;
        begin_checkpoint(&file, max);
        again.close().await;
        backend.close().await;
        let backend = open(&file).await;
        let sent = 6 + all_but.unwrap_or(0) as u64;
        assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), sent);
        backend.close().await;
        assert_intact(&file);
    };
    let after = async |all_but| tokio::join!(case(all_but, 3), case(all_but, usize::MAX));
    tokio::join!(after(None), after(Some(0)), after(Some(1)));
}

#[tokio::test]
async fn a_file_that_was_wrongly_taken_for_overwritten_can_be_opened_again() {
    let (_directory, file, backend, jobs) = database().await;
    send_some(&jobs, 2).await;
    Connection::open(&file).unwrap().execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    send_some(&jobs, 2).await;
    let database = fs::OpenOptions::new().write(true).open(&file).unwrap();
    database.set_modified(std::time::UNIX_EPOCH).unwrap();
    std::mem::forget(database);
    // Nothing of the log is in the file, so nothing shows that it is the former one.
    let text = refused_send(&jobs).await;
    let advice = ["If nothing was copied over it", "jobs.db-lock", "jobs.db-wal"];
    let positions = advice.map(|words| text.find(words).unwrap_or_else(|| panic!("{text}")));
    assert!(positions.is_sorted(), "the harmless case comes first: {text}");
    backend.close().await;
    let text = refusal(SqliteOptions::new(&file)).await;
    assert_says(&text, &["copied over"]);
    begin_checkpoint(&file, 3);
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    send_some(&jobs, 1).await;
    assert_eq!(jobs.counts().await.unwrap().total(), 5);
    backend.close().await;
    assert_intact(&file);
}

/// Its counters are equal, but its messages are not.
#[tokio::test]
async fn a_copy_of_a_file_with_equal_counters_is_noticed() {
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
    assert_says(&text, &["copied over"]);
    backend.close().await;
    assert!(fs::read(&file).unwrap() == fs::read(&other).unwrap(), "the file was written");
}

/// Its pages are in the log, and SQLite no longer reads them from there.
#[tokio::test]
async fn an_earlier_state_that_is_copied_over_the_file_is_noticed() {
    let (_directory, file, _backend, jobs) = database().await;
    send_some(&jobs, 2).await;
    let other_program = Connection::open(&file).unwrap();
    other_program.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut reader = None;
    let mut checkpoint_all = async || {
        send_long(&jobs).await;
        let next = Connection::open(&file).unwrap();
        next.execute_batch(READ).unwrap();
        reader = Some(next);
        other_program.execute_batch("PRAGMA wal_checkpoint(PASSIVE)").unwrap();
        send_some(&jobs, 1).await;
        fs::read(&file).unwrap()
    };
    let earlier = checkpoint_all().await;
    let later = checkpoint_all().await;
    assert!(earlier != later, "nothing was copied");
    fs::write(&file, &earlier).unwrap();
    let text = refused_send(&jobs).await;
    assert_says(&text, &["copied over"]);
    // The later state is accepted again.
    fs::write(&file, &later).unwrap();
    send_some(&jobs, 1).await;
    assert_eq!(jobs.counts().await.unwrap().total(), 7);
    assert_intact(&file);
}

/// Closing any handle of a file drops the locks that SQLite has on it. A connection of another program, with an older
/// version of SQLite that checks nothing else, would then take itself for the last one, and delete the log.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_file_that_was_compared_with_its_log_keeps_its_locks() {
    use std::os::unix::fs::MetadataExt;
    let (_directory, file, _backend, jobs) = database().await;
    send_some(&jobs, 3).await;
    let inode = format!(":{} ", fs::metadata(&file).unwrap().ino());
    let is_locked = || fs::read_to_string("/proc/locks").unwrap().contains(&inode);
    assert!(is_locked());
    begin_checkpoint(&file, usize::MAX);
    send_some(&jobs, 1).await;
    assert!(is_locked());
}

/// A checkpoint by a connection of another program is no error.
#[tokio::test]
async fn a_file_that_other_programs_checkpoint_stays_usable() {
    let (_directory, file, _backend, jobs) = database().await;
    let again = open_again(&file).await.unwrap();
    let there = queue(&again, "jobs");
    let other_program = Connection::open(&file).unwrap();
    for mode in ["PASSIVE", "PASSIVE", "FULL", "RESTART", "TRUNCATE", "PASSIVE", "TRUNCATE"] {
        for jobs in [&jobs, &there, &jobs] {
            send_some(jobs, 3).await;
            other_program.execute_batch(&format!("PRAGMA wal_checkpoint({mode})")).unwrap();
        }
        // Another program opens it, and finds nothing wrong.
        let one =
            SqliteBackend::open_with_clock(SqliteOptions::new(&file), Arc::new(SystemClock::new()));
        Mailboxes::new(one.await.unwrap()).close().await;
    }
    assert_eq!(jobs.counts().await.unwrap().total(), 7 * 9);
    assert_intact(&file);
}

#[tokio::test]
async fn a_log_whose_file_was_moved_away_is_not_deleted() {
    let (_directory, file) = directory();
    let backend = open(&file).await;
    send(&queue(&backend, "jobs"), "x").await;
    let aside = file.with_extension("aside");
    fs::rename(&file, &aside).unwrap();
    backend.close().await;
    let text = refusal(SqliteOptions::new(&file)).await;
    assert_says(&text, &["Put the file back"]);
    fs::rename(&aside, &file).unwrap();
    assert_eq!(queue(&open(&file).await, "jobs").counts().await.unwrap().ready, 1);
}

#[tokio::test]
async fn a_waiter_fails_when_the_file_is_gone() {
    let (_directory, file, _backend, jobs) = database().await;
    let request = Receive::one().wait(Duration::from_secs(600));
    let waiter = tokio::spawn(async move { jobs.receive(request).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    fs::remove_file(&file).unwrap();
    let received = tokio::time::timeout(Duration::from_secs(30), waiter).await;
    let error = received.expect("it fails in time").unwrap().unwrap_err().to_string();
    assert_says(&error, &["was moved, deleted or replaced"]);
}
