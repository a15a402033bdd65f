//! The one thread of a file that writes.
//!
//! It takes all requests that are in line, carries them out in one transaction, commits, and hands
//! the answers to the [`Syncer`], which gives them once the disk has kept the batch: one wait for
//! the disk serves many callers (group commit).
//!
//! Receives that wait are kept here, not in the file. A message that a batch makes ready is
//! delivered to the first waiter within the same transaction. What other processes do is noticed
//! by asking SQLite for its `data_version` every few milliseconds, and only while somebody waits.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Clock, QueueName, Receive};
use rusqlite::Connection;

use crate::checkpoint::Log;
use crate::failure::Failure;
use crate::file::{Patience, Place, Turn};
use crate::inbox::{Call, Inbox, Op, Received, Request, Waiter};
use crate::store::Store;
use crate::sync::Syncer;

/// How often the work of other processes is looked for while somebody waits: a waiter has a message
/// from elsewhere after half of it on average, and each look costs some 50 µs of CPU time.
const POLL: Duration = Duration::from_millis(15);
/// How long to leave rows of purged queues alone when they could not be deleted.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);

/// Runs until the inbox is closed and everything in it is done.
pub(crate) fn run(
    connection: &Connection,
    place: &Place,
    inbox: &Arc<Inbox>,
    clock: &dyn Clock,
    syncer: &Syncer,
) {
    let mut writer = Writer {
        connection,
        place,
        inbox,
        clock,
        syncer,
        store: Store::new(connection),
        waiters: HashMap::new(),
        data_version: None,
        looked: Instant::now(),
        reclaim_at: Instant::now(),
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
    syncer: &'c Syncer,
    store: Store<'c>,
    /// Receives that wait, in order of arrival.
    waiters: HashMap<QueueName, VecDeque<Waiter>>,
    /// As of when the store knows the file.
    data_version: Option<i64>,
    /// When all waiters were last looked after.
    looked: Instant,
    /// When rows of purged queues may be deleted.
    reclaim_at: Instant,
    log: Log,
}

impl<'c> Writer<'c> {
    /// How long to sleep if nobody asks. `None`: for ever.
    fn patience(&mut self) -> Option<Duration> {
        if self.has_garbage() {
            return Some(self.reclaim_at.saturating_duration_since(Instant::now()));
        }
        if self.waiters.is_empty() {
            return None;
        }
        let now = self.clock.now();
        let due = self.waiters.keys().filter_map(|queue| self.store.next_due(queue)).min();
        Some(due.map_or(POLL, |due| due.since(now).min(POLL)))
    }

    /// Whether rows of purged queues are left to be deleted.
    fn has_garbage(&mut self) -> bool {
        self.store.has_garbage().unwrap_or(false)
    }

    /// Whether there is something to do though nobody asked.
    fn look_around(&mut self) -> bool {
        self.forget_who_left();
        if self.has_garbage() && self.reclaim_at <= Instant::now() {
            return true;
        }
        let looked = self.place.check().and_then(|is_written| {
            if is_written {
                // By whom is looked at when it is our turn.
                return Ok(true);
            }
            self.refresh()?;
            let now = self.clock.now();
            for queue in self.waiters.keys() {
                if self.store.may_be_ready(queue, now)? {
                    return Ok(true);
                }
            }
            Ok(false)
        });
        // What is wrong with the file is told to those who wait, by the transaction.
        looked.unwrap_or(!self.waiters.is_empty())
    }

    /// Takes those out of line who wait no more.
    fn forget_who_left(&mut self) {
        self.waiters.retain(|_, line| {
            line.retain(|waiter| !waiter.reply.is_closed());
            !line.is_empty()
        });
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
                self.place.committed(self.connection);
                let batch = self.part_from_waiters(batch, served);
                let must_keep = batch.iter().any(Request::must_keep);
                if self.log.is_long(self.connection) {
                    // Others must not write meanwhile, or the log would never be done with.
                    self.syncer.complete(batch, must_keep);
                    let log = &mut self.log;
                    self.place.while_moving(self.connection, || log.shorten(self.connection));
                    drop(turn);
                } else {
                    drop(turn);
                    self.syncer.complete(batch, must_keep);
                }
            }
            Err(failure) => {
                self.roll_back();
                for (queue, waiter) in served.into_iter().rev() {
                    self.waiters.entry(queue).or_default().push_front(waiter);
                }
                if batch.is_empty() {
                    // Nobody else is there to be told.
                    for waiter in self.waiters.drain().flat_map(|(_, line)| line) {
                        let _ = waiter.reply.send(Err(failure.clone()));
                    }
                    self.reclaim_at = Instant::now() + RECLAIM_PAUSE;
                } else if batch.len() > 1 && failure.may_concern_one() {
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

    /// What can be answered. A receive that found nothing and would wait does not belong to it, and
    /// gets in line.
    fn part_from_waiters(
        &mut self,
        mut batch: Vec<Request>,
        served: Vec<(QueueName, Waiter)>,
    ) -> Vec<Request> {
        if batch.iter().any(Request::would_wait) {
            let (answered, waiting) = batch.into_iter().partition(|request| !request.would_wait());
            batch = answered;
            for Request { queue, op } in waiting {
                if let Op::Receive(call) = op {
                    let (waiter, answer) = Call::new(call.ask);
                    if call.reply.send(Ok(Received::Later(answer))).is_ok() {
                        self.waiters.entry(queue).or_default().push_back(waiter);
                    }
                }
            }
        }
        let served = served.into_iter();
        batch.extend(served.map(|(queue, waiter)| Request { queue, op: Op::Waiter(waiter) }));
        batch
    }

    /// Runs one transaction. Nothing may be answered before it has succeeded.
    fn attempt(
        &mut self,
        batch: &mut [Request],
        served: &mut Vec<(QueueName, Waiter)>,
    ) -> Result<Turn<'c>, Failure> {
        if self.syncer.is_broken() {
            return Err(Failure::NotKept);
        }
        let inbox = self.inbox;
        let give_up = || inbox.is_closed();
        let mut patience = Patience::new(&give_up);
        let turn = self.place.take_turn(&mut patience)?;
        self.place.check_content(self.connection)?;
        self.begin(&mut patience)?;
        let news = self.refresh()?;
        self.store.begin(self.clock.now())?;
        // All of them are under way at the same time, so any order of the kinds will do. This one
        // makes room before it is filled and messages before they are looked for, and lets the
        // store do what is alike in one go.
        for request in batch.iter_mut().filter(|request| request.is_settle()) {
            request.run(&mut self.store)?;
        }
        self.send(batch)?;
        for request in batch.iter_mut().filter(|request| request.is_other()) {
            request.run(&mut self.store)?;
        }
        self.serve_waiters(batch, news, served)?;
        self.receive(batch)?;
        if self.reclaim_at <= Instant::now() && self.store.has_garbage()? {
            self.store.reclaim()?;
        }
        self.store.flush()?;
        self.connection.prepare_cached("COMMIT")?.execute([])?;
        Ok(turn)
    }

    /// Begins a transaction that may write, as soon as nobody else has one.
    fn begin(&self, patience: &mut Patience<'_>) -> Result<(), Failure> {
        let mut statement = self.connection.prepare_cached("BEGIN IMMEDIATE")?;
        patience.retry(|| Ok(statement.execute([]).map(drop)?))
    }

    fn roll_back(&mut self) {
        self.store.clear();
        if !self.connection.is_autocommit()
            && let Err(error) = self.connection.execute_batch("ROLLBACK")
        {
            tracing::error!(%error, "cannot roll back");
        }
    }

    /// Stores what is sent: all that goes to the same queue in one go.
    fn send(&mut self, batch: &mut [Request]) -> Result<(), Failure> {
        let sends = batch.iter_mut().filter_map(|request| match &mut request.op {
            Op::Send(call) => Some((&request.queue, call)),
            _ => None,
        });
        let mut sends: Vec<_> = sends.collect();
        for to_queue in sends.chunk_by_mut(|(queue, _), (next, _)| queue == next) {
            let queue = to_queue[0].0;
            let messages = to_queue.iter().flat_map(|(_, call)| {
                call.ask.batch.iter().map(|message| (message, call.ask.max_size))
            });
            let mut results = self.store.send(queue, messages)?.into_iter();
            for (_, call) in to_queue {
                call.answer = Some(results.by_ref().take(call.ask.batch.len()).collect());
            }
        }
        Ok(())
    }

    /// Delivers to those who have just asked: all that ask of the same queue in one go.
    fn receive(&mut self, batch: &mut [Request]) -> Result<(), Failure> {
        let receives = batch.iter_mut().filter_map(|request| match &mut request.op {
            Op::Receive(call) if !call.reply.is_closed() => Some((&request.queue, call)),
            _ => None,
        });
        let mut receives: Vec<_> = receives.collect();
        for of_queue in receives.chunk_by_mut(|(queue, _), (next, _)| queue == next) {
            let queue = of_queue[0].0;
            let asks = of_queue.iter().map(|(_, call)| (call.ask.max, call.ask.visibility));
            let given = self.store.receive_each(queue, asks)?;
            for ((_, call), given) in of_queue.iter_mut().zip(given) {
                call.answer = Some(given);
            }
        }
        Ok(())
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
            self.forget_who_left();
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
                match self.store.receive(&queue, max, visibility) {
                    Ok(deliveries) => waiter.answer = Some(deliveries),
                    Err(error) => {
                        line.push_front(waiter);
                        return Err(error.into());
                    }
                }
                served.push((queue.clone(), waiter));
            }
            if line.is_empty() {
                self.waiters.remove(&queue);
            }
        }
        Ok(())
    }
}

impl Request {
    /// Whether this is a receive that found nothing and has time.
    fn would_wait(&self) -> bool {
        let Op::Receive(call) = &self.op else { return false };
        let empty = call.answer.as_ref().is_none_or(Vec::is_empty);
        empty && !call.ask.wait.is_zero()
    }

    /// Carries out what is asked, and keeps the answer.
    fn run(&mut self, store: &mut Store<'_>) -> Result<(), Failure> {
        let queue = &self.queue;
        match &mut self.op {
            // These are carried out together.
            Op::Send(_) | Op::Receive(_) | Op::Waiter(_) => {}
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
            // One that was given up may come after a send that was not.
            Op::Purge(call) if call.reply.is_closed() => {}
            Op::Purge(call) => call.answer = Some(store.purge(queue)?),
            Op::Queues(call) => call.answer = Some(store.queues()?),
            Op::Release(receipts) => {
                receipts.iter().try_for_each(|receipt| store.release(queue, receipt))?;
            }
            Op::Forget => store.forget(queue)?,
        }
        Ok(())
    }
}
