//! The queue contract in SQL, within one transaction of one connection.
//!
//! A [`Store`] has no threads, opens no files and does not wait. Its user begins a transaction, sets the time
//! ([`Store::begin`]), calls operations, calls [`Store::flush`] and commits; or rolls back and calls
//! [`Store::clear`]. The writer thread does so for many callers at once, and [`crate::transaction`] does so inside
//! the caller's own transaction.
//!
//! # The rows of a message
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
//! 1. The counts in a queue's row match its messages, and `cursor` is the highest place of a message that was
//!    delivered directly from `message` (checked by [`verify`](crate::verify)).
//! 2. Every timer lies within a range of `expiry` of its bucket, so a sweep of the ranges of all buckets that have
//!    begun misses none.
//! 3. Every operation first sweeps: timers that ended by the time of the transaction are moved to `requeued`, in the
//!    order of their deadlines.
//! 4. A receipt is valid if its nonce is that of the message's timer. Nothing else records it.
//! 5. When a timer with a nonce expires, `unsettled` is incremented if the delivery was started, and `uncounted` if
//!    not; when a delivery is released, `uncounted` is incremented. So their sum never exceeds the number of
//!    deliveries that have ended.

mod cache;
mod deliveries;
mod key;
mod ready;
mod rows;
mod salvage;
mod statements;
mod sweep;
#[cfg(test)]
mod tests;

use std::time::Duration;

use pillarbox_core::ledger::{Full, Stale};
use pillarbox_core::{
    Counts, Delivery, MessageState, Nonce, Outgoing, PeekPage, Peeked, QueueName, Receipt,
    SettleAction, Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Result, params};

pub(crate) use self::cache::Cache;
use self::cache::{Lease, QueueState};
use self::key::{MAX_PLACE, MAX_QUEUE, QueueNumber};
pub(crate) use self::ready::PeekFrom;
use self::ready::{Picked, ReadyMessages, pick_fresh, pick_merged};
#[cfg(feature = "fuzzing")]
pub(crate) use self::rows::read_message;
use self::rows::{
    delete_acknowledged, find_message, load, read_by_key, store, store_delayed, store_leases,
    take_lease,
};
use self::statements::{MANY, Statements};
use self::sweep::{read_timer, requeue, sweep, write_expiry};
use crate::failure::Failure;

/// Places that sends leave free for messages that become ready again.
const RESERVED_PLACES: i64 = 1 << 32;
/// Number of rows of a purged queue that are deleted at a time.
const RECLAIM_ROWS: usize = 2000;

/// The queues of a database, within a transaction.
pub(crate) struct Store<'c> {
    statements: Statements<'c>,
    cache: Cache,
    now: Timestamp,
}

/// The state of a queue, with the statements that read and write its rows.
type OpenQueue<'s, 'c> = (&'s mut Statements<'c>, &'s mut QueueState);

impl<'c> Store<'c> {
    pub(crate) fn new(connection: &'c Connection) -> Self {
        Self::with_cache(connection, Cache::default())
    }

    /// Creates a store that continues with the cache of an earlier one of the same connection.
    pub(crate) fn with_cache(connection: &'c Connection, cache: Cache) -> Self {
        let statements = Statements::new(connection);
        Self { statements, cache, now: Timestamp::MIN }
    }

    /// Ends the store, and returns its cache. All changes must be written.
    pub(crate) fn into_cache(self) -> Cache {
        self.cache
    }

    /// Clears the cache: another connection has written, or a transaction was rolled back.
    pub(crate) fn clear(&mut self) {
        self.cache.clear();
    }

    /// Sets the time of a transaction that has begun.
    pub(crate) fn begin(&mut self, now: Timestamp) -> Result<(), Failure> {
        self.now = now;
        if !self.cache.schema_checked {
            let version = self.statements.schema_version()?.query_row([], |row| row.get(0))?;
            crate::schema::check_current(version)?;
            self.cache.schema_checked = true;
        }
        Ok(())
    }

    /// Writes the changes that the operations have collected.
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

    /// Stores messages in order, and returns for each whether it was stored: not if its id is in the queue already. A
    /// queue that holds `max_size` messages is full.
    pub(crate) fn send<'m>(
        &mut self,
        name: &QueueName,
        messages: impl Iterator<Item = (&'m Outgoing, Option<u64>)>,
    ) -> Result<Vec<Result<bool, Full>>, Failure> {
        let now = self.now;
        let (statements, queue) = self.queue_or_new(name)?;
        // The ids of acknowledged messages are free again.
        delete_acknowledged(statements, queue)?;
        let mut results = Vec::with_capacity(messages.size_hint().0);
        let mut pending = Vec::with_capacity(MANY);
        for (message, max_size) in messages {
            if let Some(max_size) = max_size {
                // `total` counts stored messages only.
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
                // In order: an earlier message may have the same id.
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

    /// Delivers to several receivers in turn, each with its maximum and its visibility.
    ///
    /// Reads all messages at once, which is cheaper than a [`receive`](Self::receive) for each. The result is the
    /// same, except that a lease of zero does not expire in between.
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

    /// Ends or extends the lease of a receipt, if it has not expired.
    pub(crate) fn settle(
        &mut self,
        name: &QueueName,
        receipt: &Receipt,
        action: SettleAction,
    ) -> Result<Result<(), Stale>> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else { return Ok(Err(Stale)) };
        let taken = take_lease(statements, queue, receipt, now)?;
        let Some((id, lease)) = taken else { return Ok(Err(Stale)) };
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

    /// Undoes a delivery that no caller has seen: the message is ready again at its old place, with its old counts.
    /// Does nothing if the lease has expired.
    pub(crate) fn release(&mut self, name: &QueueName, receipt: &Receipt) -> Result<()> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else { return Ok(()) };
        let Some((_, lease)) = take_lease(statements, queue, receipt, now)? else { return Ok(()) };
        requeue(statements, queue, lease.key, lease.place, lease.deliveries.undone())?;
        queue.in_flight -= 1;
        queue.dirty = true;
        Ok(())
    }

    /// Returns the number of messages by state, and of those ever stored.
    pub(crate) fn counts(&mut self, name: &QueueName) -> Result<Counts> {
        let now = self.now;
        let Some((statements, queue)) = self.queue(name)? else {
            return Ok(Counts::default().with_sent(Some(0)).with_counted_at(Some(now)));
        };
        let counts = Counts::new(queue.ready(), queue.in_flight, queue.delayed);
        let counts = counts.with_sent(Some(queue.sent)).with_counted_at(Some(now));
        let mut ready = ReadyMessages::new(statements, queue, 0, 1)?;
        let Some(next) = ready.next() else { return Ok(counts) };
        let enqueued_at = statements.enqueued_at()?.query_row([next.key], |row| row.get(0))?;
        Ok(counts.with_oldest_age(Some(now.since(Timestamp::from_nanos(enqueued_at)))))
    }

    /// Returns the number of messages that a receive would deliver.
    pub(crate) fn ready(&mut self, name: &QueueName) -> Result<u64> {
        Ok(self.queue(name)?.map_or(0, |(_, queue)| queue.ready()))
    }

    /// Returns whether a message may have become ready since the queue was last used. Changes nothing, and needs no
    /// transaction.
    pub(crate) fn may_be_ready(&mut self, name: &QueueName, now: Timestamp) -> Result<bool> {
        let Some((_, queue)) = self.cached_queue(name)? else { return Ok(false) };
        Ok(queue.ready() > 0 || queue.next_due.is_some_and(|due| due <= now))
    }

    /// Returns whether the queue is cached and none of its timers has ended, so that nothing is to be read or swept.
    pub(crate) fn is_swept(&self, name: &QueueName, now: Timestamp) -> bool {
        let is_swept = |queue: &QueueState| queue.next_due.is_none_or(|due| due > now);
        self.cache.get(name).is_some_and(|queue| queue.as_ref().is_none_or(is_swept))
    }

    /// Returns when the next timer of a queue may end, if the queue is cached.
    pub(crate) fn next_due(&self, name: &QueueName) -> Option<Timestamp> {
        self.cache.get(name)?.as_ref()?.next_due
    }

    /// Returns whether a queue is cached, or is known not to exist.
    pub(crate) fn is_cached(&self, name: &QueueName) -> bool {
        self.cache.get(name).is_some()
    }

    /// Returns up to `max` messages: the ready ones in order, then the others by their deadlines.
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
            let ready = ReadyMessages::new(statements, queue, place, max)?;
            for next in ready {
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
            let timers = statements.timers_in_order()?.query_map(range, read_timer)?;
            for timer in timers.collect::<Result<Vec<_>>>()? {
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

    /// Deletes all messages and returns their number.
    ///
    /// Takes constant time: the queue gets a new number, and the rows of the old one are deleted a few at a time by
    /// [`reclaim`](Self::reclaim). Only the number of sent messages is kept.
    pub(crate) fn purge(&mut self, name: &QueueName) -> Result<u64, Failure> {
        let Some((statements, queue)) = self.queue(name)? else { return Ok(0) };
        let (purged, sent) = (queue.total, queue.sent);
        if purged > 0 {
            statements.mark_purged()?.execute([queue.number.0])?;
            self.cache.insert(name, None);
            self.cache.has_purged_queue = Some(true);
            match self.create_queue(name, sent) {
                // Losing that count is better than keeping the messages.
                Ok(()) | Err(Failure::TooManyQueues) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(purged)
    }

    /// Deletes a queue if it is empty.
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

    /// Returns the names of all queues, sorted.
    pub(crate) fn queues(&mut self) -> Result<Vec<String>> {
        self.statements.queue_names()?.query_map([], |row| row.get(0))?.collect()
    }

    /// Returns whether purged queues have rows left. Needs no transaction.
    pub(crate) fn has_garbage(&mut self) -> Result<bool> {
        if let Some(known) = self.cache.has_purged_queue {
            return Ok(known);
        }
        let found = self.statements.purged_queue()?.exists([])?;
        self.cache.has_purged_queue = Some(found);
        Ok(found)
    }

    /// Deletes some rows of a purged queue.
    pub(crate) fn reclaim(&mut self) -> Result<()> {
        let Self { statements, cache, .. } = self;
        let number = statements.purged_queue()?.query_row([], |row| row.get(0)).optional()?;
        let Some(number) = number.map(QueueNumber) else {
            cache.has_purged_queue = Some(false);
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

    /// Returns a queue, swept up to the time of the transaction.
    fn queue(&mut self, name: &QueueName) -> Result<Option<OpenQueue<'_, 'c>>> {
        let now = self.now;
        let Some((statements, queue)) = self.cached_queue(name)? else { return Ok(None) };
        if queue.next_due.is_some_and(|due| due <= now) {
            delete_acknowledged(statements, queue)?;
            sweep(statements, queue, now)?;
        }
        Ok(Some((statements, queue)))
    }

    /// Returns a queue as it was when last used.
    fn cached_queue(&mut self, name: &QueueName) -> Result<Option<OpenQueue<'_, 'c>>> {
        if self.cache.get(name).is_none() {
            let state = load(&mut self.statements, name)?;
            self.cache.insert(name, state);
        }
        let Self { statements, cache, .. } = self;
        Ok(cache.get_mut(name).map(|queue| (statements, queue)))
    }

    /// Returns a queue to send to, and creates it if there is none.
    fn queue_or_new(&mut self, name: &QueueName) -> Result<OpenQueue<'_, 'c>, Failure> {
        match self.queue(name)? {
            None => self.create_queue(name, 0)?,
            Some((_, queue)) if queue.next_place < MAX_PLACE - RESERVED_PLACES => {}
            // Five years have passed. An empty queue can restart under another number.
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

    /// Creates an empty queue of a new name under a free number.
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
