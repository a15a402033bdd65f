//! Other work of a program that runs in a group, such as an HTTP server.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pillarbox_core::BoxFuture;
use tokio::sync::watch;

use crate::control::{Control, ControlState, DrainedOnDrop};
use crate::desired_state::{DesiredState, Stop};
use crate::outcome::BoxError;
use crate::runnable::{LoopFailure, Runnable};
use crate::stats::{State, StatsSnapshot};

/// Other work of a program that a [`LoopGroup`](super::LoopGroup) runs beside its loops, such as an HTTP server
/// or the relay of an outbox: any async function of a [`StopSignal`].
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::group::{LoopGroup, StopSignal, Task};
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
///     // A task that is made by a function is restarted when it fails.
///     .add_with("second outbox", || Task::new("second outbox", outbox));
/// # group.control().stop();
/// group.run().await?;
/// # Ok(()) }
/// ```
///
/// The group treats it as a loop:
///
/// * It fails by an error or a panic, and is restarted by the same [policy](super::Restart).
/// * If it returns `Ok`, it has ended: the others go on, it is not restarted, and the group is not
///   [ready](super::GroupControl::readiness) any more, as with a loop that was stopped.
/// * It runs in a Tokio task. At a stop its [`StopSignal`] completes, and it has the
///   [drain time](super::LoopGroup::drain_for) of the group to return. Then it is cancelled at its next await, and
///   the [report](super::LoopReport::is_left_behind) says so.
/// * The watchdog detects that it blocks its thread, but not that it waits forever.
///
/// Its [`Control`] stops it and has its state; pausing and the number of workers have no effect.
#[must_use = "a task does nothing until it is run"]
pub struct Task {
    name: String,
    work: TaskFn,
    state: Arc<ControlState>,
    drained: DrainedOnDrop,
}

type TaskFn = Box<dyn FnOnce(StopSignal) -> BoxFuture<'static, Result<(), BoxError>> + Send>;

impl Task {
    /// Creates a task of a function. The name must be unique within its group.
    pub fn new<F, E>(
        name: impl Into<String>,
        work: impl FnOnce(StopSignal) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let state = Arc::new(ControlState::without_workers());
        let drained = DrainedOnDrop(state.clone());
        let work: TaskFn = Box::new(move |stop| {
            let work = work(stop);
            Box::pin(async move { work.await.map_err(Into::into) })
        });
        Self { name: name.into(), work, state, drained }
    }

    async fn serve(self) -> Result<StatsSnapshot, LoopFailure> {
        let Self { name, work, state, drained } = self;
        let mut desired = state.desired.subscribe();
        // A stop that was requested before the start applies.
        if desired.borrow().stop.is_none() {
            state.report_state(State::Running);
            let mut work = work(StopSignal::new(desired.clone()));
            let mut stop = None;
            loop {
                tokio::select! {
                    biased;
                    ended = &mut work => {
                        ended.map_err(|error| LoopFailure::Task(error.into()))?;
                        break;
                    }
                    next = further_stop(&mut desired, stop) => match next {
                        Stop::Graceful => {
                            state.report_state(State::Draining);
                            stop = Some(next);
                        }
                        Stop::Now => {
                            if stop.is_some() {
                                tracing::warn!(task = name, "a task did not stop in time and is cancelled");
                                state.pulse.leave_behind();
                            }
                            break;
                        }
                    },
                    () = turn(&state) => state.pulse.turn(),
                }
            }
        }
        state.pulse.end();
        drop(drained);
        let stats = state.stats.borrow().clone();
        Ok(stats)
    }
}

/// Waits until a more urgent stop than `than` is requested.
async fn further_stop(desired: &mut watch::Receiver<DesiredState>, than: Option<Stop>) -> Stop {
    let further = desired.wait_for(|desired| desired.stop > than).await;
    // The sender outlives this, since its task has it.
    further.ok().and_then(|desired| desired.stop).unwrap_or(Stop::Now)
}

/// Waits until the next turn that the watchdog expects, forever if nobody watches.
async fn turn(state: &ControlState) {
    match state.pulse.turn_within() {
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
        Control::new(self.state.clone())
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

/// A future that completes when its [`Task`] is to stop, and at once from then on. Can be cloned.
///
/// ```
/// # use pillarbox_runtime::group::StopSignal;
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
/// axum and others take it for a graceful shutdown:
/// `axum::serve(listener, app).with_graceful_shutdown(stop).await`.
#[must_use = "it must be awaited or checked"]
pub struct StopSignal {
    desired: watch::Receiver<DesiredState>,
    waiting: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
}

impl StopSignal {
    fn new(desired: watch::Receiver<DesiredState>) -> Self {
        let mut receiver = desired.clone();
        let waiting = Box::pin(async move {
            // It fails if the task is gone, which counts as a stop.
            let _ = receiver.wait_for(|desired| desired.stop.is_some()).await;
        });
        Self { desired, waiting }
    }

    /// Whether the task is to stop.
    pub fn is_stopping(&self) -> bool {
        self.desired.borrow().stop.is_some() || self.desired.has_changed().is_err()
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
        Self::new(self.desired.clone())
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
    async fn a_signal_completes_for_all_its_clones_and_stays_so() {
        let state = ControlState::without_workers();
        let mut stop = StopSignal::new(state.desired.subscribe());
        let other = stop.clone();
        let early = tokio::time::timeout(Duration::from_secs(9), &mut stop).await;
        assert!(early.is_err() && !stop.is_stopping());
        state.desired.send_modify(|desired| desired.stop = Some(Stop::Graceful));
        (&mut stop).await;
        (&mut stop).await;
        other.clone().await;
        other.await;
        assert!(stop.is_stopping());
    }

    #[tokio::test(start_paused = true)]
    async fn a_signal_that_outlives_its_task_is_complete() {
        let state = ControlState::without_workers();
        let stop = StopSignal::new(state.desired.subscribe());
        drop(state);
        assert!(stop.is_stopping());
        stop.clone().await;
        stop.await;
    }

    #[test]
    fn a_signal_can_be_sent_and_state() {
        fn state<T: Send + Sync + Unpin>() {}
        state::<StopSignal>();
    }
}
