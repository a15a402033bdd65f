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
//! Not like for like: it never removes completed jobs or their bodies; bodies are JSON; the caller does
//! not wait until the job is marked done; there are neither receipts nor leases.

use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_redis::{Config, RedisStorage};
use futures_channel::mpsc::UnboundedSender;
use redis::cmd;

use super::native::connect;
use crate::apalis::{Handled, Job, Running, handle, wake_ups};
use crate::cycles::{Done, Load, Numbers, ResponseTimes, crowd};
use crate::measure::{Result, expect_eq};

/// How it is configured.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Tuned {
    /// As it comes.
    No,
    /// For throughput.
    Yes,
}

/// Full cycles on a fresh server.
pub(crate) async fn cycles(url: &str, load: Load, tuned: Tuned) -> Result<Done> {
    let mut config = Config::default().queue("bench");
    if let Tuned::Yes = tuned {
        let at_a_time = (load.callers * load.batch).max(10) as usize;
        config = config.batch_size(at_a_time).lock_tasks(false).emit_events(false);
    }
    let done_set = config.done_jobs_set();
    let storage = RedisStorage::<Job>::new(apalis_redis::connect(url).await?).with_config(config);
    let (wake, strategy) = wake_ups();
    let handled = Handled::default();
    let worker = WorkerBuilder::new("bench")
        .backend(storage.clone().poll_with_strategy(strategy))
        .data(handled.clone())
        .build(handle);
    let worker = Running::start(|stopped| worker.run_until(stopped));

    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let times = ResponseTimes::start(load.callers);
        push(storage.clone(), numbers.clone(), load.batch, wake.clone(), handled.clone(), times)
    });
    let start = Instant::now();
    let (each, _) = crowd(callers).await?;
    worker.stop().await?;
    let elapsed = start.elapsed();

    let messages = numbers.taken() * load.batch;
    handled.tally().expect_all(messages)?;
    let done = cmd("SCARD").arg(done_set).query_async(&mut connect(url).await?).await?;
    expect_eq("jobs that are marked done", done, messages)?;
    Ok(Done { messages, elapsed, each: each.concat() })
}

async fn push(
    mut storage: RedisStorage<Job>,
    numbers: Numbers,
    batch: u64,
    wake: UnboundedSender<()>,
    handled: Handled,
    mut times: ResponseTimes,
) -> Result<Vec<Duration>> {
    while let Some(number) = numbers.take() {
        if batch == 1 {
            storage.push(Job::new(number)).await?;
        } else {
            let jobs = (number * batch..(number + 1) * batch).map(Job::new);
            storage.push_bulk(jobs.collect()).await?;
        }
        wake.unbounded_send(())?;
        handled.wait_for(batch).await?;
        times.next().await;
    }
    Ok(times.all())
}
