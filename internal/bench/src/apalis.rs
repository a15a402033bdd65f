//! The parts of apalis that the suites on SQLite and Redis share: jobs, a handler that only counts
//! them, and a worker that is woken by pushes and can be stopped.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apalis::prelude::*;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use pillarbox_core::BoxFuture;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

pub(crate) use crate::load::Job;
use crate::measure::Result;
use crate::tally::Tally;

/// The polling interval of a worker, for jobs without a wake-up.
const INTERVAL: Duration = Duration::from_millis(100);

/// Returns a sender of wake-ups, and the strategy of a worker that polls on each wake-up and at intervals.
pub(crate) fn wake_ups() -> (UnboundedSender<()>, Strategy) {
    let (wake, wake_ups) = unbounded();
    (wake, Strategy::new().stream(wake_ups).interval(INTERVAL))
}

/// What the handler has seen.
#[derive(Debug, Clone)]
pub(crate) struct Handled {
    count: Arc<AtomicU64>,
    sum: Arc<AtomicU64>,
    /// One for each job that was handled.
    permits: Arc<Semaphore>,
}

impl Default for Handled {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(0));
        Self { count: Arc::default(), sum: Arc::default(), permits }
    }
}

impl Handled {
    /// Waits until `jobs` jobs were handled. Each handled job counts for one caller only.
    pub(crate) async fn wait_for(&self, jobs: u64) -> Result<()> {
        self.permits.acquire_many(jobs as u32).await?.forget();
        Ok(())
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally::of(self.count.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed))
    }
}

/// The handler.
pub(crate) async fn handle(
    job: Job,
    handled: Data<Handled>,
) -> std::result::Result<(), BoxDynError> {
    handled.sum.fetch_add(job.seq()?, Ordering::Relaxed);
    handled.count.fetch_add(1, Ordering::Relaxed);
    handled.permits.add_permits(1);
    Ok(())
}

/// A worker in a task of its own.
#[derive(Debug)]
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::result::Result<(), WorkerError>>,
}

impl Running {
    /// Spawns a worker, which `run` runs until the future that it is given ends.
    pub(crate) fn start<F>(run: impl FnOnce(BoxFuture<'static, io::Result<()>>) -> F) -> Self
    where
        F: Future<Output = std::result::Result<(), WorkerError>> + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(run(Box::pin(async {
            // Where this fails, the run has failed too.
            let _ = stopped.await;
            Ok(())
        })));
        Self { stop, task }
    }

    /// Waits for something that the worker does. Fails if the worker ends instead.
    pub(crate) async fn until(&mut self, done: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            done = done => done,
            ended = &mut self.task => Err(format!("the worker has ended early: {:?}", ended?).into()),
        }
    }

    /// Waits until the worker has ended, and so has written that all jobs are done.
    pub(crate) async fn stop(self) -> Result<()> {
        let _ = self.stop.send(());
        Ok(self.task.await??)
    }
}
