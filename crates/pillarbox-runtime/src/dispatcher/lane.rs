//! Settles on their way to a queue: one call at a time, with all that came together meanwhile.

use std::time::Duration;

use pillarbox_core::SettleAction;
use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::Key;
use super::source::growing;

/// Later than anything here.
const FAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// What is to be said of one delivery.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) action: SettleAction,
    /// When the lease ends, as far as was known when it was to be said.
    pub(super) deadline: Instant,
    /// An earlier call failed, and may have had its effect.
    pub(super) is_ambiguous: bool,
}

impl Entry {
    pub(super) const fn new(key: Key, action: SettleAction, deadline: Instant) -> Self {
        Self { key, action, deadline, is_ambiguous: false }
    }

    /// The same once more, after a call that failed.
    pub(super) fn again(self) -> Self {
        Self { is_ambiguous: true, ..self }
    }
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    pending: Vec<Entry>,
    /// What the call under way is about, and when it was made.
    under_way: Option<(Vec<Entry>, Instant)>,
    failures: u32,
    retry_at: Option<Instant>,
}

impl Lane {
    pub(super) fn push(&mut self, entry: Entry) {
        self.pending.push(entry);
    }

    /// What can be said now.
    pub(super) fn take(&mut self, max: usize, now: Instant) -> Vec<Entry> {
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

    pub(super) fn call(&mut self, entries: Vec<Entry>, now: Instant) {
        self.under_way = Some((entries, now));
    }

    /// Which delivery an entry of the call under way is about.
    pub(super) fn under_way(&self, entry: usize) -> Option<Key> {
        self.under_way.as_ref()?.0.get(entry).map(|entry| entry.key)
    }

    /// What the call was about that has ended.
    pub(super) fn answered(&mut self) -> (Vec<Entry>, Instant) {
        self.under_way.take().expect("an answer belongs to a call")
    }

    /// Puts back what failed, to be said again after a while, of which many must fit into a lease.
    pub(super) fn failed(
        &mut self,
        entries: Vec<Entry>,
        backoff: Duration,
        lease: Duration,
        now: Instant,
    ) {
        if entries.is_empty() {
            self.failures = 0;
            return;
        }
        let longest = (lease / 20).max(backoff);
        self.retry_at = Some(later(now, growing(backoff, self.failures).min(longest)));
        self.failures += 1;
        self.pending.splice(..0, entries);
    }

    /// When the first of the leases ends that something is to be said of.
    pub(super) fn first_deadline(&self) -> Option<Instant> {
        self.entries().map(|entry| entry.deadline).min()
    }

    /// Those whose leases have ended, before anything was heard of them. They are told of once.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Key> {
        if self.first_deadline().is_none_or(|first| first > now) {
            return Vec::new();
        }
        let expired = self.entries().filter(|entry| entry.deadline <= now).map(|entry| entry.key);
        let expired = expired.collect();
        self.pending.retain(|entry| entry.deadline > now);
        if let Some((under_way, _)) = &mut self.under_way {
            // They stay, for they are answered; but nothing depends on it any more.
            let far = now + FAR;
            under_way.iter_mut().filter(|entry| entry.deadline <= now).for_each(|entry| {
                entry.deadline = far;
            });
        }
        expired
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        let under_way = self.under_way.iter().flat_map(|(entries, _)| entries);
        self.pending.iter().chain(under_way)
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        // Without a time to wait for, what is pending goes when the call under way is answered.
        self.retry_at.filter(|_| self.under_way.is_none() && !self.pending.is_empty())
    }
}
