//! A consumer without a runtime: loops that receive, decode, count and acknowledge, and no more.
//!
//! The limit for a runtime on the same mailbox. Nobody extends a lease, catches a panic, limits the
//! time of a handler, retries, counts or can be stopped. There are as many loops as there are
//! workers; a loop acknowledges what it has received in one call before it receives again.
//!
//! How many messages a call brings matters more than anything else where a call waits for a disk or
//! a server. Four default workers hold up to 260 messages: 4 that run and 256 that are prefetched. So there
//! are two: loops that ask for 65 each, which together hold as many messages as the workers do; and
//! loops that ask for 260 each, which hold four times as many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pillarbox_core::{Mailbox, Receive};
use tokio::task::JoinSet;

use super::load::{Job, Seen, Stopwatch, Took, WAIT, WORKERS, fill};
use crate::measure::Result;

/// Fills a mailbox and has loops empty it. Says how long it took until all was acknowledged.
pub(super) async fn drain(mailbox: &Mailbox<Job>, at_most: usize, jobs: u64) -> Result<Took> {
    fill(mailbox, jobs).await?;
    let seen = Seen::none_of(jobs);
    let left = Arc::new(AtomicU64::new(jobs));
    let mut loops = JoinSet::new();
    let watch = Stopwatch::start()?;
    for _ in 0..WORKERS {
        loops.spawn(consume(mailbox.clone(), at_most, seen.clone(), left.clone()));
    }
    // The first to end has acknowledged the last message, or failed. The others wait in vain.
    if let Some(ended) = loops.join_next().await {
        ended??;
    }
    let took = watch.stop()?;
    loops.shutdown().await;
    seen.expect_all()?;
    Ok(took)
}

async fn consume(
    mailbox: Mailbox<Job>,
    at_most: usize,
    seen: Seen,
    left: Arc<AtomicU64>,
) -> Result<()> {
    loop {
        let batch = mailbox.receive(Receive::up_to(at_most).wait(WAIT)).await?;
        for message in &batch {
            seen.add(message.body())?;
        }
        let count = batch.len() as u64;
        batch.acknowledge().await?.all()?;
        if left.fetch_sub(count, Ordering::Relaxed) == count {
            return Ok(());
        }
        // In memory nothing of this ever waits, and all loops shall have their turn.
        tokio::task::consume_budget().await;
    }
}
