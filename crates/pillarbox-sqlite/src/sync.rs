//! Keeping what was committed: the wait for the disk, apart from the work of the writer.
//!
//! SQLite is told not to wait for the disk at each commit (`synchronous = NORMAL`); the log is
//! synced here instead, and nobody is answered before it is. The writer carries out the next batch
//! while the disk works on the last one, so that with many callers neither waits for the other:
//!
//! ```text
//!   writer   ┤ batch 1 ├┤ batch 2 ├─────┤ batch 3 ├─────┤
//!   syncer             ┤ disk: 1        ├┤ disk: 2        ├┤ disk: 3
//!   callers                              ↑ answers to 1     ↑ answers to 2
//! ```
//!
//! This keeps all that `synchronous = FULL` promises. Transactions follow each other in the log,
//! and one that is not whole ends it: if a batch is on the disk, so are all before it, whichever
//! process wrote them. Before SQLite moves the log into the file, it syncs the log by itself.
//!
//! What is on the disk must also be where the next program looks for it. So nobody is answered, with
//! `FULL` or `NORMAL`, before it is known that the paths still lead to the file and the log that were
//! written.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::failure::Failure;
use crate::file::Pair;
use crate::inbox::{Inbox, Request};

/// What must be on the disk before it is answered.
type Answers = Vec<Request>;

/// Answers what was committed, once it is on the disk.
pub(crate) struct Syncer {
    shared: Arc<Shared>,
    /// Where batches are handed over. `None` once the thread is to end.
    line: Option<SyncSender<Answers>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// The write-ahead log. `None`: there is no waiting for a disk.
    log: Option<File>,
    /// Where what was written must be found. `None`: nowhere.
    pair: Option<Pair>,
    inbox: Arc<Inbox>,
    /// Batches handed over and not answered.
    pending: AtomicUsize,
    /// The disk has failed to keep something.
    broken: AtomicBool,
}

impl Syncer {
    /// Starts the thread that waits for the disk, if there is one to wait for.
    pub(crate) fn start(
        log: Option<File>,
        pair: Option<Pair>,
        inbox: Arc<Inbox>,
    ) -> Result<Self, Failure> {
        let needed = log.is_some();
        let (pending, broken) = (AtomicUsize::new(0), AtomicBool::new(false));
        let shared = Arc::new(Shared { log, pair, inbox, pending, broken });
        if !needed {
            return Ok(Self { shared, line: None, thread: None });
        }
        // One batch may lie ready while the disk works on another; then the writer waits.
        let (line, batches) = sync_channel(1);
        let thread = std::thread::Builder::new().name("pillarbox-sync".into()).spawn({
            let shared = shared.clone();
            move || shared.run(&batches)
        });
        let thread = thread.map_err(|error| Failure::io("cannot start a thread", error))?;
        Ok(Self { shared, line: Some(line), thread: Some(thread) })
    }

    /// Answers a batch that was committed. Where nothing else is to be done meanwhile, waits for
    /// the disk here, which saves waking the thread.
    pub(crate) fn complete(&self, answers: Answers, must_keep: bool) {
        if !must_keep {
            return self.shared.answer(answers, Ok(()));
        }
        match &self.line {
            Some(line) if !self.shared.is_alone() => {
                self.shared.pending.fetch_add(1, Ordering::Relaxed);
                self.shared.inbox.expect_release();
                if let Err(left) = line.send(answers) {
                    self.shared.answer(left.0, Err(Failure::WriterGone));
                }
            }
            _ => self.shared.keep(answers),
        }
    }

    /// Whether the disk has failed, so that nothing more can be promised.
    pub(crate) fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.line = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, batches: &Receiver<Answers>) {
        for mut answers in batches {
            let mut count = 1;
            // One wait for the disk serves all that is there.
            while let Ok(more) = batches.try_recv() {
                answers.extend(more);
                count += 1;
            }
            self.keep(answers);
            self.pending.fetch_sub(count, Ordering::Relaxed);
            (0..count).for_each(|_| self.inbox.expect_no_release());
        }
    }

    /// Whether nobody waits: neither for the disk nor for the writer.
    fn is_alone(&self) -> bool {
        self.pending.load(Ordering::Relaxed) == 0 && self.inbox.is_empty()
    }

    /// Waits for the disk and answers.
    fn keep(&self, answers: Answers) {
        let synced = match &self.log {
            Some(log) if !self.broken.load(Ordering::Relaxed) => log.sync_data(),
            _ => Ok(()),
        };
        if let Err(error) = &synced {
            // What the operating system failed to write it may since have forgotten; to try again
            // would prove nothing.
            self.broken.store(true, Ordering::Relaxed);
            tracing::error!(%error, "the disk did not keep what was written");
        }
        let kept = if self.broken.load(Ordering::Relaxed) { Err(Failure::NotKept) } else { Ok(()) };
        self.answer(answers, kept.and_then(|()| self.confirm()));
    }

    /// Fails if what was written is not where the next program would look for it.
    fn confirm(&self) -> Result<(), Failure> {
        let checked = self.pair.as_ref().map_or(Ok(()), |pair| pair.check().map(drop));
        checked.map_err(|failure| Failure::Unconfirmed(Arc::new(failure)))
    }

    fn answer(&self, answers: Answers, kept: Result<(), Failure>) {
        for request in answers {
            match &kept {
                Ok(()) => request.answer(&self.inbox),
                Err(failure) => request.fail(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::Counts;
    use pillarbox_core::lease::Full;
    use tokio::sync::oneshot;

    use super::*;
    use crate::inbox::{Call, Op, Sending};

    type Answer = oneshot::Receiver<Result<Vec<Result<bool, Full>>, Failure>>;

    /// A disk that keeps nothing.
    fn broken() -> Syncer {
        let log = File::options().write(true).open("/dev/null").unwrap();
        assert!(log.sync_data().is_err(), "it cannot be synced");
        Syncer::start(Some(log), None, Arc::new(Inbox::new())).unwrap()
    }

    fn send() -> (Request, Answer) {
        let (mut call, answer) = Call::new(Sending { batch: Vec::new(), max_size: None });
        call.answer = Some(Vec::new());
        (Request { queue: "q".parse().unwrap(), op: Op::Send(call) }, answer)
    }

    #[test]
    fn nothing_is_promised_that_the_disk_has_not_kept() {
        let syncer = broken();
        let (request, answer) = send();
        syncer.complete(vec![request], true);
        assert!(matches!(answer.blocking_recv(), Ok(Err(Failure::NotKept))));
        assert!(syncer.is_broken());
    }

    #[test]
    fn nor_by_the_thread_that_waits_for_the_disk() {
        let syncer = broken();
        // Somebody is in line, so the writer does not wait for the disk itself.
        let (waiting, _answer) = send();
        syncer.shared.inbox.put(waiting);
        let (request, answer) = send();
        syncer.complete(vec![request], true);
        assert!(matches!(answer.blocking_recv(), Ok(Err(Failure::NotKept))));
    }

    /// What is done between the look before a transaction and the answer to it.
    #[cfg(unix)]
    #[test]
    fn nothing_is_promised_that_is_in_a_log_which_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gone.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let pair = Pair::of(&path).unwrap();
        let log = directory.path().join("gone.db-wal");
        for synced in [true, false] {
            let file = synced.then(|| File::options().write(true).open(&log).unwrap());
            let inbox = Arc::new(Inbox::new());
            let syncer = Syncer::start(file, Some(pair.clone()), inbox).unwrap();
            let complete = |is_busy: bool| {
                let (waiting, _answer) = send();
                if is_busy {
                    syncer.shared.inbox.put(waiting);
                }
                let (request, answer) = send();
                syncer.complete(vec![request], true);
                answer.blocking_recv().unwrap()
            };
            assert!(complete(false).is_ok());
            let aside = directory.path().join("aside");
            std::fs::rename(&log, &aside).unwrap();
            for is_busy in [false, true] {
                let told = complete(is_busy);
                assert!(matches!(told, Err(Failure::Unconfirmed(_))), "{told:?}");
            }
            std::fs::rename(&aside, &log).unwrap();
            assert!(complete(true).is_ok() && !syncer.is_broken());
        }
    }

    #[test]
    fn what_promises_nothing_does_not_wait_for_the_disk() {
        let syncer = broken();
        let (mut call, answer) = Call::new(());
        call.answer = Some(Counts::default());
        let request = Request { queue: "q".parse().unwrap(), op: Op::Counts(call) };
        syncer.complete(vec![request], false);
        assert!(matches!(answer.blocking_recv(), Ok(Ok(_))));
    }
}
