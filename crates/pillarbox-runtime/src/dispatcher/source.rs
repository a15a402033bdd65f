//! One queue that is served: what was asked of it, its leases and its calls.

use std::collections::VecDeque;
use std::time::Duration;

use pillarbox_core::Error;
use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::held::Table;
use super::lane::Lane;
use super::{Key, LaneKind, Quarantine};

/// The longest time between two attempts to reach a queue that fails.
const LONGEST_BACKOFF: Duration = Duration::from_secs(5);

/// What does not change about a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceSettings {
    /// Its share of the workers, in proportion to others.
    pub(crate) weight: u32,
    /// How long a lease runs.
    pub(crate) visibility: Duration,
    /// The most messages in a call.
    pub(crate) max_receive: usize,
    pub(crate) max_batch: usize,
    /// Leases of running handlers are extended only while they beat.
    pub(crate) while_beating: bool,
    /// A handler whose lease is lost is cancelled.
    pub(crate) cancel_lost: bool,
    /// When a message is not run any more that may end the process.
    pub(crate) quarantine: Quarantine,
    /// How long messages stay away that could not be buried.
    pub(crate) park: Duration,
}

#[derive(Debug)]
pub(super) struct Source {
    pub(super) settings: SourceSettings,
    /// It had messages when last asked, and is asked again without waiting.
    pub(super) is_hot: bool,
    /// How many messages a fetch under way may bring.
    asked: usize,
    /// It has answered, and not failed since. Until then it is asked without waiting, so that it is known
    /// soon whether it can be reached.
    pub(super) has_answered: bool,
    /// Since when a fetch waits for messages, if it does.
    waits_since: Option<Instant>,
    /// Messages served, by weight: the one that is behind is next.
    served: f64,
    failures: u32,
    retry_at: Option<Instant>,
    is_closed: bool,
    /// When which leases are to be extended, the next one first. Nearly all join at the end.
    renewals: VecDeque<(Instant, Key)>,
    settles: Lane,
    extensions: Lane,
}

impl Source {
    pub(super) fn new(settings: SourceSettings) -> Self {
        Self {
            settings,
            is_hot: false,
            asked: 0,
            has_answered: false,
            waits_since: None,
            served: 0.0,
            failures: 0,
            retry_at: None,
            is_closed: false,
            renewals: VecDeque::new(),
            settles: Lane::default(),
            extensions: Lane::default(),
        }
    }

    pub(super) fn lane(&mut self, kind: LaneKind) -> &mut Lane {
        match kind {
            LaneKind::Settles => &mut self.settles,
            LaneKind::Extensions => &mut self.extensions,
        }
    }

    /// Which delivery an entry of the call under way is about.
    pub(super) fn under_way(&self, kind: LaneKind, entry: usize) -> Option<Key> {
        let lane = match kind {
            LaneKind::Settles => &self.settles,
            LaneKind::Extensions => &self.extensions,
        };
        lane.under_way(entry)
    }

    /// Lets time come to now. A time that has come is not waited for again.
    pub(super) fn pass(&mut self, now: Instant) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }

    pub(super) const fn can_be_asked(&self) -> bool {
        self.asked == 0 && !self.is_closed && self.retry_at.is_none()
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.is_closed
    }

    pub(super) const fn asked(&self) -> usize {
        self.asked
    }

    pub(super) const fn served(&self) -> f64 {
        self.served
    }

    pub(super) fn ask(&mut self, max: usize, waits_since: Option<Instant>) {
        self.asked = max;
        self.waits_since = waits_since;
    }

    pub(super) fn cancelled(&mut self) {
        self.asked = 0;
    }

    pub(super) fn fetched(&mut self, messages: usize, backoff: Duration, now: Instant) {
        self.asked = 0;
        self.failures = 0;
        self.has_answered = true;
        // One that was to wait and did not would be asked again and again.
        if messages == 0 && self.waits_since.is_some_and(|since| now < later(since, backoff)) {
            self.retry_at = Some(later(now, backoff));
        }
        self.served += messages as f64 / f64::from(self.settings.weight.max(1));
        if messages == 0 {
            self.is_hot = false;
        }
    }

    pub(super) fn become_hot(&mut self, level: f64) {
        self.is_hot = true;
        self.served = self.served.max(level);
    }

    pub(super) fn fetch_failed(&mut self, error: &Error, backoff: Duration, now: Instant) {
        self.asked = 0;
        self.is_hot = false;
        self.has_answered = false;
        if matches!(error, Error::Closed { .. }) {
            self.is_closed = true;
            return;
        }
        self.retry_at = Some(later(now, growing(backoff, self.failures)));
        self.failures += 1;
    }

    /// Leases are extended after a third of their time, so that two more attempts may fail; or looked at
    /// again when they end, if that is earlier.
    pub(super) fn renew_later(&mut self, key: Key, now: Instant, deadline: Instant) {
        let at = (now + self.settings.visibility / 3).min(deadline);
        let place = match self.renewals.back() {
            Some((last, _)) if *last > at => {
                self.renewals.partition_point(|(other, _)| *other <= at)
            }
            _ => self.renewals.len(),
        };
        self.renewals.insert(place, (at, key));
    }

    /// Drops renewals of deliveries that are no longer held, once they are most of them: a message that
    /// takes a moment would otherwise be remembered for a third of its lease.
    pub(super) fn tidy_renewals(&mut self, held: &Table) {
        if self.renewals.len() > 1024 + 4 * held.len() {
            self.renewals.retain(|(_, key)| held.get(*key).is_some());
        }
    }

    #[cfg(test)]
    pub(super) fn renewals_len(&self) -> usize {
        self.renewals.len()
    }

    pub(super) fn due_renewal(&mut self, now: Instant) -> Option<Key> {
        let (at, key) = *self.renewals.front()?;
        if at > now {
            return None;
        }
        self.renewals.pop_front();
        Some(key)
    }

    pub(super) fn next_wake(&self, fetches: bool) -> Option<Instant> {
        let renewal = self.renewals.front().map(|(at, _)| *at);
        let retry = self.retry_at.filter(|_| fetches);
        let lanes = [
            self.settles.next_wake(),
            self.extensions.next_wake(),
            self.extensions.first_deadline(),
        ];
        [renewal, retry].into_iter().chain(lanes).flatten().min()
    }
}

/// Twice as long after each failure, up to a limit.
pub(super) fn growing(backoff: Duration, failures: u32) -> Duration {
    let longest = LONGEST_BACKOFF.max(backoff);
    backoff.saturating_mul(1 << failures.min(20)).min(longest)
}
