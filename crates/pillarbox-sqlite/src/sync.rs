//! Waits for the disk apart from the work of the writer.
//!
//! The writer's connection does not sync at each commit (`synchronous = NORMAL`); the log is synced here instead,
//! and no reply that confirms something is sent before. The writer executes the next batch while the disk works on the
//! last one, so that with many callers neither waits for the other:
//!
//! ```text
//!   writer   ┤ batch 1 ├┤ batch 2 ├─────┤ batch 3 ├─────┤
//!   syncer             ┤ disk: 1        ├┤ disk: 2        ├┤ disk: 3
//!   callers                              ↑ replies to 1     ↑ replies to 2
//! ```
//!
//! This gives the same guarantee as `synchronous = FULL`. Transactions follow each other in the log, and an
//! incomplete one ends it: if a batch is on the disk, so are all before it, whichever process wrote them. Before a
//! checkpoint, SQLite syncs the log by itself.
//!
//! A receive confirms nothing, and its reply does not wait: a lease outlives the process without a sync, and after a
//! power failure nobody holds a receipt. A settle waits for a sync, which covers the delivery too.
//! So a power failure may undo the last deliveries as if they had never been.
//!
//! What is on the disk must also be where the next program looks for it. So no reply is sent, with `FULL` or
//! `NORMAL`, before it is known that the paths still lead to the database and the log that were written.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::database_files::DatabaseFiles;
use crate::failure::Failure;
use crate::requests::{Request, RequestQueue};

/// Requests of one transaction.
type Batch = Vec<Request>;

/// Number of batches that can wait while the disk works on another; then the writer waits. One sync serves all of
/// them. The writer should not wait: it also replies to receives, which need no sync.
const MAX_BATCHES: usize = 32;

/// Usual duration of a sync up to which a caller waits for it on its own thread.
const QUICK_SYNC: Duration = Duration::from_micros(300);

/// Replies to committed batches once they are on the disk.
pub(crate) struct Syncer {
    state: Arc<SyncState>,
    /// Hands batches to the thread. `None` once the thread is to end.
    batches: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

struct SyncState {
    /// The write-ahead log. `None` if there is no disk to wait for.
    log: Option<File>,
    /// The files that were written to. `None` if in memory.
    files: Option<DatabaseFiles>,
    requests: Arc<RequestQueue>,
    /// Number of batches that were handed to the thread and not replied to.
    pending: AtomicUsize,
    /// A sync has failed.
    is_broken: AtomicBool,
    /// Moving average of the durations of syncs, in nanoseconds. 0 if there was none.
    sync_nanos: AtomicU64,
}

impl Syncer {
    /// Starts the thread that waits for the disk, if there is one to wait for.
    pub(crate) fn start(
        log: Option<File>,
        files: Option<DatabaseFiles>,
        requests: Arc<RequestQueue>,
    ) -> Result<Self, Failure> {
        let has_disk = log.is_some();
        let state = Arc::new(SyncState {
            log,
            files,
            requests,
            pending: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
            sync_nanos: AtomicU64::new(0),
        });
        if !has_disk {
            return Ok(Self { state, batches: None, thread: None });
        }
        let (sender, batches) = sync_channel(MAX_BATCHES);
        let thread = std::thread::Builder::new().name("pillarbox-sync".into()).spawn({
            let state = state.clone();
            move || state.run(&batches)
        });
        let thread = thread.map_err(|error| Failure::io("cannot start a thread", error))?;
        Ok(Self { state, batches: Some(sender), thread: Some(thread) })
    }

    /// Replies to a committed batch: to requests that confirm nothing at once, to the others after the sync. If there
    /// is nothing else to do meanwhile, waits for the disk on the caller's thread, which saves waking the other one.
    pub(crate) fn complete(&self, batch: Batch) {
        let (batch, unsynced): (Batch, Batch) = batch.into_iter().partition(Request::must_sync);
        self.state.reply_unsynced(unsynced);
        if batch.is_empty() {
            return;
        }
        match &self.batches {
            Some(batches) if !self.state.is_idle() => {
                self.state.pending.fetch_add(1, Ordering::Relaxed);
                self.state.requests.add_outstanding();
                if let Err(unsent) = batches.send(batch) {
                    self.state.reply(unsent.0, Err(Failure::WriterStopped));
                }
            }
            _ => self.state.sync_and_reply(batch),
        }
    }

    /// Returns whether a sync usually takes a time for which a thread of an async runtime may be blocked.
    pub(crate) fn is_quick(&self) -> bool {
        let usual = self.state.sync_nanos.load(Ordering::Relaxed);
        self.state.log.is_none() || (1..=QUICK_SYNC.as_nanos() as u64).contains(&usual)
    }

    /// Returns whether no batch waits for the disk and no request for the writer.
    pub(crate) fn is_idle(&self) -> bool {
        self.state.is_idle()
    }

    /// Returns whether a sync has failed, so that nothing more can be confirmed.
    pub(crate) fn is_broken(&self) -> bool {
        self.state.is_broken.load(Ordering::Relaxed)
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SyncState {
    fn run(&self, batches: &Receiver<Batch>) {
        for mut batch in batches {
            let mut count = 1;
            // One sync serves all batches that are there.
            while let Ok(more) = batches.try_recv() {
                batch.extend(more);
                count += 1;
            }
            self.sync_and_reply(batch);
            self.pending.fetch_sub(count, Ordering::Relaxed);
            (0..count).for_each(|_| self.requests.remove_outstanding());
        }
    }

    /// Returns whether no batch waits for the disk and no request for the writer.
    fn is_idle(&self) -> bool {
        self.pending.load(Ordering::Relaxed) == 0 && self.requests.is_empty()
    }

    fn sync_and_reply(&self, batch: Batch) {
        #[cfg(test)]
        self.copy_files();
        let synced = match &self.log {
            Some(log) if !self.is_broken.load(Ordering::Relaxed) => self.sync(log),
            _ => Ok(()),
        };
        if let Err(error) = &synced {
            // The operating system may have dropped what it failed to write, so a later sync that succeeds proves
            // nothing.
            self.is_broken.store(true, Ordering::Relaxed);
            tracing::error!(%error, "the disk did not keep what was written");
        }
        let is_broken = self.is_broken.load(Ordering::Relaxed);
        let synced = if is_broken { Err(Failure::SyncFailed) } else { Ok(()) };
        self.reply(batch, synced.and_then(|()| self.check_files()));
    }

    /// Copies the files for the tests of power failures.
    #[cfg(test)]
    fn copy_files(&self) {
        crate::power_failure::copy_files(self.files.as_ref());
    }

    /// Syncs the log, and measures how long that takes.
    fn sync(&self, log: &File) -> io::Result<()> {
        let start = Instant::now();
        log.sync_data()?;
        let last = start.elapsed().as_nanos() as u64;
        // Two syncs at the same time may lose one of the measurements, which does no harm.
        let average = match self.sync_nanos.load(Ordering::Relaxed) {
            0 => last,
            average => average - average / 8 + last / 8,
        };
        self.sync_nanos.store(average.max(1), Ordering::Relaxed);
        Ok(())
    }

    /// Fails if what was written is not where the next program would look for it.
    fn check_files(&self) -> Result<(), Failure> {
        let checked = self.files.as_ref().map_or(Ok(()), |files| files.check().map(drop));
        checked.map_err(|failure| Failure::Unconfirmed(Arc::new(failure)))
    }

    /// Replies to requests that need not be on the disk. Deliveries must still be in the files that others open.
    fn reply_unsynced(&self, batch: Batch) {
        let has_deliveries = batch.iter().any(Request::has_deliveries);
        let checked = if has_deliveries { self.check_files() } else { Ok(()) };
        self.reply(batch, checked);
    }

    fn reply(&self, batch: Batch, synced: Result<(), Failure>) {
        for request in batch {
            match &synced {
                Ok(()) => request.send_reply(&self.requests),
                Err(failure) => request.fail(failure),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::ledger::Full;
    use pillarbox_core::{
        Counts, Delivery, MessageId, Nonce, RawMessage, Receipt, Receive, Timestamp,
    };
    use tokio::sync::oneshot;

    use super::*;
    use crate::requests::{Call, Op, SendBatch};

    type Reply = oneshot::Receiver<Result<Vec<Result<bool, Full>>, Failure>>;

    /// A disk whose syncs fail.
    fn broken() -> Syncer {
        let log = File::options().write(true).open("/dev/null").unwrap();
        assert!(log.sync_data().is_err(), "it cannot be synced");
        Syncer::start(Some(log), None, Arc::new(RequestQueue::new())).unwrap()
    }

    fn send() -> (Request, Reply) {
        let (mut call, reply) = Call::new(SendBatch { batch: Vec::new(), max_size: None });
        call.output = Some(Vec::new());
        (Request { queue: "q".parse().unwrap(), op: Op::Send(call) }, reply)
    }

    /// Completes a send, on the thread of the syncer if other requests wait.
    fn complete(syncer: &Syncer, is_busy: bool) -> Result<Vec<Result<bool, Full>>, Failure> {
        let (waiting, _reply) = send();
        if is_busy {
            syncer.state.requests.push(waiting);
        }
        let (request, reply) = send();
        syncer.complete(vec![request]);
        reply.blocking_recv().unwrap()
    }

    #[test]
    fn nothing_is_confirmed_that_the_disk_has_not_kept() {
        let syncer = broken();
        assert!(matches!(complete(&syncer, false), Err(Failure::SyncFailed)));
        assert!(syncer.is_broken());
    }

    #[test]
    fn nothing_is_confirmed_by_the_thread_that_the_disk_has_not_kept() {
        assert!(matches!(complete(&broken(), true), Err(Failure::SyncFailed)));
    }

    /// The log is lost between the check before a transaction and the reply.
    #[cfg(unix)]
    #[test]
    fn nothing_is_confirmed_that_is_in_a_log_which_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("gone.db");
        let connection = rusqlite::Connection::open(&path).unwrap();
        connection.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let files = DatabaseFiles::of(&path).unwrap();
        let log = directory.path().join("gone.db-wal");
        for synced in [true, false] {
            let file = synced.then(|| File::options().write(true).open(&log).unwrap());
            let requests = Arc::new(RequestQueue::new());
            let syncer = Syncer::start(file, Some(files.clone()), requests).unwrap();
            assert!(complete(&syncer, false).is_ok());
            let aside = directory.path().join("aside");
            std::fs::rename(&log, &aside).unwrap();
            for is_busy in [false, true] {
                let reply = complete(&syncer, is_busy);
                assert!(matches!(reply, Err(Failure::Unconfirmed(_))), "{reply:?}");
            }
            assert_eq!(complete_receive(&syncer), (false, false));
            std::fs::rename(&aside, &log).unwrap();
            assert!(complete(&syncer, true).is_ok() && !syncer.is_broken());
        }
    }

    /// Completes a receive together with a send. Returns whether each had a good reply.
    fn complete_receive(syncer: &Syncer) -> (bool, bool) {
        let message = RawMessage::new(MessageId::new(), "a", Timestamp::MIN);
        let receipt = Receipt::new(message.id, Nonce::random());
        let (mut call, received) = Call::new(Receive::one());
        call.output = Some(vec![Delivery::new(message, receipt)]);
        let receive = Request { queue: "q".parse().unwrap(), op: Op::Receive(call) };
        let (send, sent) = send();
        syncer.complete(vec![send, receive]);
        (received.blocking_recv().unwrap().is_ok(), sent.blocking_recv().unwrap().is_ok())
    }

    #[test]
    fn a_receive_does_not_wait_for_the_disk() {
        assert_eq!(complete_receive(&broken()), (true, false));
    }

    #[test]
    fn a_request_that_changes_nothing_does_not_wait_for_the_disk() {
        let syncer = broken();
        let (mut call, reply) = Call::new(());
        call.output = Some(Counts::default());
        let request = Request { queue: "q".parse().unwrap(), op: Op::Counts(call) };
        syncer.complete(vec![request]);
        assert!(matches!(reply.blocking_recv(), Ok(Ok(_))));
    }
}
