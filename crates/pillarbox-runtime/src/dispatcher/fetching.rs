//! Asking for messages: no more than there is room for, and from each queue its share.

use tokio::time::Instant;

use super::source::Source;
use super::{Action, Dispatcher, Mode, Seat};

impl Dispatcher {
    /// How many deliveries the workers have room for, in inboxes and hands.
    fn places(&self) -> usize {
        self.active_workers() * (self.settings.inbox + 1)
    }

    /// How many more deliveries may be asked for.
    pub(super) fn room(&self) -> usize {
        // A suspect is alone.
        if self.suspects.is_any() {
            return 0;
        }
        let capacity = self.settings.inbox + 1;
        let active = self.seats.iter().filter(|seat| seat.is_active());
        let free: usize = active.map(|seat| capacity.saturating_sub(seat.load())).sum();
        let asked: usize = self.sources.iter().map(Source::asked).sum();
        let free = free.saturating_sub(self.backlog.len() + self.resting.len() + asked);
        // What waits to be settled is bounded as well.
        let most = self.seats.len() * capacity + self.settings.results;
        free.min(most.saturating_sub(self.held.len() + asked))
    }

    /// Asks for messages. A source that had some is asked again at once, in proportion to its weight; one
    /// that had none waits with one place, so that it never keeps the others from theirs. A single source
    /// waits with all there are.
    pub(super) fn fetch(&mut self, now: Instant) {
        self.sources.iter_mut().for_each(|source| source.pass(now));
        if self.mode != Mode::Running {
            return;
        }
        if self.sources.len() == 1 {
            let room = self.room();
            if self.sources[0].can_be_asked() && self.is_worth_fetching(room) {
                self.ask(0, room, Some(now), true);
            }
            return;
        }
        // With fewer places than queues nobody may sit on one and wait.
        let may_wait = self.places() >= self.sources.len();
        loop {
            let room = self.room();
            let count = self.sources.len();
            let in_turn = |offset| (self.next_source + offset) % count;
            let ready = |index: &usize| self.sources[*index].can_be_asked();
            let (hot, cold): (Vec<_>, Vec<_>) = (0..count)
                .map(in_turn)
                .filter(ready)
                .partition(|index| self.sources[*index].is_hot);
            let served = |index: &usize| self.sources[*index].served();
            let hottest = hot.into_iter().min_by(|a, b| served(a).total_cmp(&served(b)));
            match (hottest, cold.first()) {
                (_, Some(cold)) if room > 0 => {
                    self.next_source = (cold + 1) % count;
                    self.ask(*cold, 1, Some(now), may_wait);
                }
                (Some(hot), _)
                    if room > cold.len() && self.is_worth_fetching(room - cold.len()) =>
                {
                    self.level = self.level.max(self.sources[hot].served());
                    self.ask(hot, room - cold.len(), None, false);
                }
                _ => return,
            }
        }
    }

    /// A few places that became free are not worth a call while every worker has something to do.
    pub(super) fn is_worth_fetching(&self, room: usize) -> bool {
        room > 0 && (room * 4 >= self.places() || self.seats.iter().any(Seat::is_idle))
    }

    fn ask(&mut self, source: usize, room: usize, waits_since: Option<Instant>, waits: bool) {
        let has_answered = self.sources[source].has_answered;
        let (waits, waits_since) = (waits && has_answered, waits_since.filter(|_| has_answered));
        let max = room.min(self.sources[source].settings.max_receive);
        self.sources[source].ask(max, waits_since);
        self.actions.push_back(Action::Fetch { source, max, waits });
    }

    /// A source that had nothing for a while does not make up for it: it starts level with the others.
    pub(super) fn catch_up(&mut self, source: usize) {
        if !self.sources[source].is_hot {
            self.sources[source].become_hot(self.level);
        }
    }

    pub(super) fn cancel_fetches(&mut self) {
        for source in 0..self.sources.len() {
            if self.sources[source].asked() > 0 {
                self.sources[source].cancelled();
                self.actions.push_back(Action::CancelFetch { source });
            }
        }
    }
}
