//! Work of the program's own beside its loops, such as an HTTP server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pillarbox_core::BoxFuture;
use tokio::sync::watch;

use crate::control::{Control, Farewell, Shared, Stop, Wanted};
use crate::outcome::BoxError;
use crate::runnable::{LoopFailure, Runnable};
use crate::stats::{State, StatsSnapshot};

/// Work of the program's own that a [`LoopGroup`](super::LoopGroup) runs beside its loops: an HTTP server, the
/// relay of an outbox, whatever is an async function of a [`StopSignal`].
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::{LoopGroup, StopSignal, Task};
///
/// # async fn relay() -> std::io::Result<()> { Ok(()) }
/// async fn outbox(mut stop: StopSignal) -> std::io::Result<()> {
///     let mut tick = tokio::time::interval(Duration::from_secs(1));
///     loop {
///         tokio::select! {
///             _ = tick.tick() => relay().await?,
///             () = &mut stop => return Ok(()),
///         }
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let group = LoopGroup::new()
///     // When it fails, the group ends.
///     .add(Task::new("outbox", outbox))
///     // Made by a function, it is restarted when it fails.
///     .add_with("second outbox", || Task::new("second outbox", outbox));
/// # group.control().stop();
/// group.run().await?;
/// # Ok(()) }
/// ```
///
/// The group treats it as a loop:
///
/// * It fails by an error or a panic, and is restarted by the same [rules](super::Restart).
/// * One that returns `Ok` has ended: the others go on, it is not restarted, and the group is not
///   [ready](super::GroupControl::readiness) any more, as with a loop that was stopped.
/// * It runs in a task of Tokio's. At a stop its [`StopSignal`] ends, and it has as long as the group
///   [drains](super::LoopGroup::drain_for) to return. Then it is cancelled at its next await, and the
///   [report](super::LoopReport::is_left_behind) names it.
/// * The watchdog notices one that blocks its thread. It cannot tell one that waits from one that is stuck.
///
/// Its [`Control`] stops it, and tells its state; pauses and numbers of workers mean nothing to it.
#[must_use = "a task does nothing until it is run"]
pub struct Task {
    name: String,
    work: Work,
    shared: Arc<Shared>,
    farewell: Farewell,
}

type Work = Box<dyn FnOnce(StopSignal) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

impl Task {
    /// Makes a task of a function, under a name that no other member of its group has.
    pub fn new<F, E>(
        name: impl Into<String>,
        work: impl FnOnce(StopSignal) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let shared = Arc::new(Shared::without_workers());
        let farewell = Farewell(shared.clone());
        let work: Work = Box::new(move |stop| {
            let work = work(stop);
            Box::pin(async move { work.await.map_err(Into::into) })
        });
        Self { name: name.into(), work, shared, farewell }
    }

    async fn serve(self) -> Result<StatsSnapshot, LoopFailure> {
        let Self { name, work, shared, farewell } = self;
        let mut wanted = shared.wanted.subscribe();
        // What was asked for before the start counts.
        if wanted.borrow().stop.is_none() {
            shared.say_state(State::Running);
            let mut work = work(StopSignal::new(wanted.clone()));
            let mut stop = None;
            loop {
                tokio::select! {
                    biased;
                    ended = &mut work => {
                        ended.map_err(|error| LoopFailure::Task(error.into()))?;
                        break;
                    }
                    next = further_stop(&mut wanted, stop) => match next {
                        Stop::Graceful => {
                            shared.say_state(State::Draining);
                            stop = Some(next);
                        }
                        Stop::Now => {
                            if stop.is_some() {
                                tracing::warn!(task = name, "a task did not stop in time and is cancelled");
                                shared.pulse.leave_behind();
                            }
                            break;
                        }
                    },
                    () = turn(&shared) => shared.pulse.turn(),
                }
            }
        }
        shared.pulse.end();
        drop(farewell);
        let stats = shared.stats.borrow().clone();
        Ok(stats)
    }
}

/// Waits until more of a stop is wanted than this.
async fn further_stop(wanted: &mut watch::Receiver<Wanted>, than: Option<Stop>) -> Stop {
    let further = wanted.wait_for(|wanted| wanted.stop > than).await;
    // The sender outlives this: its task has it.
    further.ok().and_then(|wanted| wanted.stop).unwrap_or(Stop::Now)
}

/// Waits until a watchdog wants to see that the task is there. For ever where nobody watches.
async fn turn(shared: &Shared) {
    match shared.pulse.turn_within() {
        Some(within) => tokio::time::sleep((within / 2).max(Duration::from_millis(1))).await,
        None => std::future::pending().await,
    }
}

impl Runnable for Task {
    type Error = LoopFailure;

    fn name(&self) -> String {
        self.name.clone()
    }

    fn control(&self) -> Control {
        Control::new(self.shared.clone())
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot, LoopFailure>> + Send + 'static {
        self.serve()
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Task").field(&self.name).finish()
    }
}

/// Tells a [`Task`] that it is to stop: a future that ends then, and at once from then on. Can be cloned.
///
/// ```
/// # use pillarbox_runtime::StopSignal;
/// # async fn accept() -> std::io::Result<()> { std::future::pending().await }
/// async fn serve(mut stop: StopSignal) -> std::io::Result<()> {
///     loop {
///         tokio::select! {
///             accepted = accept() => accepted?,
///             () = &mut stop => return Ok(()),
///         }
///     }
/// }
/// ```
///
/// It is what axum and others take for a graceful shutdown:
/// `axum::serve(listener, app).with_graceful_shutdown(stop).await`.
#[must_use = "it has to be awaited, or asked"]
pub struct StopSignal {
    wanted: watch::Receiver<Wanted>,
    waiting: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl StopSignal {
    fn new(wanted: watch::Receiver<Wanted>) -> Self {
        let mut heard = wanted.clone();
        let waiting = Box::pin(async move {
            // One that outlives its task has been told as well.
            let _ = heard.wait_for(|wanted| wanted.stop.is_some()).await;
        });
        Self { wanted, waiting }
    }

    /// Whether the task is to stop.
    pub fn is_stopping(&self) -> bool {
        self.wanted.borrow().stop.is_some() || self.wanted.has_changed().is_err()
    }
}

impl Future for StopSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_stopping() { Poll::Ready(()) } else { self.waiting.as_mut().poll(context) }
    }
}

impl Clone for StopSignal {
    fn clone(&self) -> Self {
        Self::new(self.wanted.clone())
    }
}

impl fmt::Debug for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StopSignal").field(&self.is_stopping()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_signal_ends_for_each_who_has_it_and_stays_so() {
        let shared = Shared::without_workers();
        let mut stop = StopSignal::new(shared.wanted.subscribe());
        let other = stop.clone();
        let early = tokio::time::timeout(Duration::from_secs(9), &mut stop).await;
        assert!(early.is_err() && !stop.is_stopping());
        shared.wanted.send_modify(|wanted| wanted.stop = Some(Stop::Graceful));
        (&mut stop).await;
        (&mut stop).await;
        other.clone().await;
        other.await;
        assert!(stop.is_stopping());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_that_outlives_its_task_has_ended() {
        let shared = Shared::without_workers();
        let stop = StopSignal::new(shared.wanted.subscribe());
        drop(shared);
        assert!(stop.is_stopping());
        stop.clone().await;
        stop.await;
    }

    #[test]
    fn a_signal_can_be_sent_and_shared() {
        fn shared<T: Send + Sync + Unpin>() {}
        shared::<StopSignal>();
    }
}
