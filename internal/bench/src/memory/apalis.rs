//! apalis 1.0.0: `MemoryStorage`.
//!
//! It is an unbounded channel of jobs: nothing is encoded, nothing is kept in flight, and nothing
//! can be acknowledged, for a job is gone once it was polled. So none of this is like for like.
//! Two levels are measured:
//!
//! * push and poll: the calls that a `Worker` makes of its storage, and no more;
//! * a `Worker` with a handler that does nothing, and apalis's hook for acknowledgements
//!   (`ack_with`) with an acknowledger that only counts. The one way in which apalis executes a
//!   job and marks it done.
//!
//! `MemorySink` can be cloned, but its clones share a lock that they take by `try_lock().unwrap()`:
//! concurrent senders panic or hang. Each producer therefore gets a `MemorySink` of its own over a
//! clone of the channel's sender.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use apalis::prelude::*;
use futures_channel::mpsc::{UnboundedSender, unbounded};
use futures_util::lock::Mutex;
use futures_util::stream::BoxStream;
use futures_util::{Sink, SinkExt, StreamExt};

use super::load::{CONSUMERS, Job, PRODUCERS, Pace, Tally, crowd, share};
use crate::measure::{Result, expect_eq};

/// Full cycles without a worker: pushes `batch` jobs, then polls them, one by one.
pub(super) async fn poll_cycles<J: Job>(n: u64, batch: u64) -> Result<Duration> {
    let mut storage = MemoryStorage::<J>::new();
    let context = WorkerContext::new("bench");
    let (mut sent, mut received) = (0, 0);
    let start = Instant::now();
    for _ in 0..n / batch {
        for _ in 0..batch {
            storage.push(J::new(sent)).await?;
            sent += 1;
        }
        for _ in 0..batch {
            let task = next(&mut storage, &context).await?;
            expect_eq("next in line", task.args.seq()?, received)?;
            received += 1;
        }
    }
    let elapsed = start.elapsed();
    expect_empty(&mut storage, &context).await?;
    Ok(elapsed)
}

/// Runs full cycles through a worker: sends `batch` jobs, then drives the worker until it has reported
/// the success of each.
pub(super) async fn worker_cycles<J: Job>(n: u64, batch: u64) -> Result<Duration> {
    let (storage, sender) = storage::<J>();
    let mut sink = sink(&sender);
    let tally = SharedTally::default();
    let worker = WorkerBuilder::new("bench")
        .backend(storage)
        .data(tally.clone())
        .ack_with(tally.clone())
        .build(handle::<J>);
    let mut events = worker.stream().boxed();
    match events.next().await {
        Some(Ok(Event::Start)) => {}
        other => return Err(format!("the worker did not start: {other:?}").into()),
    }
    let mut sent = 0;
    let start = Instant::now();
    for _ in 0..n / batch {
        for _ in 0..batch {
            sink.send(TaskBuilder::new(J::new(sent)).build()).await?;
            sent += 1;
        }
        for _ in 0..batch {
            success(&mut events).await?;
        }
    }
    let elapsed = start.elapsed();
    tally.expect_all(n)?;
    Ok(elapsed)
}

/// Producers, and one worker that spawns as many handlers at a time as others have consumers:
/// several workers cannot share a `MemoryStorage`.
pub(super) async fn many<J: Job>(n: u64) -> Result<Duration> {
    let (storage, sender) = storage::<J>();
    let tally = SharedTally::default();
    let worker = WorkerBuilder::new("bench")
        .backend(storage)
        .concurrency(CONSUMERS as usize)
        .parallelize(tokio::spawn)
        .data(tally.clone())
        .ack_with(tally.clone())
        .build(handle::<J>);
    let events = worker.stream().boxed();
    let producers = (0..PRODUCERS).map(|producer| produce(sink(&sender), producer, n));
    crowd(n, producers, [work(events, tally, n)]).await
}

/// Pushes `n` jobs, asks `measure` for a figure, and checks that all `n` are there.
pub(super) async fn hold<J: Job, T>(n: u64, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut storage = MemoryStorage::<J>::new();
    for seq in 0..n {
        storage.push(J::new(seq)).await?;
    }
    let figure = measure()?;
    let context = WorkerContext::new("bench");
    for seq in 0..n {
        let task = next(&mut storage, &context).await?;
        expect_eq("next in line", task.args.seq()?, seq)?;
    }
    expect_empty(&mut storage, &context).await?;
    Ok(figure)
}

async fn produce<J: Job>(mut sink: MemorySink<J>, producer: u64, n: u64) -> Result<()> {
    let mut pace = Pace::default();
    for seq in share(producer, n) {
        sink.send(TaskBuilder::new(J::new(seq)).build()).await?;
        pace.step(1).await;
    }
    Ok(())
}

/// Drives a worker until `n` jobs are done.
async fn work(mut events: Events, tally: SharedTally, n: u64) -> Result<Tally> {
    match events.next().await {
        Some(Ok(Event::Start)) => {}
        other => return Err(format!("the worker did not start: {other:?}").into()),
    }
    for _ in 0..n {
        success(&mut events).await?;
    }
    tally.expect_all(n)?;
    Ok(tally.handled())
}

type Events = BoxStream<'static, std::result::Result<Event, WorkerError>>;

/// Waits until the worker reports the success of a job, which it does after handler and hook.
async fn success(events: &mut Events) -> Result<()> {
    match events.next().await {
        Some(Ok(Event::Success(_))) => Ok(()),
        other => Err(format!("the worker reported no success: {other:?}").into()),
    }
}

/// What the handler and the acknowledger have seen.
#[derive(Debug, Clone, Default)]
struct SharedTally {
    handled: Arc<AtomicU64>,
    sum: Arc<AtomicU64>,
    acknowledged: Arc<AtomicU64>,
}

impl SharedTally {
    fn handled(&self) -> Tally {
        Tally::of(self.handled.load(Ordering::Relaxed), self.sum.load(Ordering::Relaxed))
    }

    fn expect_all(&self, n: u64) -> Result<()> {
        self.handled().expect_all(n)?;
        expect_eq("acknowledged", self.acknowledged.load(Ordering::Relaxed), n)
    }
}

impl Acknowledge<()> for SharedTally {
    type Error = Infallible;
    type Future = Ready<std::result::Result<(), Infallible>>;

    fn ack(
        &mut self,
        result: &std::result::Result<(), BoxDynError>,
        _: &ExecutionContext,
    ) -> Self::Future {
        if result.is_ok() {
            self.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        ready(Ok(()))
    }
}

async fn handle<J: Job>(job: J, tally: Data<SharedTally>) -> std::result::Result<(), BoxDynError> {
    tally.sum.fetch_add(job.seq()?, Ordering::Relaxed);
    tally.handled.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// A storage, and the sender that sinks into it are made of.
fn storage<J: Job>() -> (MemoryStorage<J>, UnboundedSender<Task<J>>) {
    let (sender, receiver) = unbounded();
    (MemoryStorage::new_with(sink(&sender), receiver.boxed()), sender)
}

fn sink<J: Job>(sender: &UnboundedSender<Task<J>>) -> MemorySink<J> {
    let boxed: Box<dyn Sink<Task<J>, Error = MemoryStorageError> + Send + Sync + Unpin> =
        Box::new(sender.clone().sink_map_err(MemoryStorageError::from));
    MemorySink::new(Arc::new(Mutex::new(boxed)))
}

/// Takes the next job, by the two calls that a worker makes.
async fn next<J: Job>(storage: &mut MemoryStorage<J>, context: &WorkerContext) -> Result<Task<J>> {
    let task = poll_fn(|cx| match Backend::poll_ready(storage, cx, context) {
        Poll::Ready(Ok(())) => Backend::poll_next(storage, cx, context),
        Poll::Ready(Err(error)) => Poll::Ready(Some(Err(error))),
        Poll::Pending => Poll::Pending,
    });
    Ok(task.await.ok_or("the storage is closed")??)
}

async fn expect_empty<J: Job>(
    storage: &mut MemoryStorage<J>,
    context: &WorkerContext,
) -> Result<()> {
    let pending =
        poll_fn(|cx| Poll::Ready(Backend::poll_next(storage, cx, context).is_pending())).await;
    expect_eq("the storage is empty", pending, true)
}
