//! What is measured of dead letters. `docs/metrics.md` is the table.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use pillarbox_core::QueueName;

pub(super) fn depth(queue: &QueueName, depth: u64) {
    gauge!("dlq.queue.depth", "queue" => queue.to_string()).set(depth as f64);
}

pub(super) fn expired(queue: &QueueName, letters: u64) {
    if letters > 0 {
        counter!("dlq.messages.expired", "queue" => queue.to_string()).increment(letters);
    }
}

pub(super) fn replayed(queue: &QueueName) {
    counter!("dlq.messages.replayed", "queue" => queue.to_string()).increment(1);
}

pub(super) fn discarded(queue: &QueueName) {
    counter!("dlq.messages.discarded", "queue" => queue.to_string()).increment(1);
}

pub(super) fn processed(queue: &QueueName, took: Duration) {
    let queue = queue.to_string();
    counter!("dlq.messages.processed", "queue" => queue.clone()).increment(1);
    histogram!("dlq.processing.duration_ms", "queue" => queue).record(took.as_secs_f64() * 1e3);
}

pub(super) fn age(queue: &QueueName, age: Duration) {
    histogram!("dlq.message.age_seconds", "queue" => queue.to_string()).record(age.as_secs_f64());
}
