//! What workers show to a watchdog: that they turn, and what they are at.
//!
//! Nothing here has a clock, and nothing is shown to nobody: a worker that is not watched looks at one
//! atomic for each delivery.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::lock;
use crate::event::About;
use crate::lease::Lease;

/// The signs of life of a group of workers.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// How long the driver may take to its next turn, in nanoseconds. 0 where nobody watches.
    turn_within: AtomicU64,
    turns: AtomicU64,
    /// The driver makes no more turns, and need not.
    is_over: AtomicBool,
    /// Some handler has not ended, and blocks its thread.
    has_left: AtomicBool,
    /// By worker.
    slots: Mutex<Vec<Arc<Slot>>>,
}

impl Pulse {
    /// From now on somebody watches, and wants to see a turn as often as this.
    pub(crate) fn watch(&self, turn_within: Duration) {
        let nanos = u64::try_from(turn_within.as_nanos()).unwrap_or(u64::MAX);
        self.turn_within.store(nanos.max(1), Ordering::Relaxed);
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.turn_within.load(Ordering::Relaxed) > 0
    }

    /// How long the driver may take to its next turn, where somebody watches.
    pub(crate) fn turn_within(&self) -> Option<Duration> {
        let nanos = self.turn_within.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }

    /// The driver makes a turn.
    pub(crate) fn turn(&self) {
        // The driver alone writes it: no other turn is lost in between.
        self.turns.store(self.turns.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// The driver has made its last turn.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// A handler does not end, and is left behind.
    pub(crate) fn leave_behind(&self) {
        self.has_left.store(true, Ordering::Relaxed);
    }

    /// Whether a handler was left behind.
    pub(super) fn has_left_behind(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    /// Where a worker shows what it is at.
    pub(crate) fn slot(&self, worker: usize) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        while slots.len() <= worker {
            slots.push(Arc::default());
        }
        slots[worker].clone()
    }

    /// How many turns the driver has made. `None` once it need not make any more.
    pub(super) fn turns(&self) -> Option<u64> {
        let is_over = self.is_over.load(Ordering::Relaxed);
        (!is_over).then(|| self.turns.load(Ordering::Relaxed))
    }

    /// What each worker is at, by its number.
    pub(super) fn work(&self) -> Vec<Option<Work>> {
        lock(&self.slots).iter().map(|slot| lock(&slot.0).work.clone()).collect()
    }
}

/// Where one worker shows what it is at. It alone writes here, so it never waits for longer than a look
/// takes.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<Shown>);

#[derive(Debug, Default)]
struct Shown {
    /// How many deliveries were shown.
    count: u64,
    work: Option<Work>,
}

/// A delivery that a worker is at.
#[derive(Debug, Clone)]
pub(super) struct Work {
    /// Tells it from others that the worker was at.
    pub(super) number: u64,
    pub(super) about: About,
    pub(super) lease: Arc<Lease>,
}

impl Slot {
    /// Shows a delivery until the answer is dropped.
    pub(crate) fn show(self: &Arc<Self>, about: About, lease: Arc<Lease>) -> Showing {
        let mut shown = lock(&self.0);
        shown.count += 1;
        shown.work = Some(Work { number: shown.count, about, lease });
        Showing(self.clone())
    }
}

/// A delivery that is shown.
#[derive(Debug)]
pub(crate) struct Showing(Arc<Slot>);

impl Drop for Showing {
    fn drop(&mut self) {
        lock(&self.0.0).work = None;
    }
}
