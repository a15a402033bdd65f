//! A running group: its loops, their drain, and the handle to it.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::clock::later;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::control::GroupControl;
use super::registry::Registry;
use super::report::{GroupError, GroupReport};
use super::supervisor::Supervisor;
use super::watchdog::Watchdog;
use crate::desired_state::Stop;
use crate::runnable::LoopFailure;

/// Time that loops have to end after they were cancelled.
const CANCEL_GRACE: Duration = Duration::from_secs(5);
/// Interval at which it is checked whether all mailboxes have answered, for systemd.
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// A group whose loops are ready to run.
pub(super) struct Group {
    pub(super) supervisors: Vec<Supervisor>,
    pub(super) registry: Arc<Registry>,
    pub(super) drain: Duration,
    // The watchdog and the health server run until the last loop has ended.
    pub(super) _watchdog: Option<Watchdog>,
    #[cfg(feature = "health")]
    pub(super) _server: Option<super::http::Server>,
}

impl Group {
    pub(super) async fn run(mut self) -> Result<GroupReport, GroupError> {
        let registry = &*self.registry;
        tracing::info!(loops = ?registry.names(), "starting the loops");
        let supervisors = std::mem::take(&mut self.supervisors);
        let mut loops: FuturesUnordered<_> = supervisors.into_iter().map(Supervisor::run).collect();
        let mut background = std::pin::pin!(async {
            tokio::join!(registry.dead_letters.run(), notify_ready(registry))
        });
        let mut requested = registry.requested_stop();
        let mut stop: Option<Stop> = None;
        let mut deadline = Instant::now();
        let mut failed: Option<(String, LoopFailure)> = None;
        loop {
            tokio::select! {
                biased;
                ended = loops.next() => match ended {
                    None => break,
                    Some(Ok(())) => {}
                    Some(Err(failure)) => {
                        failed.get_or_insert(failure);
                        registry.stop(Stop::Graceful);
                    }
                },
                Ok(now_requested) = requested.wait_for(|requested| *requested > stop) => {
                    stop = *now_requested;
                    let time = if stop == Some(Stop::Now) { CANCEL_GRACE } else { self.drain };
                    deadline = later(Instant::now(), time);
                }
                () = tokio::time::sleep_until(deadline), if stop.is_some() => {
                    if stop == Some(Stop::Now) {
                        let names = registry.leave_behind();
                        tracing::error!(loops = ?names, "some loops did not end and are left behind");
                        break;
                    }
                    tracing::warn!("draining takes too long: running handlers are cancelled and their messages released");
                    registry.stop(Stop::Now);
                }
                _ = &mut background => {}
            }
        }
        // Aborts the loops that are left behind at their next await.
        drop(loops);
        if let Some(systemd) = registry.systemd.get() {
            systemd.send("STATUS=the loops have ended");
        }
        let report = registry.report();
        let is_left_behind = report.loops.iter().any(|one| one.is_left_behind);
        match failed {
            Some((name, cause)) => {
                Err(GroupError::Failed { name, cause, report: Box::new(report) })
            }
            None if is_left_behind => Err(GroupError::LeftBehind { report: Box::new(report) }),
            None => Ok(report),
        }
    }
}

/// Notifies systemd when every mailbox of every loop has answered. Never returns.
async fn notify_ready(registry: &Registry) {
    if let Some(systemd) = registry.systemd.get() {
        systemd.send("STATUS=starting");
        let mut tick = tokio::time::interval(READY_CHECK_INTERVAL);
        while !registry.have_all_polled() {
            tick.tick().await;
        }
        if !registry.is_stopping() {
            systemd.send(&format!("READY=1\nSTATUS=running {}", registry.names().join(", ")));
        }
    }
    std::future::pending::<()>().await;
}

/// A group that runs in a separate task. When it is dropped, all loops are stopped now.
#[derive(Debug)]
pub struct RunningGroup {
    pub(super) control: GroupControl,
    pub(super) task: Option<JoinHandle<Result<GroupReport, GroupError>>>,
}

impl RunningGroup {
    /// Returns the control of the group.
    pub const fn control(&self) -> &GroupControl {
        &self.control
    }

    /// Stops all loops, lets them finish what is running, and returns the report.
    ///
    /// # Errors
    ///
    /// Those of [`LoopGroup::run`](super::LoopGroup::run).
    pub async fn stop(self) -> Result<GroupReport, GroupError> {
        self.control.stop();
        self.join().await
    }

    /// Waits until all loops have ended, and returns the report.
    ///
    /// # Errors
    ///
    /// Those of [`LoopGroup::run`](super::LoopGroup::run), and [`GroupError::ShutDown`] if the Tokio runtime was shut down.
    ///
    /// # Panics
    ///
    /// Panics if the group itself panicked, which is a bug.
    pub async fn join(mut self) -> Result<GroupReport, GroupError> {
        let Some(task) = self.task.take() else { return Err(GroupError::ShutDown) };
        match task.await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(GroupError::ShutDown),
        }
    }
}

impl Drop for RunningGroup {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.control.stop_now();
        }
    }
}
