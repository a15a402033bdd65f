//! Signs of life of a worker pool, for the watchdog.
//!
//! Nothing here has a clock. While nobody watches, a worker pays one atomic load per delivery.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::internal::lock;

use crate::event::About;
use crate::lease::Lease;

/// The signs of life of a worker pool.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Longest time between two turns of the driver, in nanoseconds. 0 if nobody watches.
    turn_within: AtomicU64,
    turns: AtomicU64,
    /// The driver has made its last turn.
    is_over: AtomicBool,
    /// A handler that blocks its thread did not end.
    has_left: AtomicBool,
    workers: Mutex<Vec<Arc<WorkerPulse>>>,
}

impl Pulse {
    /// Starts watching: the driver makes a turn at least once in this time.
    pub(crate) fn watch(&self, turn_within: Duration) {
        let nanos = u64::try_from(turn_within.as_nanos()).unwrap_or(u64::MAX);
        self.turn_within.store(nanos.max(1), Ordering::Relaxed);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.turn_within.load(Ordering::Relaxed) > 0
    }

    /// Returns the longest time between two turns of the driver, if a watchdog watches it.
    pub(crate) fn turn_within(&self) -> Option<Duration> {
        let nanos = self.turn_within.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// Counts a turn of the driver.
    pub(crate) fn turn(&self) {
        // Only the driver writes it, so no turn is lost between load and store.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Marks the last turn of the driver.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Marks that a handler did not end and was left behind.
    pub(crate) fn leave_behind(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_left_behind(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Returns the pulse of one worker.
    pub(crate) fn worker(&self, worker: usize) -> Arc<WorkerPulse> {
        let mut workers = lock(&self.workers);
        while workers.len() <= worker {
            workers.push(Arc::default());
        }
        workers[worker].clone()
    }

    /// Returns the number of turns of the driver. `None` after its last.
    pub(crate) fn turns(&self) -> Option<u64> {
        let is_over = self.is_over.load(Ordering::Relaxed);
        (!is_over).then(|| self.turns.load(Ordering::Relaxed))
    }

    /// Returns what each worker handles, by its number.
    pub(crate) fn work(&self) -> Vec<Option<Work>> {
        lock(&self.workers).iter().map(|worker| lock(&worker.0).work.clone()).collect()
    }
}

/// What one worker handles. Only that worker writes here, so it waits for readers at most.
#[derive(Debug, Default)]
pub(crate) struct WorkerPulse(Mutex<Current>);

#[derive(Debug, Default)]
struct Current {
    /// Number of deliveries so far.
    count: u64,
    work: Option<Work>,
}

/// A delivery that a worker handles.
#[derive(Debug, Clone)]
pub(crate) struct Work {
    /// Distinguishes it from other deliveries of the worker.
    pub(crate) number: u64,
    pub(crate) about: About,
    pub(crate) lease: Arc<Lease>,
}

impl WorkerPulse {
    /// Shows a delivery until the guard is dropped.
    pub(crate) fn show(self: &Arc<Self>, about: About, lease: Arc<Lease>) -> ShowGuard {
        let mut current = lock(&self.0);
        current.count += 1;
        current.work = Some(Work { number: current.count, about, lease });
        ShowGuard(self.clone())
    }
}

/// Shows a delivery until it is dropped.
#[derive(Debug)]
pub(crate) struct ShowGuard(Arc<WorkerPulse>);

impl Drop for ShowGuard {
    fn drop(&mut self) {
        lock(&self.0.0).work = None;
    }
}
