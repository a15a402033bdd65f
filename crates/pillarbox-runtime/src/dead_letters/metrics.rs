//! What is measured of dead letters. `docs/metrics.md` is the table.

use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
use pillarbox_core::QueueName;
use tokio::time::Instant;

pub(super) fn depth(queue: &QueueName, depth: u64) {
    gauge!("dlq.queue.depth", "queue" => queue.to_string()).set(depth as f64);
}

/// Somebody begins to look after a queue of dead letters: its counters are there from now on, so that the first of
/// each is seen.
pub(super) fn begin(queue: &QueueName) {
    for counter in [all_expired, all_replayed, all_discarded, all_processed] {
        drop(counter(queue));
    }
}

/// Somebody begins to delete those that are old.
pub(super) fn begin_expiring(queue: &QueueName) {
    drop(all_expired(queue));
}

fn all_expired(queue: &QueueName) -> Counter {
    counter!("dlq.messages.expired", "queue" => queue.to_string())
}

fn all_replayed(queue: &QueueName) -> Counter {
    counter!("dlq.messages.replayed", "queue" => queue.to_string())
}

fn all_discarded(queue: &QueueName) -> Counter {
    counter!("dlq.messages.discarded", "queue" => queue.to_string())
}

fn all_processed(queue: &QueueName) -> Counter {
    counter!("dlq.messages.processed", "queue" => queue.to_string())
}

pub(super) fn expired(queue: &QueueName, letters: u64) {
    if letters > 0 {
        all_expired(queue).increment(letters);
    }
}

pub(super) fn replayed(queue: &QueueName) {
    all_replayed(queue).increment(1);
}

pub(super) fn discarded(queue: &QueueName) {
    all_discarded(queue).increment(1);
}

pub(super) fn processed(queue: &QueueName) {
    all_processed(queue).increment(1);
}

/// Measures how long a handler takes, until it is dropped: however the handler ends.
#[derive(Debug)]
pub(super) struct Stopwatch<'a> {
    queue: &'a QueueName,
    begun: Instant,
}

impl<'a> Stopwatch<'a> {
    pub(super) fn start(queue: &'a QueueName) -> Self {
        Self { queue, begun: Instant::now() }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        let millis = self.begun.elapsed().as_secs_f64() * 1e3;
        histogram!("dlq.processing.duration_ms", "queue" => self.queue.to_string()).record(millis);
    }
}

pub(super) fn age(queue: &QueueName, age: Duration) {
    histogram!("dlq.message.age_seconds", "queue" => queue.to_string()).record(age.as_secs_f64());
}
