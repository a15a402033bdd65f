//! Time limits that cost no timer for what ends at once, as calls of a queue in memory do.

use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{Error, Queue, Result};
use tokio::time::{Instant, Sleep, sleep_until};

/// Runs a call to a queue for at most this time. After that it has failed, and may have taken effect.
pub(crate) async fn in_time<T>(
    limit: Duration,
    queue: &dyn Queue,
    action: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    until(|| after(limit), call).await.unwrap_or_else(|| {
        let cause = format!("there was no answer within {limit:?}");
        Err(Error::connection(Some(queue.name()), action, cause))
    })
}

/// Runs a future until a deadline, which is computed when the future first waits for something.
pub(crate) async fn until<F: Future>(
    deadline: impl Fn() -> Instant,
    future: F,
) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut timer = pin!(None::<Sleep>);
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        if timer.is_none() {
            timer.set(Some(sleep_until(deadline())));
        }
        let Some(timer) = timer.as_mut().as_pin_mut() else { return Poll::Pending };
        // The future may have used up the budget of the task, at every poll.
        pin!(tokio::task::unconstrained(timer)).poll(context).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(7);

    #[tokio::test(start_paused = true)]
    async fn a_future_ends_by_itself_or_at_its_deadline() {
        assert_eq!(until(|| unreachable!("it does not wait"), async { 1 }).await, Some(1));
        let (start, deadline) = (Instant::now(), || after(LIMIT));
        assert_eq!(until(deadline, tokio::time::sleep(LIMIT / 2)).await, Some(()));
        assert_eq!(until(deadline, std::future::pending::<()>()).await, None);
        assert_eq!(start.elapsed(), LIMIT / 2 + LIMIT);
    }

    #[tokio::test]
    async fn a_future_that_always_uses_up_the_budget_of_its_task_ends_at_its_deadline() {
        let greedy = std::future::poll_fn(|context| {
            while pin!(tokio::task::consume_budget()).poll(context).is_ready() {}
            Poll::<()>::Pending
        });
        let deadline = after(Duration::from_millis(1));
        assert_eq!(until(|| deadline, greedy).await, None);
    }
}
