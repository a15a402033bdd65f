//! Pillarbox: a [`Worker`] on a mailbox, as users get it.
//!
//! Every job passes the dispatcher, a worker's queue, the default Tower stack with its time limit and the
//! guard against panics, and goes back to be settled; its lease is watched, it is counted in the
//! stats, and metrics, events and spans are emitted, but nothing listens to them here.

use pillarbox_core::Mailbox;
use pillarbox_runtime::handler::Context;
use pillarbox_runtime::stats::StatsSnapshot;
use pillarbox_runtime::{ReadyWorker, Runnable, Worker};

use super::load::{Job, Seen, Stopwatch, Took, WORKERS, fill};
use crate::measure::{Result, expect_eq};

/// Workers that only count.
pub(super) type Counting = ReadyWorker<Job, (), Seen>;

/// Workers on a mailbox, which count the jobs they are given. Nothing but their number is set.
pub(super) fn workers(mailbox: &Mailbox<Job>, seen: &Seen) -> Counting {
    Worker::new(mailbox.clone()).context(seen.clone()).handler(handle).workers(WORKERS)
}

/// Sets the cap of the prefetch, unless the default is asked for.
pub(super) fn with_prefetch<C>(
    worker: ReadyWorker<Job, (), C>,
    max: Option<usize>,
) -> ReadyWorker<Job, (), C> {
    match max {
        Some(max) => worker.prefetch(max),
        None => worker,
    }
}

async fn handle(job: Job, Context(seen): Context<Seen>) -> Result<()> {
    seen.add(&job)
}

/// Fills a mailbox and has workers empty it. Says how long they took from their start until they
/// have stopped, and so have settled every job.
pub(super) async fn drain(
    mailbox: &Mailbox<Job>,
    prefetch: Option<usize>,
    jobs: u64,
) -> Result<Took> {
    fill(mailbox, jobs).await?;
    let seen = Seen::none_of(jobs);
    run(with_prefetch(workers(mailbox, &seen), prefetch), &seen, jobs).await
}

/// Runs workers until they have seen all jobs, and stops them.
pub(super) async fn run(workers: Counting, seen: &Seen, jobs: u64) -> Result<Took> {
    let watch = Stopwatch::start()?;
    let running = workers.start();
    seen.all().await?;
    let stats = running.stop().await?;
    let took = watch.stop()?;
    seen.expect_all()?;
    check(&stats, jobs)?;
    Ok(took)
}

/// Fails unless the workers say themselves that they have settled all, and nothing else happened.
fn check(stats: &StatsSnapshot, jobs: u64) -> Result<()> {
    let received: u64 = stats.mailboxes.iter().map(|mailbox| mailbox.received).sum();
    expect_eq("jobs received, by the stats", received, jobs)?;
    expect_eq("jobs processed, by the stats", stats.processed, jobs)?;
    expect_eq("jobs succeeded, by the stats", stats.succeeded, jobs)?;
    expect_eq("jobs returned, by the stats", stats.returned, 0)?;
    expect_eq("leases lost, by the stats", stats.leases_lost, 0)?;
    expect_eq("jobs unsettled, by the stats", stats.unconfirmed, 0)?;
    expect_eq("jobs in flight, by the stats", stats.in_flight, 0)
}
