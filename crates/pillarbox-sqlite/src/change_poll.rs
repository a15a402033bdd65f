//! When to look for changes by other processes, while there are waiters.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::log_watch::LogWatch;
use crate::requests::RequestQueue;

/// Interval of looks where the log cannot be watched.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(15);
/// Shortest interval where it is watched.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// Longest interval where it is watched, and between two looks at the clock.
pub(crate) const LONGEST_INTERVAL: Duration = Duration::from_secs(1);

/// Decides when to look at the database.
///
/// The log is written before the index that makes a commit visible, so a look right after a write may be too early.
/// It is repeated 1, 4, 16, 64 and 256 ms after the write, and then every second. The look every second also finds the
/// commit of a process that was suspended between the two, and a file that was moved or replaced, which is not watched.
#[derive(Debug)]
pub(crate) struct ChangePoll {
    source: Source,
    /// When the log was last known to be written.
    written_at: Option<Instant>,
    /// Whether it was written since.
    is_written: Arc<AtomicBool>,
}

#[derive(Debug)]
enum Source {
    /// No other process can write.
    Nobody,
    /// The log, which is not watched before there is a waiter.
    Unwatched(PathBuf),
    Watched(LogWatch),
    /// The log cannot be watched.
    Polled,
}

impl ChangePoll {
    /// For the log at this path. Without one, no other process can write.
    pub(crate) fn new(log: Option<&Path>) -> Self {
        Self::of(log.map_or(Source::Nobody, |log| Source::Unwatched(log.to_owned())))
    }

    /// Polls at short intervals, for a clock that does not advance with time.
    pub(crate) fn polled() -> Self {
        Self::of(Source::Polled)
    }

    fn of(source: Source) -> Self {
        Self { source, written_at: None, is_written: Arc::default() }
    }

    /// Returns the time until the next look, unless a write to the log is reported to the request queue before. To be
    /// called between a look and the wait for the next one.
    pub(crate) fn next(&mut self, requests: &Arc<RequestQueue>) -> Option<Duration> {
        self.watch(requests);
        let watch = match &self.source {
            Source::Nobody => return None,
            Source::Watched(watch) if !watch.is_lost() => watch,
            _ => return Some(POLL_INTERVAL),
        };
        watch.arm();
        let is_written = self.is_written.swap(false, Ordering::AcqRel);
        let Some(written_at) = self.written_at.filter(|_| !is_written) else {
            self.written_at = Some(Instant::now());
            return Some(if is_written { SHORTEST_INTERVAL } else { Duration::ZERO });
        };
        Some((written_at.elapsed() * 3).clamp(SHORTEST_INTERVAL, LONGEST_INTERVAL))
    }

    /// Watches the log, if it is not watched yet. The first interval is then zero: a look finds what was written
    /// before.
    fn watch(&mut self, requests: &Arc<RequestQueue>) {
        let Source::Unwatched(log) = &self.source else { return };
        let (is_written, requests) = (self.is_written.clone(), requests.clone());
        let report = move || {
            is_written.store(true, Ordering::Release);
            requests.wake_writer();
        };
        self.source = match LogWatch::start(log, SHORTEST_INTERVAL, report) {
            Ok(watch) => Source::Watched(watch),
            Err(error) => {
                if error.kind() != io::ErrorKind::Unsupported {
                    tracing::warn!(%error, "cannot watch the log; waiters poll it instead");
                }
                Source::Polled
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_other_processes_nothing_is_polled() {
        let requests = Arc::new(RequestQueue::new());
        assert_eq!(ChangePoll::new(None).next(&requests), None);
    }

    #[test]
    fn a_log_that_cannot_be_watched_is_polled() {
        let requests = Arc::new(RequestQueue::new());
        let mut poll = ChangePoll::new(Some(Path::new("missing/jobs.db-wal")));
        for _ in 0..3 {
            assert_eq!(poll.next(&requests), Some(POLL_INTERVAL));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_first_look_is_immediate_and_a_write_wakes_the_writer_and_shortens_the_interval() {
        use std::io::Write;

        let mut log = tempfile::NamedTempFile::new().unwrap();
        let requests = Arc::new(RequestQueue::new());
        let mut poll = ChangePoll::new(Some(log.path()));
        assert_eq!(poll.next(&requests), Some(Duration::ZERO));
        let first = poll.next(&requests).unwrap();
        assert!(first >= SHORTEST_INTERVAL);
        poll.written_at = Some(Instant::now() - LONGEST_INTERVAL);
        assert_eq!(poll.next(&requests), Some(LONGEST_INTERVAL));

        log.write_all(b"x").unwrap();
        let mut batch = Vec::new();
        // Without a limit: only the report can end it.
        assert!(requests.take_batch(&mut batch, None));
        assert!(batch.is_empty());
        assert_eq!(poll.next(&requests), Some(SHORTEST_INTERVAL));
    }
}
