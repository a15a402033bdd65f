//! Worker slots, and the assignment of deliveries to them.

use std::collections::VecDeque;

use super::Dispatcher;
use super::in_flight::{Key, Stage, StartRecord};
use super::protocol::{Action, Assignment};

/// The slot of one worker.
#[derive(Debug)]
pub(super) struct WorkerSlot {
    pub(super) state: SlotState,
    /// Deliveries that were assigned to the worker and that it has not reported on, in order: it handles the
    /// first.
    assigned: VecDeque<Key>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotState {
    Active,
    /// The worker finishes the delivery that it handles, and ends.
    Stopping,
    Vacant,
}

impl WorkerSlot {
    pub(super) const fn vacant() -> Self {
        Self { state: SlotState::Vacant, assigned: VecDeque::new() }
    }

    pub(super) fn is_active(&self) -> bool {
        self.state == SlotState::Active
    }

    /// Returns the number of deliveries assigned to the worker, including those that were taken back and that
    /// it has not come to.
    pub(super) fn load(&self) -> usize {
        self.assigned.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_active() && self.assigned.is_empty()
    }

    /// Marks the slot active and empty.
    pub(super) fn activate(&mut self) {
        self.state = SlotState::Active;
        self.assigned.clear();
    }
}

impl Dispatcher {
    /// Assigns a delivery to the worker with the lowest load, or keeps it until one has room.
    pub(super) fn assign(&mut self, key: Key) {
        let count = self.slots.len();
        let mut best = None;
        for offset in 0..count {
            let worker = (self.next_slot + offset) % count;
            let slot = &self.slots[worker];
            let load = slot.load();
            if !slot.is_active() || load > self.settings.prefetch {
                continue;
            }
            if best.is_none_or(|(_, least)| load < least) {
                best = Some((worker, load));
                if load == 0 {
                    break;
                }
            }
        }
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        let Some((worker, _)) = best else {
            delivery.stage = Stage::Unassigned;
            self.unassigned.push_back(key);
            return;
        };
        self.slots[worker].assigned.push_back(key);
        self.next_slot = (worker + 1) % count;
        delivery.stage = Stage::Assigned { worker };
        delivery.worker = Some(worker);
        let assignment = Assignment {
            key,
            source: delivery.source,
            message: delivery.message.clone(),
            receipt: delivery.receipt.clone(),
            lease: delivery.lease.clone(),
            attempt: delivery.attempt,
            must_record_start: delivery.start == StartRecord::Required,
        };
        self.actions.push_back(Action::Assign { worker, assignment });
    }

    /// Removes the delivery that a worker has reported on from its slot.
    pub(super) fn pop_assigned(&mut self, worker: usize) {
        if let Some(slot) = self.slots.get_mut(worker) {
            slot.assigned.pop_front();
        }
    }

    /// Takes in a delivery that did not reach its worker, or that the worker declined.
    pub(super) fn returned(&mut self, key: Key, worker: usize) {
        if let Some(slot) = self.slots.get_mut(worker) {
            slot.assigned.retain(|other| *other != key);
        }
        if self.in_flight.get(key).is_some_and(|delivery| delivery.is_assigned_to(worker)) {
            self.reassign(key);
        }
    }

    /// Gives idle workers half of what waits behind others, so that no message waits for a slow handler while a
    /// worker is free.
    pub(super) fn rebalance(&mut self) {
        while self.slots.iter().any(WorkerSlot::is_idle) {
            let mut busy: Vec<_> =
                (0..self.slots.len()).filter(|worker| self.slots[*worker].load() > 1).collect();
            busy.sort_by_key(|worker| std::cmp::Reverse(self.slots[*worker].load()));
            // What waits behind a worker may have been taken back already.
            let taken = busy.into_iter().find_map(|worker| {
                let behind = self.slots[worker].load() - 1;
                let taken = self.take_back(worker, behind.div_ceil(2));
                (!taken.is_empty()).then_some(taken)
            });
            let Some(taken) = taken else { return };
            taken.into_iter().for_each(|key| self.reassign(key));
        }
    }

    /// Takes back up to `max` deliveries that a worker has not begun, the last ones first.
    pub(super) fn take_back(&mut self, worker: usize, max: usize) -> Vec<Key> {
        let is_taken = |key: Key| {
            self.in_flight.get(key).is_some_and(|delivery| {
                delivery.is_assigned_to(worker) && delivery.lease.take_back()
            })
        };
        let assigned = self.slots[worker].assigned.iter().rev().copied();
        let mut taken: Vec<Key> = assigned.filter(|key| is_taken(*key)).take(max).collect();
        taken.reverse();
        taken
    }
}
