//! Executable specification of the contract: a queue as a pure state machine.
//!
//! A [`Ledger`] takes the time and a command and returns the result. It has no lock, clock, thread or I/O, so it can
//! be stepped, cloned, compared and explored. It has three users: the memory backend is a ledger behind a mutex,
//! the property tests of every other backend compare their results with it, and the exhaustive check visits all of
//! its states within small bounds.
//!
//! # States of a message
//!
//! ```text
//!             send                    receive                acknowledge
//!   (none) ──────────► Ready ─────────────────────► InFlight ───────────► (none)
//!      │                 ▲                             │ │ ▲
//!      │ send, delay > 0 │ due                         │ │ └── extend, start: a new deadline
//!      │                 │                             │ │
//!      └────────────► Delayed ◄── nack or release, ────┘ └──► Ready, at the tail:
//!                                 delay > 0                   nack, release, or the lease expires
//! ```
//!
//! # Invariants
//!
//! 1. A message is in exactly one state, and `ready` and `timers` hold exactly the messages in the matching states
//!    ([`Ledger::check`] verifies it).
//! 2. Every command first advances the time to `now`: messages whose lease expired or whose delay elapsed move to
//!    the tail of `ready`, in the order of their deadlines. Nothing depends on a background sweep, and a lease is
//!    invalid *from* its deadline on.
//! 3. A receipt is valid while its message is in flight under the same nonce. There is no other record of receipts,
//!    so none can be left behind.
//! 4. `delivery_count` changes in one place, where a message is delivered, and only rises.
//! 5. Time does not go backwards: a `now` earlier than a previous one is replaced by that one.
//! 6. `sent` changes in one place, where a message is stored, and only rises.
//! 7. `unsettled` and `uncounted` only rise, at most one of them by one for each delivery that ends: if the lease
//!    expires, `unsettled` if the delivery was started and `uncounted` if not; if it is released, `uncounted`. So
//!    their sum is never more than the number of deliveries that have ended.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::clock::Timestamp;
use crate::message::{Delivery, MessageState, Outgoing, Peeked, RawMessage, Sent};
use crate::settle::SettleAction;
use crate::{Counts, Nonce, Receipt};

use self::entries::{Entries, Entry};
use self::index::Key;
use self::timers::{Due, Timers};

mod entries;
mod index;
#[cfg(test)]
mod tests;
mod timers;

/// Queue as a pure state machine. See the [module](self) for its states and invariants.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::ledger::Ledger;
/// use pillarbox_core::{Nonce, Outgoing, Sent, SettleAction, Timestamp};
///
/// let at = |seconds| Timestamp::from_secs(seconds);
/// let mut ledger = Ledger::new();
/// let work = Outgoing::new("work");
/// let id = work.id;
/// assert_eq!(ledger.send(at(0), work.clone(), None), Ok(Sent::stored(id)));
/// assert_eq!(ledger.send(at(0), work, None), Ok(Sent::duplicate(id)));
///
/// let lease = Duration::from_secs(30);
/// let first = ledger.receive(at(1), 10, lease, Nonce::random).remove(0);
/// let start = SettleAction::Start { timeout: lease };
/// assert!(ledger.settle(at(1), &first.receipt, start).is_ok());
/// // The lease of the first delivery expires at 31 s, and with it the receipt.
/// assert!(ledger.settle(at(31), &first.receipt, SettleAction::Acknowledge).is_err());
///
/// let second = ledger.receive(at(31), 10, lease, Nonce::random).remove(0);
/// assert_eq!(second.message.delivery_count, 2);
/// assert_eq!((second.message.unsettled, second.message.uncounted), (1, 0));
/// assert!(ledger.settle(at(32), &second.receipt, SettleAction::Acknowledge).is_ok());
/// assert!(ledger.is_empty());
/// ```
#[derive(Debug, Clone)]
pub struct Ledger {
    entries: Entries,
    /// Messages that a receive would deliver, in order of delivery.
    ready: VecDeque<Key>,
    timers: Timers,
    /// Number of timers that are leases; the others are delays.
    in_flight: usize,
    /// Number of messages ever stored.
    sent: u64,
    next_seq: u64,
    now: Timestamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EntryState {
    Ready,
    InFlight { due: Due, nonce: Nonce, is_started: bool },
    Delayed { due: Due },
}

/// Error of a send: the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// Error of a settle: the receipt is not that of a current delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale;

/// Capacity above which memory is freed when the queue becomes empty.
const KEEP_CAPACITY: usize = 4096;

impl Ledger {
    /// Creates an empty queue.
    pub fn new() -> Self {
        Self {
            entries: Entries::new(),
            ready: VecDeque::new(),
            timers: Timers::default(),
            in_flight: 0,
            sent: 0,
            next_seq: 0,
            now: Timestamp::MIN,
        }
    }

    /// Stores a message, unless its id exists already or the queue holds `max_size` messages.
    pub fn send(
        &mut self,
        now: Timestamp,
        outgoing: Outgoing,
        max_size: Option<u64>,
    ) -> Result<Sent, Full> {
        self.advance(now);
        let id = outgoing.id;
        if max_size.is_some_and(|max| self.entries.len() as u64 >= max) {
            return self.entries.find(id).map(|_| Sent::duplicate(id)).ok_or(Full);
        }
        let enqueued_at = outgoing.enqueued_at.unwrap_or(self.now);
        let message = RawMessage {
            attributes: outgoing.attributes,
            reply_to: outgoing.reply_to,
            ..RawMessage::new(id, outgoing.body, enqueued_at)
        };
        let Some(key) = self.entries.insert(Entry { message, state: EntryState::Ready }) else {
            return Ok(Sent::duplicate(id));
        };
        self.sent += 1;
        self.make_available(key, outgoing.delay);
        Ok(Sent::stored(id))
    }

    /// Delivers at most `max` ready messages and starts a lease of `visibility` on each, under a nonce from
    /// `next_nonce`, which must not return the same nonce twice.
    pub fn receive(
        &mut self,
        now: Timestamp,
        max: usize,
        visibility: Duration,
        mut next_nonce: impl FnMut() -> Nonce,
    ) -> Vec<Delivery> {
        self.advance(now);
        let deadline = self.now + visibility;
        let count = max.min(self.ready.len());
        let mut deliveries = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(key) = self.ready.pop_front() else { break };
            let due = self.set_timer(deadline, key);
            let nonce = next_nonce();
            let entry = &mut self.entries[key];
            entry.state = EntryState::InFlight { due, nonce, is_started: false };
            entry.message.delivery_count = entry.message.delivery_count.saturating_add(1);
            entry.message.first_received_at.get_or_insert(self.now);
            let receipt = Receipt::new(entry.message.id, nonce);
            deliveries.push(Delivery { message: entry.message.clone(), receipt });
        }
        self.in_flight += count;
        deliveries
    }

    /// Ends or extends the lease of `receipt`, unless it has expired.
    pub fn settle(
        &mut self,
        now: Timestamp,
        receipt: &Receipt,
        action: SettleAction,
    ) -> Result<(), Stale> {
        self.advance(now);
        let (id, presented) = receipt.token().ok_or(Stale)?;
        let key = self.entries.find(id).ok_or(Stale)?;
        // `advance` has ended the expired leases, so a message that is in flight has a valid lease.
        let EntryState::InFlight { due, nonce, is_started } = self.entries[key].state else {
            return Err(Stale);
        };
        if nonce != presented {
            return Err(Stale);
        }
        self.timers.remove(due);
        match action {
            SettleAction::Acknowledge => {
                self.in_flight -= 1;
                self.entries.remove(key);
                if self.entries.is_empty() && self.entries.capacity() > KEEP_CAPACITY {
                    self.purge();
                }
            }
            SettleAction::Nack { delay } => {
                self.in_flight -= 1;
                self.make_available(key, delay);
            }
            SettleAction::Release { delay } => {
                self.in_flight -= 1;
                let uncounted = &mut self.entries[key].message.uncounted;
                *uncounted = uncounted.saturating_add(1);
                self.make_available(key, delay);
            }
            SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
                let due = self.set_timer(self.now + timeout, key);
                let is_started = is_started || matches!(action, SettleAction::Start { .. });
                self.entries[key].state = EntryState::InFlight { due, nonce, is_started };
            }
        }
        Ok(())
    }

    /// Deletes all messages and returns their number. They stay counted in `sent`.
    pub fn purge(&mut self) -> u64 {
        let purged = self.entries.len() as u64;
        *self = Self { now: self.now, sent: self.sent, ..Self::new() };
        purged
    }

    /// Counts the messages by state, and those ever stored.
    pub fn counts(&mut self, now: Timestamp) -> Counts {
        self.advance(now);
        let oldest = self.ready.front().map(|key| self.entries[*key].message.enqueued_at);
        let delayed = self.timers.len() - self.in_flight;
        Counts::new(self.ready.len() as u64, self.in_flight as u64, delayed as u64)
            .with_oldest_age(oldest.map(|at| self.now.since(at)))
            .with_sent(Some(self.sent))
            .with_counted_at(Some(self.now))
    }

    /// Returns at most `max` messages in the order in which they are, or will be, ready, after the first `skip`.
    pub fn peek(&mut self, now: Timestamp, skip: usize, max: usize) -> Vec<Peeked> {
        self.advance(now);
        let timed = self.timers.iter().map(|(_, key)| key);
        let all = self.ready.iter().copied().chain(timed);
        all.skip(skip).take(max).map(|key| self.show(key)).collect()
    }

    /// Advances the time to `now`: messages that are due by then become ready.
    ///
    /// Every command does so itself.
    pub fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(key) = self.timers.pop_due(self.now) {
            let entry = &mut self.entries[key];
            if let EntryState::InFlight { is_started, .. } = entry.state {
                self.in_flight -= 1;
                let RawMessage { unsettled, uncounted, .. } = &mut entry.message;
                let count = if is_started { unsettled } else { uncounted };
                *count = count.saturating_add(1);
            }
            entry.state = EntryState::Ready;
            self.ready.push_back(key);
        }
    }

    /// Returns the time at which the next lease expires or delay elapses.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.timers.next_due()
    }

    /// Returns the number of ready messages, as of the last command.
    pub fn ready_len(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of messages in any state.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the queue holds no message.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Verifies that a message is in exactly one state (invariant 1), that the queue holds no more messages than were
    /// sent, and that no more deliveries are unsettled or uncounted than have ended. The error describes the
    /// violation. For tests, since it visits every message.
    pub fn check(&self) -> Result<(), String> {
        let mut expected_timers = BTreeMap::new();
        let (mut ready, mut in_flight) = (0, 0);
        for (key, entry) in self.entries.iter() {
            let mut ended = entry.message.delivery_count;
            match entry.state {
                EntryState::Ready => ready += 1,
                EntryState::InFlight { due, .. } => {
                    in_flight += 1;
                    ended = ended.saturating_sub(1);
                    expected_timers.insert(due, key);
                }
                EntryState::Delayed { due } => {
                    expected_timers.insert(due, key);
                }
            }
            if self.entries.find(entry.message.id) != Some(key) {
                return Err(format!("{:?} is not in the index", entry.message.id));
            }
            let RawMessage { id, unsettled, uncounted, .. } = entry.message;
            if unsettled.saturating_add(uncounted) > ended {
                return Err(format!(
                    "{unsettled} deliveries of {id:?} unsettled, {uncounted} uncounted, {ended} ended"
                ));
            }
        }
        let distinct: BTreeSet<_> = self.ready.iter().collect();
        let is_ready = |entry: &Entry| entry.state == EntryState::Ready;
        let all_ready = self.ready.iter().all(|key| self.entries.get(*key).is_some_and(is_ready));
        if !all_ready || distinct.len() != self.ready.len() || ready != self.ready.len() {
            return Err(format!("{ready} messages are ready, the queue has {:?}", self.ready));
        }
        if !self.timers.iter().eq(expected_timers.iter().map(|(due, key)| (*due, *key))) {
            return Err(format!("timers are {:?}, not {expected_timers:?}", self.timers));
        }
        if in_flight != self.in_flight || !self.entries.index_is_complete() {
            return Err(format!("{in_flight} in flight, {} counted", self.in_flight));
        }
        let stored = self.entries.len() as u64;
        if self.sent < stored {
            return Err(format!("{stored} messages are stored, {} were sent", self.sent));
        }
        Ok(())
    }

    /// Makes a message ready, now or after `delay`.
    fn make_available(&mut self, key: Key, delay: Duration) {
        if delay.is_zero() {
            self.entries[key].state = EntryState::Ready;
            self.ready.push_back(key);
        } else {
            let due = self.set_timer(self.now + delay, key);
            self.entries[key].state = EntryState::Delayed { due };
        }
    }

    fn set_timer(&mut self, at: Timestamp, key: Key) -> Due {
        let due = Due { at, seq: self.next_seq };
        self.next_seq += 1;
        self.timers.insert(due, key);
        due
    }

    fn show(&self, key: Key) -> Peeked {
        let entry = &self.entries[key];
        let state = match entry.state {
            EntryState::Ready => MessageState::Ready,
            EntryState::InFlight { due, .. } => MessageState::InFlight { until: due.at },
            EntryState::Delayed { due } => MessageState::Delayed { until: due.at },
        };
        Peeked { message: entry.message.clone(), state }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new()
    }
}
