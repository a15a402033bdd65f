//! Metrics of dead letters; `docs/metrics.md` lists them.

use std::time::Duration;

use metrics::{Counter, counter, gauge, histogram};
use pillarbox_core::QueueName;
use tokio::time::Instant;

const EXPIRED: &str = "dlq.messages.expired";
const REPLAYED: &str = "dlq.messages.replayed";
const DISCARDED: &str = "dlq.messages.discarded";
const PROCESSED: &str = "dlq.messages.processed";

pub(super) fn depth(queue: &QueueName, depth: u64) {
    gauge!("dlq.queue.depth", "queue" => queue.to_string()).set(depth as f64);
}

/// Registers the counters of a queue, so that the first increment of each is visible.
pub(crate) fn register(queue: &QueueName) {
    for name in [EXPIRED, REPLAYED, DISCARDED, PROCESSED] {
        drop(letters(name, queue));
    }
}

/// Registers the counter of expired dead letters.
pub(super) fn register_expired(queue: &QueueName) {
    drop(letters(EXPIRED, queue));
}

fn letters(name: &'static str, queue: &QueueName) -> Counter {
    counter!(name, "queue" => queue.to_string())
}

pub(crate) fn expired(queue: &QueueName, count: u64) {
    if count > 0 {
        letters(EXPIRED, queue).increment(count);
    }
}

pub(crate) fn replayed(queue: &QueueName) {
    letters(REPLAYED, queue).increment(1);
}

pub(crate) fn discarded(queue: &QueueName) {
    letters(DISCARDED, queue).increment(1);
}

pub(crate) fn processed(queue: &QueueName) {
    letters(PROCESSED, queue).increment(1);
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
