//! Prefetching: how many deliveries may wait here for a worker.
//!
//! As many as the workers will begin while a fetch is under way, and no more. So a worker with short handlers finds
//! its next delivery here, and a delivery never waits for a slow handler here while a worker of another process is
//! free: it would begin here before the other process could have fetched it.

use std::time::Duration;

use tokio::time::Instant;

use super::Dispatcher;
use super::in_flight::{InFlight, Intent, Key};
use super::worker_slots::WorkerSlot;

/// Time that a delivery may wait for a worker before the dispatcher checks whether too many wait.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// The weight of a new fetch in the average is one over this number.
const FETCHES: f64 = 8.0;
/// The weight of a new handler in the average is one over this number.
const HANDLERS: f64 = 32.0;
/// Deliveries for one fetch are under way while those for another one are begun.
const FETCHES_AHEAD: f64 = 2.0;
/// The shortest time between two handlers of a worker, in seconds.
const SHORTEST_HANDLER: f64 = 1e-6;
/// The shortest time from a fetch to the start of its handlers, in seconds: threads are woken in between.
const SHORTEST_FETCH: f64 = 100e-6;

/// Moving averages of the time that a fetch and a handler take, in seconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pace {
    fetch: Option<f64>,
    handler: Option<f64>,
}

impl Pace {
    /// Takes in the time of a fetch that found messages and did not wait for them.
    pub(super) fn fetched(&mut self, took: Duration) {
        average(&mut self.fetch, took, FETCHES);
    }

    /// Takes in the run time of a handler.
    pub(super) fn handled(&mut self, took: Duration) {
        average(&mut self.handler, took, HANDLERS);
    }

    /// Returns the number of deliveries that workers will begin within about one fetch. `busy_for` is the time since
    /// each worker began its delivery. 0 until a fetch and a handler have been measured.
    fn begun_within_a_fetch(&self, busy_for: impl Iterator<Item = Duration>) -> f64 {
        let (Some(fetch), Some(handler)) = (self.fetch, self.handler) else { return 0.0 };
        // A handler that has run for longer than the average will not end sooner than the average.
        let shortest = handler.max(SHORTEST_HANDLER);
        let per_second: f64 = busy_for.map(|time| 1.0 / shortest.max(time.as_secs_f64())).sum();
        FETCHES_AHEAD * fetch.max(SHORTEST_FETCH) * per_second
    }
}

fn average(average: &mut Option<f64>, sample: Duration, samples: f64) {
    let sample = sample.as_secs_f64();
    *average = Some(average.map_or(sample, |average| average + (sample - average) / samples));
}

impl Dispatcher {
    /// Computes how many deliveries may wait here.
    pub(super) fn update_prefetch(&mut self, now: Instant) {
        let active = self.slots.iter().filter(|slot| slot.is_active());
        let begun = self.pace.begun_within_a_fetch(active.map(|slot| slot.busy_for(now)));
        self.prefetch = (begun.round() as usize).min(self.settings.prefetch);
    }

    /// Returns the number of deliveries that wait here beyond those that will be begun within about one fetch.
    fn surplus(&self) -> usize {
        let behind: usize = self.slots.iter().map(WorkerSlot::waiting).sum();
        (behind + self.unassigned.len()).saturating_sub(self.prefetch + self.idle_workers())
    }

    /// Returns deliveries to their queues if more wait here than will be begun within about one fetch: those whose
    /// turn comes last.
    pub(super) fn return_surplus(&mut self) {
        self.return_surplus_after(f64::NEG_INFINITY);
    }

    /// Gives way to deliveries that arrived late and whose turn comes earlier than that of others: those go back or
    /// behind. What begins within about two fetches is not worth it.
    pub(super) fn give_way(&mut self) {
        let has_none = self.sources.len() == 1 || self.unassigned.is_empty();
        if has_none || self.surplus() <= self.prefetch {
            return;
        }
        let turn = |key: &Key| self.in_flight.get(*key).map(|delivery| delivery.turn);
        let Some(first) = self.unassigned.front().and_then(turn) else { return };
        let is_later = |it: &InFlight| it.is_assigned() && it.is_waiting() && it.turn > first;
        if !self.in_flight.iter().any(|(_, delivery)| is_later(delivery)) {
            return;
        }
        self.return_surplus_after(first);
        for worker in 0..self.slots.len() {
            let taken = self.take_back_from(worker, usize::MAX, |delivery| delivery.turn > first);
            taken.into_iter().for_each(|key| self.reassign(key));
        }
    }

    /// Returns the surplus, except for deliveries whose turn has come by then.
    fn return_surplus_after(&mut self, turn: f64) {
        if self.quarantine.is_isolating() || self.surplus() == 0 {
            return;
        }
        let waits = |delivery: &InFlight| delivery.is_waiting() && !delivery.is_lost();
        let all = self.in_flight.iter().filter(|(_, delivery)| waits(delivery));
        let mut waiting: Vec<_> = all.map(|(key, delivery)| (delivery.turn, key)).collect();
        waiting.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let kept = waiting.partition_point(|(other, _)| *other <= turn);
        let kept = kept.max(self.prefetch + self.free_workers()).min(waiting.len());
        for (_, key) in waiting.split_off(kept) {
            // A worker may begin it just now.
            if self.may_return(key) && self.take_back(key) {
                self.settle(key, Intent::Return);
            }
        }
        self.unassigned.retain(|key| self.in_flight.get(*key).is_some_and(InFlight::is_unassigned));
    }

    /// Returns whether a delivery may go back unasked. If the backend counts it as an attempt, only the first may:
    /// otherwise a message could become a dead letter because busy processes pass it on.
    fn may_return(&self, key: Key) -> bool {
        let is_exact = |source: usize| self.sources[source].settings.quarantine.is_exact;
        let delivery = self.in_flight.get(key);
        delivery.is_some_and(|it| is_exact(it.source) || it.message.delivery_count <= 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pace(fetch: Duration, handler: Duration) -> Pace {
        let mut pace = Pace::default();
        pace.fetched(fetch);
        pace.handled(handler);
        pace
    }

    fn idle(workers: usize) -> impl Iterator<Item = Duration> {
        std::iter::repeat_n(Duration::ZERO, workers)
    }

    #[test]
    fn nothing_is_prefetched_before_a_fetch_and_a_handler_were_measured() {
        let mut pace = Pace::default();
        assert_eq!(pace.begun_within_a_fetch(idle(4)), 0.0);
        pace.fetched(MS);
        assert_eq!(pace.begun_within_a_fetch(idle(4)), 0.0);
        pace.handled(MS);
        assert_eq!(pace.begun_within_a_fetch(idle(4)), 8.0);
    }

    #[test]
    fn short_handlers_need_more_and_slow_ones_nothing() {
        assert_eq!(pace(MS, MS / 100).begun_within_a_fetch(idle(4)).round(), 800.0);
        assert_eq!(pace(MS, 5 * MS).begun_within_a_fetch(idle(4)).round(), 2.0);
        assert_eq!(pace(MS, 100 * MS).begun_within_a_fetch(idle(4)).round(), 0.0);
        let instant = pace(MS, Duration::ZERO).begun_within_a_fetch(idle(1));
        assert_eq!(instant.round(), 2_000.0, "a handler takes a microsecond at least");
        let instant = pace(Duration::ZERO, MS / 100).begun_within_a_fetch(idle(1));
        assert_eq!(instant.round(), 20.0, "a fetch takes 100 microseconds at least");
    }

    #[test]
    fn a_worker_that_is_busy_for_longer_than_the_average_begins_fewer() {
        let pace = pace(MS, MS);
        let one_is_slow = [Duration::ZERO, Duration::ZERO, 1000 * MS].into_iter();
        assert_eq!(pace.begun_within_a_fetch(one_is_slow).round(), 4.0);
        let all_are_slow = [1000 * MS; 3].into_iter();
        assert_eq!(pace.begun_within_a_fetch(all_are_slow).round(), 0.0);
    }

    #[test]
    fn the_averages_follow_what_is_measured() {
        let mut pace = pace(MS, MS);
        (0..200).for_each(|_| pace.handled(100 * MS));
        assert_eq!(pace.begun_within_a_fetch(idle(4)).round(), 0.0);
        (0..100).for_each(|_| pace.fetched(50 * MS));
        assert_eq!(pace.begun_within_a_fetch(idle(4)).round(), 4.0);
    }
}
