//! Running one loop until it has ended for good, and making it anew when it fails.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use metrics::counter;
use pillarbox_core::{BoxFuture, Error};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::restart::Restarts;
use super::roster::Roster;
use crate::control::Control;
use crate::outcome::panic_text;
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

/// Makes a loop.
pub(super) type Make = Box<dyn FnMut() -> Box<dyn Member> + Send>;

/// Where a loop comes from.
pub(super) enum Origin {
    /// It is there, and can be run once.
    Given(Option<Box<dyn Member>>),
    /// It is made whenever it is to begin.
    Made(Make),
}

impl Origin {
    /// The loop, if there is one to be had.
    fn next(&mut self) -> Option<Result<Box<dyn Member>, LoopFailure>> {
        match self {
            Self::Given(given) => given.take().map(Ok),
            Self::Made(make) => {
                let made = std::panic::catch_unwind(AssertUnwindSafe(make));
                Some(made.map_err(|payload| panicked(&*payload)))
            }
        }
    }

    const fn can_be_made_anew(&self) -> bool {
        matches!(self, Self::Made(_))
    }
}

/// Sees to one loop.
pub(super) struct Supervisor {
    pub(super) index: usize,
    pub(super) name: String,
    pub(super) origin: Origin,
    pub(super) restarts: Restarts,
    pub(super) turn_within: Option<Duration>,
    pub(super) roster: Arc<Roster>,
}

impl Supervisor {
    /// Runs the loop until it has ended for good. Says its name and why, if it failed.
    pub(super) async fn run(mut self) -> Result<(), (String, LoopFailure)> {
        // There from the start, so that the first restart is seen.
        let restarted = counter!("pillarbox.loops.restarted", "loop" => self.name.clone());
        while let Some(next) = self.origin.next() {
            let failure = match self.live(next).await {
                Ok(stats) => {
                    tracing::info!(loop_name = self.name, "a loop has ended");
                    self.roster.ended(self.index, stats);
                    return Ok(());
                }
                Err(failure) => failure,
            };
            let may_restart = self.origin.can_be_made_anew() && !self.roster.is_stopping();
            let delay = if may_restart { self.restarts.failed(Instant::now()) } else { None };
            let restarts = self.roster.failed(self.index, failure.clone(), delay.is_some());
            let Some(delay) = delay else {
                tracing::error!(loop_name = self.name, error = %failure, restarts, "a loop failed");
                return Err((self.name, failure));
            };
            tracing::warn!(
                loop_name = self.name,
                error = %failure,
                restarts,
                seconds = delay.as_secs_f64(),
                "a loop failed, and is made anew"
            );
            restarted.increment(1);
            let mut wanted = self.roster.wanted();
            tokio::select! {
                biased;
                // Nobody wants it any more.
                _ = wanted.wait_for(Option::is_some) => return Ok(()),
                () = tokio::time::sleep(delay) => {}
            }
        }
        Ok(())
    }

    /// One life of the loop, in a task of its own.
    async fn live(
        &mut self,
        next: Result<Box<dyn Member>, LoopFailure>,
    ) -> Result<StatsSnapshot, LoopFailure> {
        let member = next?;
        self.roster.begin(self.index, &member.control(), self.turn_within);
        let mut task = Spawned(tokio::spawn(member.work()));
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

/// A task that ends at its next await when this is dropped.
struct Spawned(JoinHandle<Result<StatsSnapshot, LoopFailure>>);

impl Drop for Spawned {
    fn drop(&mut self) {
        self.0.abort();
    }
}
