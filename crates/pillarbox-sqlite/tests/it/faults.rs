//! Files that cannot be opened, locked or written: each has a clear error, and nothing is lost.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pillarbox_core::{Mailboxes, Outgoing, RawMessage, Receive, Settle};
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_sqlite::{FilePermissions, SqliteBackend, SqliteOptions};
use pillarbox_testing::process::{Child, assignment};

use crate::common::{
    SmallDisk, assert_intact, assert_says, database, directory, open, problem, queue, refusal, send,
};

/// Fails unless opening is refused with these words, and the file is unchanged.
async fn refused_untouched(file: &Path, words: &[&str]) {
    let before = fs::read(file).expect("the file");
    let text = refusal(SqliteOptions::new(file)).await;
    assert_says(&text, words);
    assert!(fs::read(file).expect("the file") == before, "the file was changed");
    assert!(!file.with_file_name("jobs.db-lock").exists(), "a file was created beside it");
}

#[tokio::test]
async fn a_missing_directory_is_named_and_opening_works_once_it_exists() {
    let (directory, _) = directory();
    let folder = directory.path().join("not/yet");
    let text = refusal(SqliteOptions::new(folder.join("jobs.db"))).await;
    assert_says(&text, &["not/yet does not exist: create the directory first"]);
    fs::create_dir_all(&folder).expect("created");
    open(folder.join("jobs.db")).await.close().await;
}

#[tokio::test]
async fn a_directory_is_not_a_file() {
    let (directory, _) = directory();
    let text = refusal(SqliteOptions::new(directory.path())).await;
    assert_says(&text, &["is not a file"]);
}

#[tokio::test]
async fn a_file_that_must_exist_is_not_created() {
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
    send(&queue(&adopted, "q"), "x").await;
    adopted.close().await;
    let kept: i64 = Connection::open(&file)
        .unwrap()
        .query_row("SELECT x FROM t", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, 7);
    // It holds queues now, and is opened without adoption.
    open(&file).await.close().await;
}

#[tokio::test]
async fn a_database_with_names_like_ours_is_refused_even_for_adoption() {
    let (_directory, file) = directory();
    Connection::open(&file).unwrap().execute_batch("CREATE TABLE pillarbox_message (x)").unwrap();
    refused_untouched(&file, &["names begin with pillarbox"]).await;
    let before = fs::read(&file).unwrap();
    let text = refusal(SqliteOptions::new(&file).adopt(true)).await;
    assert_says(&text, &["names begin with pillarbox"]);
    assert!(fs::read(&file).unwrap() == before, "the file was changed");
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

/// Deliveries that ended before the migration are not counted; leases that expire after it are.
#[tokio::test]
async fn a_file_of_version_2_is_migrated_and_counts_expired_deliveries_from_then_on() {
    let (_directory, file) = directory();
    let old = Connection::open(&file).unwrap();
    old.execute_batch(include_str!("../../src/schema.sql")).unwrap();
    old.execute_batch(include_str!("../../src/schema-2.sql")).unwrap();
    // In the order of the keys: expired, ready again, in flight, never delivered.
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
    assert_intact(&file);

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
    jobs.settle(vec![nack]).await.unwrap().remove(0).expect("the lease is valid");
    let received = jobs.receive(Receive::up_to(10).visibility(Duration::ZERO)).await.unwrap();
    let received: Vec<_> = received.iter().map(|delivery| about(&delivery.message)).collect();
    assert_eq!(received, [('d', 1, 0), ('b', 3, 0), ('a', 4, 1), ('c', 8, 0)]);
    let received = jobs.receive(Receive::up_to(10)).await.unwrap();
    let received: Vec<_> = received.iter().map(|delivery| about(&delivery.message)).collect();
    assert_eq!(received, [('d', 2, 1), ('b', 4, 1), ('a', 5, 2), ('c', 9, 1)]);
    backend.close().await;
    assert_intact(&file);
}

#[tokio::test]
async fn a_file_of_a_newer_version_can_be_neither_opened_nor_written() {
    let (_directory, file) = directory();
    let early = open(&file).await;
    let jobs = queue(&early, "jobs");
    send(&jobs, "x").await;
    let newer = Connection::open(&file).unwrap();
    let version = "SELECT version FROM pillarbox_schema";
    let version: i64 = newer.query_row(version, [], |row| row.get(0)).unwrap();
    newer.execute("UPDATE pillarbox_schema SET version = 99", []).unwrap();

    // A backend that had it open before notices.
    let error = jobs.send(vec![Outgoing::new("y")]).await.unwrap_err().to_string();
    assert_says(&error, &["version 99", "Upgrade this program"]);
    early.close().await;
    drop(newer);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    refused_untouched(&file, &["version 99", "Upgrade this program"]).await;

    // With the old version everything is there.
    let back = Connection::open(&file).unwrap();
    back.execute("UPDATE pillarbox_schema SET version = ?1", [version]).unwrap();
    let late = open(&file).await;
    assert_eq!(queue(&late, "jobs").counts().await.unwrap().ready, 1);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_is_a_problem_in_a_diagnosis() {
    use std::io::Write;
    let mount_point = tempfile::tempdir().expect("a directory");
    let Some(disk) = SmallDisk::mount(mount_point.path()) else { return };
    let backend = open(disk.0.join("jobs.db")).await;
    let jobs = queue(&backend, "jobs");
    send(&jobs, "x").await;
    let filler = disk.0.join("filler");
    let fill = || {
        let mut file = fs::File::create(&filler).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    };
    fill();
    assert_says(&problem(&backend).await, &["the disk is full"]);
    fs::remove_file(&filler).unwrap();
    assert_eq!(backend.diagnose(false).await.expect("a diagnosis").problems().count(), 0);
    backend.close().await;
    // There is no space for the files that opening creates.
    fill();
    let text = refusal(SqliteOptions::new(disk.0.join("jobs.db"))).await;
    assert_says(&text, &["the disk is full"]);
    fs::remove_file(&filler).unwrap();
    let backend = open(disk.0.join("jobs.db")).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().total(), 1);
    backend.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn new_files_are_private_unless_the_umask_applies() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("a file").permissions().mode() & 0o777;
    let modes = async |file: &Path, options: SqliteOptions| -> Vec<u32> {
        let backend = Mailboxes::new(SqliteBackend::open(options).await.unwrap());
        send(&queue(&backend, "jobs"), "x").await;
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

    // An existing file keeps its mode, and the files beside it get the same.
    set_mode(&file, 0o660);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    assert_eq!(modes(&file, SqliteOptions::new(&file)).await, [0o660; 4]);
    set_mode(&file, 0o600);
    fs::remove_file(file.with_file_name("jobs.db-lock")).unwrap();
    assert_eq!(modes(&file, by_umask).await, [0o600; 4]);
}

/// Changes the working directory, which is safe because cargo-nextest runs each test in its own process.
#[tokio::test]
async fn a_relative_path_means_the_same_file_after_a_change_of_directory() {
    let (directory, file) = directory();
    std::env::set_current_dir(directory.path()).unwrap();
    let backend = open("jobs.db").await;
    std::env::set_current_dir("/").unwrap();
    let jobs = queue(&backend, "jobs");
    send(&jobs, "x").await;
    // Another spelling of the path is the same file, and shares the engine.
    let same = queue(&open(&file).await, "jobs");
    assert_eq!(same.receive(Receive::one()).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_lock_that_another_program_holds_is_waited_for() {
    let (_directory, file, _backend, jobs) = database().await;
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
    let (_directory, file, backend, jobs) = database().await;
    send(&jobs, "x").await;
    let other = Connection::open(&file).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let send = tokio::spawn(async move { jobs.send(vec![Outgoing::new("y")]).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    tokio::time::timeout(Duration::from_secs(20), backend.close()).await.expect("it closes");
    assert!(send.await.unwrap().is_err());
}

/// Prints the result of opening and sending. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, as an unprivileged user"]
fn unprivileged() {
    let Some((file, _)) = assignment() else { return };
    pillarbox_testing::block_on(async {
        let output = match SqliteBackend::open(SqliteOptions::new(file)).await {
            Err(error) => error.to_string(),
            Ok(backend) => {
                let jobs = queue(&Mailboxes::new(backend), "jobs");
                match jobs.send(vec![Outgoing::new("x")]).await {
                    Err(error) => error.to_string(),
                    Ok(_) => "sent".to_owned(),
                }
            }
        };
        println!("@ {output}");
    });
}

/// Runs [`unprivileged`] as a user to whom file permissions apply. They do not apply to root.
#[cfg(unix)]
fn run_unprivileged(file: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;

    // The user may not be able to read this program where it is.
    let folder = tempfile::tempdir().expect("a directory");
    set_mode(folder.path(), 0o755);
    let program = folder.path().join("unprivileged");
    fs::copy(std::env::current_exe().expect("this test"), &program).expect("copied");
    let mut command = Command::new(&program);
    if fs::metadata(&program).expect("the program").uid() == 0 {
        command.uid(65534).gid(65534);
    }
    command.current_dir("/");
    Child::start_by(command, "faults::unprivileged", file, "").finish().join("\n")
}

#[cfg(unix)]
fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("changed");
}

#[cfg(unix)]
#[tokio::test]
async fn a_file_that_cannot_be_written_is_reported_and_works_again_once_it_can() {
    let (directory, file) = directory();
    let backend = open(&file).await;
    send(&queue(&backend, "jobs"), "x").await;
    backend.close().await;
    let lock = directory.path().join("jobs.db-lock");

    set_mode(&lock, 0o644);
    set_mode(&file, 0o644);
    set_mode(directory.path(), 0o755);
    let refused = || {
        let output = run_unprivileged(&file);
        assert!(
            output.contains("cannot be written") || output.contains("cannot be opened"),
            "{output}"
        );
    };
    refused();
    set_mode(&file, 0o666);
    refused();
    set_mode(directory.path(), 0o777);
    let output = run_unprivileged(&file);
    assert_says(&output, &["jobs.db-lock", "Permission denied"]);
    set_mode(&lock, 0o666);
    assert_eq!(run_unprivileged(&file), "sent");
    assert_intact(&file);
    let backend = open(&file).await;
    assert_eq!(queue(&backend, "jobs").counts().await.unwrap().ready, 2);
}
