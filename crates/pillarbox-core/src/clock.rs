//! Time as a backend sees it.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::queue::BoxFuture;

pub use jiff::Timestamp;

/// The clock of a backend that lives in this process.
///
/// A backend judges deadlines by one clock only, its own: the server's where there is a server,
/// one of these where there is none.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present moment. Never earlier than an answer given before.
    fn now(&self) -> Timestamp;

    /// Waits until [`now`](Self::now) has reached `deadline`.
    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()>;
}

/// The clock of the machine, made monotonic.
///
/// It reads the wall clock once, when it is made, and counts on from there with tokio's clock.
/// A step of the wall clock therefore neither expires a lease nor prolongs one, and under
/// [`tokio::time::pause`] the clock stands still and moves with tokio's.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Timestamp,
    origin: Instant,
}

impl SystemClock {
    /// Makes a clock that starts at the machine's present time.
    pub fn new() -> Self {
        Self { start: Timestamp::now(), origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        later(self.start, self.origin.elapsed())
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(tokio::time::sleep(span(self.now(), deadline)))
    }
}

/// A clock that moves only when told to, for tests.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Clock, ManualClock};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().duration_since(before).as_secs(), 30);
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: watch::Sender<Timestamp>,
}

impl ManualClock {
    /// Makes a clock that stands at the machine's present time.
    pub fn new() -> Self {
        Self::at(Timestamp::now())
    }

    /// Makes a clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self { now: watch::Sender::new(now) }
    }

    /// Moves the clock forward and wakes whoever slept until then. Clones move along.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = later(*now, by));
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.now.borrow()
    }

    fn sleep_until(&self, deadline: Timestamp) -> BoxFuture<'_, ()> {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            // The sender lives as long as `self`, which this future borrows.
            let _ = now.wait_for(|now| *now >= deadline).await;
        })
    }
}

/// The moment `by` after `from`, or the end of time.
pub fn later(from: Timestamp, by: Duration) -> Timestamp {
    // Fails for calendar units only, which a `Duration` does not have.
    from.saturating_add(by).unwrap_or(Timestamp::MAX)
}

/// How long it is from `from` to `to`: nothing when `to` has passed.
pub fn span(from: Timestamp, to: Timestamp) -> Duration {
    to.duration_since(from).try_into().unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_follows_tokios_paused_time() {
        let clock = SystemClock::new();
        let start = clock.now();
        clock.sleep_until(later(start, Duration::from_secs(3600))).await;
        assert_eq!(span(start, clock.now()).as_secs(), 3600);
    }

    #[tokio::test(start_paused = true)]
    async fn a_manual_clock_wakes_sleepers_when_it_gets_there() {
        let clock = ManualClock::new();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(later(clock.now(), Duration::from_secs(2))).await }
        });
        tokio::task::yield_now().await;
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        clock.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
    }

    #[test]
    fn time_saturates_instead_of_overflowing() {
        assert_eq!(later(Timestamp::now(), Duration::MAX), Timestamp::MAX);
        assert_eq!(span(Timestamp::MAX, Timestamp::MIN), Duration::ZERO);
    }
}
