//! Batches settles of one queue: while a call is under way, what arrives is collected for the next one. A full batch
//! does not wait.

use std::time::Duration;

use pillarbox_core::SettleAction;
use pillarbox_core::clock::later;
use pillarbox_core::internal::RetryDelay;
use tokio::time::Instant;

use super::in_flight::Key;

/// The delay before a settle is repeated; doubles with each failure.
const RETRY_DELAY: Duration = Duration::from_millis(50);
/// The longest delay, which is also limited to a twentieth of a lease so that many tries fit into one.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);
/// The largest number of calls under way.
const MAX_CALLS: usize = 8;
/// Later than any deadline.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// One delivery that is to be settled.
#[derive(Debug, Clone)]
pub(super) struct SettleEntry {
    pub(super) key: Key,
    pub(super) action: SettleAction,
    /// When the lease expires, as far as was known when the entry was made.
    pub(super) deadline: Instant,
    /// An earlier call failed, and may have had its effect.
    pub(super) is_ambiguous: bool,
}

impl SettleEntry {
    pub(super) const fn new(key: Key, action: SettleAction, deadline: Instant) -> Self {
        Self { key, action, deadline, is_ambiguous: false }
    }

    /// Returns the entry for another try, after a call that failed.
    pub(super) fn retry(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }
}

/// A call that is under way.
#[derive(Debug)]
struct Call {
    number: u64,
    at: Instant,
    entries: Vec<SettleEntry>,
}

/// Settles of one queue that wait for their call, and those of the calls under way.
#[derive(Debug, Default)]
pub(super) struct SettleBatcher {
    pending: Vec<SettleEntry>,
    calls: Vec<Call>,
    /// Number of the last call.
    last_call: u64,
    failures: u32,
    retry_at: Option<Instant>,
}

impl SettleBatcher {
    pub(super) fn push(&mut self, entry: SettleEntry) {
        self.pending.push(entry);
    }

    /// Takes the entries of the next call. Empty if they wait for a call under way or for the time of the next try.
    pub(super) fn take(&mut self, max: usize, now: Instant) -> Vec<SettleEntry> {
        let may_call = match self.calls.len() {
            0 => !self.pending.is_empty(),
            calls => self.pending.len() >= max && calls < MAX_CALLS && self.failures == 0,
        };
        if !may_call || self.retry_at.is_some_and(|at| at > now) {
            return Vec::new();
        }
        self.retry_at = None;
        if self.pending.len() <= max {
            std::mem::take(&mut self.pending)
        } else {
            self.pending.drain(..max).collect()
        }
    }

    /// Records a call, and returns its number.
    pub(super) fn call_started(&mut self, entries: Vec<SettleEntry>, now: Instant) -> u64 {
        self.last_call += 1;
        self.calls.push(Call { number: self.last_call, at: now, entries });
        self.last_call
    }

    /// Returns the delivery of an entry of a call under way.
    pub(super) fn under_way(&self, call: u64, entry: usize) -> Option<Key> {
        let call = self.calls.iter().find(|it| it.number == call)?;
        call.entries.get(entry).map(|entry| entry.key)
    }

    /// Returns the entries of a call that has ended, and when it was made.
    pub(super) fn call_ended(&mut self, call: u64) -> (Vec<SettleEntry>, Instant) {
        let index = self.calls.iter().position(|it| it.number == call);
        let call = self.calls.swap_remove(index.expect("the call is under way"));
        (call.entries, call.at)
    }

    /// Puts entries whose call failed in front, for a try after a delay.
    pub(super) fn retry_later(
        &mut self,
        entries: Vec<SettleEntry>,
        visibility: Duration,
        now: Instant,
    ) {
        if entries.is_empty() {
            self.failures = 0;
            return;
        }
        self.failures += 1;
        let max = (visibility / 20).clamp(RETRY_DELAY, MAX_RETRY_DELAY);
        self.retry_at = Some(later(now, RetryDelay::after(RETRY_DELAY, max, self.failures)));
        self.pending.splice(..0, entries);
    }

    /// Returns the first deadline of all entries.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.entries().map(|entry| entry.deadline).min()
    }

    /// Takes the deliveries whose lease expired before their call was answered. Each is returned once.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Key> {
        if self.first_deadline().is_none_or(|first| first > now) {
            return Vec::new();
        }
        let expired = self.entries().filter(|entry| entry.deadline <= now).map(|entry| entry.key);
        let expired = expired.collect();
        self.pending.retain(|entry| entry.deadline > now);
        // Those under way stay, since their call will be answered, but their deadline no longer counts.
        let under_way = self.calls.iter_mut().flat_map(|call| &mut call.entries);
        under_way.filter(|entry| entry.deadline <= now).for_each(|entry| {
            entry.deadline = now + FAR;
        });
        expired
    }

    fn entries(&self) -> impl Iterator<Item = &SettleEntry> {
        let under_way = self.calls.iter().flat_map(|call| &call.entries);
        self.pending.iter().chain(under_way)
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        // Without a retry time, pending entries go when a call under way is answered.
        self.retry_at.filter(|_| self.calls.is_empty() && !self.pending.is_empty())
    }
}
