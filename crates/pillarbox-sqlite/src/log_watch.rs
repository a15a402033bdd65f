//! Reports that something was written to the write-ahead log, by any process.
//!
//! The operating system reports it (inotify). Every commit writes to the log; the index of the log is memory that
//! processes share, and writing to it is not reported.
//!
//! One thread waits for the reports. It reports the next write after it was [armed](LogWatch::arm), and once per
//! arming: a process that writes a lot itself, and has no reason to look at the log, is not disturbed. Writes between
//! two armings are not lost: the operating system keeps the fact.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pillarbox_core::internal::lock;

/// A file that is watched for writes. The watch ends when it is dropped.
#[derive(Debug)]
pub(crate) struct LogWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: os::FileWatch,
    state: Mutex<State>,
    changed: Condvar,
    /// Nothing will be reported any more.
    is_lost: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    is_armed: bool,
    is_ended: bool,
}

impl LogWatch {
    /// Watches a file, and calls `report` after a write that follows an [`arm`](Self::arm), but not more often than
    /// once per `interval`. Fails if files cannot be watched here.
    ///
    /// `report` is also called if the watch is lost later.
    pub(crate) fn start(
        path: &Path,
        interval: Duration,
        report: impl Fn() + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file: os::FileWatch::new(path)?,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_lost: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("pillarbox-watch".into()).spawn({
            let shared = shared.clone();
            move || shared.run(interval, &report)
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Makes the next write be reported, and one that was not reported yet.
    pub(crate) fn arm(&self) {
        let was_armed = std::mem::replace(&mut lock(&self.shared.state).is_armed, true);
        if !was_armed {
            self.shared.changed.notify_one();
        }
    }

    /// Returns whether writes are no longer reported.
    pub(crate) fn is_lost(&self) -> bool {
        self.shared.is_lost.load(Ordering::Acquire)
    }
}

impl Drop for LogWatch {
    fn drop(&mut self) {
        lock(&self.shared.state).is_ended = true;
        self.shared.changed.notify_one();
        self.shared.file.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, interval: Duration, report: &impl Fn()) {
        let mut next = Instant::now();
        while self.wait_until_armed(next) {
            let written = self.file.wait_for_write();
            if lock(&self.state).is_ended {
                return;
            }
            if let Err(error) = &written {
                tracing::warn!(%error, "the log of the database is not watched any more");
                self.is_lost.store(true, Ordering::Release);
            }
            // Before the report: an arming that follows the report must not be overlooked.
            lock(&self.state).is_armed = false;
            report();
            if written.is_err() {
                return;
            }
            next = Instant::now() + interval;
        }
    }

    /// Waits until a write is to be reported, and not before this moment. Returns `false` if the watch is to end.
    fn wait_until_armed(&self, next: Instant) -> bool {
        let mut state = lock(&self.state);
        while !state.is_ended {
            let left = next.saturating_duration_since(Instant::now());
            if !state.is_armed {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            } else if left.is_zero() {
                return true;
            } else {
                let woken = self.changed.wait_timeout(state, left);
                state = woken.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        false
    }
}

/// Fails if files cannot be watched here.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    os::FileWatch::new(path).map(drop)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod os {
    use std::io;
    use std::mem::MaybeUninit;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
    use rustix::io::Errno;

    /// Room for several reports, each of which is 16 bytes without a name.
    const BUFFER_BYTES: usize = 256;

    /// An inotify instance with one watch.
    #[derive(Debug)]
    pub(super) struct FileWatch {
        inotify: OwnedFd,
        watch: i32,
    }

    impl FileWatch {
        pub(super) fn new(path: &Path) -> io::Result<Self> {
            let inotify = inotify::init(CreateFlags::CLOEXEC)?;
            // Of the inode: it is the same when the log is truncated, or moved away and back.
            let watch = inotify::add_watch(&inotify, path, WatchFlags::MODIFY)?;
            Ok(Self { inotify, watch })
        }

        /// Waits for a write since the last call. Returns at once if reports were dropped, because too many were
        /// kept. Fails after [`end`](Self::end).
        pub(super) fn wait_for_write(&self) -> io::Result<()> {
            let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
            let mut reports = Reader::new(&self.inotify, &mut buffer);
            loop {
                let is_gone = match reports.next() {
                    Ok(report) => report.events().contains(ReadFlags::IGNORED),
                    Err(Errno::INTR) => continue,
                    Err(error) => return Err(error.into()),
                };
                if is_gone {
                    return Err(io::Error::other(
                        "the log was deleted, or its file system unmounted",
                    ));
                }
                if reports.is_buffer_empty() {
                    return Ok(());
                }
            }
        }

        /// Removes the watch, which is reported as well and so ends the wait.
        pub(super) fn end(&self) {
            // Fails only if the watch is gone, which was reported then.
            let _ = inotify::remove_watch(&self.inotify, self.watch);
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod os {
    use std::io;
    use std::path::Path;

    /// Files cannot be watched.
    #[derive(Debug)]
    pub(super) enum FileWatch {}

    impl FileWatch {
        pub(super) fn new(_: &Path) -> io::Result<Self> {
            Err(io::ErrorKind::Unsupported.into())
        }

        pub(super) fn wait_for_write(&self) -> io::Result<()> {
            match *self {}
        }

        pub(super) fn end(&self) {
            match *self {}
        }
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::process::Command;
    use std::sync::mpsc::{Receiver, TryRecvError, channel};

    use rusqlite::Connection;
    use tempfile::TempDir;

    use super::*;

    /// Far more than anything here takes.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// A database with a log, and a watch that sends its reports. There is nothing that polls.
    fn watched() -> (TempDir, Connection, LogWatch, Receiver<()>) {
        let directory = tempfile::tempdir().unwrap();
        let connection = Connection::open(directory.path().join("jobs.db")).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let log = directory.path().join("jobs.db-wal");
        let (sender, reports) = channel();
        let report = move || sender.send(()).unwrap();
        let watch = LogWatch::start(&log, Duration::ZERO, report).unwrap();
        (directory, connection, watch, reports)
    }

    fn append_in_another_process(directory: &TempDir) {
        let script = r#"printf x >> "$0""#;
        let log = directory.path().join("jobs.db-wal");
        assert!(Command::new("sh").args(["-c", script]).arg(log).status().unwrap().success());
    }

    #[test]
    fn a_write_by_another_process_is_reported() {
        let (directory, _connection, watch, reports) = watched();
        for _ in 0..5 {
            watch.arm();
            append_in_another_process(&directory);
            reports.recv_timeout(PATIENCE).unwrap();
        }
    }

    #[test]
    fn every_commit_is_a_write_also_to_a_log_that_was_truncated() {
        let (_directory, connection, watch, reports) = watched();
        for _ in 0..5 {
            watch.arm();
            connection.execute("INSERT INTO t VALUES (1)", []).unwrap();
            reports.recv_timeout(PATIENCE).unwrap();
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())).unwrap();
            // The truncation is a write too.
            watch.arm();
            reports.recv_timeout(PATIENCE).unwrap();
        }
    }

    #[test]
    fn a_write_before_the_arming_is_reported_after_it() {
        let (directory, _connection, watch, reports) = watched();
        append_in_another_process(&directory);
        assert_eq!(reports.try_recv(), Err(TryRecvError::Empty));
        watch.arm();
        reports.recv_timeout(PATIENCE).unwrap();
    }

    #[test]
    fn many_writes_are_one_report_and_reading_is_none() {
        let (_directory, connection, watch, reports) = watched();
        for _ in 0..100 {
            connection.execute("INSERT INTO t VALUES (1)", []).unwrap();
        }
        watch.arm();
        reports.recv_timeout(PATIENCE).unwrap();
        let version = || connection.query_row("PRAGMA data_version", [], |row| row.get(0));
        let _: i64 = version().unwrap();
        drop(watch);
        assert_eq!(reports.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_watch_that_is_lost_is_reported() {
        let (directory, connection, watch, reports) = watched();
        watch.arm();
        drop(connection);
        drop(directory);
        // SQLite has deleted the log, and with it the watch.
        while !watch.is_lost() {
            watch.arm();
            let _ = reports.recv_timeout(PATIENCE);
        }
    }

    #[test]
    fn a_file_that_does_not_exist_cannot_be_watched() {
        let directory = tempfile::tempdir().unwrap();
        assert!(check(&directory.path().join("jobs.db-wal")).is_err());
    }
}
