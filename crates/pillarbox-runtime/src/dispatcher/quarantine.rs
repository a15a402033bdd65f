//! Messages that may crash the process when they are handled.
//!
//! Such a message never fails: its lease expires, and so do the leases of everything that was in flight beside
//! it. The queue counts one more unsettled delivery for all of them, so the count does not show which one it
//! was. Therefore a message with several unsettled deliveries is *isolated*: it runs alone. Running handlers
//! finish first, everything that has not been started goes back, and so do other messages to be isolated. If
//! the process crashes then, only this message has one more unsettled delivery. A message whose handler ends,
//! successfully or not, is cleared; the one that crashes reaches the limit and is quarantined: it becomes a dead
//! letter without being run.
//!
//! The queue's count never falls, so this process remembers the count at which a message was cleared. Other
//! processes do not know of it, and isolate the message once more.

use std::time::Duration;

use pillarbox_core::RawMessage;
use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::Dispatcher;
use super::bounded_counts::BoundedCounts;
use super::in_flight::{InFlight, Intent, Key, Stage};
use super::source::{QuarantineSettings, SourceSettings};
use crate::delivery_event::DeliveryChange;
use crate::outcome::{FailureDetails, FailureKind};
use crate::verdict::Disposition;

/// Number of unsettled deliveries after which a message is isolated. A single one may be a coincidence.
const ISOLATE_AFTER: u32 = 2;
/// Added to the limit if the backend does not count unsettled deliveries: the delivery count also rises when
/// other processes stop, release, or do not know a kind.
const INEXACT_MARGIN: u32 = 10;
/// The delay between messages that are released because another one runs alone first.
pub(crate) const STAGGER: Duration = Duration::from_millis(500);

impl QuarantineSettings {
    /// Returns the default limit for messages with this number of attempts: never less than it takes to have
    /// run a message alone.
    pub(crate) fn default_limit(attempts: u32) -> u32 {
        attempts.max(ISOLATE_AFTER + 1)
    }

    /// Returns the number of earlier deliveries that may have ended with a crash of the process.
    fn possible_crashes(&self, message: &RawMessage, attempt: u32) -> u32 {
        if self.is_exact { message.unsettled } else { attempt.saturating_sub(1) }
    }

    fn admit(&self, possible_crashes: u32) -> Admission {
        let (quarantine, isolate) = if self.is_exact {
            (self.after, ISOLATE_AFTER)
        } else {
            (self.after.saturating_add(INEXACT_MARGIN), self.after)
        };
        match self.route {
            Some(route) if possible_crashes >= quarantine => Admission::Quarantine { route },
            _ if possible_crashes >= isolate => Admission::Isolate,
            _ => Admission::Run,
        }
    }
}

/// How a received message may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// Beside other messages.
    Run,
    /// Alone.
    Isolate,
    /// Not at all: it becomes a dead letter in the queue of this index.
    Quarantine { route: usize },
}

/// The messages to be isolated, and the one that runs.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    waiting: Vec<Key>,
    /// The message that runs alone, and until when.
    running: Option<(Key, Instant)>,
    /// Until when the first waits for running handlers.
    waits_until: Option<Instant>,
    /// Number of possible crashes at which messages were cleared.
    cleared: BoundedCounts,
}

impl Quarantine {
    /// Returns whether a message runs alone, or waits to. Nothing else may be received or started then.
    pub(super) fn is_isolating(&self) -> bool {
        self.running.is_some() || !self.waiting.is_empty()
    }

    pub(super) fn next_wake(&self) -> Option<Instant> {
        let running = self.running.map(|(_, until)| until);
        self.waits_until.into_iter().chain(running).min()
    }

    /// Takes the messages that have not run.
    pub(super) fn take_waiting(&mut self) -> Vec<Key> {
        self.waits_until = None;
        std::mem::take(&mut self.waiting)
    }
}

impl Dispatcher {
    /// Decides how a received message may run.
    pub(super) fn admit(&self, source: usize, message: &RawMessage) -> Admission {
        let cleared = self.quarantine.cleared.get((source, message.id));
        let crashes = self.possible_crashes(source, message).saturating_sub(cleared);
        self.sources[source].settings.quarantine.admit(crashes)
    }

    /// Keeps a message until it can run alone.
    pub(super) fn isolate(&mut self, key: Key) {
        if self.quarantine.running.is_some() {
            return self.release_for_another(key, 1);
        }
        if let Some(delivery) = self.in_flight.get_mut(key) {
            delivery.stage = Stage::Unassigned;
            self.quarantine.waiting.push(key);
            // What they return would be in flight beside it.
            self.cancel_fetches();
        }
    }

    /// Clears a message whose handler has ended.
    pub(super) fn clear(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get(key) else { return };
        let message = (delivery.source, delivery.message.id);
        let crashes = self.possible_crashes(delivery.source, &delivery.message);
        if crashes > 0 {
            self.quarantine.cleared.set(message, crashes);
        }
    }

    fn possible_crashes(&self, source: usize, message: &RawMessage) -> u32 {
        let attempt = self.attempt(source, message);
        self.sources[source].settings.quarantine.possible_crashes(message, attempt)
    }

    /// Turns a message into a dead letter without running it.
    pub(super) fn quarantine(&mut self, key: Key, route: usize) {
        let Some(delivery) = self.in_flight.get(key) else { return };
        let RawMessage { delivery_count, unsettled, .. } = *delivery.message;
        let text = format!(
            "not run again after {delivery_count} deliveries, of which {unsettled} were started and \
             never settled: it may crash the process that handles it"
        );
        let kind = FailureKind::Quarantined;
        let (text, causes) = (text.into(), [].into());
        let failure = FailureDetails { kind, type_name: kind.as_str(), text, causes };
        let disposition = Disposition::DeadLetter { route };
        self.report(key, DeliveryChange::Failed { failure: failure.clone(), disposition });
        self.dead_letter(key, failure, route);
    }

    /// Runs the first message to be isolated once it is alone.
    pub(super) fn run_isolated(&mut self, now: Instant) {
        if !self.quarantine.is_isolating() {
            return;
        }
        // It is alone for one lease at most, since everything else stands still meanwhile.
        let is_over = |(key, until)| self.in_flight.get(key).is_none() || now >= until;
        if self.quarantine.running.is_some_and(is_over) {
            self.quarantine.running = None;
        }
        let is_unassigned =
            |key: &Key| self.in_flight.get(*key).is_some_and(InFlight::is_unassigned);
        self.quarantine.waiting.retain(is_unassigned);
        if self.quarantine.running.is_some() || self.mode.is_ending() {
            return;
        }
        let Some(&first) = self.quarantine.waiting.first() else {
            self.quarantine.waits_until = None;
            return;
        };
        // If the first crashes the process, the others must not be counted with it. They come back one by one.
        for (index, other) in self.quarantine.waiting.split_off(1).into_iter().enumerate() {
            self.release_for_another(other, index as u32 + 1);
        }
        self.return_unstarted_except(first);
        let visibility = self.in_flight.get(first).map(|delivery| delivery.source);
        let visibility = visibility.map(|source| self.sources[source].settings.visibility);
        let in_a_lease = later(now, visibility.unwrap_or_default());
        let waits_until = *self.quarantine.waits_until.get_or_insert(in_a_lease);
        // It waits for running handlers for one lease at most.
        if self.in_flight.len() == 1 || now >= waits_until {
            self.quarantine.waits_until = None;
            self.quarantine.waiting.clear();
            self.quarantine.running = Some((first, in_a_lease));
            self.assign(first);
        }
    }

    /// Returns everything that no handler has started on, except one delivery.
    fn return_unstarted_except(&mut self, first: Key) {
        for worker in 0..self.slots.len() {
            for key in self.take_back_from(worker, usize::MAX, |_| true) {
                self.settle(key, Intent::Return);
            }
        }
        let unassigned: Vec<Key> = self
            .in_flight
            .iter()
            .filter(|(key, delivery)| *key != first && delivery.is_unassigned())
            .map(|(key, _)| key)
            .collect();
        unassigned.into_iter().for_each(|key| self.settle(key, Intent::Return));
        self.unassigned.clear();
    }

    /// Releases a message to be isolated because another one runs first.
    fn release_for_another(&mut self, key: Key, turn: u32) {
        let Some(source) = self.in_flight.get(key).map(|delivery| delivery.source) else { return };
        let SourceSettings { quarantine, park, .. } = self.sources[source].settings;
        let delay = quarantine.stagger.saturating_mul(turn).min(park);
        self.settle(key, Intent::Release { delay });
    }
}
