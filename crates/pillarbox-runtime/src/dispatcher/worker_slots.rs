//! Worker slots, and the assignment of deliveries to them.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::{InFlight, Key, Stage, StartRecord};
use super::protocol::{Action, Assignment};

/// The slot of one worker.
#[derive(Debug)]
pub(super) struct WorkerSlot {
    pub(super) state: SlotState,
    /// Deliveries that were assigned to the worker and that it has not reported on, in order: it handles the
    /// first.
    assigned: VecDeque<Key>,
    /// Number of them that were taken back. The worker skips them when it comes to them.
    taken_back: usize,
    /// When the worker came to the first, if there is one.
    busy_since: Option<Instant>,
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
        let state = SlotState::Vacant;
        Self { state, assigned: VecDeque::new(), taken_back: 0, busy_since: None }
    }

    pub(super) fn is_active(&self) -> bool {
        self.state == SlotState::Active
    }

    /// Returns the number of deliveries assigned to the worker, without those that were taken back.
    pub(super) fn load(&self) -> usize {
        self.assigned.len().saturating_sub(self.taken_back)
    }

    /// Returns the number of deliveries behind the one that the worker handles.
    pub(super) fn waiting(&self) -> usize {
        self.load().saturating_sub(1)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_active() && self.assigned.is_empty()
    }

    /// Returns the time since the worker came to the delivery that it handles. Zero if it handles none.
    pub(super) fn busy_for(&self, now: Instant) -> Duration {
        let since = self.busy_since.filter(|_| !self.assigned.is_empty());
        since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Marks the slot active and empty.
    pub(super) fn activate(&mut self) {
        *self = Self { state: SlotState::Active, ..Self::vacant() };
    }

    fn push(&mut self, key: Key, now: Instant) {
        if self.assigned.is_empty() {
            self.busy_since = Some(now);
        }
        self.assigned.push_back(key);
    }

    /// Removes the first delivery: the worker comes to the next.
    fn pop(&mut self, now: Instant) {
        self.assigned.pop_front();
        self.busy_since = Some(now);
    }

    /// Removes the first delivery, which was taken back.
    fn skip(&mut self, now: Instant) {
        self.pop(now);
        self.taken_back = self.taken_back.saturating_sub(1);
    }
}

impl Dispatcher {
    pub(super) fn idle_workers(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_idle()).count()
    }

    /// Returns the number of active workers that have begun no delivery: the idle ones, and those that are about to
    /// begin.
    pub(super) fn free_workers(&self) -> usize {
        let has_begun = |worker: usize, key: &Key| {
            let delivery = self.in_flight.get(*key);
            delivery.is_some_and(|it| it.is_assigned_to(worker) && it.lease.has_begun())
        };
        let active = self.slots.iter().enumerate().filter(|(_, slot)| slot.is_active());
        active
            .filter(|(worker, slot)| {
                !slot.assigned.front().is_some_and(|it| has_begun(*worker, it))
            })
            .count()
    }

    /// Lets a delivery wait for a worker, in its turn.
    pub(super) fn assign(&mut self, key: Key) {
        let Some(delivery) = self.in_flight.get_mut(key) else { return };
        delivery.stage = Stage::Unassigned;
        let turn = delivery.turn;
        let is_before =
            |other: &Key| self.in_flight.get(*other).is_none_or(|other| other.turn <= turn);
        // Nearly all are appended.
        match self.unassigned.back() {
            Some(last) if !is_before(last) => {
                self.unassigned.insert(self.unassigned.partition_point(is_before), key);
            }
            _ => self.unassigned.push_back(key),
        }
    }

    /// Assigns deliveries in turn, each to the worker with the lowest load, while one has room.
    pub(super) fn assign_unassigned(&mut self, now: Instant) {
        if self.unassigned.is_empty() {
            return;
        }
        let count = self.slots.len();
        let behind = self.prefetch.div_ceil(self.active_workers().max(1));
        // Workers take turns where the load is the same.
        let next_slot = self.next_slot;
        let distance = |worker: usize| (worker + count - next_slot) % count;
        let mut by_load: BinaryHeap<_> = (0..count)
            .filter(|worker| self.slots[*worker].is_active())
            .map(|worker| Reverse((self.slots[worker].assigned.len(), distance(worker), worker)))
            .collect();
        let mut batches: Vec<Vec<Assignment>> = Vec::new();
        batches.resize_with(count, Vec::new);
        while let Some(mut first) = by_load.peek_mut() {
            let Reverse((load, _, worker)) = *first;
            if load > behind {
                break;
            }
            let Some(key) = self.unassigned.pop_front() else { break };
            let Some(delivery) = self.in_flight.get_mut(key).filter(|it| it.is_unassigned()) else {
                continue;
            };
            delivery.stage = Stage::Assigned { worker };
            delivery.worker = Some(worker);
            batches[worker].push(Assignment {
                key,
                source: delivery.source,
                message: delivery.message.clone(),
                receipt: delivery.receipt.clone(),
                lease: delivery.lease.clone(),
                attempt: delivery.attempt,
                must_record_start: delivery.start == StartRecord::Required,
            });
            self.slots[worker].push(key, now);
            self.next_slot = (worker + 1) % count;
            first.0.0 += 1;
        }
        for (worker, assignments) in batches.into_iter().enumerate() {
            if !assignments.is_empty() {
                self.actions.push_back(Action::Assign { worker, assignments });
            }
        }
    }

    /// Removes the delivery that a worker has reported on from its slot.
    pub(super) fn pop_assigned(&mut self, worker: usize, now: Instant) {
        if let Some(slot) = self.slots.get_mut(worker) {
            slot.pop(now);
        }
    }

    /// Removes a delivery that was taken back from the slot of the worker that has come to it.
    pub(super) fn skipped(&mut self, worker: usize, now: Instant) {
        if let Some(slot) = self.slots.get_mut(worker) {
            slot.skip(now);
        }
    }

    /// Takes in a delivery that did not reach its worker, or that the worker declined.
    pub(super) fn returned(&mut self, key: Key, worker: usize) {
        if let Some(slot) = self.slots.get_mut(worker) {
            // An earlier assignment of it may have been taken back, and is still in the channel.
            let last = slot.assigned.iter().rposition(|other| *other == key);
            last.and_then(|index| slot.assigned.remove(index));
        }
        if self.in_flight.get(key).is_some_and(|delivery| delivery.is_assigned_to(worker)) {
            self.reassign(key);
        }
    }

    /// Gives idle workers half of what waits behind others, so that no message waits for a slow handler while a
    /// worker is free.
    pub(super) fn rebalance(&mut self, now: Instant) {
        while self.slots.iter().any(WorkerSlot::is_idle) {
            let mut busy: Vec<_> =
                (0..self.slots.len()).filter(|worker| self.slots[*worker].waiting() > 0).collect();
            busy.sort_by_key(|worker| Reverse(self.slots[*worker].load()));
            // A worker may begin what waits behind it just now.
            let taken = busy.into_iter().find_map(|worker| {
                let half = self.slots[worker].waiting().div_ceil(2);
                let taken = self.take_back_from(worker, half, |_| true);
                (!taken.is_empty()).then_some(taken)
            });
            let Some(taken) = taken else { return };
            taken.into_iter().for_each(|key| self.reassign(key));
            self.assign_unassigned(now);
        }
    }

    /// Takes back up to `max` deliveries that a worker has not begun, the last ones first.
    pub(super) fn take_back_from(
        &mut self,
        worker: usize,
        max: usize,
        is_wanted: impl Fn(&InFlight) -> bool,
    ) -> Vec<Key> {
        let is_taken = |key: &Key| {
            self.in_flight.get(*key).is_some_and(|delivery| {
                delivery.is_assigned_to(worker) && is_wanted(delivery) && delivery.lease.take_back()
            })
        };
        let assigned = self.slots[worker].assigned.iter().rev().copied();
        let mut taken: Vec<Key> = assigned.filter(is_taken).take(max).collect();
        self.slots[worker].taken_back += taken.len();
        taken.reverse();
        taken
    }

    /// Takes back a delivery that no worker has begun. Returns false if one has.
    pub(super) fn take_back(&mut self, key: Key) -> bool {
        let Some(delivery) = self.in_flight.get(key) else { return false };
        match delivery.stage {
            Stage::Unassigned => true,
            Stage::Assigned { worker } if delivery.lease.take_back() => {
                self.slots[worker].taken_back += 1;
                true
            }
            _ => false,
        }
    }
}
