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

/// A receive that is under way.
#[derive(Debug, Clone, Copy)]
struct Request {
    /// Number of messages that it may return.
    max: usize,
    /// It waits for the first message.
    waits: bool,
    at: Instant,
}

/// The state of one queue.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) settings: SourceSettings,
    /// The last receive returned messages, so the next one need not wait.
    pub(super) is_busy: bool,
    /// The last receive returned as many messages as it asked for.
    pub(super) was_full: bool,
    /// The receive under way.
    request: Option<Request>,
    /// The last receive succeeded. Until one has, receives do not wait, so that an unreachable queue is noticed
    /// soon.
    pub(super) is_reachable: bool,
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
            was_full: false,
            request: None,
            is_reachable: false,
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

    /// Returns the delivery of an entry of a call under way.
    pub(super) fn under_way(&self, kind: SettleKind, call: u64, entry: usize) -> Option<Key> {
        let batcher = match kind {
            SettleKind::Final => &self.settles,
            SettleKind::Extension => &self.extensions,
        };
        batcher.under_way(call, entry)
    }

    /// Clears a retry time that has passed.
    pub(super) fn advance(&mut self, now: Instant) {
        self.retry_at = self.retry_at.filter(|at| *at > now);
    }

    pub(super) const fn can_fetch(&self) -> bool {
        self.request.is_none() && !self.is_closed && self.retry_at.is_none()
    }

    /// Returns the number of messages that the receive under way may return without having waited.
    pub(super) fn reserved(&self) -> usize {
        self.request.filter(|request| !request.waits).map_or(0, |request| request.max)
    }

    pub(super) fn fetch_started(&mut self, max: usize, waits: bool, now: Instant) {
        self.request = Some(Request { max, waits, at: now });
    }

    /// Forgets the receive under way. Returns whether there was one.
    pub(super) fn fetch_cancelled(&mut self) -> bool {
        self.request.take().is_some()
    }

    /// Takes in how many messages a receive returned. Returns the time that it took, if it returned some and did not
    /// wait for them.
    pub(super) fn fetch_succeeded(&mut self, messages: usize, now: Instant) -> Option<Duration> {
        self.failures = 0;
        self.is_reachable = true;
        let request = self.request.take()?;
        self.was_full = messages >= request.max;
        if messages > 0 {
            return (!request.waits).then(|| now - request.at);
        }
        self.is_busy = false;
        // A queue that does not wait although it was asked to would be polled in a busy loop.
        if request.waits && now < later(request.at, EARLY_RETURN_DELAY) {
            self.retry_at = Some(later(now, EARLY_RETURN_DELAY));
        }
        None
    }

    /// Returns the turn of the next message: its place in the order of the messages of all sources.
    pub(super) fn next_turn(&mut self) -> f64 {
        let turn = self.virtual_time;
        self.virtual_time += 1.0 / f64::from(self.settings.weight.max(1));
        turn
    }

    /// Takes in that a message went back before its turn had come.
    pub(super) fn returned(&mut self) {
        self.virtual_time -= 1.0 / f64::from(self.settings.weight.max(1));
    }

    /// Marks the source busy. Time in which it had no messages is not made up for.
    pub(super) fn become_busy(&mut self, virtual_time: f64) {
        self.is_busy = true;
        self.virtual_time = self.virtual_time.max(virtual_time);
    }

    pub(super) fn fetch_failed(&mut self, error: &Error, backoff: Duration, now: Instant) {
        self.request = None;
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

    /// Returns the time after which a lease is extended: a third of it, so that two more tries may fail.
    pub(super) fn third(&self) -> Duration {
        self.settings.visibility / 3
    }

    /// Schedules the extension of a lease after a third of its time, or at its deadline if that is earlier.
    pub(super) fn renew_later(&mut self, key: Key, now: Instant, deadline: Instant) {
        self.look_at(key, (now + self.third()).min(deadline));
    }

    /// Schedules a look at a delivery.
    pub(super) fn look_at(&mut self, key: Key, at: Instant) {
        match self.renewals.back() {
            Some((last, _)) if *last > at => {
                let index = self.renewals.partition_point(|(other, _)| *other <= at);
                self.renewals.insert(index, (at, key));
            }
            _ => self.renewals.push_back((at, key)),
        }
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
