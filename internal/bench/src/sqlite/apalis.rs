//! apalis-sqlite 1.0.0: `SqliteStorage` and its own `Worker`.
//!
//! Callers push a job each, which is a transaction with a sync of its own. One worker fetches jobs
//! in batches, calls a handler that does nothing, and marks them done, again in batches. A caller
//! pushes its next job when some job was handled, so that as many are on their way as there are
//! callers. Time stops when the worker has stopped and so has written that all jobs are done.
//!
//! Its `setup` sets `synchronous=OFF`, with which an answered push may be lost and the file with
//! it. Here every connection has `synchronous=FULL`, and the rest of what `setup` sets. The worker is
//! woken at once by each push, with an interval besides, as its documentation advises; and there is one
//! connection instead of ten, for several wait for each other's locks: of 1, 2, 4 and 10 connections, one was
//! the quickest at every number of callers, in a single comparison on one machine. Two configurations
//! are measured: the default one, and one that is tuned for throughput: a batch as large as there are callers,
//! and `lock_tasks(false)`, as its example for immediate work has it, which saves it an update of each
//! job.
//!
//! Not like for like: it keeps jobs that are done; bodies are JSON; the caller does not wait until
//! the job is marked done; there are neither receipts nor leases (jobs of a dead worker are taken
//! back after a minute); and pushes of concurrent callers are not coalesced, from which our cycle
//! gains most. The promise is the same but not the call: SQLite as it is built here waits
//! by `fsync`, while ours and the log wait by `fdatasync`, which may have less to write.

use std::path::Path;
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures_channel::mpsc::UnboundedSender;
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};

use crate::apalis::{Handled, Job, Running, handle, wake_ups};
use crate::cycles::{Done, Load, Numbers, ResponseTimes, crowd};
use crate::measure::{Result, expect_eq};
use crate::redis::apalis::Tuned;

/// Runs full cycles until the time is up.
pub(crate) async fn cycles(directory: &Path, load: Load, tuned: Tuned) -> Result<Done> {
    let pool = open(&directory.join("jobs.db")).await?;
    let mut config = Config::default().queue("bench");
    if let Tuned::Yes = tuned {
        config = config.batch_size(load.callers.max(10) as usize).lock_tasks(false);
    }
    let storage = SqliteStorage::<Job>::new(&pool).with_config(config);
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
        push(storage.clone(), numbers.clone(), wake.clone(), handled.clone(), times)
    });
    let start = Instant::now();
    let (each, _) = crowd(callers).await?;
    worker.stop().await?;
    let elapsed = start.elapsed();

    let count = numbers.taken();
    handled.tally().expect_all(count)?;
    let done = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'");
    let done: i64 = done.fetch_one(&pool).await?;
    expect_eq("jobs that are marked done", done as u64, count)?;
    pool.close().await;
    Ok(Done { messages: count, elapsed, each: each.concat() })
}

/// Opens a file for apalis, with the promise that ours makes.
pub(crate) async fn open(path: &Path) -> Result<SqlitePool> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30))
        .pragma("temp_store", "MEMORY")
        .pragma("cache_size", "64000")
        .pragma("journal_size_limit", "67108864");
    let pool = SqlitePoolOptions::new().max_connections(1).connect_with(options).await?;
    SqliteStorage::migrations().run(&pool).await?;
    // After the migrations, so that nothing of theirs has changed it. 2 is FULL.
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&pool).await?;
    expect_eq("synchronous of apalis", synchronous, 2)?;
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&pool).await?;
    expect_eq("journal mode of apalis", &mode[..], "wal")?;
    Ok(pool)
}

async fn push(
    mut storage: SqliteStorage<Job>,
    numbers: Numbers,
    wake: UnboundedSender<()>,
    handled: Handled,
    mut times: ResponseTimes,
) -> Result<Vec<Duration>> {
    while let Some(seq) = numbers.take() {
        storage.push(Job::new(seq)).await?;
        wake.unbounded_send(())?;
        handled.wait_for(1).await?;
        times.next().await;
    }
    Ok(times.all())
}
