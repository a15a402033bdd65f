//! The waiters of one queue, shared by its receives, its calls and its subscriptions.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pillarbox_core::internal::{Locked, lock};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::poll_interval::{PollIntervals, WaitedPartitions};
use super::waiters::{WaiterId, Waiters};
use crate::layout::PartitionNumber;

/// Waiters of one queue in this process.
#[derive(Debug)]
pub(crate) struct QueueWaiters {
    waiters: Mutex<Waiters>,
    /// Number of changes of the queue's layout that were reported.
    layout_changes: AtomicU64,
    /// Number of partitions counted in `waited` for this queue. Changed under the lock of `waiters`.
    counted: AtomicUsize,
    waited: Arc<WaitedPartitions>,
}

impl QueueWaiters {
    pub(crate) fn new(waited: Arc<WaitedPartitions>) -> Self {
        Self {
            waiters: Mutex::new(Waiters::new()),
            layout_changes: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
            waited,
        }
    }

    /// Locks the waiters. Never held across an await.
    pub(crate) fn lock(&self) -> Locked<'_, Waiters> {
        lock(&self.waiters)
    }

    /// Sets the number of partitions of the queue.
    pub(crate) fn set_partitions(&self, partitions: PartitionNumber) {
        let mut waiters = self.lock();
        waiters.set_partitions(partitions);
        self.count(&waiters);
    }

    pub(crate) fn layout_changes(&self) -> u64 {
        self.layout_changes.load(Ordering::Acquire)
    }

    /// Records that the layout read before is out of date.
    pub(crate) fn record_layout_change(&self) {
        self.layout_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Has a waiter read the layout, which was reported to have changed.
    pub(super) fn layout_changed(&self) {
        self.record_layout_change();
        self.lock().notify_next();
    }

    pub(super) fn join(&self) -> (WaiterId, Arc<Notify>) {
        let mut waiters = self.lock();
        let joined = waiters.join();
        self.count(&waiters);
        joined
    }

    pub(super) fn leave(&self, id: WaiterId) {
        let mut waiters = self.lock();
        waiters.leave(id);
        self.count(&waiters);
    }

    pub(super) fn next_poll(&self, id: WaiterId) -> Option<Instant> {
        let intervals = self.poll_intervals();
        self.lock().next_poll(id, intervals)
    }

    pub(super) fn poll_intervals(&self) -> PollIntervals {
        self.waited.poll_intervals()
    }

    fn count(&self, waiters: &Waiters) {
        let partitions = if waiters.is_empty() { 0 } else { waiters.partitions() };
        let before = self.counted.swap(partitions, Ordering::Relaxed);
        self.waited.replace(before, partitions);
    }
}
