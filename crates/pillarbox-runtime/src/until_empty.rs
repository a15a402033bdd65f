//! Waiting until the mailboxes of a worker are empty.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Counts, Error, Queue, QueueName, Result, Timestamp};
use tokio::time::Instant;

use crate::control::Control;

/// Interval at which mailboxes are checked for messages.
pub(crate) const INTERVAL: Duration = Duration::from_millis(20);
/// Interval for [`run_iterations`](crate::Runnable::run_iterations), which is mostly for tests.
pub(crate) const SHORT_INTERVAL: Duration = Duration::from_millis(5);
/// Time after which a clock that has not moved while delayed messages wait for it is an error. A test that advances
/// a manual clock does so sooner.
const MAX_STOPPED: Duration = Duration::from_secs(5);

/// Waits until the workers have nothing in flight and `remaining` returns 0 for each of their queues. Fails if that
/// would never happen: see [`StoppedClock`].
pub(crate) async fn wait(
    control: &Control,
    interval: Duration,
    remaining: impl Fn(&Counts) -> u64,
) -> Result<()> {
    let (queues, stats) = (control.queues(), control.stats());
    let remaining = |counts: &Counts| remaining(&control.without_ignored(*counts));
    let mut clocks: Vec<_> = queues.iter().map(|_| StoppedClock::default()).collect();
    let mut tick = tokio::time::interval(interval);
    loop {
        tick.tick().await;
        if stats.borrow().in_flight > 0 {
            clocks.fill(StoppedClock::default());
        } else if are_empty(&queues, &mut clocks, remaining).await? {
            return Ok(());
        }
    }
}

/// Returns whether `remaining` is 0 for all queues. A queue that does not answer is not empty.
async fn are_empty(
    queues: &[Arc<dyn Queue>],
    clocks: &mut [StoppedClock],
    remaining: impl Fn(&Counts) -> u64,
) -> Result<bool> {
    let mut are_empty = true;
    for (queue, clock) in queues.iter().zip(clocks) {
        let counts = queue.counts().await.ok();
        if counts.is_none_or(|counts| remaining(&counts) > 0) {
            are_empty = false;
            clock.check(queue.name(), counts, Instant::now())?;
        }
    }
    Ok(are_empty)
}

/// Detects a manual clock that a test forgot to advance: it does not move while only delayed messages remain.
#[derive(Debug, Clone, Copy, Default)]
struct StoppedClock {
    /// The last time that the clock showed, and since when it has shown it.
    seen: Option<(Timestamp, Instant)>,
}

impl StoppedClock {
    /// Fails if the clock has not moved for too long.
    fn check(&mut self, queue: &QueueName, counts: Option<Counts>, now: Instant) -> Result<()> {
        let is_waiting =
            |counts: &Counts| counts.delayed > 0 && counts.ready == 0 && counts.in_flight == 0;
        let counts = counts.filter(is_waiting);
        let shows = counts.and_then(|counts| counts.counted_at);
        match (self.seen, shows) {
            (Some((at, since)), Some(shows)) if at == shows => {
                if now - since < MAX_STOPPED {
                    return Ok(());
                }
                let delayed = counts.map_or(0, |counts| counts.delayed);
                let value = format!(
                    "stopped at {at} while {delayed} delayed message{} for it",
                    if delayed == 1 { " waits" } else { "s wait" }
                );
                let allowed = "a clock that moves. A test advances it while the worker runs, by \
                     FakeMailbox::advance or ManualClock::advance, or retries without a delay: \
                     Worker::retry(Backoff::none())";
                Err(Error::invalid(Some(queue), "clock", value, allowed))
            }
            _ => {
                self.seen = shows.map(|at| (at, now));
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stopped_clock_is_reported_and_one_that_moves_is_not() {
        let queue = QueueName::new("orders").unwrap();
        let counts = |ready, delayed, at| {
            Some(Counts::new(ready, 0, delayed).with_counted_at(Some(Timestamp::from_secs(at))))
        };
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let mut clock = StoppedClock::default();
        for (seconds, seen) in [
            (0, counts(0, 1, 0)),
            (4, counts(0, 1, 0)),
            // The clock is advanced.
            (5, counts(0, 1, 60)),
            (9, counts(0, 1, 60)),
            // A message is ready.
            (10, counts(1, 1, 60)),
            (11, counts(0, 2, 60)),
            // The queue does not answer, or does not report the time.
            (16, None),
            (17, counts(0, 2, 60)),
            (22, Some(Counts::new(0, 0, 2))),
            (23, counts(0, 2, 60)),
        ] {
            clock.check(&queue, seen, later(seconds)).unwrap();
        }
        let error = clock.check(&queue, counts(0, 2, 60), later(28)).unwrap_err().to_string();
        assert!(error.contains("'orders'") && error.contains("2 delayed messages wait"), "{error}");
        assert!(error.contains("FakeMailbox::advance"), "{error}");
    }
}
