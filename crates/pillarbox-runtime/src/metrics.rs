//! Metrics and their names. `docs/metrics.md` lists them, which a test checks.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use pillarbox_core::{Counts, Queue, QueueName};

use crate::delivery_event::{DeliveryChange, DeliveryEvent};
use crate::outcome::FailureKind;

// Counters are registered when a pool starts, with every label value that is known then: Prometheus' `increase`
// misses the first increment of a counter that appears with it.

/// The requests of a main loop, by outcome.
pub(crate) struct AnswerMetrics([(&'static str, Counter); 4]);

impl AnswerMetrics {
    /// Registers the counters of a main loop.
    pub(crate) fn new(queue: &QueueName) -> Self {
        Self(["output", "failed", "timeout", "deadline"].map(|outcome| {
            let queue = queue.to_string();
            (
                outcome,
                counter!("pillarbox.requests.answered", "queue" => queue, "outcome" => outcome),
            )
        }))
    }

    /// Counts a request.
    pub(crate) fn answered(&self, outcome: &'static str) {
        let counter = self.0.iter().find(|(other, _)| *other == outcome);
        counter.into_iter().for_each(|(_, counter)| counter.increment(1));
    }
}

/// The metrics of one queue. Each is looked up once; without a recorder they do nothing.
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
    unconfirmed: Counter,
    extended: Counter,
    lost: Counter,
    /// `None` until the messages were counted.
    levels: Option<Levels>,
    failures: HashMap<FailureKind, Counter>,
    /// The dead-letter queues, by route.
    dead_letter_queues: Vec<QueueName>,
    /// By route and type of the error.
    dead_letters: HashMap<(usize, &'static str), Counter>,
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
            unconfirmed: settled("unconfirmed"),
            extended: counter!("pillarbox.leases.extended", "queue" => name.clone()),
            lost: counter!("pillarbox.leases.lost", "queue" => name.clone()),
            levels: None,
            failures: FailureKind::all().map(|kind| (kind, failures(queue, kind))).collect(),
            dead_letters: (0..dead_letters.len())
                .flat_map(|route| FailureKind::all().map(move |kind| (route, kind.as_str())))
                .map(|(route, kind)| {
                    ((route, kind), dead_letters_sent(dead_letters[route].name(), queue, kind))
                })
                .collect(),
            dead_letter_queues: dead_letters.iter().map(|queue| queue.name().clone()).collect(),
            calls_failed: CALLS.map(|call| (call, calls_failed(queue, call))).into(),
            queue: queue.clone(),
        }
    }

    pub(crate) fn add(&mut self, event: &DeliveryEvent) {
        match &event.change {
            DeliveryChange::Received => self.received.increment(1),
            DeliveryChange::Succeeded { .. } => self.done.increment(1),
            DeliveryChange::Retried { .. } => self.retried.increment(1),
            DeliveryChange::Released { .. } => self.released.increment(1),
            DeliveryChange::Returned => self.returned.increment(1),
            DeliveryChange::Parked { .. } => self.parked.increment(1),
            DeliveryChange::DeadLettered { failure, route, .. } => {
                self.dead_lettered.increment(1);
                self.dead_letter_sent(*route, failure.type_name);
            }
            DeliveryChange::LeaseLost => self.lost.increment(1),
            DeliveryChange::Unconfirmed => self.unconfirmed.increment(1),
            DeliveryChange::Extended => self.extended.increment(1),
            DeliveryChange::Shed => self.failed(FailureKind::Overloaded),
            DeliveryChange::Failed { failure, .. } => self.failed(failure.kind),
        }
    }

    fn failed(&mut self, kind: FailureKind) {
        let queue = &self.queue;
        self.failures.entry(kind).or_insert_with(|| failures(queue, kind)).increment(1);
    }

    fn dead_letter_sent(&mut self, route: usize, error_type: &'static str) {
        let Some(queue) = self.dead_letter_queues.get(route) else { return };
        let source = &self.queue;
        let key = (route, error_type);
        let sent = self.dead_letters.entry(key);
        sent.or_insert_with(|| dead_letters_sent(queue, source, error_type)).increment(1);
    }

    pub(crate) fn took(&self, took: Duration) {
        self.duration.record(took);
    }

    /// Records the numbers of messages.
    pub(crate) fn counted(&mut self, counts: &Counts) {
        self.levels.get_or_insert_with(|| Levels::new(&self.queue)).set(counts);
    }

    pub(crate) fn call_failed(&mut self, call: &'static str) {
        let queue = &self.queue;
        let failed = self.calls_failed.entry(call);
        failed.or_insert_with(|| calls_failed(queue, call)).increment(1);
    }
}

/// The calls of a queue whose failures are counted.
const CALLS: [&str; 3] = ["receive", "settle", "extend"];

fn calls_failed(queue: &QueueName, call: &'static str) -> Counter {
    counter!("pillarbox.calls.failed", "queue" => queue.to_string(), "call" => call)
}

fn failures(queue: &QueueName, kind: FailureKind) -> Counter {
    counter!("pillarbox.handler.failures", "queue" => queue.to_string(), "kind" => kind.as_str())
}

fn dead_letters_sent(queue: &QueueName, source: &QueueName, error_type: &'static str) -> Counter {
    counter!("dlq.messages.sent", "queue" => queue.to_string(), "source" => source.to_string(), "error_type" => error_type)
}

/// Numbers of messages of a queue, by state.
struct Levels {
    depth: Gauge,
    ready: Gauge,
    in_flight: Gauge,
    delayed: Gauge,
    oldest_age: Gauge,
}

impl Levels {
    fn new(queue: &QueueName) -> Self {
        let name = queue.to_string();
        Self {
            depth: gauge!("pillarbox.queue.depth", "queue" => name.clone()),
            ready: gauge!("pillarbox.queue.ready", "queue" => name.clone()),
            in_flight: gauge!("pillarbox.queue.in_flight", "queue" => name.clone()),
            delayed: gauge!("pillarbox.queue.delayed", "queue" => name.clone()),
            oldest_age: gauge!("pillarbox.queue.oldest_age_seconds", "queue" => name),
        }
    }

    fn set(&self, counts: &Counts) {
        self.depth.set(counts.total() as f64);
        self.ready.set(counts.ready as f64);
        self.in_flight.set(counts.in_flight as f64);
        self.delayed.set(counts.delayed as f64);
        // NaN if there is a message and the backend does not know its age.
        let unknown = if counts.ready == 0 { 0.0 } else { f64::NAN };
        self.oldest_age.set(counts.oldest_age.map_or(unknown, |age| age.as_secs_f64()));
    }
}

/// The metrics of a worker pool.
pub(crate) struct PoolMetrics {
    in_flight: Gauge,
    workers: Gauge,
    sent: Counter,
}

impl PoolMetrics {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            in_flight: gauge!("pillarbox.messages.in_flight", "pool" => name.to_owned()),
            workers: gauge!("pillarbox.workers", "pool" => name.to_owned()),
            sent: counter!("pillarbox.messages.sent", "pool" => name.to_owned()),
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
