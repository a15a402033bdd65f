//! Runs one loop until it ends, and restarts it when it fails.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use pillarbox_core::internal::panic_text;
use pillarbox_core::{BoxFuture, Error};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::registry::Registry;
use super::restart::Restarts;
use crate::control::Control;
use crate::runnable::{LoopFailure, Runnable};
use crate::stats::StatsSnapshot;

/// A [`Runnable`] of any type.
pub(super) trait Member: Send {
    fn control(&self) -> Control;

    fn work(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot, LoopFailure>>;
}

impl<R: Runnable> Member for R {
    fn control(&self) -> Control {
        Runnable::control(self)
    }

    fn work(self: Box<Self>) -> BoxFuture<'static, Result<StatsSnapshot, LoopFailure>> {
        let work = Runnable::work(*self);
        Box::pin(async move { work.await.map_err(Into::into) })
    }
}

/// Function that makes a loop.
pub(super) type Make = Box<dyn FnMut() -> Box<dyn Member> + Send>;

/// The source of a loop.
pub(super) enum Origin {
    /// A loop, which can be run once.
    Given(Option<Box<dyn Member>>),
    /// A function that makes the loop at each start.
    Made(Make),
}

impl Origin {
    /// Returns the loop for the next start, if there is one.
    fn next(&mut self) -> Option<Result<Box<dyn Member>, LoopFailure>> {
        match self {
            Self::Given(given) => given.take().map(Ok),
            Self::Made(make) => {
                let made = std::panic::catch_unwind(AssertUnwindSafe(make));
                Some(made.map_err(|payload| panicked(&*payload)))
            }
        }
    }

    const fn can_restart(&self) -> bool {
        matches!(self, Self::Made(_))
    }
}

/// Supervises one loop.
pub(super) struct Supervisor {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) restarts: Restarts,
    pub(super) turn_within: Option<Duration>,
    pub(super) registry: Arc<Registry>,
}

impl Supervisor {
    /// Runs the loop until it ends or is not restarted any more. Returns its name and the failure if it failed.
    pub(super) async fn run(mut self) -> Result<(), (String, LoopFailure)> {
        // Registered at the start, so that the first restart is visible.
        let restarted = counter!("pillarbox.loops.restarted", "loop" => self.name.clone());
        while let Some(next) = self.origin.next() {
            let failure = match self.run_once(next).await {
                Ok(stats) => {
                    tracing::info!(loop_name = self.name, "a loop has ended");
                    self.registry.ended(self.index, stats);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            let may_restart = self.origin.can_restart() && !self.registry.is_stopping();
            let delay = if may_restart { self.restarts.failed(Instant::now()) } else { None };
            let restarts = self.registry.failed(self.index, failure.clone(), delay.is_some());
            let Some(delay) = delay else {
                tracing::error!(loop_name = self.name, error = %failure, restarts, "a loop failed");
                return Err((self.name, failure));
            };
            tracing::warn!(
                loop_name = self.name,
                error = %failure,
                restarts,
                seconds = delay.as_secs_f64(),
                "a loop failed and is restarted"
            );
            restarted.increment(1);
            let mut stop = self.registry.requested_stop();
            tokio::select! {
                biased;
                // The group is stopping.
                _ = stop.wait_for(Option::is_some) => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
        Ok(())
    }

    /// Runs the loop once, in a separate task.
    async fn run_once(
        &mut self,
        next: Result<Box<dyn Member>, LoopFailure>,
    ) -> Result<StatsSnapshot, LoopFailure> {
        let member = next?;
        self.registry.started(self.index, &member.control(), self.turn_within);
        // Within the task from its first line on: a panic is a failure of this loop alone.
        let mut task = AbortOnDrop(tokio::spawn(async move { member.work().await }));
        match (&mut task.0).await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => Err(panicked(&*error.into_panic())),
            // The Tokio runtime is being shut down.
            Err(_) => Err(LoopFailure::Error(Error::Closed { queue: None })),
        }
    }
}

fn panicked(payload: &(dyn std::any::Any + Send)) -> LoopFailure {
    LoopFailure::Panic(panic_text(payload).to_owned())
}

/// Aborts a task on drop, which ends it at its next await.
struct AbortOnDrop(JoinHandle<Result<StatsSnapshot, LoopFailure>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
