//! The places of the workers, and who sits where.

use std::collections::VecDeque;

use super::held::{Place, Start};
use super::{Action, Assigned, Dispatcher, Key};

/// The place of a worker.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) state: SeatState,
    /// What was put into its inbox and it has not told of, in that order: the first is what it is at.
    inbox: VecDeque<Key>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeatState {
    Active,
    /// It finishes what it is at.
    Retiring,
    Empty,
}

impl Seat {
    pub(super) const fn empty() -> Self {
        Self { state: SeatState::Empty, inbox: VecDeque::new() }
    }

    pub(super) fn is_active(&self) -> bool {
        self.state == SeatState::Active
    }

    /// How many deliveries its inbox and its hands hold, those included that were taken back and that it
    /// has not come upon.
    pub(super) fn load(&self) -> usize {
        self.inbox.len()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.is_active() && self.inbox.is_empty()
    }

    /// Somebody sits down.
    pub(super) fn take(&mut self) {
        self.state = SeatState::Active;
        self.inbox.clear();
    }
}

impl Dispatcher {
    /// Gives a delivery to the worker with the least to do; or keeps it until one has room.
    pub(super) fn seat(&mut self, key: Key) {
        let count = self.seats.len();
        let mut best = None;
        for offset in 0..count {
            let worker = (self.next_seat + offset) % count;
            let seat = &self.seats[worker];
            let load = seat.load();
            if !seat.is_active() || load > self.settings.inbox {
                continue;
            }
            if best.is_none_or(|(_, least)| load < least) {
                best = Some((worker, load));
                if load == 0 {
                    break;
                }
            }
        }
        let Some(held) = self.held.get_mut(key) else { return };
        let Some((worker, _)) = best else {
            held.place = Place::Backlog;
            self.backlog.push_back(key);
            return;
        };
        self.seats[worker].inbox.push_back(key);
        self.next_seat = (worker + 1) % count;
        held.place = Place::Seated { worker };
        held.worker = Some(worker);
        let assigned = Assigned {
            key,
            source: held.source,
            message: held.message.clone(),
            receipt: held.receipt.clone(),
            lease: held.lease.clone(),
            attempt: held.attempt,
            is_to_record: held.start == Start::ToRecord,
        };
        self.actions.push_back(Action::Assign { worker, assigned });
    }

    /// A worker has told of the first delivery in its inbox.
    pub(super) fn leave(&mut self, worker: usize) {
        if let Some(seat) = self.seats.get_mut(worker) {
            seat.inbox.pop_front();
        }
    }

    /// A delivery could not be put into an inbox.
    pub(super) fn returned(&mut self, key: Key, worker: usize) {
        if let Some(seat) = self.seats.get_mut(worker) {
            seat.inbox.retain(|other| *other != key);
        }
        if self.held.get(key).is_some_and(|held| held.is_seated_at(worker)) {
            self.give_back(key);
        }
    }

    /// Gives those who have nothing to do half of what waits behind others: a message must not wait for a
    /// slow one while somebody is free.
    pub(super) fn balance(&mut self) {
        while self.seats.iter().any(Seat::is_idle) {
            let mut busy: Vec<_> =
                (0..self.seats.len()).filter(|worker| self.seats[*worker].load() > 1).collect();
            busy.sort_by_key(|worker| std::cmp::Reverse(self.seats[*worker].load()));
            // What waits behind one may have been taken back already, without its having come upon it.
            let taken = busy.into_iter().find_map(|worker| {
                let behind = self.seats[worker].load() - 1;
                let taken = self.take_back(worker, behind.div_ceil(2));
                (!taken.is_empty()).then_some(taken)
            });
            let Some(taken) = taken else { return };
            taken.into_iter().for_each(|key| self.give_back(key));
        }
    }

    /// Takes back the last few deliveries of a worker that it has not begun.
    pub(super) fn take_back(&mut self, worker: usize, most: usize) -> Vec<Key> {
        let is_here = |key: Key| {
            self.held
                .get(key)
                .is_some_and(|held| held.is_seated_at(worker) && held.lease.take_back())
        };
        let inbox = self.seats[worker].inbox.iter().rev().copied();
        let mut taken: Vec<Key> = inbox.filter(|key| is_here(*key)).take(most).collect();
        taken.reverse();
        taken
    }
}
