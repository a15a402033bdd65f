//! The one thread of a file that writes.
//!
//! It takes all requests that are in line, carries them out in one transaction, commits, and only
//! then answers: one wait for the disk serves many callers (group commit). While the disk works,
//! the next batch lines up.
//!
//! Receives that wait are kept here, not in the file. A message that a batch makes ready is
//! delivered to the first waiter within the same transaction. What other processes do is noticed
//! by asking SQLite for its `data_version` every few milliseconds, and only while somebody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Clock, Delivery, QueueName, Receive};
use rusqlite::Connection;

use crate::failure::Failure;
use crate::file::{Place, Turn};
use crate::inbox::{Call, Claim, Inbox, Op, Request};
use crate::store::Store;

/// How often another process's work is looked for while somebody waits.
const POLL: Duration = Duration::from_millis(10);
/// How long another program may keep the file locked before callers are told.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may do so before the log is.
const LOCK_WARNING: Duration = Duration::from_secs(5);

type Waiter = Call<Receive, Vec<Delivery>, Claim>;

/// Runs until the inbox is closed and everything in it is done.
pub(crate) fn run(connection: &Connection, place: &Place, inbox: &Arc<Inbox>, clock: &dyn Clock) {
    let mut writer = Writer {
        connection,
        place,
        inbox,
        clock,
        store: Store::new(connection),
        waiters: HashMap::new(),
        data_version: None,
        looked: Instant::now(),
        log: Log::new(),
    };
    let mut batch = Vec::new();
    while inbox.take(&mut batch, writer.patience()) {
        if !batch.is_empty() || writer.look_around() {
            writer.carry_out(std::mem::take(&mut batch));
        }
    }
}

struct Writer<'c> {
    connection: &'c Connection,
    place: &'c Place,
    inbox: &'c Arc<Inbox>,
    clock: &'c dyn Clock,
    store: Store<'c>,
    /// Receives that wait, in order of arrival.
    waiters: HashMap<QueueName, VecDeque<Waiter>>,
    /// As of when the store knows the file.
    data_version: Option<i64>,
    /// When all waiters were last looked after.
    looked: Instant,
    log: Log,
}

impl<'c> Writer<'c> {
    /// How long to sleep if nobody asks. `None`: for ever.
    fn patience(&mut self) -> Option<Duration> {
        if self.store.has_garbage().unwrap_or(false) {
            return Some(Duration::ZERO);
        }
        if self.waiters.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let due = self.waiters.keys().filter_map(|queue| self.store.next_due(queue)).min();
        Some(due.map_or(POLL, |due| due.since(now).min(POLL)))
    }

    /// Whether there is something to do though nobody asked.
    fn look_around(&mut self) -> bool {
        self.waiters.retain(|_, line| {
            line.retain(|waiter| !waiter.reply.is_closed());
            !line.is_empty()
        });
        let looked = self.refresh().and_then(|_| {
            let now = self.clock.now();
            for queue in self.waiters.keys() {
                if self.store.may_be_ready(queue, now)? {
                    return Ok(true);
                }
            }
            Ok(self.store.has_garbage()?)
        });
        // What is wrong with the file is told to those who wait, by the transaction.
        looked.unwrap_or(!self.waiters.is_empty())
    }

    /// Makes the store forget what is no longer true. Says whether it did.
    fn refresh(&mut self) -> Result<bool, Failure> {
        let mut statement = self.connection.prepare_cached("PRAGMA data_version")?;
        let version = statement.query_row([], |row| row.get(0))?;
        let changed = self.data_version != Some(version);
        if changed {
            self.store.clear();
            self.data_version = Some(version);
        }
        Ok(changed)
    }

    /// Carries out a batch and answers it.
    fn carry_out(&mut self, mut batch: Vec<Request>) {
        let mut served = Vec::new();
        match self.attempt(&mut batch, &mut served) {
            Ok(turn) => {
                for (queue, waiter) in served {
                    self.deliver(queue, waiter);
                }
                for request in batch {
                    self.answer(request);
                }
                self.log.keep_short(self.connection);
                drop(turn);
            }
            Err(failure) => {
                self.roll_back();
                let blameless = !batch.is_empty();
                for (queue, waiter) in served.into_iter().rev() {
                    if blameless {
                        self.waiters.entry(queue).or_default().push_front(waiter);
                    } else {
                        let _ = waiter.reply.send(Err(failure.clone()));
                    }
                }
                if batch.len() > 1 && failure.depends_on_size() {
                    // One of them may be at fault, such as a body too large for the disk.
                    for request in batch {
                        self.carry_out(vec![request]);
                    }
                } else {
                    for request in batch {
                        request.fail(&failure);
                    }
                }
            }
        }
    }

    /// Runs one transaction. Nothing may be answered before it has succeeded.
    fn attempt(
        &mut self,
        batch: &mut [Request],
        served: &mut Vec<(QueueName, Waiter)>,
    ) -> Result<Turn<'c>, Failure> {
        let turn = self.place.lock()?;
        self.place.check()?;
        self.begin()?;
        let news = self.refresh()?;
        self.store.begin(self.clock.now())?;
        for request in batch.iter_mut().filter(|request| !request.is_receive()) {
            request.run(&mut self.store)?;
        }
        self.serve_waiters(batch, news, served)?;
        for request in batch.iter_mut().filter(|request| request.is_receive()) {
            request.run(&mut self.store)?;
        }
        if self.store.has_garbage()? {
            self.store.reclaim()?;
        }
        self.store.flush()?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(turn)
    }

    /// Begins a transaction that may write, as soon as nobody else has one.
    fn begin(&self) -> Result<(), Failure> {
        let mut statement = self.connection.prepare_cached("BEGIN IMMEDIATE")?;
        let start = Instant::now();
        let mut warned = false;
        loop {
            let failure = match statement.execute([]) {
                Ok(_) => return Ok(()),
                Err(error) => Failure::from(error),
            };
            if !failure.is_busy() {
                return Err(failure);
            }
            if start.elapsed() > LOCK_PATIENCE || self.inbox.is_closed() {
                return Err(Failure::Locked(start.elapsed()));
            }
            if start.elapsed() > LOCK_WARNING && !warned {
                warned = true;
                tracing::warn!("another program keeps the file locked; waiting for it");
            }
        }
    }

    fn roll_back(&mut self) {
        self.store.clear();
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll back");
        }
    }

    /// Delivers to those who wait what is ready.
    fn serve_waiters(
        &mut self,
        batch: &[Request],
        news: bool,
        served: &mut Vec<(QueueName, Waiter)>,
    ) -> Result<(), Failure> {
        if self.waiters.is_empty() {
            return Ok(());
        }
        let everyone = news || batch.is_empty() || self.looked.elapsed() > POLL;
        let queues: Vec<QueueName> = if everyone {
            self.looked = Instant::now();
            self.waiters.keys().cloned().collect()
        } else {
            let touched = batch.iter().map(|request| &request.queue);
            touched.filter(|queue| self.waiters.contains_key(*queue)).cloned().collect()
        };
        for queue in queues {
            let Some(line) = self.waiters.get_mut(&queue) else { continue };
            while !line.is_empty() && self.store.ready(&queue)? > 0 {
                let Some(mut waiter) = line.pop_front() else { break };
                if waiter.reply.is_closed() {
                    continue;
                }
                let Receive { max, visibility, .. } = waiter.ask;
                let deliveries = self.store.receive(&queue, max, visibility);
                waiter.answer = deliveries.as_ref().ok().cloned();
                served.push((queue.clone(), waiter));
                deliveries?;
            }
            if line.is_empty() {
                self.waiters.remove(&queue);
            }
        }
        Ok(())
    }

    /// Answers a receive, or lets it wait.
    fn deliver(&mut self, queue: QueueName, mut waiter: Waiter) {
        let deliveries = waiter.answer.take().unwrap_or_default();
        if deliveries.is_empty() && !waiter.ask.wait.is_zero() {
            self.waiters.entry(queue).or_default().push_back(waiter);
            return;
        }
        let claim = Claim::new(queue, deliveries, self.inbox.clone());
        // Where nobody listens any more, the claim is dropped and gives back what it holds.
        let _ = waiter.reply.send(Ok(claim));
    }

    fn answer(&mut self, request: Request) {
        match request.op {
            Op::Send(call) => call.answer(),
            Op::Receive(call) => self.deliver(request.queue, call),
            Op::Settle(call) => call.answer(),
            Op::Peek(call) => call.answer(),
            Op::Counts(call) => call.answer(),
            Op::Purge(call) => call.answer(),
            Op::Queues(call) => call.answer(),
            Op::Release(_) | Op::Forget => {}
        }
    }
}

impl<Q, A> Call<Q, A> {
    /// Gives the answer. Whoever does not listen any more has no need of it.
    fn answer(self) {
        let _ = self.reply.send(self.answer.ok_or(Failure::WriterGone));
    }
}

impl<Q, A, R> Call<Q, A, R> {
    fn fail(self, failure: &Failure) {
        let _ = self.reply.send(Err(failure.clone()));
    }
}

impl Request {
    fn is_receive(&self) -> bool {
        matches!(self.op, Op::Receive(_))
    }

    /// Carries out what is asked, and keeps the answer.
    fn run(&mut self, store: &mut Store<'_>) -> Result<(), Failure> {
        let queue = &self.queue;
        match &mut self.op {
            Op::Send(call) => {
                let each = call.ask.batch.iter();
                let max_size = call.ask.max_size;
                let sent = each.map(|message| store.send(queue, message, max_size));
                call.answer = Some(sent.collect::<Result<_, _>>()?);
            }
            Op::Receive(call) if call.reply.is_closed() => {}
            Op::Receive(call) => {
                let Receive { max, visibility, .. } = call.ask;
                call.answer = Some(store.receive(queue, max, visibility)?);
            }
            Op::Settle(call) => {
                let each = call.ask.iter();
                let settled =
                    each.map(|settle| store.settle(queue, &settle.receipt, settle.action));
                call.answer = Some(settled.collect::<Result<_, _>>()?);
            }
            Op::Peek(call) => {
                let (max, after) = call.ask;
                call.answer = Some(store.peek(queue, max, after)?);
            }
            Op::Counts(call) => call.answer = Some(store.counts(queue)?),
            Op::Purge(call) => call.answer = Some(store.purge(queue)?),
            Op::Queues(call) => call.answer = Some(store.queues()?),
            Op::Release(receipts) => {
                receipts.iter().try_for_each(|receipt| store.release(queue, receipt))?;
            }
            Op::Forget => store.forget(queue)?,
        }
        Ok(())
    }

    fn fail(self, failure: &Failure) {
        match self.op {
            Op::Send(call) => call.fail(failure),
            Op::Receive(call) => call.fail(failure),
            Op::Settle(call) => call.fail(failure),
            Op::Peek(call) => call.fail(failure),
            Op::Counts(call) => call.fail(failure),
            Op::Purge(call) => call.fail(failure),
            Op::Queues(call) => call.fail(failure),
            // Leases that could not be released end by themselves.
            Op::Release(_) | Op::Forget => {}
        }
    }
}

/// Keeps the write-ahead log short: moves what it holds into the file itself, now and then.
struct Log {
    /// Commits since its length was last asked for.
    commits: u32,
    /// At so many pages the next attempt is made.
    next: i64,
    warned: bool,
}

impl Log {
    /// Commits after which its length is asked for.
    const COMMITS: u32 = 8;
    /// Pages after which the log is moved into the file: 4 MiB.
    const PAGES: i64 = 1000;
    /// Pages from which on writing stops for a moment, so that readers let go of the log: 64 MiB.
    const MANY_PAGES: i64 = 16_000;
    /// For how long.
    const PAUSE: Duration = Duration::from_millis(200);

    const fn new() -> Self {
        Self { commits: 0, next: Self::PAGES, warned: false }
    }

    /// Moves the log into the file if it is long. To be called between two transactions, while no
    /// other process can write.
    fn keep_short(&mut self, connection: &Connection) {
        self.commits += 1;
        if self.commits < Self::COMMITS {
            return;
        }
        self.commits = 0;
        let Some((pages, _)) = checkpoint(connection, "PRAGMA wal_checkpoint(NOOP)") else {
            return;
        };
        if pages < self.next {
            return;
        }
        let mut done = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)");
        if !is_whole(done) && pages > Self::MANY_PAGES {
            // Readers hold on to old pages. New readers do not, while nobody writes.
            let _ = connection.busy_timeout(Self::PAUSE);
            done = checkpoint(connection, "PRAGMA wal_checkpoint(RESTART)");
            let _ = connection.busy_timeout(crate::file::BUSY_TIMEOUT);
            if !is_whole(done) && !self.warned {
                self.warned = true;
                tracing::warn!(pages, "a reader that does not end keeps the write-ahead log long");
            }
        }
        // Where all was moved, the next transaction starts the log again from its beginning.
        let whole = is_whole(done);
        self.next = if whole { Self::PAGES } else { pages + pages / 4 + Self::PAGES };
        self.warned &= !whole;
    }
}

fn is_whole(done: Option<(i64, i64)>) -> bool {
    done.is_some_and(|(pages, moved)| pages == moved)
}

/// Says how many pages the log has and how many of them are in the file. `None`: it could not be
/// tried.
fn checkpoint(connection: &Connection, pragma: &str) -> Option<(i64, i64)> {
    let mut statement = connection.prepare_cached(pragma).ok()?;
    statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))).ok()
}
