//! The handle of something that runs in a task of its own.

use pillarbox_core::Error;
use tokio::task::JoinHandle;

use crate::control::Control;
use crate::stats::StatsSnapshot;

/// Handle of a [`Runnable`](crate::Runnable) that runs in a task of its own. Dropping it stops the task at once, as
/// [`Control::stop_now`] does.
#[derive(Debug)]
pub struct Running<E = Error> {
    control: Control,
    task: Option<JoinHandle<Result<StatsSnapshot, E>>>,
}

impl<E: From<Error>> Running<E> {
    pub(crate) const fn new(control: Control, task: JoinHandle<Result<StatsSnapshot, E>>) -> Self {
        Self { control, task: Some(task) }
    }

    /// Returns the handle that controls it.
    pub const fn control(&self) -> &Control {
        &self.control
    }

    /// Stops and drains it, and returns its final statistics.
    ///
    /// # Errors
    ///
    /// Those of [`Runnable::run`](crate::Runnable::run).
    pub async fn stop(self) -> Result<StatsSnapshot, E> {
        self.control.stop();
        self.join().await
    }

    /// Waits until it has ended, and returns its final statistics.
    ///
    /// # Errors
    ///
    /// Those of [`Runnable::run`](crate::Runnable::run), and [`Error::Closed`] if the Tokio runtime was shut down.
    ///
    /// # Panics
    ///
    /// If an [`on_shutdown`](crate::Worker::on_shutdown) hook panicked, or the runtime itself did, which would be a
    /// bug.
    pub async fn join(mut self) -> Result<StatsSnapshot, E> {
        let closed = || Err(Error::Closed { queue: None }.into());
        let Some(task) = self.task.take() else { return closed() };
        match task.await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // The Tokio runtime is being shut down.
            Err(_) => closed(),
        }
    }
}

impl<E> Drop for Running<E> {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.control.stop_now();
        }
    }
}
