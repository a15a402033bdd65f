//! Queues in memory, and workers on them.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{BoxFuture, Json, Mailbox, Mailboxes, MemoryBackend, NoReplies, QueueOptions};
use pillarbox_runtime::{Event, Events, Runnable, Running};
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};

pub(crate) fn backend() -> Mailboxes {
    Mailboxes::new(MemoryBackend::new())
}

/// A mailbox of numbers.
pub(crate) fn jobs() -> Mailbox<u32> {
    backend().mailbox("jobs").expect("a mailbox")
}

/// A mailbox of this name whose queue injects faults, and the queue.
pub(crate) fn faulty(name: &str, faults: Faults, seed: u64) -> (Arc<FaultQueue>, Mailbox<u32>) {
    let queue = backend().queue(name, QueueOptions::new()).expect("a queue");
    let faulty = FaultQueue::new(queue, faults, seed);
    (faulty.clone(), Mailbox::new(faulty, Json, NoReplies))
}

/// A mailbox whose receives take a second each. So workers whose handlers are short prefetch as much as they may.
pub(crate) fn slow_to_fetch() -> Mailbox<u32> {
    let (queue, mailbox) = faulty("jobs", Faults::none(), 0);
    for _ in 0..100 {
        queue.next(Operation::Receive, Fault::Delay(Duration::from_secs(1)));
    }
    mailbox
}

/// A handler that ends at once for the first jobs, and after a time for the others.
pub(crate) fn at_once_then_in(
    first: u32,
    time: Duration,
) -> impl Fn(u32) -> BoxFuture<'static, ()> + Clone + Send + Sync {
    move |job| {
        Box::pin(async move {
            if job >= first {
                tokio::time::sleep(time).await;
            }
        })
    }
}

/// Starts a worker, and listens to its events from the start.
pub(crate) fn start_listening<R: Runnable>(worker: R) -> (Running<R::Error>, Events) {
    let events = worker.control().events();
    (worker.start(), events)
}

/// Waits until a handler has started.
pub(crate) async fn started(events: &mut Events) -> Event {
    let started = events.wait_for(|event| matches!(event, Event::Started(_))).await;
    started.expect("the workers run")
}

/// Waits until handlers have started on this number of deliveries.
pub(crate) async fn wait_for_starts(events: &mut Events, count: usize) {
    for _ in 0..count {
        started(events).await;
    }
}
