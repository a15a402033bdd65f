//! Running workers until there is nothing more to do, or for a number of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{BoxFuture, Counts, Error, Queue, QueueName, Result, Timestamp};
use tokio::time::Instant;
use tower::Service;

use crate::control::Control;
use crate::outcome::{BoxError, Outcome};
use crate::request::ServiceRequest;
use crate::stats::StatsSnapshot;
use crate::worker::ReadyWorker;

/// Interval at which is looked whether a mailbox is empty.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The same for a number of messages: tests have no time.
const LOOK_OFTEN: Duration = Duration::from_millis(5);
/// How long the clock of a backend may stand still while messages wait for it. A test that moves it by hand
/// does so meanwhile.
const STANDSTILL: Duration = Duration::from_secs(5);

impl<T, R, C> ReadyWorker<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    /// Works until it holds nothing, and nothing is `remaining` in its mailboxes. Fails where that would never
    /// be: see [`Clock`].
    pub(crate) async fn run_until_none(
        self,
        look_every: Duration,
        remaining: impl Fn(&Counts) -> u64,
    ) -> Result<StatsSnapshot> {
        let (queues, stats) = (self.queues(), self.control().stats());
        let mut clocks: Vec<_> = queues.iter().map(|_| Clock::default()).collect();
        let mut standstill = Ok(());
        let ended = self.run_until(async {
            let mut look = tokio::time::interval(look_every);
            loop {
                look.tick().await;
                if stats.borrow().in_flight > 0 {
                    clocks.fill(Clock::default());
                    continue;
                }
                match is_none(&queues, &mut clocks, &remaining).await {
                    Ok(false) => {}
                    Ok(true) => return,
                    Err(error) => {
                        standstill = Err(error);
                        return;
                    }
                }
            }
        });
        let ended = ended.await?;
        standstill.map(|()| ended)
    }

    /// Handles at most so many messages, one after the other, and ends; or earlier, when there is nothing
    /// `remaining`. Of a worker for one mailbox.
    pub(crate) async fn run_iterations(
        self,
        max_iterations: usize,
        remaining: impl Fn(&Counts) -> u64,
    ) -> Result<StatsSnapshot> {
        let begun = Arc::new(AtomicUsize::new(0));
        let control = self.control();
        if max_iterations == 0 {
            control.stop();
        }
        let gate = tower::layer::layer_fn(move |service| Gate {
            service,
            begun: begun.clone(),
            max: max_iterations,
            control: control.clone(),
        });
        self.workers(1).inbox(0).layer(gate).run_until_none(LOOK_OFTEN, remaining).await
    }
}

/// Whether nothing is remaining in the queues. One that cannot be asked may hold something.
async fn is_none(
    queues: &[Arc<dyn Queue>],
    clocks: &mut [Clock],
    remaining: impl Fn(&Counts) -> u64,
) -> Result<bool> {
    let mut is_none = true;
    for (queue, clock) in queues.iter().zip(clocks) {
        let counts = queue.counts().await.ok();
        if counts.is_none_or(|counts| remaining(&counts) > 0) {
            is_none = false;
            clock.check(queue.name(), counts, Instant::now())?;
        }
    }
    Ok(is_none)
}

/// The clock of a backend, as far as it is seen: one that stands still while nothing but delayed messages is
/// there is a clock that a test moves by hand, and has forgotten to.
#[derive(Debug, Clone, Copy, Default)]
struct Clock {
    /// What it shows, and since when.
    stands: Option<(Timestamp, Instant)>,
}

impl Clock {
    /// Fails when it has stood still for too long.
    fn check(&mut self, queue: &QueueName, counts: Option<Counts>, now: Instant) -> Result<()> {
        let waits =
            |counts: &Counts| counts.delayed > 0 && counts.ready == 0 && counts.in_flight == 0;
        let counts = counts.filter(waits);
        let shows = counts.and_then(|counts| counts.counted_at);
        match (self.stands, shows) {
            (Some((at, since)), Some(shows)) if at == shows => {
                if now - since < STANDSTILL {
                    return Ok(());
                }
                let delayed = counts.map_or(0, |counts| counts.delayed);
                let value = format!(
                    "it stands still at {at}, and {delayed} delayed message{} for it",
                    if delayed == 1 { " waits" } else { "s wait" }
                );
                let allowed = "a clock that moves. A test moves it by hand: FakeMailbox::advance or \
                     ManualClock::advance, beside the run; or it retries without a delay: \
                     Worker::retry(Backoff::none())";
                Err(Error::invalid(Some(queue), "clock", value, allowed))
            }
            _ => {
                self.stands = shows.map(|at| (at, now));
                Ok(())
            }
        }
    }
}

/// Lets so many deliveries through, and then stops the worker.
#[derive(Clone)]
struct Gate<S> {
    service: S,
    begun: Arc<AtomicUsize>,
    max: usize,
    control: Control,
}

impl<S, T, R, C> Service<ServiceRequest<T, R, C>> for Gate<S>
where
    S: Service<ServiceRequest<T, R, C>, Response = Outcome, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, std::result::Result<Outcome, BoxError>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::result::Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        if before >= self.max {
            return Box::pin(async { Ok(Outcome::release()) });
        }
        let work = self.service.call(request);
        let last = (before + 1 == self.max).then(|| StopWhenDropped(self.control.clone()));
        Box::pin(async move {
            // Not before the work is over, or is cancelled: a stop gives what is running no more time than a drain has.
            let _last = last;
            work.await
        })
    }
}

/// Stops the worker when the last of the messages is over, however it ends.
struct StopWhenDropped(Control);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_stands_still_is_told_after_a_while_and_one_that_moves_never() {
        let queue = QueueName::new("orders").unwrap();
        let counts = |ready, delayed, at| {
            Some(Counts::new(ready, 0, delayed).with_counted_at(Some(Timestamp::from_secs(at))))
        };
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        let mut clock = Clock::default();
        for (seconds, seen) in [
            (0, counts(0, 1, 0)),
            (4, counts(0, 1, 0)),
            // It is moved.
            (5, counts(0, 1, 60)),
            (9, counts(0, 1, 60)),
            // Somebody has something to do.
            (10, counts(1, 1, 60)),
            (11, counts(0, 2, 60)),
            // It cannot be asked, or does not tell.
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
