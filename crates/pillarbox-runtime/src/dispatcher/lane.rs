//! Settles on their way to a queue: one call at a time, with all that came together meanwhile.

use std::time::Duration;

use pillarbox_core::SettleAction;
use tokio::time::Instant;

use super::Key;
use super::source::growing;

/// What is to be said of one delivery.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) action: SettleAction,
    /// An earlier call failed, and may have had its effect.
    pub(super) is_ambiguous: bool,
}

impl Entry {
    pub(super) const fn new(key: Key, action: SettleAction) -> Self {
        Self { key, action, is_ambiguous: false }
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

    /// What the call was about that has ended.
    pub(super) fn answered(&mut self) -> (Vec<Entry>, Instant) {
        self.under_way.take().expect("an answer belongs to a call")
    }

    /// Puts back what failed, to be said again after a while.
    pub(super) fn failed(&mut self, entries: Vec<Entry>, backoff: Duration, now: Instant) {
        if entries.is_empty() {
            self.failures = 0;
            return;
        }
        self.retry_at = Some(now + growing(backoff, self.failures));
        self.failures += 1;
        self.pending.splice(..0, entries);
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        // Without a time to wait for, what is pending goes when the call under way is answered.
        self.retry_at.filter(|_| self.under_way.is_none() && !self.pending.is_empty())
    }
}
