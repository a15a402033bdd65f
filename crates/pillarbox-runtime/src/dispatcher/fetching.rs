//! Receiving: no more messages than there is room for, and from each queue its share.

use tokio::time::Instant;

use super::protocol::Action;
use super::worker_slots::WorkerSlot;
use super::{Dispatcher, Mode};

impl Dispatcher {
    /// Returns the number of deliveries that the active workers may have, prefetched ones included.
    fn capacity(&self) -> usize {
        self.active_workers() * (self.settings.prefetch + 1)
    }

    /// Returns the number of messages that may be requested.
    pub(super) fn room(&self) -> usize {
        // An isolated message runs alone.
        if self.quarantine.is_isolating() {
            return 0;
        }
        let per_worker = self.settings.prefetch + 1;
        let active = self.slots.iter().filter(|slot| slot.is_active());
        let free: usize = active.map(|slot| per_worker.saturating_sub(slot.load())).sum();
        let requested: usize = self.sources.iter().map(|source| source.requested).sum();
        let free = free.saturating_sub(self.unassigned.len() + self.shed.len() + requested);
        // The number of deliveries that wait to be settled is bounded as well.
        let max = self.slots.len() * per_worker + self.settings.result_buffer;
        free.min(max.saturating_sub(self.in_flight.len() + requested))
    }

    /// Requests messages. A busy source is asked again at once, in proportion to its weight. An idle one waits
    /// with room for one message, so that it takes nothing from the others. A single source gets all the room.
    pub(super) fn fetch(&mut self, now: Instant) {
        self.sources.iter_mut().for_each(|source| source.advance(now));
        if self.mode != Mode::Running {
            return;
        }
        if self.sources.len() == 1 {
            let room = self.room();
            if self.sources[0].can_fetch() && self.is_worth_fetching(room) {
                self.request(0, room, Some(now), true);
            }
            return;
        }
        // With less room than sources, none may hold room while it waits.
        let may_wait = self.capacity() >= self.sources.len();
        loop {
            let room = self.room();
            let count = self.sources.len();
            let in_turn = |offset| (self.next_source + offset) % count;
            let can_fetch = |index: &usize| self.sources[*index].can_fetch();
            let (busy, idle): (Vec<_>, Vec<_>) = (0..count)
                .map(in_turn)
                .filter(can_fetch)
                .partition(|index| self.sources[*index].is_busy);
            let time = |index: &usize| self.sources[*index].virtual_time;
            let next = busy.into_iter().min_by(|a, b| time(a).total_cmp(&time(b)));
            match (next, idle.first()) {
                (_, Some(idle)) if room > 0 => {
                    self.next_source = (idle + 1) % count;
                    self.request(*idle, 1, Some(now), may_wait);
                }
                (Some(busy), _)
                    if room > idle.len() && self.is_worth_fetching(room - idle.len()) =>
                {
                    self.virtual_time = self.virtual_time.max(self.sources[busy].virtual_time);
                    self.request(busy, room - idle.len(), None, false);
                }
                _ => return,
            }
        }
    }

    /// Returns whether the room is worth a call: a little room is not while every worker has work.
    pub(super) fn is_worth_fetching(&self, room: usize) -> bool {
        room > 0 && (room * 4 >= self.capacity() || self.slots.iter().any(WorkerSlot::is_idle))
    }

    fn request(&mut self, source: usize, room: usize, waits_since: Option<Instant>, waits: bool) {
        let is_reachable = self.sources[source].is_reachable;
        let (waits, waits_since) = (waits && is_reachable, waits_since.filter(|_| is_reachable));
        let max = room.min(self.sources[source].settings.max_receive);
        self.sources[source].fetch_started(max, waits_since);
        self.actions.push_back(Action::Fetch { source, max, waits });
    }

    pub(super) fn cancel_fetches(&mut self) {
        for source in 0..self.sources.len() {
            if self.sources[source].requested > 0 {
                self.sources[source].fetch_cancelled();
                self.actions.push_back(Action::CancelFetch { source });
            }
        }
    }
}
