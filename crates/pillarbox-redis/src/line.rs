//! The line of receivers in this process that wait for a message of one queue.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Who waits, in order of arrival, and what is known of the queue.
///
/// * A wake-up calls one receiver, which asks the server. The answer says when there will be more, at
///   once perhaps, and the first in line asks then.
/// * A receiver that was called and leaves without having asked passes the call on.
/// * Only the first in line watches the clock.
/// * While the server has been asked and nothing was heard since, nobody needs to ask: the queue is
///   *quiet*.
#[derive(Debug, Default)]
pub(crate) struct Line {
    places: BTreeMap<Ticket, Place>,
    next_ticket: u64,
    /// How often there was something to hear.
    heard: u64,
    quiet: bool,
    /// When the next message becomes ready by time alone, as far as is known.
    due: Option<Instant>,
    /// When the server was last asked.
    asked: Option<Instant>,
}

/// A place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
struct Place {
    signal: Arc<Notify>,
    called: bool,
}

/// What had been heard when the server was asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked(u64);

impl Line {
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
    pub(crate) fn wake(&mut self) {
        self.heard += 1;
        self.quiet = false;
        self.call_next();
    }

    /// Notes that there may be something, which will be heard.
    pub(crate) fn is_stirred(&mut self) {
        self.heard += 1;
        self.quiet = false;
    }

    /// Calls the first receiver that is not called already.
    pub(crate) fn call_next(&mut self) {
        if let Some(place) = self.places.values_mut().find(|place| !place.called) {
            place.called = true;
            place.signal.notify_one();
        }
    }

    /// Whether this receiver must ask the server: it was called, or it is the first in line and its
    /// time has come.
    pub(crate) fn must_ask(&mut self, ticket: Ticket, now: Instant, ask_again: Instant) -> bool {
        let first = self.is_first(ticket);
        let called = self.places.get(&ticket).is_some_and(|place| place.called);
        called || first && (ask_again <= now || self.due.is_some_and(|due| due <= now))
    }

    /// Notes that this receiver asks the server now.
    pub(crate) fn asks(&mut self, ticket: Ticket, now: Instant) -> Asked {
        if let Some(place) = self.places.get_mut(&ticket) {
            place.called = false;
        }
        self.asked = Some(now);
        self.due = self.due.filter(|due| *due > now);
        Asked(self.heard)
    }

    /// Notes that the server had nothing, and when it will.
    pub(crate) fn found_nothing(&mut self, asked: Asked, due: Option<Instant>) {
        self.quiet = asked.0 == self.heard;
        if let Some(due) = due {
            self.expect(due);
        }
    }

    /// Notes that somebody of this process has taken messages, and when there will be more: others, or the
    /// same when their leases end.
    pub(crate) fn found_something(&mut self, next: Instant) {
        self.quiet = false;
        self.expect(next);
    }

    /// Has the first in line ask the server then, at the latest.
    fn expect(&mut self, due: Instant) {
        if self.due.is_none_or(|known| due < known) {
            self.due = Some(due);
            if let Some((_, first)) = self.places.first_key_value() {
                first.signal.notify_one();
            }
        }
    }

    /// Whether the server need not be asked.
    pub(crate) fn is_quiet(&self, now: Instant) -> bool {
        self.quiet && self.due.is_none_or(|due| due > now)
    }

    /// What the first in line sleeps until, beside its own end and the time to ask again.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// When the server was last asked.
    pub(crate) fn last_asked(&self) -> Option<Instant> {
        self.asked
    }

    pub(crate) fn is_first(&self, ticket: Ticket) -> bool {
        self.places.first_key_value().is_some_and(|(first, _)| *first == ticket)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn now() -> Instant {
        Instant::now()
    }

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    fn called(line: &mut Line, ticket: Ticket) -> bool {
        line.must_ask(ticket, now(), far())
    }

    #[tokio::test]
    async fn a_wake_up_calls_the_first_who_is_not_called_yet() {
        let mut line = Line::default();
        let (one, _) = line.join();
        let (two, _) = line.join();
        line.wake();
        assert!(called(&mut line, one) && !called(&mut line, two));
        line.wake();
        assert!(called(&mut line, two));
        line.wake();
        line.asks(one, now());
        assert!(!called(&mut line, one));
        line.wake();
        assert!(called(&mut line, one));
    }

    #[tokio::test]
    async fn who_leaves_without_asking_passes_the_call_on() {
        let mut line = Line::default();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        line.wake();
        line.leave(one);
        assert!(called(&mut line, two));
        signal.notified().await;
    }

    #[tokio::test]
    async fn the_first_in_line_watches_the_clock() {
        let mut line = Line::default();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        let asked = line.asks(one, now());
        let soon = now() + Duration::from_secs(5);
        line.found_nothing(asked, Some(soon));
        let later = soon + Duration::from_secs(1);
        assert!(line.must_ask(one, later, far() + Duration::from_secs(10)));
        assert!(!line.must_ask(two, later, now()));
        line.leave(one);
        signal.notified().await;
        assert!(line.must_ask(two, later, far() + Duration::from_secs(10)));
        let at = now();
        assert!(line.must_ask(two, at, at));
    }

    #[tokio::test]
    async fn those_who_wait_know_when_the_lease_of_another_ends() {
        let mut line = Line::default();
        let (one, _) = line.join();
        let (two, signal) = line.join();
        let asked = line.asks(one, now());
        line.found_nothing(asked, None);
        line.asks(one, now());
        line.leave(one);
        signal.notified().await;
        let soon = now() + Duration::from_secs(5);
        line.found_something(soon);
        signal.notified().await;
        assert!(!line.is_quiet(now()) && line.due() == Some(soon));
        assert!(line.must_ask(two, soon, far()));
    }

    #[tokio::test]
    async fn a_queue_is_quiet_until_something_is_heard_or_due() {
        let mut line = Line::default();
        let (one, _) = line.join();
        assert!(!line.is_quiet(now()));
        let asked = line.asks(one, now());
        line.found_nothing(asked, None);
        assert!(line.is_quiet(now()));
        line.wake();
        assert!(!line.is_quiet(now()));

        // Something was heard while the answer was on its way.
        let asked = line.asks(one, now());
        line.wake();
        line.found_nothing(asked, None);
        assert!(!line.is_quiet(now()));

        let asked = line.asks(one, now());
        line.found_nothing(asked, Some(now() + Duration::from_secs(9)));
        assert!(line.is_quiet(now()) && !line.is_quiet(now() + Duration::from_secs(10)));
    }
}
