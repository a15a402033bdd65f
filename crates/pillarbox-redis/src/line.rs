//! The line of receivers in this process that wait for a message of one queue.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::layout::Number;

/// Who waits, in order of arrival, and what is known of each partition of the queue.
///
/// * A wake-up calls one receiver, which asks the server. The answer says when there will be more, at
///   once perhaps, and the first in line asks then.
/// * A receiver that was called and leaves without having asked passes the call on.
/// * Only the first in line watches the clock.
/// * While the server has been asked and nothing was heard since, nobody needs to ask: the partition is
///   *quiet*.
#[derive(Debug)]
pub(crate) struct Line {
    places: BTreeMap<Ticket, Place>,
    next_ticket: u64,
    partitions: Vec<Known>,
}

/// A place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Place {
    signal: Arc<Notify>,
    called: bool,
}

/// What is known of a partition.
#[derive(Debug, Default)]
struct Known {
    /// How often there was something to hear.
    heard: u64,
    /// Whether somebody must ask: there was something to hear since the last one did.
    called: bool,
    quiet: bool,
    /// Whether wake-ups are heard.
    is_heard: bool,
    /// Whether the server does not answer. Who asks it then is not in line.
    is_silent: bool,
    /// When the next message becomes ready by time alone, as far as is known.
    due: Option<Instant>,
    /// When the server was last asked.
    asked: Option<Instant>,
}

/// What had been heard when the server was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(u64);

/// How long a partition may go without being asked: where wake-ups are heard, and where not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) heard: Duration,
    pub(crate) deaf: Duration,
}

impl Known {
    /// When the server must be asked again though nothing was heard.
    fn ask_again(&self, patience: Patience) -> Option<Instant> {
        let patience = if self.is_heard { patience.heard } else { patience.deaf };
        let again = self.asked? + patience;
        Some(self.due.map_or(again, |due| due.min(again)))
    }
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { places: BTreeMap::new(), next_ticket: 0, partitions: vec![Known::default()] }
    }

    /// Watches so many partitions from now on.
    pub(crate) fn cover(&mut self, partitions: Number) {
        if self.partitions.len() != usize::from(partitions) {
            let unknown = || Known { called: true, ..Known::default() };
            self.partitions.resize_with(partitions.into(), unknown);
            self.call_next();
        }
    }

    /// How many partitions are watched.
    pub(crate) fn covered(&self) -> usize {
        self.partitions.len()
    }

    fn known(&mut self, partition: Number) -> Option<&mut Known> {
        self.partitions.get_mut(usize::from(partition))
    }

    /// Joins the line at its end.
    pub(crate) fn join(&mut self) -> (Ticket, Arc<Notify>) {
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        let signal = Arc::new(Notify::new());
        self.places.insert(ticket, Place { signal: signal.clone(), called: false });
        (ticket, signal)
    }

    /// Leaves the line.
    pub(crate) fn leave(&mut self, ticket: Ticket) {
        let was_first = self.is_first(ticket);
        if self.places.remove(&ticket).is_some_and(|place| place.called) {
            self.call_next();
        }
        if was_first && let Some((_, first)) = self.places.first_key_value() {
            // It watches the clock from now on.
            first.signal.notify_one();
        }
    }

    /// Hears that there is something: calls one receiver.
    pub(crate) fn wake(&mut self, partition: Number) {
        self.is_stirred(partition);
        self.must_be_asked(partition);
    }

    /// Has somebody ask the server.
    pub(crate) fn must_be_asked(&mut self, partition: Number) {
        if let Some(known) = self.known(partition) {
            known.called = true;
            self.call_next();
        }
    }

    /// Notes that there may be something, which will be heard.
    pub(crate) fn is_stirred(&mut self, partition: Number) {
        if let Some(known) = self.known(partition) {
            known.heard += 1;
            known.quiet = false;
        }
    }

    /// Notes whether wake-ups are heard from now on. What was published before they were must be asked
    /// for.
    pub(crate) fn set_heard(&mut self, partition: Number, is_heard: bool) {
        if let Some(known) = self.known(partition) {
            known.is_heard = is_heard;
            self.wake(partition);
        }
    }

    pub(crate) fn is_heard(&self, partition: Number) -> bool {
        self.partitions.get(usize::from(partition)).is_some_and(|known| known.is_heard)
    }

    /// Calls the first receiver that is not called already.
    pub(crate) fn call_next(&mut self) {
        if let Some(place) = self.places.values_mut().find(|place| !place.called) {
            place.called = true;
            place.signal.notify_one();
        }
    }

    /// The partitions that this receiver must ask: it was called, or it is the first in line and their
    /// time has come.
    pub(crate) fn must_ask(
        &mut self,
        ticket: Ticket,
        now: Instant,
        patience: Patience,
    ) -> Vec<Number> {
        let Some(place) = self.places.get_mut(&ticket) else { return Vec::new() };
        let (called, first) = (std::mem::take(&mut place.called), self.is_first(ticket));
        self.those(|known| {
            let its_time = || known.ask_again(patience).is_some_and(|again| again <= now);
            called && known.called || first && its_time()
        })
    }

    /// The partitions that may have something: those that a receiver asks which has just come.
    pub(crate) fn unquiet(&self, now: Instant) -> Vec<Number> {
        self.those(|known| {
            !known.quiet || !known.is_heard || known.due.is_some_and(|due| due <= now)
        })
    }

    /// Notes whether a partition answers. Says whether that is news.
    pub(crate) fn set_silent(&mut self, partition: Number, is_silent: bool) -> bool {
        let Some(known) = self.known(partition) else { return false };
        let is_news = std::mem::replace(&mut known.is_silent, is_silent) != is_silent;
        if is_news && !is_silent {
            self.must_be_asked(partition);
        }
        is_news
    }

    pub(crate) fn is_silent(&self, partition: Number) -> bool {
        self.partitions.get(usize::from(partition)).is_some_and(|known| known.is_silent)
    }

    /// Whether no partition answers: then none is better than another.
    pub(crate) fn all_silent(&self) -> bool {
        self.partitions.iter().all(|known| known.is_silent)
    }

    /// Of the first so many partitions those that answer; all of them, if none does.
    pub(crate) fn answering(&self, partitions: Number) -> Vec<Number> {
        let answering = (0..partitions).filter(|number| !self.is_silent(*number));
        match answering.collect::<Vec<_>>() {
            none if none.is_empty() => (0..partitions).collect(),
            some => some,
        }
    }

    /// The partitions whose wake-ups are not heard.
    pub(crate) fn unheard(&self) -> Vec<Number> {
        self.those(|known| !known.is_heard)
    }

    /// Of the partitions that answer, if any does, those that are so.
    fn those(&self, are: impl Fn(&Known) -> bool) -> Vec<Number> {
        let all_silent = self.all_silent();
        let answering = self.partitions.iter().zip(0..);
        let answering = answering.filter(|(known, _)| all_silent || !known.is_silent);
        answering.filter(|(known, _)| are(known)).map(|(_, number)| number).collect()
    }

    /// Notes that the server is asked now.
    pub(crate) fn asks(&mut self, partition: Number, now: Instant) -> Asked {
        self.known(partition).map_or(Asked(0), |known| {
            known.asked = Some(now);
            known.called = false;
            known.due = known.due.filter(|due| *due > now);
            Asked(known.heard)
        })
    }

    /// Notes that the server had nothing, and when it will.
    pub(crate) fn found_nothing(&mut self, partition: Number, asked: Asked, due: Option<Instant>) {
        if let Some(known) = self.known(partition) {
            known.quiet = asked.0 == known.heard;
            if let Some(due) = due {
                self.expect(partition, due);
            }
        }
    }

    /// Notes that somebody of this process has taken messages, and when there will be more: others, or the
    /// same when their leases end.
    pub(crate) fn found_something(&mut self, partition: Number, next: Instant) {
        if let Some(known) = self.known(partition) {
            known.quiet = false;
            self.expect(partition, next);
        }
    }

    /// Has the first in line ask the server then, at the latest.
    fn expect(&mut self, partition: Number, due: Instant) {
        let Some(known) = self.known(partition) else { return };
        if known.due.is_none_or(|known| due < known) {
            known.due = Some(due);
            if let Some((_, first)) = self.places.first_key_value() {
                first.signal.notify_one();
            }
        }
    }

    /// How long this receiver sleeps, if nobody calls it and its own time is not up: only the first in
    /// line watches the clock.
    pub(crate) fn asleep_until(&self, ticket: Ticket, patience: Patience) -> Option<Instant> {
        let all_silent = self.all_silent();
        let answering = self.partitions.iter().filter(|known| all_silent || !known.is_silent);
        let times = answering.filter_map(|known| known.ask_again(patience));
        times.min().filter(|_| self.is_first(ticket))
    }

    fn is_first(&self, ticket: Ticket) -> bool {
        self.places.first_key_value().is_some_and(|(first, _)| *first == ticket)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience =
        Patience { heard: Duration::from_secs(3600), deaf: Duration::from_secs(3600) };

    fn now() -> Instant {
        Instant::now()
    }

    fn must_ask(line: &mut Line, ticket: Ticket) -> Vec<Number> {
        line.must_ask(ticket, now(), PATIENCE)
    }

    fn in_seconds(seconds: u64) -> Instant {
        now() + Duration::from_secs(seconds)
    }

    /// Asks in vain.
    fn finds_nothing(line: &mut Line, partition: Number, due: Option<Instant>) {
        let asked = line.asks(partition, now());
        line.found_nothing(partition, asked, due);
    }

    #[tokio::test]
    async fn a_wake_up_calls_the_first_who_is_not_called_yet() {
        let mut line = Line::new();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        line.wake(0);
        assert_eq!(must_ask(&mut line, two), [0; 0]);
        line.wake(0);
        signal.notified().await;
        assert_eq!((must_ask(&mut line, one), must_ask(&mut line, two)), (vec![0], vec![0]));
        line.asks(0, now());
        line.wake(0);
        assert_eq!(must_ask(&mut line, one), [0]);
    }

    #[tokio::test]
    async fn who_is_called_does_not_ask_what_another_has_asked() {
        let mut line = Line::new();
        let (one, _) = line.join();
        let (two, _) = line.join();
        line.wake(0);
        line.wake(0);
        assert_eq!(must_ask(&mut line, one), [0]);
        line.asks(0, now());
        assert_eq!(must_ask(&mut line, two), [0; 0]);
    }

    #[tokio::test]
    async fn who_leaves_without_asking_passes_the_call_on() {
        let mut line = Line::new();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        line.wake(0);
        line.leave(one);
        signal.notified().await;
        assert_eq!(must_ask(&mut line, two), [0]);
        // Nor does one that got no answer keep it to itself.
        line.asks(0, now());
        line.must_be_asked(0);
        assert_eq!(must_ask(&mut line, two), [0]);
    }

    #[tokio::test]
    async fn the_first_in_line_watches_the_clock() {
        let mut line = Line::new();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        finds_nothing(&mut line, 0, Some(in_seconds(5)));
        let later = in_seconds(6);
        assert!(line.asleep_until(one, PATIENCE).is_some_and(|until| until < later));
        assert_eq!(line.asleep_until(two, PATIENCE), None);
        assert_eq!(line.must_ask(one, later, PATIENCE), [0]);
        assert_eq!(line.must_ask(two, later, PATIENCE), [0; 0]);
        line.leave(one);
        signal.notified().await;
        assert_eq!(line.must_ask(two, later, PATIENCE), [0]);
        assert_eq!(line.must_ask(two, now(), PATIENCE), [0; 0]);
        let hasty = Patience { heard: Duration::ZERO, deaf: Duration::ZERO };
        assert_eq!(line.must_ask(two, now(), hasty), [0]);
    }

    #[tokio::test]
    async fn those_who_wait_know_when_the_lease_of_another_ends() {
        let mut line = Line::new();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        finds_nothing(&mut line, 0, None);
        line.leave(one);
        signal.notified().await;
        let soon = in_seconds(5);
        line.found_something(0, soon);
        signal.notified().await;
        assert_eq!(line.asleep_until(two, PATIENCE), Some(soon));
        assert_eq!(line.must_ask(two, soon, PATIENCE), [0]);
        assert_eq!(line.unquiet(now()), [0]);
    }

    #[tokio::test]
    async fn a_partition_is_quiet_until_something_is_heard_or_due() {
        let mut line = Line::new();
        line.cover(2);
        assert_eq!((line.unquiet(now()), line.unheard()), (vec![0, 1], vec![0, 1]));
        line.set_heard(0, true);
        line.set_heard(1, true);
        finds_nothing(&mut line, 0, None);
        finds_nothing(&mut line, 1, None);
        assert_eq!((line.unquiet(now()), line.unheard()), (vec![], vec![]));
        line.wake(1);
        assert_eq!(line.unquiet(now()), [1]);

        // Something was heard while the answer was on its way.
        let asked = line.asks(1, now());
        line.wake(1);
        line.found_nothing(1, asked, None);
        assert_eq!(line.unquiet(now()), [1]);

        finds_nothing(&mut line, 1, Some(in_seconds(9)));
        assert_eq!(line.unquiet(now()), [0; 0]);
        assert_eq!(line.unquiet(in_seconds(10)), [1]);
        line.set_heard(0, false);
        assert_eq!(line.unquiet(now()), [0]);
    }

    #[tokio::test]
    async fn a_partition_that_does_not_answer_keeps_nobody_waiting() {
        let mut line = Line::new();
        line.cover(2);
        let (one, signal) = line.join();
        finds_nothing(&mut line, 0, None);
        finds_nothing(&mut line, 1, None);
        assert!(line.set_silent(1, true) && !line.set_silent(1, true));
        line.wake(1);
        assert_eq!((must_ask(&mut line, one), line.unquiet(now())), (vec![], vec![0]));
        let hasty = Patience { heard: Duration::ZERO, deaf: Duration::ZERO };
        assert_eq!((line.must_ask(one, now(), hasty), line.unheard()), (vec![0], vec![0]));
        line.set_silent(0, true);
        assert!(line.all_silent());
        assert_eq!(line.must_ask(one, now(), hasty), [0, 1]);
        line.set_silent(0, false);
        signal.notified().await;
        assert!(line.set_silent(1, false));
        assert_eq!(must_ask(&mut line, one), [0, 1]);
    }

    #[tokio::test]
    async fn a_partition_that_is_new_is_asked_by_those_who_wait() {
        let mut line = Line::new();
        let (one, signal) = line.join();
        finds_nothing(&mut line, 0, None);
        line.cover(3);
        signal.notified().await;
        assert_eq!(must_ask(&mut line, one), [1, 2]);
        line.cover(1);
        line.wake(2);
        line.set_heard(2, true);
        assert!(!line.is_heard(2));
        assert_eq!(must_ask(&mut line, one), [0; 0]);
    }
}
