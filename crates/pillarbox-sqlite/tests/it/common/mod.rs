//! Databases for tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use pillarbox_core::{Error, Mailboxes, Outgoing, Queue, QueueOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous, verify};
use tempfile::TempDir;

/// Returns a new directory and the path of `jobs.db` in it, which does not exist.
pub(crate) fn directory() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("jobs.db");
    (directory, file)
}

/// Creates a database and opens its queue `jobs`.
pub(crate) async fn database() -> (TempDir, PathBuf, Mailboxes, Arc<dyn Queue>) {
    let (directory, file) = directory();
    let backend = open(&file).await;
    let jobs = queue(&backend, "jobs");
    (directory, file, backend, jobs)
}

pub(crate) async fn open(file: impl AsRef<Path>) -> Mailboxes {
    let backend = SqliteBackend::open(SqliteOptions::new(file)).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

/// Opens a database with an engine of its own, as another process would.
pub(crate) async fn open_again(file: &Path) -> pillarbox_core::Result<Mailboxes> {
    let options = SqliteOptions::new(file).synchronous(Synchronous::Normal);
    SqliteBackend::open(options).await.map(Mailboxes::new)
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}

pub(crate) async fn send(queue: &Arc<dyn Queue>, body: impl Into<Bytes>) {
    let mut sent = queue.send(vec![Outgoing::new(body)]).await.expect("sent");
    sent.remove(0).expect("stored");
}

/// Returns the error with which opening fails.
pub(crate) async fn refusal(options: SqliteOptions) -> String {
    match SqliteBackend::open(options).await {
        Err(error @ Error::Connection { .. }) => error.to_string(),
        other => panic!("expected an error about the file, got {other:?}"),
    }
}

/// Returns the first problem of a diagnosis.
pub(crate) async fn problem(backend: &Mailboxes) -> String {
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    diagnosis.problems().next().expect("a problem").text.clone()
}

/// Fails unless the database is intact.
#[track_caller]
pub(crate) fn assert_intact(file: &Path) {
    assert_eq!(verify(file).expect("the file can be read"), [""; 0]);
}

/// Fails unless the text contains all these words.
#[track_caller]
pub(crate) fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

/// A file system of 16 MiB.
pub(crate) struct SmallDisk<'a>(pub(crate) &'a Path);

impl<'a> SmallDisk<'a> {
    /// Mounts one, if this user may.
    pub(crate) fn mount(path: &'a Path) -> Option<Self> {
        let options = ["-t", "tmpfs", "-o", "size=16m", "tmpfs"];
        let mounted = Command::new("mount").args(options).arg(path).output();
        let is_mounted = mounted.is_ok_and(|output| output.status.success());
        if !is_mounted {
            println!("skipped: this user may not mount a file system");
        }
        is_mounted.then_some(Self(path))
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        // A child that was killed may take a moment to close its last file.
        let end = Instant::now() + Duration::from_secs(5);
        let unmounted = || Command::new("umount").arg(self.0).output();
        while !unmounted().is_ok_and(|output| output.status.success()) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
