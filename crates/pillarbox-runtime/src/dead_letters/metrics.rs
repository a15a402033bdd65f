//! Metrics of dead letters; `docs/metrics.md` lists them.

use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
use pillarbox_core::QueueName;
use tokio::time::Instant;

pub(super) fn depth(queue: &QueueName, depth: u64) {
    gauge!("dlq.queue.depth", "queue" => queue.to_string()).set(depth as f64);
}

/// Registers the counters of a queue, so that the first increment of each is visible.
pub(crate) fn register(queue: &QueueName) {
    for counter in [expired_counter, replayed_counter, discarded_counter, processed_counter] {
        drop(counter(queue));
    }
}

/// Registers the counter of expired dead letters.
pub(super) fn register_expired(queue: &QueueName) {
    drop(expired_counter(queue));
}

fn expired_counter(queue: &QueueName) -> Counter {
    counter!("dlq.messages.expired", "queue" => queue.to_string())
}

fn replayed_counter(queue: &QueueName) -> Counter {
    counter!("dlq.messages.replayed", "queue" => queue.to_string())
}

fn discarded_counter(queue: &QueueName) -> Counter {
    counter!("dlq.messages.discarded", "queue" => queue.to_string())
}

fn processed_counter(queue: &QueueName) -> Counter {
    counter!("dlq.messages.processed", "queue" => queue.to_string())
}

pub(crate) fn expired(queue: &QueueName, letters: u64) {
    if letters > 0 {
        expired_counter(queue).increment(letters);
    }
}

pub(crate) fn replayed(queue: &QueueName) {
    replayed_counter(queue).increment(1);
}

pub(crate) fn discarded(queue: &QueueName) {
    discarded_counter(queue).increment(1);
}

pub(crate) fn processed(queue: &QueueName) {
    processed_counter(queue).increment(1);
}

/// Records the duration of a handler when dropped, however the handler ends.
#[derive(Debug)]
pub(crate) struct Stopwatch<'a> {
    queue: &'a QueueName,
    start: Instant,
}

impl<'a> Stopwatch<'a> {
    pub(crate) fn start(queue: &'a QueueName) -> Self {
        Self { queue, start: Instant::now() }
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        let millis = self.start.elapsed().as_secs_f64() * 1e3;
        histogram!("dlq.processing.duration_ms", "queue" => self.queue.to_string()).record(millis);
    }
}

pub(super) fn age(queue: &QueueName, age: Duration) {
    histogram!("dlq.message.age_seconds", "queue" => queue.to_string()).record(age.as_secs_f64());
}
