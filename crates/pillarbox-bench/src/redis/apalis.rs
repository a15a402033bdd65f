//! apalis-redis 1.0.0: `RedisStorage` and its own `Worker`, in this process.
//!
//! Callers push jobs, a batch in one call. One worker fetches jobs in batches, calls a handler that
//! does nothing, and marks them done, again in batches. A caller pushes its next jobs when as many
//! were handled. Time stops when the worker has stopped and so has written that all jobs are done.
//!
//! The worker is woken at once by each push, with an interval besides. That is only possible within
//! one process: another finds jobs by its interval. (Its `RedisStorageFactory` listens for what is
//! published of new jobs; but a push gives every job a time, and jobs with a time are not published.)
//! Two configurations are measured: the default one, and one that is tuned for throughput: a batch
//! as large as what all callers push at a time; `lock_tasks(false)`, as its documentation has it for
//! short tasks; and `emit_events(false)`, for nobody listens.
//!
//! Not like for like: it keeps jobs that are done, with their bodies, for ever; bodies are JSON; the
//! caller does not wait until the job is marked done; there are neither receipts nor leases.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use futures_channel::mpsc::{UnboundedSender, unbounded};
use redis::cmd;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, oneshot};

use super::load::{BODY, Done, Load, Numbers, crowd};
use super::native::connect;
use crate::measure::{Result, expect_eq};
use crate::tally::Tally;

/// How often the worker looks for jobs that nobody has told it of.
const INTERVAL: Duration = Duration::from_millis(100);

/// How it is configured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tuned {
    /// As it comes.
    No,
    /// For throughput.
    Yes,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    seq: u64,
    body: String,
}

/// Full cycles on a fresh server.
pub(super) async fn cycles(url: &str, load: Load, tuned: Tuned) -> Result<Done> {
    let mut config = Config::default().queue("bench");
    if let Tuned::Yes = tuned {
        let at_a_time = (load.callers * load.batch).max(10) as usize;
        config = config.batch_size(at_a_time).lock_tasks(false).emit_events(false);
    }
    let done_set = config.done_jobs_set();
    let storage = RedisStorage::<Job>::new(apalis_redis::connect(url).await?).with_config(config);
    let (wake, woken) = unbounded();
    let handled = Handled::default();
    let strategy = Strategy::new().stream(woken).interval(INTERVAL);
    let worker = WorkerBuilder::new("bench")
        .backend(storage.clone().poll_with_strategy(strategy))
        .data(handled.clone())
        .build(handle);
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = tokio::spawn(worker.run_until(async {
        // Where this fails, the run has failed too.
        let _ = stopped.await;
        Ok::<_, std::io::Error>(())
    }));

    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let (numbers, permits) = (numbers.clone(), handled.permits.clone());
        push(storage.clone(), numbers, load.batch, wake.clone(), permits)
    });
    let start = Instant::now();
    crowd(callers).await?;
    let _ = stop.send(());
    worker.await??;
    let elapsed = start.elapsed();

    let messages = numbers.taken() * load.batch;
    handled.tally().expect_all(messages)?;
    let done = cmd("SCARD").arg(done_set).query_async(&mut connect(url).await?).await?;
    expect_eq("jobs that are marked done", done, messages)?;
    Ok(Done { messages, elapsed })
}

async fn push(
    mut storage: RedisStorage<Job>,
    numbers: Numbers,
    batch: u64,
    wake: UnboundedSender<()>,
    permits: Arc<Semaphore>,
) -> Result<()> {
    while let Some(number) = numbers.take() {
        let job = |seq| Job { seq, body: "x".repeat(BODY) };
        if batch == 1 {
            storage.push(job(number)).await?;
        } else {
            storage.push_bulk((number * batch..(number + 1) * batch).map(job).collect()).await?;
        }
        wake.unbounded_send(())?;
        permits.acquire_many(batch as u32).await?.forget();
    }
    Ok(())
}

/// What the handler has seen.
#[derive(Debug, Clone)]
struct Handled {
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
    fn tally(&self) -> Tally {
        Tally::of(self.count.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed))
    }
}

async fn handle(job: Job, handled: Data<Handled>) -> std::result::Result<(), BoxDynError> {
    expect_eq("bytes in a body", job.body.len(), BODY)?;
    handled.sum.fetch_add(job.seq, Ordering::Relaxed);
    handled.count.fetch_add(1, Ordering::Relaxed);
    handled.permits.add_permits(1);
    Ok(())
}
