//! Hiring and retiring workers, pausing, and the way to the end.

use pillarbox_core::clock::later;
use tokio::time::Instant;

use super::held::{Held, Intent};
use super::seats::{Seat, SeatState};
use super::{Action, Dispatcher, GRACE, Key, LAST_SETTLES, Mode};
use crate::control::{Stop, Wanted};

impl Dispatcher {
    pub(super) fn change(&mut self, wanted: Wanted, now: Instant) {
        self.wanted = wanted;
        if let Some(stop) = wanted.stop {
            self.stop(stop, now);
        }
        if self.mode.is_ending() {
            return;
        }
        self.employ(wanted.workers);
        match (wanted.is_paused, self.mode) {
            (true, Mode::Running) => {
                self.mode = Mode::Paused;
                self.cancel_fetches();
            }
            (false, Mode::Paused) => self.mode = Mode::Running,
            _ => {}
        }
    }

    /// Makes it so many workers.
    pub(super) fn employ(&mut self, workers: usize) {
        let mut active = self.active_workers();
        for worker in (0..self.seats.len()).rev() {
            if active <= workers {
                break;
            }
            if self.retire(worker) {
                active -= 1;
                // What was asked for was meant for more workers.
                self.cancel_fetches();
            }
        }
        let was_waiting = self.backlog.len();
        self.empty_inboxes();
        if self.backlog.len() > was_waiting || workers == 0 {
            // There is no room for them here; others may have it.
            self.return_backlog();
        }
        while active < workers {
            let empty = self.seats.iter().position(|seat| seat.state == SeatState::Empty);
            let worker = empty.unwrap_or(self.seats.len());
            if worker == self.seats.len() {
                self.seats.push(Seat::empty());
            }
            self.seats[worker].take();
            self.actions.push_back(Action::Hire { worker });
            active += 1;
        }
    }

    /// Lets a worker finish what it is at, and end.
    fn retire(&mut self, worker: usize) -> bool {
        if !self.seats[worker].is_active() {
            return false;
        }
        self.seats[worker].state = SeatState::Retiring;
        self.actions.push_back(Action::Retire { worker });
        true
    }

    /// Takes back what those who retire have not begun.
    fn empty_inboxes(&mut self) {
        for worker in 0..self.seats.len() {
            if self.seats[worker].state == SeatState::Retiring {
                let taken = self.take_back(worker, usize::MAX);
                taken.into_iter().for_each(|key| self.give_back(key));
            }
        }
    }

    /// Gives back what waits for a place.
    fn return_backlog(&mut self) {
        let resting = std::mem::take(&mut self.resting).into_iter().map(|(_, key)| key);
        let waiting = std::mem::take(&mut self.backlog).into_iter();
        for key in waiting.chain(resting).chain(self.suspects.take()) {
            if self.held.get(key).is_some_and(Held::is_waiting) {
                self.settle(key, Intent::Return);
            }
        }
    }

    pub(super) fn worker_ended(&mut self, worker: usize) {
        let unbegun = self.take_back(worker, usize::MAX);
        let seat = std::mem::replace(&mut self.seats[worker], Seat::empty());
        // What it was at when it ended without a word has not failed, as far as is known, and has not
        // succeeded.
        let begun: Vec<_> = self
            .held
            .iter()
            .filter(|(key, held)| held.is_seated_at(worker) && !unbegun.contains(key))
            .map(|(key, held)| (key, held.source))
            .collect();
        for (key, source) in begun {
            let delay = self.sources[source].settings.park;
            self.settle(key, Intent::Park { delay, is_spared: false });
        }
        if seat.is_active() && !self.mode.is_ending() {
            self.seats[worker].take();
            self.actions.push_back(Action::Hire { worker });
        }
        unbegun.into_iter().for_each(|key| self.give_back(key));
    }

    pub(super) fn stop(&mut self, stop: Stop, now: Instant) {
        if !self.mode.is_ending() {
            self.cancel_fetches();
            self.mode = Mode::Draining { deadline: later(now, self.wanted.drain) };
            for worker in 0..self.seats.len() {
                self.retire(worker);
            }
            self.empty_inboxes();
            self.return_backlog();
        }
        if let (Stop::Now, Mode::Draining { deadline }) = (stop, &mut self.mode) {
            *deadline = now;
        }
    }

    /// Lets time come to now: deadlines of the way to the end.
    pub(super) fn pass(&mut self, now: Instant) {
        match self.mode {
            Mode::Draining { deadline } if now >= deadline => {
                let seated = self.held.iter().filter(|(_, held)| held.is_seated());
                seated.for_each(|(_, held)| held.lease.cancel());
                self.mode = Mode::Cancelling { deadline: now + GRACE };
            }
            Mode::Cancelling { deadline } if now >= deadline => {
                // Handlers had their time. What is done and being settled has some more.
                let is_last = std::mem::replace(&mut self.is_last_call, true);
                let is_over = |held: &Held| is_last || !held.is_settling();
                let left: Vec<Key> = self
                    .held
                    .iter()
                    .filter(|(_, held)| is_over(held))
                    .map(|(key, _)| key)
                    .collect();
                left.into_iter().for_each(|key| self.give_up(key));
                self.mode = Mode::Cancelling { deadline: now + LAST_SETTLES };
            }
            _ => {}
        }
    }
}
