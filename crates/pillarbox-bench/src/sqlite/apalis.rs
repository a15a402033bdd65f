//! apalis-sqlite 1.0.0: `SqliteStorage` and its own `Worker`.
//!
//! Callers push a job each, which is a transaction with a sync of its own. One worker fetches jobs
//! in batches, calls a handler that does nothing, and marks them done, again in batches. A caller
//! pushes its next job when some job was handled, so that as many are on their way as there are
//! callers. Time stops when the worker has stopped and so has written that all jobs are done.
//!
//! Its `setup` sets `synchronous=OFF`, with which an answered push may be lost and the file with
//! it. Here every connection has `synchronous=FULL`, and the rest of what `setup` sets. Tuned for
//! throughput: a batch as large as there are callers; `lock_tasks(false)`, as its example for
//! immediate work has it, which saves it an update of each job; the worker woken at once by each
//! push, with an interval besides, as its documentation advises; and one connection instead of ten,
//! for several wait for each other's locks. Of 1, 2, 4 and 10 connections, one was the quickest at
//! every number of callers, in a single comparison on one machine; the other choices were not
//! compared.
//!
//! Not like for like: it keeps jobs that are done; bodies are JSON; the caller does not wait until
//! the job is marked done; there are neither receipts nor leases (jobs of a dead worker are taken
//! back after a minute); and a push is not put together with those of others, which is what our
//! cycle gains most by. The promise is the same but not the call: SQLite as it is built here waits
//! by `fsync`, while ours and the log wait by `fdatasync`, which may have less to write.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use apalis::prelude::*;
use apalis_sqlite::{Config, SqliteConnectOptions, SqlitePool, SqlitePoolOptions, SqliteStorage};
use futures_channel::mpsc::{UnboundedSender, unbounded};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteJournalMode, SqliteSynchronous};
use tokio::sync::{Semaphore, oneshot};

use super::load::{BODY, Numbers, crowd};
use crate::measure::{Result, expect_eq, per_second};
use crate::tally::Tally;

/// How often the worker looks for jobs that nobody has told it of.
const INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    seq: u64,
    body: String,
}

/// Full cycles by so many callers until time is up. Says how many jobs were done per second.
pub(super) async fn cycles(directory: &Path, callers: u64, window: Duration) -> Result<f64> {
    let pool = open(&directory.join("jobs.db")).await?;
    let config = Config::default().queue("bench").batch_size(callers.max(10) as usize);
    let storage = SqliteStorage::<Job>::new(&pool).with_config(config.lock_tasks(false));
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

    let numbers = Numbers::within(window);
    let callers = (0..callers)
        .map(|_| push(storage.clone(), numbers.clone(), wake.clone(), handled.permits.clone()));
    let start = Instant::now();
    crowd(callers).await?;
    let _ = stop.send(());
    worker.await??;
    let elapsed = start.elapsed();

    let count = numbers.taken();
    handled.tally().expect_all(count)?;
    let done = sqlx::query_scalar("SELECT count(*) FROM Jobs WHERE status = 'Done'");
    let done: i64 = done.fetch_one(&pool).await?;
    expect_eq("jobs that are marked done", done as u64, count)?;
    pool.close().await;
    Ok(per_second(count, elapsed))
}

async fn open(path: &Path) -> Result<SqlitePool> {
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
    permits: Arc<Semaphore>,
) -> Result<()> {
    while let Some(seq) = numbers.take() {
        storage.push(Job { seq, body: "x".repeat(BODY) }).await?;
        wake.unbounded_send(())?;
        permits.acquire().await?.forget();
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
