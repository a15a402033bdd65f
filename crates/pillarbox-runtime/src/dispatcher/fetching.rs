//! Asking for messages: no more than there is room for, and from each queue its share.

use tokio::time::Instant;

use super::source::Source;
use super::{Action, Dispatcher, Mode, Seat};

impl Dispatcher {
    /// How many more deliveries may be asked for.
    pub(super) fn room(&self) -> usize {
        let capacity = self.settings.inbox + 1;
        let active = self.seats.iter().filter(|seat| seat.is_active());
        let free: usize = active.map(|seat| capacity.saturating_sub(seat.load())).sum();
        let asked: usize = self.sources.iter().map(Source::asked).sum();
        let free = free.saturating_sub(self.backlog.len() + asked);
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
                self.ask(0, room, Some(now));
            }
            return;
        }
        loop {
            let room = self.room();
            let ready = |source: &Source| source.can_be_asked();
            let waiting = self.sources.iter().filter(|s| !s.is_hot && ready(s)).count();
            let hottest = (0..self.sources.len())
                .filter(|index| self.sources[*index].is_hot && ready(&self.sources[*index]))
                .min_by(|a, b| self.sources[*a].served().total_cmp(&self.sources[*b].served()));
            let coldest = self.sources.iter().position(|s| !s.is_hot && ready(s));
            match (hottest, coldest) {
                (_, Some(cold)) if room > 0 => self.ask(cold, 1, Some(now)),
                (Some(hot), _) if room > waiting && self.is_worth_fetching(room - waiting) => {
                    self.ask(hot, room - waiting, None);
                }
                _ => return,
            }
        }
    }

    /// A few places that became free are not worth a call while every worker has something to do.
    pub(super) fn is_worth_fetching(&self, room: usize) -> bool {
        let places = self.active_workers() * (self.settings.inbox + 1);
        room > 0 && (room * 4 >= places || self.seats.iter().any(Seat::is_idle))
    }

    pub(super) fn ask(&mut self, source: usize, room: usize, waits_since: Option<Instant>) {
        let max = room.min(self.sources[source].settings.max_receive);
        self.sources[source].ask(max, waits_since);
        let waits = waits_since.is_some();
        self.actions.push_back(Action::Fetch { source, max, waits });
    }

    /// A source that had nothing for a while does not make up for it: it starts level with the others.
    pub(super) fn catch_up(&mut self, source: usize) {
        if self.sources[source].is_hot {
            return;
        }
        let level = self.sources.iter().filter(|other| other.is_hot).map(Source::served);
        let level = level.min_by(f64::total_cmp);
        self.sources[source].become_hot(level);
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
