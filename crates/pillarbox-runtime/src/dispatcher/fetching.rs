//! Receiving: no more messages than there is room for, and from each queue its share.

use tokio::time::Instant;

use super::protocol::Action;
use super::worker_slots::WorkerSlot;
use super::{Dispatcher, Mode};

impl Dispatcher {
    /// Returns the number of deliveries that the active workers may have, prefetched ones included.
    fn capacity(&self) -> usize {
        self.active_workers() + self.prefetch
    }

    /// Returns the number of messages that may be requested.
    pub(super) fn room(&self) -> usize {
        let active = self.slots.iter().filter(|slot| slot.is_active());
        let load: usize = active.map(WorkerSlot::load).sum();
        // A source that waits for its first message keeps no room from the others.
        let requested: usize = self.sources.iter().map(|source| source.reserved()).sum();
        let used = load + self.unassigned.len() + self.shed.len() + requested;
        // The number of deliveries that wait to be settled is bounded as well.
        let max = self.slots.len() + self.prefetch + self.settings.result_buffer;
        let free = self.capacity().saturating_sub(used);
        free.min(max.saturating_sub(self.in_flight.len() + requested))
    }

    /// Requests messages. A busy source is asked again at once, in proportion to its weight. An idle one waits for
    /// one message, which comes beside what there is room for: so it takes no room from the others, and does not
    /// wait for them. A single source gets all the room.
    pub(super) fn fetch(&mut self, now: Instant) {
        self.sources.iter_mut().for_each(|source| source.advance(now));
        // An isolated message runs alone.
        let is_receiving = self.mode == Mode::Running && !self.quarantine.is_isolating();
        if !is_receiving || self.active_workers() == 0 {
            return;
        }
        if self.sources.len() == 1 {
            let room = self.room();
            if self.sources[0].can_fetch() && self.is_worth_fetching(room) {
                // If the last receive got all that it asked for, there are probably more.
                let waits = !self.sources[0].was_full;
                self.request(0, room, waits, now);
            }
            return;
        }
        for source in 0..self.sources.len() {
            if self.sources[source].can_fetch() && !self.sources[source].is_busy {
                self.request(source, 1, true, now);
            }
        }
        loop {
            let room = self.room();
            let time = |index: &usize| self.sources[*index].virtual_time;
            let busy = (0..self.sources.len()).filter(|index| self.sources[*index].can_fetch());
            let next = busy.min_by(|a, b| time(a).total_cmp(&time(b)));
            let Some(next) = next.filter(|_| self.is_worth_fetching(room)) else { return };
            self.virtual_time = self.virtual_time.max(self.sources[next].virtual_time);
            self.request(next, room, false, now);
        }
    }

    /// Returns whether the room is worth a call: a little room is not while every worker has work.
    fn is_worth_fetching(&self, room: usize) -> bool {
        room > 0 && (room * 4 >= self.capacity() || self.idle_workers() > 0)
    }

    fn request(&mut self, source: usize, room: usize, waits: bool, now: Instant) {
        // A queue that does not answer is noticed soon if the receive does not wait.
        let waits = waits && self.sources[source].is_reachable;
        let max = room.min(self.sources[source].settings.max_receive);
        self.sources[source].fetch_started(max, waits, now);
        self.actions.push_back(Action::Fetch { source, max, waits });
    }

    pub(super) fn cancel_fetches(&mut self) {
        for source in 0..self.sources.len() {
            if self.sources[source].fetch_cancelled() {
                self.actions.push_back(Action::CancelFetch { source });
            }
        }
    }
}
