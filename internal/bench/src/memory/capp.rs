//! capp-queue 0.7.2: `InMemoryTaskQueue` behind `AbstractTaskQueue`, the type that capp's own
//! runtime drives.
//!
//! Each job is JSON in a hash map, with a list of ids and a map of those in flight. It has
//! acknowledgements. What it has not, and we have: leases (a job in flight stays there until
//! `recover_inflight` is called), receipts, batches, and waiting: `pop` on an empty queue is an
//! error, so its consumers must poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use capp_queue::{AbstractTaskQueue, InMemoryTaskQueue, JsonSerializer, Task, TaskQueueError};

use super::load::{CONSUMERS, Job, PRODUCERS, Pace, Tally, crowd, share};
use crate::measure::{Result, expect_eq};

/// Full cycles: pushes `batch` jobs one by one, then pops and finishes them one by one.
pub(super) async fn cycles<J: Job>(n: u64, batch: u64) -> Result<Duration> {
    let queue = queue::<J>();
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    for _ in 0..n / batch {
        for _ in 0..batch {
            queue.push(&Task::new(J::new(sent))).await?;
            sent += 1;
        }
        for _ in 0..batch {
            let task = queue.pop().await?;
            expect_eq("next in line", finish(&queue, task).await?, received)?;
            received += 1;
        }
    }
    let elapsed = start.elapsed();
    expect_empty(&queue).await?;
    Ok(elapsed)
}

/// Producers and consumers. A consumer that finds nothing yields, since it cannot wait.
pub(super) async fn many<J: Job>(n: u64) -> Result<Duration> {
    let queue = queue::<J>();
    let settled = Arc::new(AtomicU64::new(0));
    let producers = (0..PRODUCERS).map(|producer| produce(queue.clone(), producer, n));
    let consumers = (0..CONSUMERS).map(|_| consume(queue.clone(), settled.clone(), n));
    let elapsed = crowd(n, producers, consumers).await?;
    expect_empty(&queue).await?;
    Ok(elapsed)
}

/// Pushes `n` jobs, asks `measure` for a figure, and checks that all `n` are there.
pub(super) async fn hold<J: Job, T>(n: u64, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let queue = queue::<J>();
    for seq in 0..n {
        queue.push(&Task::new(J::new(seq))).await?;
    }
    let figure = measure()?;
    for seq in 0..n {
        let task = queue.pop().await?;
        expect_eq("next in line", finish(&queue, task).await?, seq)?;
    }
    expect_empty(&queue).await?;
    Ok(figure)
}

/// Acknowledges a job and says its sequence number.
async fn finish<J: Job>(queue: &AbstractTaskQueue<J>, task: Task<J>) -> Result<u64> {
    queue.ack(&task.task_id).await?;
    task.payload.seq()
}

async fn produce<J: Job>(queue: AbstractTaskQueue<J>, producer: u64, n: u64) -> Result<()> {
    let mut pace = Pace::default();
    for seq in share(producer, n) {
        queue.push(&Task::new(J::new(seq))).await?;
        pace.step(1).await;
    }
    Ok(())
}

async fn consume<J: Job>(
    queue: AbstractTaskQueue<J>,
    settled: Arc<AtomicU64>,
    n: u64,
) -> Result<Tally> {
    let (mut tally, mut pace) = (Tally::default(), Pace::default());
    while settled.load(Ordering::Relaxed) < n {
        match queue.pop().await {
            Ok(task) => {
                tally.add(finish(&queue, task).await?);
                settled.fetch_add(1, Ordering::Relaxed);
                pace.step(1).await;
            }
            Err(TaskQueueError::QueueEmpty) => tokio::task::yield_now().await,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(tally)
}

fn queue<J: Job>() -> AbstractTaskQueue<J> {
    Arc::new(InMemoryTaskQueue::<J, JsonSerializer>::new())
}

async fn expect_empty<J: Job>(queue: &AbstractTaskQueue<J>) -> Result<()> {
    match queue.pop().await {
        Err(TaskQueueError::QueueEmpty) => Ok(()),
        Err(error) => Err(error.into()),
        Ok(_) => Err("there are messages left".into()),
    }
}
