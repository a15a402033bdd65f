//! What is measured, under which names. `docs/metrics.md` is the table; a test holds the two together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use pillarbox_core::{Queue, QueueName};

use crate::dispatcher::{Note, What};
use crate::outcome::FailureKind;

/// A request of a main loop was answered, or would have been.
pub(crate) fn answered(queue: &QueueName, outcome: &'static str) {
    counter!("pillarbox.requests.answered", "queue" => queue.to_string(), "outcome" => outcome)
        .increment(1);
}

/// The instruments of one queue. They are looked up once; without a recorder each is nothing.
pub(crate) struct QueueMetrics {
    queue: QueueName,
    received: Counter,
    duration: Histogram,
    done: Counter,
    retried: Counter,
    released: Counter,
    returned: Counter,
    parked: Counter,
    dead_lettered: Counter,
    unsettled: Counter,
    extended: Counter,
    lost: Counter,
    depth: Gauge,
    failures: HashMap<FailureKind, Counter>,
    /// Where dead letters go, and how many went, by that and the type of the error.
    graves: Vec<QueueName>,
    buried: HashMap<(usize, &'static str), Counter>,
    calls_failed: HashMap<&'static str, Counter>,
}

impl QueueMetrics {
    pub(crate) fn new(queue: &Arc<dyn Queue>, dead_letters: &[Arc<dyn Queue>]) -> Self {
        let queue = queue.name();
        let name = queue.to_string();
        let settled = |outcome: &'static str| counter!("pillarbox.messages.settled", "queue" => name.clone(), "outcome" => outcome);
        Self {
            received: counter!("pillarbox.messages.received", "queue" => name.clone()),
            duration: histogram!("pillarbox.handler.duration_seconds", "queue" => name.clone()),
            done: settled("done"),
            retried: settled("retried"),
            released: settled("released"),
            returned: settled("returned"),
            parked: settled("parked"),
            dead_lettered: settled("dead_lettered"),
            unsettled: settled("unsettled"),
            extended: counter!("pillarbox.leases.extended", "queue" => name.clone()),
            lost: counter!("pillarbox.leases.lost", "queue" => name.clone()),
            depth: gauge!("pillarbox.queue.depth", "queue" => name),
            failures: HashMap::new(),
            graves: dead_letters.iter().map(|queue| queue.name().clone()).collect(),
            buried: HashMap::new(),
            calls_failed: HashMap::new(),
            queue: queue.clone(),
        }
    }

    pub(crate) fn add(&mut self, note: &Note) {
        match &note.what {
            What::Received => self.received.increment(1),
            What::Succeeded { .. } => self.done.increment(1),
            What::Retried { .. } => self.retried.increment(1),
            What::Released { .. } => self.released.increment(1),
            What::Returned => self.returned.increment(1),
            What::Parked { .. } => self.parked.increment(1),
            What::DeadLettered { failure, route, .. } => {
                self.dead_lettered.increment(1);
                self.buried(*route, failure.type_name);
            }
            What::LeaseLost => self.lost.increment(1),
            What::Unsettled => self.unsettled.increment(1),
            What::Extended => self.extended.increment(1),
            What::Shed => self.failed(FailureKind::Overloaded),
            What::Failed { failure, .. } => self.failed(failure.kind),
        }
    }

    fn failed(&mut self, kind: FailureKind) {
        let queue = &self.queue;
        let failures = self.failures.entry(kind).or_insert_with(|| {
            let queue = queue.to_string();
            counter!("pillarbox.handler.failures", "queue" => queue, "kind" => kind.as_str())
        });
        failures.increment(1);
    }

    fn buried(&mut self, route: usize, error_type: &'static str) {
        let Some(queue) = self.graves.get(route) else { return };
        let source = &self.queue;
        let buried = self.buried.entry((route, error_type)).or_insert_with(|| {
            counter!("dlq.messages.sent", "queue" => queue.to_string(), "source" => source.to_string(), "error_type" => error_type)
        });
        buried.increment(1);
    }

    pub(crate) fn took(&self, took: Duration) {
        self.duration.record(took);
    }

    pub(crate) fn depth(&self, depth: u64) {
        self.depth.set(depth as f64);
    }

    pub(crate) fn call_failed(&mut self, call: &'static str) {
        let queue = &self.queue;
        let failed = self.calls_failed.entry(call).or_insert_with(
            || counter!("pillarbox.calls.failed", "queue" => queue.to_string(), "call" => call),
        );
        failed.increment(1);
    }
}

/// The instruments of a group of workers.
pub(crate) struct GroupMetrics {
    in_flight: Gauge,
    workers: Gauge,
    sent: Counter,
}

impl GroupMetrics {
    pub(crate) fn new(group: &str) -> Self {
        Self {
            in_flight: gauge!("pillarbox.messages.in_flight", "group" => group.to_owned()),
            workers: gauge!("pillarbox.workers", "group" => group.to_owned()),
            sent: counter!("pillarbox.messages.sent", "group" => group.to_owned()),
        }
    }

    pub(crate) fn level(&self, in_flight: usize, workers: usize) {
        self.in_flight.set(in_flight as f64);
        self.workers.set(workers as f64);
    }

    pub(crate) fn sent(&self, messages: u64) {
        self.sent.increment(messages);
    }
}
