//! Pausing, and the steps of a shutdown: drain, cancel, make the last settles.

use std::time::Duration;

use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::in_flight::{InFlight, Intent, Key};
use super::{Dispatcher, Mode};
use crate::desired_state::{DesiredState, Stop};

/// Time that cancelled handlers have to end.
pub(super) const CANCEL_GRACE: Duration = Duration::from_secs(1);
/// Time that settles have after that.
const FINAL_SETTLES: Duration = Duration::from_secs(10);

impl Dispatcher {
    pub(super) fn apply(&mut self, desired: DesiredState, now: Instant) {
        self.desired = desired;
        if let Some(stop) = desired.stop {
            self.stop(stop, now);
        }
        if self.mode.is_ending() {
            return;
        }
        self.scale_to(desired.workers, now);
        match (desired.is_paused, self.mode) {
            (true, Mode::Running) => {
                self.mode = Mode::Paused;
                self.cancel_fetches();
            }
            (false, Mode::Paused) => self.mode = Mode::Running,
            _ => {}
        }
    }

    pub(super) fn stop(&mut self, stop: Stop, now: Instant) {
        if !self.mode.is_ending() {
            self.cancel_fetches();
            self.mode = Mode::Draining { deadline: later(now, self.desired.drain) };
            for worker in 0..self.slots.len() {
                self.stop_worker(worker);
            }
            self.reassign_from_stopping();
            self.return_unassigned();
        }
        if let (Stop::Now, Mode::Draining { deadline }) = (stop, &mut self.mode) {
            *deadline = now;
        }
    }

    /// Returns deliveries without a worker to their queues.
    pub(super) fn return_unassigned(&mut self) {
        let shed = std::mem::take(&mut self.shed).into_iter().map(|(_, key)| key);
        let unassigned = std::mem::take(&mut self.unassigned).into_iter();
        for key in unassigned.chain(shed).chain(self.quarantine.take_waiting()) {
            if self.in_flight.get(key).is_some_and(InFlight::is_unassigned) {
                self.settle(key, Intent::Return);
            }
        }
    }

    /// Enters the next step of the shutdown if the deadline of the current one has come.
    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        match self.mode {
            Mode::Draining { deadline } if now >= deadline => {
                let running = self.in_flight.iter().filter(|(_, delivery)| delivery.is_assigned());
                running.for_each(|(_, delivery)| delivery.lease.cancel());
                self.mode = Mode::Cancelling { deadline: now + CANCEL_GRACE };
            }
            Mode::Cancelling { deadline } if now >= deadline => {
                // First deliveries that are not being settled are abandoned, then those whose settles did not end.
                let is_last = std::mem::replace(&mut self.has_abandoned_handlers, true);
                let is_over = |delivery: &InFlight| is_last || !delivery.is_settling();
                let abandoned: Vec<Key> = self
                    .in_flight
                    .iter()
                    .filter(|(_, delivery)| is_over(delivery))
                    .map(|(key, _)| key)
                    .collect();
                abandoned.into_iter().for_each(|key| self.abandon(key));
                self.mode = Mode::Cancelling { deadline: now + FINAL_SETTLES };
            }
            _ => {}
        }
    }
}
