//! One queue that is served: its receives, its lease renewals and its settles.

use std::collections::VecDeque;
use std::time::Duration;

use pillarbox_core::Error;
use pillarbox_core::clock::later;
use pillarbox_core::internal::RetryDelay;
use tokio::time::Instant;

use super::in_flight::{InFlightTable, Key};
use super::protocol::SettleKind;
use super::settle_batcher::SettleBatcher;

/// The longest delay between two receives that fail.
const MAX_RECEIVE_BACKOFF: Duration = Duration::from_secs(5);
/// The delay before the next receive if one that was to wait returned nothing at once.
const EARLY_RETURN_DELAY: Duration = Duration::from_millis(50);

/// The settings of one queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SourceSettings {
    /// Its share of the workers, relative to the other queues.
    pub(crate) weight: u32,
    pub(crate) visibility: Duration,
    /// The largest number of messages per receive.
    pub(crate) max_receive: usize,
    /// The largest number of entries per settle call.
    pub(crate) max_batch: usize,
    /// The lease of a running handler is extended only while it beats.
    pub(crate) extend_while_beating: bool,
    /// A handler whose lease is lost is cancelled.
    pub(crate) cancel_when_lost: bool,
    pub(crate) quarantine: QuarantineSettings,
    /// The delay of messages whose dead letter cannot be stored.
    pub(crate) park: Duration,
}

/// When a message is quarantined, and where it goes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QuarantineSettings {
    /// Number of unsettled deliveries after which a message is quarantined.
    pub(crate) after: u32,
    /// Index of the dead-letter queue. `None` if there is none.
    pub(crate) route: Option<usize>,
    /// The backend counts unsettled deliveries.
    pub(crate) is_exact: bool,
    /// The delay between messages that are released because another one runs alone, as the backend supports it.
    pub(crate) stagger: Duration,
}

/// The state of one queue.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) settings: SourceSettings,
    /// The last receive returned messages, so the next one need not wait.
    pub(super) is_busy: bool,
    /// Number of messages that the receive under way may return. 0 if none is under way.
    pub(super) requested: usize,
    /// The last receive succeeded. Until one has, receives do not wait, so that an unreachable queue is noticed
    /// soon.
    pub(super) is_reachable: bool,
    /// When the receive under way began to wait for messages, if it waits.
    waits_since: Option<Instant>,
    /// Number of messages received, divided by the weight. The source with the lowest is next.
    pub(super) virtual_time: f64,
    failures: u32,
    retry_at: Option<Instant>,
    pub(super) is_closed: bool,
    /// When leases are to be extended, in order of time. Nearly all are appended.
    pub(super) renewals: VecDeque<(Instant, Key)>,
    settles: SettleBatcher,
    extensions: SettleBatcher,
}

impl Source {
    pub(super) fn new(settings: SourceSettings) -> Self {
        Self {
            settings,
            is_busy: false,
            requested: 0,
            is_reachable: false,
            waits_since: None,
            virtual_time: 0.0,
            failures: 0,
            retry_at: None,
            is_closed: false,
            renewals: VecDeque::new(),
            settles: SettleBatcher::default(),
            extensions: SettleBatcher::default(),
        }
    }

    pub(super) fn batcher(&mut self, kind: SettleKind) -> &mut SettleBatcher {
        match kind {
            SettleKind::Final => &mut self.settles,
            SettleKind::Extension => &mut self.extensions,
        }
    }

    /// Returns the delivery of an entry of the call under way.
    pub(super) fn under_way(&self, kind: SettleKind, entry: usize) -> Option<Key> {
        let batcher = match kind {
            SettleKind::Final => &self.settles,
            SettleKind::Extension => &self.extensions,
        };
        batcher.under_way(entry)
    }

    /// Clears a retry time that has passed.
    pub(super) fn advance(&mut self, now: Instant) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }

    pub(super) const fn can_fetch(&self) -> bool {
        self.requested == 0 && !self.is_closed && self.retry_at.is_none()
    }

    pub(super) fn fetch_started(&mut self, max: usize, waits_since: Option<Instant>) {
        self.requested = max;
        self.waits_since = waits_since;
    }

    pub(super) fn fetch_cancelled(&mut self) {
        self.requested = 0;
    }

    pub(super) fn fetch_succeeded(&mut self, messages: usize, now: Instant) {
        self.requested = 0;
        self.failures = 0;
        self.is_reachable = true;
        // A queue that does not wait although it was asked to would be polled in a busy loop.
        let is_early = |since| now < later(since, EARLY_RETURN_DELAY);
        if messages == 0 && self.waits_since.is_some_and(is_early) {
            self.retry_at = Some(later(now, EARLY_RETURN_DELAY));
        }
        self.virtual_time += messages as f64 / f64::from(self.settings.weight.max(1));
        if messages == 0 {
            self.is_busy = false;
        }
    }

    /// Marks the source busy. Time in which it had no messages is not made up for.
    pub(super) fn become_busy(&mut self, virtual_time: f64) {
        self.is_busy = true;
        self.virtual_time = self.virtual_time.max(virtual_time);
    }

    pub(super) fn fetch_failed(&mut self, error: &Error, backoff: Duration, now: Instant) {
        self.requested = 0;
        self.is_busy = false;
        self.is_reachable = false;
        if matches!(error, Error::Closed { .. }) {
            self.is_closed = true;
            return;
        }
        self.failures += 1;
        let max = MAX_RECEIVE_BACKOFF.max(backoff);
        self.retry_at = Some(later(now, RetryDelay::after(backoff, max, self.failures)));
    }

    /// Schedules the extension of a lease after a third of its time, so that two more tries may fail; or at its
    /// deadline, if that is earlier.
    pub(super) fn renew_later(&mut self, key: Key, now: Instant, deadline: Instant) {
        let at = (now + self.settings.visibility / 3).min(deadline);
        let index = match self.renewals.back() {
            Some((last, _)) if *last > at => {
                self.renewals.partition_point(|(other, _)| *other <= at)
            }
            _ => self.renewals.len(),
        };
        self.renewals.insert(index, (at, key));
    }

    /// Drops the renewals of deliveries that are no longer in flight once they are the majority. Otherwise each
    /// would stay for a third of its lease.
    pub(super) fn prune_renewals(&mut self, in_flight: &InFlightTable) {
        if self.renewals.len() > 1024 + 4 * in_flight.len() {
            self.renewals.retain(|(_, key)| in_flight.get(*key).is_some());
        }
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
        let settles = [
            self.settles.next_wake(),
            self.extensions.next_wake(),
            self.extensions.first_deadline(),
        ];
        [renewal, retry].into_iter().chain(settles).flatten().min()
    }
}
