//! The writer of a database.
//!
//! It takes all waiting requests, executes them in one transaction, commits, and hands the batch to the
//! [`Syncer`], which replies once it is on the disk: one wait for the disk serves many callers (group commit).
//!
//! Waiters are kept here, not in the file. A message that a batch makes ready is delivered to the first waiter
//! within the same transaction. Changes by other processes are noticed by SQLite's `data_version`, which is read when
//! the log was written ([`ChangePoll`]), and only while there are waiters.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Clock, QueueName, Receive};
use rusqlite::Connection;

use crate::change_poll::{ChangePoll, LONGEST_INTERVAL, POLL_INTERVAL};
use crate::checkpoint::Checkpointer;
use crate::connection::BUSY_TIMEOUT;
use crate::failure::Failure;
use crate::file::Storage;
use crate::requests::{Call, Op, ReceiveReply, Request, RequestQueue, Waiter};
use crate::store::{Cache, Store};
use crate::sync::Syncer;
use crate::write_lock::{LockWait, WriteGuard};

/// Delay after rows of purged queues could not be deleted.
const RECLAIM_RETRY_DELAY: Duration = Duration::from_secs(1);

/// A writer between two batches.
///
/// It can move between threads, unlike a [`Writer`], whose statements borrow the connection.
pub(crate) struct IdleWriter {
    connection: Connection,
    storage: Storage,
    requests: Arc<RequestQueue>,
    clock: Arc<dyn Clock>,
    syncer: Syncer,
    cache: Cache,
    state: State,
}

/// What a writer keeps from one batch to the next, beside the cache of its store.
struct State {
    /// Receives that wait, in order of arrival.
    waiters: HashMap<QueueName, VecDeque<Waiter>>,
    /// The version of the database that the store's cache is of.
    data_version: Option<i64>,
    change_poll: ChangePoll,
    /// When all queues with waiters were last served.
    last_poll: Instant,
    /// When rows of purged queues may be deleted.
    reclaim_at: Instant,
    checkpointer: Checkpointer,
}

impl IdleWriter {
    pub(crate) fn new(
        connection: Connection,
        storage: Storage,
        requests: Arc<RequestQueue>,
        clock: Arc<dyn Clock>,
        syncer: Syncer,
        change_poll: ChangePoll,
    ) -> Self {
        let state = State {
            waiters: HashMap::new(),
            data_version: None,
            change_poll,
            last_poll: Instant::now(),
            reclaim_at: Instant::now(),
            checkpointer: Checkpointer::new(),
        };
        Self { connection, storage, requests, clock, syncer, cache: Cache::default(), state }
    }

    /// Lets the writer work.
    pub(crate) fn resume<T>(&mut self, work: impl FnOnce(&mut Writer<'_>) -> T) -> T {
        let cache = std::mem::take(&mut self.cache);
        let mut writer = Writer {
            connection: &self.connection,
            storage: &self.storage,
            requests: &self.requests,
            clock: &*self.clock,
            syncer: &self.syncer,
            store: Store::with_cache(&self.connection, cache),
            state: &mut self.state,
        };
        let result = work(&mut writer);
        self.cache = writer.store.into_cache();
        result
    }

    /// Sends the last replies and closes the file.
    pub(crate) fn close(self) {
        // Before the log is deleted, which it would report.
        drop(self.state);
        drop(self.syncer);
        self.storage.before_close(&self.connection);
    }
}

/// How a batch is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Execution {
    /// On the writer thread, which may wait for the lock. Requests that come meanwhile join the batch.
    Joined,
    /// On the writer thread, as it is.
    Alone,
    /// On a thread of a caller, perhaps of an async runtime, which may not wait.
    Inline,
}

pub(crate) struct Writer<'c> {
    connection: &'c Connection,
    storage: &'c Storage,
    requests: &'c Arc<RequestQueue>,
    clock: &'c dyn Clock,
    syncer: &'c Syncer,
    store: Store<'c>,
    state: &'c mut State,
}

impl<'c> Writer<'c> {
    /// Returns the time to sleep if no request comes. `None` for no limit.
    pub(crate) fn idle_timeout(&mut self) -> Option<Duration> {
        if self.has_garbage() {
            return Some(self.state.reclaim_at.saturating_duration_since(Instant::now()));
        }
        if self.state.waiters.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let mut timeout = self.state.change_poll.next(self.requests);
        for queue in self.state.waiters.keys() {
            // Not longer, also if no other process can write: the clock of the machine may be set forward.
            let due = self.store.next_due(queue).map(|due| due.since(now).min(LONGEST_INTERVAL));
            // It was evicted, or a transaction was rolled back: its timers are unknown.
            let unknown = (!self.store.is_cached(queue)).then_some(POLL_INTERVAL);
            timeout = timeout.into_iter().chain(due).chain(unknown).min();
        }
        timeout
    }

    /// Returns whether rows of purged queues are left to be deleted.
    fn has_garbage(&mut self) -> bool {
        self.store.has_garbage().unwrap_or(false)
    }

    /// Executes a batch, or what there is to do although no request has come.
    pub(crate) fn execute_or_work(&mut self, batch: Vec<Request>) {
        if !batch.is_empty() || self.has_background_work() {
            self.execute(batch, Execution::Joined);
        }
    }

    /// Executes a request on the thread of its caller, and replies to it, if nothing can take long. Otherwise returns
    /// the request unchanged: nothing was done, or it is a receive that found nothing and has to wait.
    pub(crate) fn try_execute(&mut self, request: Request) -> Result<(), Request> {
        let may_reply = !request.must_sync() || (self.syncer.is_quick() && self.syncer.is_idle());
        // The writer thread serves the waiters, and checkpoints.
        if !may_reply || !self.state.waiters.is_empty() || self.state.checkpointer.may_be_due_next()
        {
            return Err(request);
        }
        let mut batch = vec![request];
        let _ = self.connection.busy_timeout(Duration::ZERO);
        let done = self.run_transaction(&mut batch, &mut Vec::new(), Execution::Inline);
        let _ = self.connection.busy_timeout(BUSY_TIMEOUT);
        match done {
            Ok(guard) => {
                self.storage.after_commit(self.connection);
                self.state.checkpointer.is_due(self.connection);
                drop(guard);
                if batch.iter().any(Request::would_wait) {
                    return Err(batch.remove(0));
                }
                self.syncer.complete(batch);
                Ok(())
            }
            // Whatever the reason is: the writer thread waits for it, or reports it.
            Err(failure) => {
                // If the lock was not free, no transaction has begun, and the cache is still right.
                if !matches!(failure, Failure::Locked(_)) || !self.connection.is_autocommit() {
                    self.roll_back();
                }
                Err(batch.remove(0))
            }
        }
    }

    /// Returns whether there is something to do although no request has come.
    fn has_background_work(&mut self) -> bool {
        self.remove_cancelled_waiters();
        if self.has_garbage() && self.state.reclaim_at <= Instant::now() {
            return true;
        }
        let checked = self.storage.check().and_then(|is_written| {
            if is_written {
                // Under the write lock it is checked by whom.
                return Ok(true);
            }
            self.refresh()?;
            let now = self.clock.now();
            for queue in self.state.waiters.keys() {
                if self.store.may_be_ready(queue, now)? {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        // The transaction will fail as well, and report the error to the waiters.
        checked.unwrap_or(!self.state.waiters.is_empty())
    }

    fn remove_cancelled_waiters(&mut self) {
        self.state.waiters.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.reply.is_closed());
            !waiters.is_empty()
        });
    }

    /// Clears the store's cache if another connection has written. Returns whether one has.
    fn refresh(&mut self) -> Result<bool, Failure> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version")?;
        let version = statement.query_row([], |row| row.get(0))?;
        let is_changed = self.state.data_version != Some(version);
        if is_changed {
            self.store.clear();
            self.state.data_version = Some(version);
        }
        Ok(is_changed)
    }

    /// Executes a batch and replies to it.
    fn execute(&mut self, mut batch: Vec<Request>, execution: Execution) {
        let mut served = Vec::new();
        match self.run_transaction(&mut batch, &mut served, execution) {
            Ok(guard) => {
                self.storage.after_commit(self.connection);
                let batch = self.park_waiters(batch, served);
                if self.state.checkpointer.is_due(self.connection) {
                    // Other processes must not write meanwhile, or the checkpoint would never be complete.
                    self.syncer.complete(batch);
                    let checkpointer = &mut self.state.checkpointer;
                    let checkpoint = || checkpointer.run(self.connection);
                    self.storage.during_checkpoint(self.connection, checkpoint);
                    drop(guard);
                } else {
                    drop(guard);
                    self.syncer.complete(batch);
                }
            }
            Err(failure) => {
                self.roll_back();
                for (queue, waiter) in served.into_iter().rev() {
                    self.state.waiters.entry(queue).or_default().push_front(waiter);
                }
                if batch.is_empty() {
                    // The waiters are the only callers to report it to.
                    for waiter in self.state.waiters.drain().flat_map(|(_, waiters)| waiters) {
                        let _ = waiter.reply.send(Err(failure.clone()));
                    }
                    self.state.reclaim_at = Instant::now() + RECLAIM_RETRY_DELAY;
                } else if batch.len() > 1 && failure.may_concern_one_request() {
                    for request in batch {
                        self.execute(vec![request], Execution::Alone);
                    }
                } else {
                    for request in batch {
                        request.fail(&failure);
                    }
                }
            }
        }
    }

    /// Turns the receives that found nothing and may wait into waiters, and returns the requests to reply to, the
    /// served waiters included.
    fn park_waiters(
        &mut self,
        mut batch: Vec<Request>,
        served: Vec<(QueueName, Waiter)>,
    ) -> Vec<Request> {
        if batch.iter().any(Request::would_wait) {
            let (done, waiting) = batch.into_iter().partition(|request| !request.would_wait());
            batch = done;
            for Request { queue, op } in waiting {
                if let Op::Receive(call) = op {
                    let (waiter, deliveries) = Call::new(call.input);
                    if call.reply.send(Ok(ReceiveReply::Waiting(deliveries))).is_ok() {
                        self.state.waiters.entry(queue).or_default().push_back(waiter);
                    }
                }
            }
        }
        let served = served.into_iter();
        batch.extend(served.map(|(queue, waiter)| Request { queue, op: Op::Waiter(waiter) }));
        batch
    }

    /// Runs one transaction. No reply may be sent before it has succeeded.
    fn run_transaction(
        &mut self,
        batch: &mut Vec<Request>,
        served: &mut Vec<(QueueName, Waiter)>,
        execution: Execution,
    ) -> Result<WriteGuard<'c>, Failure> {
        if self.syncer.is_broken() {
            return Err(Failure::SyncFailed);
        }
        let requests = self.requests;
        let is_inline = execution == Execution::Inline;
        let is_cancelled = || is_inline || requests.is_closed();
        let mut wait = LockWait::new(&is_cancelled);
        let guard = self.storage.lock_for_writing(&mut wait)?;
        if wait.has_waited && execution == Execution::Joined {
            requests.extend_batch(batch);
        }
        if !is_inline {
            self.storage.check_content(self.connection)?;
        } else if self.storage.check()? {
            // To find out who has written it takes long.
            return Err(Failure::Locked(Duration::ZERO));
        }
        self.begin(&mut wait)?;
        let is_changed = self.refresh()?;
        let now = self.clock.now();
        if is_inline {
            let mut queues = batch.iter().map(|request| &request.queue);
            if is_changed
                || queues.any(|queue| !self.store.is_swept(queue, now))
                || self.has_garbage()
            {
                return Err(Failure::Locked(Duration::ZERO));
            }
        }
        self.store.begin(now)?;
        // All requests are concurrent, so any order of their kinds is right. This one makes room before it is
        // filled and messages before they are received, and lets the store handle equal operations together.
        for request in batch.iter_mut().filter(|request| request.is_settle()) {
            request.run(&mut self.store)?;
        }
        self.send(batch)?;
        for request in batch.iter_mut().filter(|request| request.is_other()) {
            request.run(&mut self.store)?;
        }
        self.serve_waiters(batch, is_changed, served)?;
        self.receive(batch)?;
        if self.state.reclaim_at <= Instant::now() && self.store.has_garbage()? {
            self.store.reclaim()?;
        }
        self.store.flush()?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(guard)
    }

    /// Begins a write transaction, once no other connection has one.
    fn begin(&self, wait: &mut LockWait<'_>) -> Result<(), Failure> {
        let mut statement = self.connection.prepare_cached("BEGIN IMMEDIATE")?;
        wait.retry(|| Ok(statement.execute([]).map(drop)?))
    }

    fn roll_back(&mut self) {
        self.store.clear();
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll back");
        }
    }

    /// Stores messages, those of consecutive sends to one queue together.
    fn send(&mut self, batch: &mut [Request]) -> Result<(), Failure> {
        let sends = batch.iter_mut().filter_map(|request| match &mut request.op {
            Op::Send(call) => Some((&request.queue, call)),
            _ => None,
        });
        let mut sends: Vec<_> = sends.collect();
        for to_queue in sends.chunk_by_mut(|(queue, _), (next, _)| queue == next) {
            let queue = to_queue[0].0;
            let messages = to_queue.iter().flat_map(|(_, call)| {
                call.input.batch.iter().map(|message| (message, call.input.max_size))
            });
            let mut results = self.store.send(queue, messages)?.into_iter();
            for (_, call) in to_queue {
                call.output = Some(results.by_ref().take(call.input.batch.len()).collect());
            }
        }
        Ok(())
    }

    /// Delivers to new receives, consecutive ones of one queue together.
    fn receive(&mut self, batch: &mut [Request]) -> Result<(), Failure> {
        let receives = batch.iter_mut().filter_map(|request| match &mut request.op {
            Op::Receive(call) if !call.reply.is_closed() => Some((&request.queue, call)),
            _ => None,
        });
        let mut receives: Vec<_> = receives.collect();
        for of_queue in receives.chunk_by_mut(|(queue, _), (next, _)| queue == next) {
            let queue = of_queue[0].0;
            let limits = of_queue.iter().map(|(_, call)| (call.input.max, call.input.visibility));
            let deliveries = self.store.receive_each(queue, limits)?;
            for ((_, call), deliveries) in of_queue.iter_mut().zip(deliveries) {
                call.output = Some(deliveries);
            }
        }
        Ok(())
    }

    /// Delivers ready messages to waiters.
    fn serve_waiters(
        &mut self,
        batch: &[Request],
        is_changed: bool,
        served: &mut Vec<(QueueName, Waiter)>,
    ) -> Result<(), Failure> {
        if self.state.waiters.is_empty() {
            return Ok(());
        }
        let is_poll =
            is_changed || batch.is_empty() || self.state.last_poll.elapsed() > POLL_INTERVAL;
        let queues: Vec<QueueName> = if is_poll {
            self.remove_cancelled_waiters();
            self.state.last_poll = Instant::now();
            self.state.waiters.keys().cloned().collect()
        } else {
            let touched = batch.iter().map(|request| &request.queue);
            touched.filter(|queue| self.state.waiters.contains_key(*queue)).cloned().collect()
        };
        for queue in queues {
            let Some(waiters) = self.state.waiters.get_mut(&queue) else { continue };
            while !waiters.is_empty() && self.store.ready(&queue)? > 0 {
                let Some(mut waiter) = waiters.pop_front() else { break };
                if waiter.reply.is_closed() {
                    continue;
                }
                let Receive { max, visibility, .. } = waiter.input;
                match self.store.receive(&queue, max, visibility) {
                    Ok(deliveries) => waiter.output = Some(deliveries),
                    Err(error) => {
                        waiters.push_front(waiter);
                        return Err(error.into());
                    }
                }
                served.push((queue.clone(), waiter));
            }
            if waiters.is_empty() {
                self.state.waiters.remove(&queue);
            }
        }
        Ok(())
    }
}

impl Request {
    /// Returns whether this is a receive that found nothing and may wait.
    fn would_wait(&self) -> bool {
        let Op::Receive(call) = &self.op else { return false };
        let is_empty = call.output.as_ref().is_none_or(Vec::is_empty);
        is_empty && !call.input.wait.is_zero()
    }

    /// Executes the operation, and keeps its output.
    fn run(&mut self, store: &mut Store<'_>) -> Result<(), Failure> {
        let queue = &self.queue;
        match &mut self.op {
            // These are executed together.
            Op::Send(_) | Op::Receive(_) | Op::Waiter(_) => {}
            Op::Settle(call) => {
                let each = call.input.iter();
                let settled =
                    each.map(|settle| store.settle(queue, &settle.receipt, settle.action));
                call.output = Some(settled.collect::<Result<_, _>>()?);
            }
            Op::Peek(call) => {
                let (max, after) = call.input;
                call.output = Some(store.peek(queue, max, after)?);
            }
            Op::Counts(call) => call.output = Some(store.counts(queue)?),
            // The caller of a cancelled purge may have sent a message since.
            Op::Purge(call) if call.reply.is_closed() => {}
            Op::Purge(call) => call.output = Some(store.purge(queue)?),
            Op::Queues(call) => call.output = Some(store.queues()?),
            Op::Release(receipts) => {
                receipts.iter().try_for_each(|receipt| store.release(queue, receipt))?;
            }
            Op::Forget => store.forget(queue)?,
        }
        Ok(())
    }
}
