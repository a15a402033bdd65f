//! The contract in SQL, within one transaction of one connection.
//!
//! A [`Store`] knows nothing of threads, files or waiting. Whoever uses it begins a transaction,
//! tells it the time ([`Store::begin`]), calls operations, calls [`Store::flush`] and commits; or
//! rolls back and clears the [`Cache`]. The writer thread does so for many callers at once, and
//! [`crate::transaction`] does so inside the caller's own transaction.
//!
//! # Where a message is
//!
//! | state | rows |
//! |---|---|
//! | ready, never delivered | `message`, its key past the cursor of its queue |
//! | ready again | `message`, `requeued` |
//! | in flight | `message`, `timer` with a nonce |
//! | delayed | `message`, `timer` without a nonce |
//! | deleted | none |
//!
//! # Invariants
//!
//! 1. The counts of a queue's row are those of its rows, and `cursor` is the highest place of a
//!    message that was delivered straight from `message` ([`verify`](crate::verify) looks).
//! 2. Every timer lies within a range of `expiry` of its bucket, so that a sweep which looks at
//!    the ranges of all buckets that have begun misses none.
//! 3. Every operation first lets time come to the time of the transaction: timers that ended are
//!    moved to `requeued`, in the order of their deadlines.
//! 4. A receipt is valid if its nonce is that of the message's timer. Nothing else records it.
//! 5. Where a timer with a nonce expires, `unsettled` rises if the delivery was started and `uncounted` if
//!    not; where a delivery is released, `uncounted` rises. So both together are never more than the
//!    deliveries that have ended.

mod cache;
mod deliveries;
mod key;
mod ready;
mod salvage;
mod statements;
mod sweep;
#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::lease::{Full, Stale};
use pillarbox_core::{
    Attributes, Counts, Delivery, MessageId, MessageState, Nonce, Outgoing, PeekPage, Peeked,
    QueueName, RawMessage, Receipt, SettleAction, Timestamp,
};
use rusqlite::types::{FromSqlError, ValueRef};
use rusqlite::{Connection, OptionalExtension, Result, Row, Statement, params};
use uuid::Uuid;

use self::cache::{Cache, Lease, QueueState, bucket_start};
use self::deliveries::Deliveries;
use self::key::{MAX_PLACE, MAX_QUEUE, QueueNumber};
pub(crate) use self::ready::PeekFrom;
use self::ready::{Picked, ReadyMessages, pick_fresh, pick_merged};
use self::statements::{MANY, Statements};
use self::sweep::{read_timer, requeue, sweep, write_expiry};
use crate::failure::Failure;

/// Room that sends leave for messages which become ready again.
const RESERVED_PLACES: i64 = 1 << 32;
/// How many rows of a purged queue are deleted at a time.
const RECLAIM_ROWS: usize = 2000;

/// The queues of a file, within a transaction.
pub(crate) struct Store<'c> {
    statements: Statements<'c>,
    cache: Cache,
    now: Timestamp,
}

impl<'c> Store<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self {
            statements: Statements::new(connection),
            cache: Cache::default(),
            now: Timestamp::MIN,
        }
    }

    /// Forgets what it knew: another connection has written, or a transaction was rolled back.
    pub(crate) fn clear(&mut self) {
        self.cache.clear();
    }

    /// Takes the time of a transaction that has begun.
    pub(crate) fn begin(&mut self, now: Timestamp) -> Result<(), Failure> {
        self.now = now;
        if !self.cache.schema_checked {
            let version = self.statements.schema_version()?.query_row([], |row| row.get(0))?;
            crate::schema::check_current(version)?;
            self.cache.schema_checked = true;
        }
        Ok(())
    }

    /// Writes what the operations have left to be written once.
    pub(crate) fn flush(&mut self) -> Result<()> {
        for queue in self.cache.dirty() {
            delete_acknowledged(&mut self.statements, queue)?;
            if queue.in_flight + queue.delayed == 0 && queue.next_due.is_some() {
                self.statements.delete_all_buckets()?.execute([queue.number.0])?;
                queue.expiry.clear();
                queue.next_due = None;
            }
            write_expiry(&mut self.statements, queue)?;
            self.statements.update_queue()?.execute(params![
                queue.number.0,
                queue.next_place,
                queue.cursor,
                queue.next_timer,
                queue.total,
                queue.in_flight,
                queue.delayed,
                queue.requeued,
                queue.sent,
            ])?;
            queue.dirty = false;
        }
        self.cache.trim();
        Ok(())
    }

    /// Stores messages in order, each unless its id is here already or the queue holds `max_size`
    /// messages, and says of each whether it was stored.
    pub(crate) fn send<'m>(
        &mut self,
        name: &QueueName,
        messages: impl Iterator<Item = (&'m Outgoing, Option<u64>)>,
    ) -> Result<Vec<Result<bool, Full>>, Failure> {
        let now = self.now;
        let (statements, queue) = self.queue_or_new(name)?;
        // Their ids are free again.
        delete_acknowledged(statements, queue)?;
        let mut results = Vec::with_capacity(messages.size_hint().0);
        let mut pending = Vec::with_capacity(MANY);
        for (message, max_size) in messages {
            if let Some(max_size) = max_size {
                // For only what is stored is counted.
                store(statements, queue, &mut pending, &mut results, now)?;
                if queue.total >= max_size {
                    let known = find_message(statements, queue, message.id)?;
                    results.push(known.map(|_| false).ok_or(Full));
                    continue;
                }
            }
            if message.delay.is_zero() {
                pending.push((queue.number.key(queue.allocate_place()), message));
                results.push(Ok(true));
                if pending.len() == MANY {
                    store(statements, queue, &mut pending, &mut results, now)?;
                }
            } else {
                // In order: the same id may be among those before.
                store(statements, queue, &mut pending, &mut results, now)?;
                results.push(Ok(store_delayed(statements, queue, message, now)?));
            }
        }
        store(statements, queue, &mut pending, &mut results, now)?;
        queue.dirty = true;
        Ok(results)
    }

    /// Delivers up to `max` ready messages and starts a lease of `visibility` on each.
    pub(crate) fn receive(
        &mut self,
        name: &QueueName,
        max: usize,
        visibility: Duration,
    ) -> Result<Vec<Delivery>> {
        let mut given = self.receive_each(name, std::iter::once((max, visibility)))?;
        Ok(given.pop().unwrap_or_default())
    }

    /// Delivers to several receivers in turn, each so many at most and for so long.
    ///
    /// For less than as many calls of [`receive`](Self::receive), and with the same result as if all
    /// had asked before a lease of no time was over: their messages are read in one go.
    pub(crate) fn receive_each(
        &mut self,
        name: &QueueName,
        receivers: impl Iterator<Item = (usize, Duration)> + Clone,
    ) -> Result<Vec<Vec<Delivery>>> {
        let now = self.now;
        let mut given: Vec<Vec<Delivery>> = receivers.clone().map(|_| Vec::new()).collect();
        let Some((statements, queue)) = self.queue(name)? else { return Ok(given) };
        let wanted: usize = receivers.clone().map(|(max, _)| max).sum();
        let max = (wanted as u64).min(queue.ready()) as usize;
        if max == 0 {
            return Ok(given);
        }
        let picked = if queue.requeued == 0 {
            pick_fresh(statements, queue, max)?
        } else {
            pick_merged(statements, queue, max)?
        };
        queue.in_flight += picked.len() as u64;
        queue.dirty = true;
        let mut leases = Vec::with_capacity(picked.len());
        let mut picked = picked.into_iter();
        for ((max, visibility), given) in receivers.zip(&mut given) {
            let due = now + visibility;
            for Picked { key, place, deliveries, mut message } in picked.by_ref().take(max) {
                let (nonce, deliveries) = (Nonce::random(), deliveries.delivered());
                deliveries.apply_to(&mut message);
                let lease = Lease { key, nonce, due, deliveries, is_started: false, place };
                leases.push((queue.set_timer(key, due), lease));
                queue.remember_lease(message.id, lease);
                let receipt = Receipt::new(message.id, nonce);
                given.push(Delivery::new(message, receipt));
            }
        }
        store_leases(statements, &leases)?;
        Ok(given)
    }

    /// Ends or extends the lease that `receipt` is for, if it still runs.
    pub(crate) fn settle(
        &mut self,
        name: &QueueName,
        receipt: &Receipt,
        action: SettleAction,
    ) -> Result<Result<(), Stale>> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else { return Ok(Err(Stale)) };
        let Some((id, lease)) = take_lease(statements, queue, receipt, now)? else {
            return Ok(Err(Stale));
        };
        queue.dirty = true;
        match action {
            SettleAction::Acknowledge => {
                queue.acknowledged.insert(lease.key);
                queue.in_flight -= 1;
                queue.total -= 1;
            }
            SettleAction::Nack { delay } | SettleAction::Release { delay } => {
                let is_attempt = matches!(action, SettleAction::Nack { .. });
                let deliveries =
                    if is_attempt { lease.deliveries } else { lease.deliveries.released() };
                queue.in_flight -= 1;
                if delay.is_zero() {
                    let place = queue.allocate_place();
                    requeue(statements, queue, lease.key, place, deliveries)?;
                } else {
                    let due = now + delay;
                    let timer = queue.set_timer(lease.key, due);
                    let (due, nonce) = (due.as_nanos(), None::<&[u8]>);
                    let set = params![lease.key, due, timer, nonce, deliveries.uncounted, false];
                    statements.update_timer()?.execute(set)?;
                    queue.delayed += 1;
                }
            }
            SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
                let is_started = lease.is_started || matches!(action, SettleAction::Start { .. });
                let due = now + timeout;
                let timer = queue.set_timer(lease.key, due);
                let (nonce, uncounted) = (lease.nonce.as_bytes(), lease.deliveries.uncounted);
                let set = params![lease.key, due.as_nanos(), timer, nonce, uncounted, is_started];
                statements.update_timer()?.execute(set)?;
                queue.remember_lease(id, Lease { due, is_started, ..lease });
            }
        }
        Ok(Ok(()))
    }

    /// Undoes a delivery that nobody has seen: the message is ready again where it was in line,
    /// and was not delivered. Does nothing where the lease has ended.
    pub(crate) fn release(&mut self, name: &QueueName, receipt: &Receipt) -> Result<()> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else { return Ok(()) };
        let Some((_, lease)) = take_lease(statements, queue, receipt, now)? else {
            return Ok(());
        };
        requeue(statements, queue, lease.key, lease.place, lease.deliveries.undone())?;
        queue.in_flight -= 1;
        queue.dirty = true;
        Ok(())
    }

    /// Counts the messages by state, and those ever stored.
    pub(crate) fn counts(&mut self, name: &QueueName) -> Result<Counts> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else {
            return Ok(Counts::default().with_sent(Some(0)).with_counted_at(Some(now)));
        };
        let counts = Counts::new(queue.ready(), queue.in_flight, queue.delayed);
        let counts = counts.with_sent(Some(queue.sent)).with_counted_at(Some(now));
        let mut line = ReadyMessages::new(statements, queue, 0, 1)?;
        let Some(next) = line.next() else { return Ok(counts) };
        let enqueued_at = statements.enqueued_at()?.query_row([next.key], |row| row.get(0))?;
        Ok(counts.with_oldest_age(Some(now.since(Timestamp::from_nanos(enqueued_at)))))
    }

    /// How many messages a receive would deliver.
    pub(crate) fn ready(&mut self, name: &QueueName) -> Result<u64> {
        Ok(self.queue(name)?.map_or(0, |(_, queue)| queue.ready()))
    }

    /// Whether something may have become ready since the queue was last used. Changes nothing,
    /// and needs no transaction.
    pub(crate) fn may_be_ready(&mut self, name: &QueueName, now: Timestamp) -> Result<bool> {
        let Some((_, queue)) = self.known(name)? else { return Ok(false) };
        Ok(queue.ready() > 0 || queue.next_due.is_some_and(|due| due <= now))
    }

    /// When the next message of a queue becomes ready by time, as far as it is known.
    pub(crate) fn next_due(&self, name: &QueueName) -> Option<Timestamp> {
        self.cache.get(name)?.as_ref()?.next_due
    }

    /// Shows up to `max` messages: the ready ones in line, then the others by their time.
    pub(crate) fn peek(
        &mut self,
        name: &QueueName,
        max: usize,
        after: Option<PeekFrom>,
    ) -> Result<PeekPage> {
        let end = PeekPage::new(Vec::new(), None);
        let Some((statements, queue)) = self.queue(name)? else { return Ok(end) };
        delete_acknowledged(statements, queue)?;
        let mut messages = Vec::new();
        let mut from = after.unwrap_or(PeekFrom::Place(0));
        if let PeekFrom::Place(place) = from {
            let line = ReadyMessages::new(statements, queue, place, max)?;
            for next in line {
                let message = read_by_key(statements, next.key, next.deliveries)?;
                messages.push(Peeked::new(message, MessageState::Ready));
                from = PeekFrom::Place(next.place);
            }
            if messages.len() < max {
                from = PeekFrom::Timer(i64::MIN, 0);
            }
        }
        if let PeekFrom::Timer(due, timer) = from
            && messages.len() < max
        {
            let (first, last) = (queue.number.base(), queue.number.last());
            let range = params![first, last, due, timer, max - messages.len()];
            let timers: Vec<_> = statements
                .timers_in_order()?
                .query_map(range, read_timer)?
                .collect::<Result<_>>()?;
            for timer in timers {
                let message = read_by_key(statements, timer.key, timer.deliveries)?;
                let until = Timestamp::from_nanos(timer.due_at);
                let state = if timer.delayed {
                    MessageState::Delayed { until }
                } else {
                    MessageState::InFlight { until }
                };
                messages.push(Peeked::new(message, state));
                from = PeekFrom::Timer(timer.due_at, timer.timer);
            }
        }
        // A full page may have been the last; the next one is then empty.
        let next = (messages.len() == max).then(|| from.to_cursor());
        Ok(PeekPage::new(messages, next))
    }

    /// Deletes all messages and says how many.
    ///
    /// Takes no longer for many than for few: the queue gives up its number, and with it
    /// its rows, which [`reclaim`](Self::reclaim) deletes a few at a time. Under its new number it
    /// keeps nothing but how many messages were sent.
    pub(crate) fn purge(&mut self, name: &QueueName) -> Result<u64, Failure> {
        let Some((statements, queue)) = self.queue(name)? else { return Ok(0) };
        let (purged, sent) = (queue.total, queue.sent);
        if purged > 0 {
            statements.abandon_queue()?.execute([queue.number.0])?;
            self.cache.insert(name, None);
            self.cache.abandoned = Some(true);
            match self.create_queue(name, sent) {
                // Better to lose that count than to keep the messages.
                Ok(()) | Err(Failure::TooManyQueues) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(purged)
    }

    /// Forgets a queue that holds nothing.
    pub(crate) fn forget(&mut self, name: &QueueName) -> Result<()> {
        let Some((statements, queue)) = self.queue(name)? else { return Ok(()) };
        if queue.total == 0 {
            delete_acknowledged(statements, queue)?;
            statements.delete_all_buckets()?.execute([queue.number.0])?;
            statements.delete_queue()?.execute([queue.number.0])?;
            self.cache.insert(name, None);
        }
        Ok(())
    }

    /// The queues there are, in order of name.
    pub(crate) fn queues(&mut self) -> Result<Vec<String>> {
        self.statements.queue_names()?.query_map([], |row| row.get(0))?.collect()
    }

    /// Whether purged queues have rows left. Needs no transaction.
    pub(crate) fn has_garbage(&mut self) -> Result<bool> {
        if let Some(known) = self.cache.abandoned {
            return Ok(known);
        }
        let found = self.statements.abandoned_queue()?.exists([])?;
        self.cache.abandoned = Some(found);
        Ok(found)
    }

    /// Deletes some rows of purged queues.
    pub(crate) fn reclaim(&mut self) -> Result<()> {
        let Self { statements, cache, .. } = self;
        let number = statements.abandoned_queue()?.query_row([], |row| row.get(0)).optional()?;
        let Some(number) = number.map(QueueNumber) else {
            cache.abandoned = Some(false);
            return Ok(());
        };
        let rows = params![number.base(), number.last(), RECLAIM_ROWS];
        let deleted = statements.reclaim_messages()?.execute(rows)?
            + statements.reclaim_timers()?.execute(rows)?
            + statements.reclaim_requeued()?.execute(rows)?;
        if deleted == 0 {
            statements.delete_all_buckets()?.execute([number.0])?;
            statements.delete_queue()?.execute([number.0])?;
        }
        Ok(())
    }

    /// A queue as the file has it, as of the time of the transaction.
    fn queue(
        &mut self,
        name: &QueueName,
    ) -> Result<Option<(&mut Statements<'c>, &mut QueueState)>> {
        let now = self.now;
        let Some((statements, queue)) = self.known(name)? else { return Ok(None) };
        if queue.next_due.is_some_and(|due| due <= now) {
            delete_acknowledged(statements, queue)?;
            sweep(statements, queue, now)?;
        }
        Ok(Some((statements, queue)))
    }

    /// A queue as the file has it, as of when it was last used.
    fn known(
        &mut self,
        name: &QueueName,
    ) -> Result<Option<(&mut Statements<'c>, &mut QueueState)>> {
        if self.cache.get(name).is_none() {
            let state = load(&mut self.statements, name)?;
            self.cache.insert(name, state);
        }
        let Self { statements, cache, .. } = self;
        Ok(cache.get_mut(name).map(|queue| (statements, queue)))
    }

    /// A queue to send to, which comes into being where there is none.
    fn queue_or_new(
        &mut self,
        name: &QueueName,
    ) -> Result<(&mut Statements<'c>, &mut QueueState), Failure> {
        match self.queue(name)? {
            None => self.create_queue(name, 0)?,
            Some((_, queue)) if queue.next_place < MAX_PLACE - RESERVED_PLACES => {}
            // Five years have passed. An empty queue can start again under another number.
            Some((_, queue)) if queue.total > 0 => return Err(Failure::PlacesExhausted),
            Some((_, queue)) => {
                let sent = queue.sent;
                self.forget(name)?;
                self.create_queue(name, sent)?;
            }
        }
        let Self { statements, cache, .. } = self;
        let queue = cache.get_mut(name).ok_or(Failure::PlacesExhausted)?;
        Ok((statements, queue))
    }

    /// Makes an empty queue under a number that is free, of a name that has none.
    fn create_queue(&mut self, name: &QueueName, sent: u64) -> Result<(), Failure> {
        let statements = &mut self.statements;
        let mut number = statements.next_queue()?.query_row([], |row| row.get(0))?;
        if number > MAX_QUEUE {
            number = statements.gap_queue()?.query_row([], |row| row.get(0))?;
        }
        if number > MAX_QUEUE {
            return Err(Failure::TooManyQueues);
        }
        statements.insert_queue()?.execute(params![number, name.as_str(), sent])?;
        let queue = QueueState { sent, ..QueueState::new(QueueNumber(number)) };
        self.cache.insert(name, Some(queue));
        Ok(())
    }
}

/// Writes messages, with their keys, and takes them off the list. One whose id is in the file already
/// is not written again, which its result says then: those of the messages are the last ones.
fn store(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    messages: &mut Vec<(i64, &Outgoing)>,
    results: &mut [Result<bool, Full>],
    now: Timestamp,
) -> Result<()> {
    let (mut stored, mut rest) = (0, &messages[..]);
    while !rest.is_empty() {
        let (rows, statement) = statements.insert_messages.most_of(rest.len())?;
        let (these, later) = rest.split_at(rows);
        for (row, (key, message)) in these.iter().enumerate() {
            bind_message(statement, row, queue.number, *key, message, now)?;
        }
        stored += statement.raw_execute()?;
        // They hold copies of the bodies.
        statement.clear_bindings();
        rest = later;
    }
    queue.count_stored(stored as u64);
    if stored < messages.len() {
        let first = results.len() - messages.len();
        for ((key, message), result) in messages.iter().zip(&mut results[first..]) {
            *result = Ok(find_message(statements, queue, message.id)? == Some(*key));
        }
    }
    messages.clear();
    Ok(())
}

/// The key of the message of an id.
fn find_message(
    statements: &mut Statements<'_>,
    queue: &QueueState,
    id: MessageId,
) -> Result<Option<i64>> {
    let id = params![id.as_bytes(), queue.number.0];
    statements.find_message()?.query_row(id, |row| row.get(0)).optional()
}

/// Sets the values of one of the rows that a statement inserts.
fn bind_message(
    statement: &mut Statement<'_>,
    row: usize,
    queue: QueueNumber,
    key: i64,
    message: &Outgoing,
    now: Timestamp,
) -> Result<()> {
    let first = row * 7 + 1;
    let attributes = (!message.attributes.is_empty()).then(|| write_attributes(message));
    let enqueued_at = message.enqueued_at.unwrap_or(now).as_nanos();
    statement.raw_bind_parameter(first, key)?;
    statement.raw_bind_parameter(first + 1, queue.0)?;
    statement.raw_bind_parameter(first + 2, message.id.as_bytes())?;
    statement.raw_bind_parameter(first + 3, enqueued_at)?;
    statement.raw_bind_parameter(first + 4, message.reply_to.as_deref())?;
    statement.raw_bind_parameter(first + 5, attributes)?;
    statement.raw_bind_parameter(first + 6, &message.body[..])
}

/// Writes a message that is invisible at first, unless its id is in the file already.
fn store_delayed(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    message: &Outgoing,
    now: Timestamp,
) -> Result<bool> {
    let place = queue.allocate_place();
    let key = queue.number.delayed_key(place);
    let (_, statement) = statements.insert_messages.most_of(1)?;
    bind_message(statement, 0, queue.number, key, message, now)?;
    let stored = statement.raw_execute()?;
    statement.clear_bindings();
    if stored > 0 {
        let due = now + message.delay;
        let timer = queue.set_timer(key, due);
        queue.count_stored(1);
        queue.delayed += 1;
        let (due, nonce) = (due.as_nanos(), None::<&[u8]>);
        let (_, statement) = statements.insert_timers.most_of(1)?;
        statement.execute(params![key, due, timer, 0, place, nonce, 0, 0])?;
    }
    Ok(stored > 0)
}

/// Writes the leases of deliveries, each with its order among those of the same moment.
fn store_leases(statements: &mut Statements<'_>, leases: &[(i64, Lease)]) -> Result<()> {
    let mut rest = leases;
    while !rest.is_empty() {
        let (rows, statement) = statements.insert_timers.most_of(rest.len())?;
        let (these, later) = rest.split_at(rows);
        for (row, (timer, lease)) in these.iter().enumerate() {
            bind_lease(statement, row, *timer, lease)?;
        }
        statement.raw_execute()?;
        rest = later;
    }
    Ok(())
}

/// Sets the values of one of the rows that a statement inserts.
fn bind_lease(statement: &mut Statement<'_>, row: usize, timer: i64, lease: &Lease) -> Result<()> {
    let first = row * 8 + 1;
    statement.raw_bind_parameter(first, lease.key)?;
    statement.raw_bind_parameter(first + 1, lease.due.as_nanos())?;
    statement.raw_bind_parameter(first + 2, timer)?;
    statement.raw_bind_parameter(first + 3, lease.deliveries.count)?;
    statement.raw_bind_parameter(first + 4, lease.place)?;
    statement.raw_bind_parameter(first + 5, lease.nonce.as_bytes())?;
    statement.raw_bind_parameter(first + 6, lease.deliveries.unsettled)?;
    statement.raw_bind_parameter(first + 7, lease.deliveries.uncounted)
}

/// The delivery that a receipt is for, which is remembered no more. The sweep has taken the leases
/// that ended away.
fn take_lease(
    statements: &mut Statements<'_>,
    queue: &mut QueueState,
    receipt: &Receipt,
    now: Timestamp,
) -> Result<Option<(MessageId, Lease)>> {
    let Some((id, nonce)) = receipt.token() else { return Ok(None) };
    if let Some(lease) = queue.take_lease(id, nonce, now) {
        return Ok(Some((id, lease)));
    }
    let presented = params![id.as_bytes(), queue.number.0, nonce.as_bytes()];
    let found = statements.find_lease()?.query_row(presented, |row| {
        Ok(Lease {
            key: row.get(0)?,
            nonce,
            due: Timestamp::from_nanos(row.get(1)?),
            deliveries: Deliveries::read(row, 2)?,
            place: row.get(5)?,
            is_started: row.get(6)?,
        })
    });
    let found = found.optional()?.filter(|lease| !queue.acknowledged.contains(&lease.key));
    Ok(found.map(|lease| (id, lease)))
}

/// Deletes the messages that were acknowledged. Neighbours go together.
fn delete_acknowledged(statements: &mut Statements<'_>, queue: &mut QueueState) -> Result<()> {
    if queue.acknowledged.is_empty() {
        return Ok(());
    }
    let mut keys: Vec<_> = queue.acknowledged.drain().collect();
    keys.sort_unstable();
    for run in keys.chunk_by(|key, next| key + 1 == *next) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        statements.delete_timers()?.execute([first, last])?;
        statements.delete_messages()?.execute([first, last])?;
    }
    Ok(())
}

fn load(statements: &mut Statements<'_>, name: &QueueName) -> Result<Option<QueueState>> {
    let found = statements.find_queue()?.query_row([name.as_str()], |row| {
        Ok(QueueState {
            next_place: row.get(1)?,
            cursor: row.get(2)?,
            next_timer: row.get(3)?,
            total: row.get(4)?,
            in_flight: row.get(5)?,
            delayed: row.get(6)?,
            requeued: row.get(7)?,
            sent: row.get(8)?,
            ..QueueState::new(QueueNumber(row.get(0)?))
        })
    });
    let Some(mut queue) = found.optional()? else { return Ok(None) };
    let first: Option<i64> =
        statements.next_bucket()?.query_row([queue.number.0, i64::MIN], |row| row.get(0))?;
    queue.next_due = first.map(bucket_start);
    Ok(Some(queue))
}

/// A message that was delivered so often.
fn read_by_key(
    statements: &mut Statements<'_>,
    key: i64,
    deliveries: Deliveries,
) -> Result<RawMessage> {
    let mut message = statements.message()?.query_row([key], read_message)?;
    deliveries.apply_to(&mut message);
    Ok(message)
}

/// Reads key, id, enqueued_at, reply_to, attributes, body.
pub(crate) fn read_message(row: &Row<'_>) -> Result<RawMessage> {
    let id: [u8; 16] = row.get(1)?;
    let body = Bytes::copy_from_slice(row.get_ref(5)?.as_blob()?);
    let enqueued_at = Timestamp::from_nanos(row.get(2)?);
    let id = MessageId::from_uuid(Uuid::from_bytes(id));
    let mut message = RawMessage::new(id, body, enqueued_at);
    message.reply_to = row.get_ref(3)?.as_str_or_null()?.map(Into::into);
    if let ValueRef::Text(json) = row.get_ref(4)? {
        message.attributes = read_attributes(json)?;
    }
    Ok(message)
}

fn read_attributes(json: &[u8]) -> Result<Attributes, FromSqlError> {
    serde_json::from_slice(json).map_err(FromSqlError::other)
}

fn write_attributes(message: &Outgoing) -> String {
    // Cannot fail: names and values are strings.
    serde_json::to_string(&message.attributes).unwrap_or_default()
}
