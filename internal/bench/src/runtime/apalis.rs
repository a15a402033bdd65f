//! apalis 1.0.0: its `Worker` on `SqliteStorage` and on `RedisStorage`.
//!
//! The queue is filled before; the worker fetches a batch, calls the handler, and marks the jobs done
//! when it fetches again, until it has stopped and so has marked all of them. It goes on by itself
//! while it finds jobs, so that how it is woken does not matter here. What else it does more
//! or less than ours is listed in the SQLite and Redis suites, where it is a peer of the queues alone.
//! On SQLite it syncs as ours does, and has one connection, which was the quickest there.
//!
//! As it comes, with as many handlers at a time as ours has workers; and tuned for throughput: without
//! that limit, which handlers that do nothing do not need; with batches as large as what ours holds by
//! default; `lock_tasks(false)`; and on Redis `emit_events(false)`.
//!
//! It gets a short queue, for it does not bear a long one. On SQLite, marking jobs done looks at all
//! jobs that the worker has ever fetched, and at the whole batch for each of them (`ack.sql` goes by the
//! index on `lock_by`), so that every job is dearer than the one before: its rate here is that of a
//! worker that has just begun. On Redis it takes up all jobs whose time has come in one script, which
//! fails with more than some 8,000 of them, and ends the worker.

use std::path::Path;

use apalis::prelude::*;
use apalis_redis::RedisStorage;
use apalis_sqlite::SqliteStorage;
use redis::cmd;

use super::load::{Job, Stopwatch, Took, WORKERS};
use crate::apalis::{Handled, Running, handle, wake_ups};
use crate::measure::{Result, expect_eq};
use crate::redis::native::connect;
use crate::sqlite::apalis::open;

/// Jobs in one call that fills a queue.
const BATCH: u64 = 500;

/// How it is configured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tuned {
    /// As it comes.
    No,
    /// For throughput, with batches of `batch` jobs.
    Yes { batch: usize },
}

/// Fills a storage and has a worker empty it; says how long that took from the start of the worker until it
/// has stopped. A macro, because each storage makes a worker of a type of its own.
macro_rules! emptied {
    ($storage:ident, $jobs:expr, $tuned:expr) => {{
        for batch in batches($jobs) {
            $storage.push_bulk(batch).await?;
        }
        let (wake, strategy) = wake_ups();
        let handled = Handled::default();
        let worker = WorkerBuilder::new("bench").backend($storage.poll_with_strategy(strategy));
        let worker = worker.data(handled.clone());
        let watch = Stopwatch::start()?;
        let mut running = match $tuned {
            Tuned::No => {
                let worker = worker.concurrency(WORKERS).build(handle);
                Running::start(|stopped| worker.run_until(stopped))
            }
            Tuned::Yes { .. } => {
                let worker = worker.build(handle);
                Running::start(|stopped| worker.run_until(stopped))
            }
        };
        wake.unbounded_send(())?;
        running.until(handled.wait_for($jobs)).await?;
        running.stop().await?;
        let took = watch.stop()?;

        handled.tally().expect_all($jobs)?;
        took
    }};
}

/// Fills a queue in a file and has a worker empty it. Says how long it took from the start of the
/// worker until it has stopped.
pub(super) async fn drain_sqlite(path: &Path, jobs: u64, tuned: Tuned) -> Result<Took> {
    let pool = open(path).await?;
    let mut config = apalis_sqlite::Config::default().queue("jobs");
    if let Tuned::Yes { batch } = tuned {
        config = config.batch_size(batch).lock_tasks(false);
    }
    let mut storage = SqliteStorage::<Job>::new(&pool).with_config(config);
    let took = emptied!(storage, jobs, tuned);
    let done = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'");
    let done: i64 = done.fetch_one(&pool).await?;
    expect_eq("jobs that are marked done", done as u64, jobs)?;
    pool.close().await;
    Ok(took)
}

/// The same on a server.
pub(super) async fn drain_redis(url: &str, jobs: u64, tuned: Tuned) -> Result<Took> {
    let mut config = apalis_redis::Config::default().queue("jobs");
    if let Tuned::Yes { batch } = tuned {
        config = config.batch_size(batch).lock_tasks(false).emit_events(false);
    }
    let done_set = config.done_jobs_set();
    let connection = apalis_redis::connect(url).await?;
    let mut storage = RedisStorage::<Job>::new(connection).with_config(config);
    let took = emptied!(storage, jobs, tuned);
    let done = cmd("SCARD").arg(done_set).query_async(&mut connect(url).await?).await?;
    expect_eq("jobs that are marked done", done, jobs)?;
    Ok(took)
}

fn batches(jobs: u64) -> impl Iterator<Item = Vec<Job>> {
    let starts = (0..jobs).step_by(BATCH as usize);
    starts.map(move |start| (start..jobs.min(start + BATCH)).map(Job::new).collect())
}
