//! What it costs to watch the workers: by events, by metrics, or by both.
//!
//! The rows say how many times faster jobs are that nobody watches. The listener takes every event
//! and counts it; what it is too slow for, it misses. The recorder adds counters and gauges up in
//! atomics, and of histograms the number and the sum: an exporter does more. It stays installed once
//! it is, but gives out instruments that do nothing while it is off, which is what workers get where
//! no recorder is installed.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
};
use pillarbox_runtime::Event;

use super::load::{Seen, Took, fill};
use super::ours;
use super::store::Address;
use super::throughput::figures;
use crate::measure::{Case, Plan, Result, expect_eq, on_two_threads};

/// Who watches.
#[derive(Debug, Clone, Copy, Default)]
struct Watched {
    by_events: bool,
    by_metrics: bool,
}

/// Default workers in memory, with and without observers.
pub(super) fn case(plan: &Plan) -> Case {
    let jobs = plan.pick(400_000, 4_000);
    let run = move |watched: Watched| Ok(on_two_threads(drain(jobs, watched))?.figures(jobs));
    let name = "no-op handlers, memory, not observed".to_owned();
    Case::several(name.clone(), figures(&name), move || run(Watched::default()))
        .against("Pillarbox, with an event listener", move || {
            run(Watched { by_events: true, by_metrics: false })
        })
        .against("Pillarbox, with a metrics recorder", move || {
            run(Watched { by_events: false, by_metrics: true })
        })
        .against("Pillarbox, with both", move || run(Watched { by_events: true, by_metrics: true }))
}

async fn drain(jobs: u64, watched: Watched) -> Result<Took> {
    let sums = Sums::switch(watched.by_metrics)?;
    let before = sums.all();
    let opened = Address::Memory.open().await?;
    fill(&opened.mailbox, jobs).await?;
    let seen = Seen::none_of(jobs);
    let workers = ours::workers(&opened.mailbox, &seen);
    let events = watched.by_events.then(|| workers.control().events());
    let listener = tokio::spawn(async move {
        let (mut heard, Some(mut events)) = (0, events) else { return 0 };
        while let Some(event) = events.next().await {
            heard += 1;
            if matches!(event, Event::Drained) {
                break;
            }
        }
        heard + events.missed()
    });
    let took = ours::run(workers, &seen, jobs).await?;
    opened.close().await?;

    // Received, started and succeeded, and at last draining and drained.
    let reported = if watched.by_events { 3 * jobs + 2 } else { 0 };
    expect_eq("events reported", listener.await?, reported)?;
    // Received and settled are counted, and how long it took is recorded.
    let recorded = if watched.by_metrics { 3 * jobs } else { 0 };
    expect_eq("things recorded", sums.all() - before, recorded)?;
    Ok(took)
}

/// A recorder that only adds up, and can be switched off.
#[derive(Debug, Default)]
struct Sums {
    is_on: AtomicBool,
    counted: Arc<AtomicU64>,
    gauge: Arc<AtomicU64>,
    times: Arc<Times>,
}

#[derive(Debug, Default)]
struct Times {
    count: AtomicU64,
    micros: AtomicU64,
}

impl Sums {
    /// Installs it unless it is, and switches it on or off.
    fn switch(is_on: bool) -> Result<&'static Self> {
        static SUMS: OnceLock<&'static Sums> = OnceLock::new();
        let sums = match SUMS.get() {
            Some(sums) => sums,
            None => {
                let sums: &'static Self = Box::leak(Box::default());
                metrics::set_global_recorder(sums)?;
                SUMS.get_or_init(|| sums)
            }
        };
        sums.is_on.store(is_on, Ordering::Release);
        Ok(sums)
    }

    fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// What was counted, and how many times were recorded.
    fn all(&self) -> u64 {
        self.counted.load(Ordering::Acquire) + self.times.count.load(Ordering::Acquire)
    }
}

impl Recorder for Sums {
    fn describe_counter(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<metrics::Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        if self.is_on() { Counter::from_arc(self.counted.clone()) } else { Counter::noop() }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        if self.is_on() { Gauge::from_arc(self.gauge.clone()) } else { Gauge::noop() }
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        if self.is_on() { Histogram::from_arc(self.times.clone()) } else { Histogram::noop() }
    }
}

impl HistogramFn for Times {
    fn record(&self, seconds: f64) {
        self.micros.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }
}
