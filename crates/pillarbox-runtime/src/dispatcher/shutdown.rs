//! Pausing, and the steps of a shutdown: drain, cancel, settle what is left.

use std::time::Duration;

use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::in_flight::{InFlight, Key};
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
        self.scale_to(desired.workers);
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

    /// Enters the next step of the shutdown if the deadline of the current one has come.
    pub(super) fn advance_shutdown(&mut self, now: Instant) {
        match self.mode {
            Mode::Draining { deadline } if now >= deadline => {
                let running = self.in_flight.iter().filter(|(_, delivery)| delivery.is_assigned());
                running.for_each(|(_, delivery)| delivery.lease.cancel());
                self.mode = Mode::Cancelling { deadline: now + CANCEL_GRACE };
            }
            Mode::Cancelling { deadline } if now >= deadline => {
                // First handlers that did not end are given up, then settles that did not.
                let is_last = std::mem::replace(&mut self.has_given_up_handlers, true);
                let is_over = |delivery: &InFlight| is_last || !delivery.is_settling();
                let left: Vec<Key> = self
                    .in_flight
                    .iter()
                    .filter(|(_, delivery)| is_over(delivery))
                    .map(|(key, _)| key)
                    .collect();
                left.into_iter().for_each(|key| self.give_up(key));
                self.mode = Mode::Cancelling { deadline: now + FINAL_SETTLES };
            }
            _ => {}
        }
    }
}
