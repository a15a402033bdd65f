//! capp 0.7.2: `spawn_mailbox_runtime` on its `InMemoryTaskQueue`.
//!
//! One task dispatches: it pops a job, writes back that it is in progress, spawns a task that calls
//! the service, and acknowledges each job when that task reports it done. A `concurrency_limit` of
//! the service sets the number of concurrent jobs, as its documentation shows; and the service has
//! the time limit of 30 seconds that `build_service_stack` gives it, as ours has.
//!
//! As it comes, and tuned for throughput: it sleeps for a millisecond instead of 50 when its queue is
//! empty, the buffer for results is eight times as large, and as many jobs run at a time as ours holds by
//! default. Its queue has no batches, so that there is no more to choose.
//!
//! Not like for like: it has neither leases nor receipts, and a panic of a handler is lost with its
//! job; but it encodes a job once more, to write back that it is in progress. While its queue is
//! empty, results wait until it has slept: that is in the time here, once, at the end.

use std::sync::Arc;
use std::time::Duration;

use capp::manager::{
    MailboxConfig, MailboxRuntime, ServiceRequest, ServiceStackOptions, build_service_stack,
    spawn_mailbox_runtime,
};
use capp::tower::{ServiceBuilder, service_fn};
pub(super) use capp_queue::Task;
use capp_queue::{AbstractTaskQueue, InMemoryTaskQueue, JsonSerializer, TaskQueueError};

use super::load::{Job, Seen, Stopwatch, Took, WORKERS};
use crate::measure::Result;

/// How it is configured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Tuned {
    /// As it comes, with as many at a time as ours has workers.
    No,
    /// For throughput, with `at_a_time` concurrent jobs.
    Yes { at_a_time: usize },
}

/// Fills a queue and has the runtime empty it. Says how long it took from its start until it has
/// stopped, and so has acknowledged every job.
pub(super) async fn drain(jobs: u64, tuned: Tuned) -> Result<Took> {
    let queue = queue();
    for seq in 0..jobs {
        queue.push(&Task::new(Job::new(seq))).await?;
    }
    let seen = Seen::none_of(jobs);
    let watch = Stopwatch::start()?;
    let of_handler = seen.clone();
    let runtime = spawn(&queue, tuned, move |job| of_handler.add(job));
    seen.all().await?;
    runtime.shutdown().await;
    let took = watch.stop()?;
    seen.expect_all()?;
    match queue.pop().await {
        Err(TaskQueueError::QueueEmpty) => Ok(took),
        Err(error) => Err(error.into()),
        Ok(_) => Err("there are messages left".into()),
    }
}

pub(super) fn queue() -> AbstractTaskQueue<Job> {
    Arc::new(InMemoryTaskQueue::<Job, JsonSerializer>::new())
}

/// Starts the runtime with a handler.
pub(super) fn spawn(
    queue: &AbstractTaskQueue<Job>,
    tuned: Tuned,
    handle: impl Fn(&Job) -> Result<()> + Send + Sync + 'static,
) -> MailboxRuntime<Job> {
    let mut config = MailboxConfig::default();
    let mut at_a_time = WORKERS;
    if let Tuned::Yes { at_a_time: tuned } = tuned {
        config.dequeue_backoff = Duration::from_millis(1);
        config.result_buffer *= 8;
        at_a_time = tuned;
    }
    let handle = Arc::new(handle);
    let handle = service_fn(move |request: ServiceRequest<Job, ()>| {
        let handle = handle.clone();
        async move { handle(&request.task.payload) }
    });
    let service = ServiceBuilder::new().concurrency_limit(at_a_time).service(handle);
    let service = build_service_stack(service, ServiceStackOptions::default());
    spawn_mailbox_runtime(queue.clone(), Arc::new(()), service, config)
}
