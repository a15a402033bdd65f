//! Batches settles of one queue: one call at a time, with everything that arrived during the call before it.

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

/// Settles of one queue that wait for their call, and those of the call under way.
#[derive(Debug, Default)]
pub(super) struct SettleBatcher {
    pending: Vec<SettleEntry>,
    /// The entries of the call under way, and when it was made.
    under_way: Option<(Vec<SettleEntry>, Instant)>,
    failures: u32,
    retry_at: Option<Instant>,
}

impl SettleBatcher {
    pub(super) fn push(&mut self, entry: SettleEntry) {
        self.pending.push(entry);
    }

    /// Takes the entries of the next call. Empty if a call is under way or the next try is not due.
    pub(super) fn take(&mut self, max: usize, now: Instant) -> Vec<SettleEntry> {
        if self.under_way.is_some()
            || self.pending.is_empty()
            || self.retry_at.is_some_and(|at| at > now)
        {
            return Vec::new();
        }
        self.retry_at = None;
        if self.pending.len() <= max {
            std::mem::take(&mut self.pending)
        } else {
            self.pending.drain(..max).collect()
        }
    }

    pub(super) fn call_started(&mut self, entries: Vec<SettleEntry>, now: Instant) {
        self.under_way = Some((entries, now));
    }

    /// Returns the delivery of an entry of the call under way.
    pub(super) fn under_way(&self, entry: usize) -> Option<Key> {
        self.under_way.as_ref()?.0.get(entry).map(|entry| entry.key)
    }

    /// Returns the entries of the call that has ended, and when it was made.
    pub(super) fn call_ended(&mut self) -> (Vec<SettleEntry>, Instant) {
        self.under_way.take().expect("a call is under way")
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
        if let Some((under_way, _)) = &mut self.under_way {
            // They stay, since their call will be answered, but their deadline no longer counts.
            let far = now + FAR;
            under_way.iter_mut().filter(|entry| entry.deadline <= now).for_each(|entry| {
                entry.deadline = far;
            });
        }
        expired
    }

    fn entries(&self) -> impl Iterator<Item = &SettleEntry> {
        let under_way = self.under_way.iter().flat_map(|(entries, _)| entries);
        self.pending.iter().chain(under_way)
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        // Without a retry time, pending entries go when the call under way is answered.
        self.retry_at.filter(|_| self.under_way.is_none() && !self.pending.is_empty())
    }
}
