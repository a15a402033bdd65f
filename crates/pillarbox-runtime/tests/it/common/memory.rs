//! Queues in memory, and workers on them.

use std::sync::Arc;

use pillarbox_core::{Json, Mailbox, Mailboxes, MemoryBackend, NoReplies, QueueOptions};
use pillarbox_runtime::{Event, Events, Runnable, Running};
use pillarbox_testing::{FaultQueue, Faults};

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
