//! The number of workers: starting, stopping and replacing them.

use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::Intent;
use super::protocol::Action;
use super::worker_slots::{SlotState, WorkerSlot};

impl Dispatcher {
    /// Starts or stops workers until there are `workers`.
    pub(super) fn scale_to(&mut self, workers: usize, now: Instant) {
        let mut active = self.active_workers();
        let is_reduced = workers < active;
        for worker in (0..self.slots.len()).rev() {
            if active <= workers {
                break;
            }
            if self.stop_worker(worker) {
                active -= 1;
                // The request was made for more workers.
                self.cancel_fetches();
            }
        }
        self.reassign_from_stopping();
        if workers == 0 {
            self.return_unassigned();
        } else if is_reduced {
            // There is less room here; other processes may have some.
            self.update_prefetch(now);
            self.return_surplus();
        }
        while active < workers {
            let vacant = self.slots.iter().position(|slot| slot.state == SlotState::Vacant);
            let worker = vacant.unwrap_or(self.slots.len());
            if worker == self.slots.len() {
                self.slots.push(WorkerSlot::vacant());
            }
            self.start_worker(worker);
            active += 1;
        }
    }

    fn start_worker(&mut self, worker: usize) {
        self.slots[worker].activate();
        self.actions.push_back(Action::StartWorker { worker });
    }

    /// Lets a worker finish the delivery that it handles, and end. Returns false if it was not active.
    pub(super) fn stop_worker(&mut self, worker: usize) -> bool {
        if !self.slots[worker].is_active() {
            return false;
        }
        self.slots[worker].state = SlotState::Stopping;
        self.actions.push_back(Action::StopWorker { worker });
        true
    }

    /// Takes back what stopping workers have not begun.
    pub(super) fn reassign_from_stopping(&mut self) {
        for worker in 0..self.slots.len() {
            if self.slots[worker].state == SlotState::Stopping {
                let taken = self.take_back_from(worker, usize::MAX, |_| true);
                taken.into_iter().for_each(|key| self.reassign(key));
            }
        }
    }

    pub(super) fn worker_ended(&mut self, worker: usize) {
        let unstarted = self.take_back_from(worker, usize::MAX, |_| true);
        let slot = std::mem::replace(&mut self.slots[worker], WorkerSlot::vacant());
        // What it handled when it ended without a report has neither failed nor succeeded, as far as is known.
        let started: Vec<_> = self
            .in_flight
            .iter()
            .filter(|(key, delivery)| delivery.is_assigned_to(worker) && !unstarted.contains(key))
            .map(|(key, delivery)| (key, delivery.source))
            .collect();
        for (key, source) in started {
            let delay = self.sources[source].settings.park;
            self.settle(key, Intent::Park { delay, is_uncounted: false });
        }
        if slot.is_active() && !self.mode.is_ending() {
            self.start_worker(worker);
        }
        unstarted.into_iter().for_each(|key| self.reassign(key));
    }
}
