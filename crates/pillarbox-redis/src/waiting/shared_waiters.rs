//! The waiters of one queue, shared by its receives, its calls and its subscriptions.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pillarbox_core::internal::lock;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::poll_interval::WaitedPartitions;
use super::waiters::{WaiterId, Waiters};
use crate::partition_layout::PartitionNumber;

/// Waiters of one queue in this process.
#[derive(Debug)]
pub(crate) struct SharedWaiters {
    waiters: Mutex<Waiters>,
    /// Number of changes of the queue's layout that were reported.
    layout_changes: AtomicU64,
    /// Number of partitions counted in `waited` for this queue. Changed under the lock of `waiters`.
    counted: AtomicUsize,
    waited: Arc<WaitedPartitions>,
}

impl SharedWaiters {
    pub(crate) fn new(waited: Arc<WaitedPartitions>) -> Self {
        Self {
            waiters: Mutex::new(Waiters::new()),
            layout_changes: AtomicU64::new(0),
            counted: AtomicUsize::new(0),
            waited,
        }
    }

    /// Locks the waiters. Never held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Waiters> {
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

    /// Adds a waiter behind the others.
    pub(crate) fn join(&self) -> WaiterGuard<'_> {
        let mut waiters = self.lock();
        let (id, signal) = waiters.join();
        self.count(&waiters);
        WaiterGuard { waiters: self, id, signal }
    }

    pub(crate) fn next_poll(&self, id: WaiterId) -> Option<Instant> {
        let intervals = self.waited.poll_intervals();
        self.lock().next_poll(id, intervals)
    }

    pub(crate) fn take_queries(&self, id: WaiterId, now: Instant) -> Vec<PartitionNumber> {
        let intervals = self.waited.poll_intervals();
        self.lock().take_queries(id, now, intervals)
    }

    fn count(&self, waiters: &Waiters) {
        let partitions = if waiters.is_empty() { 0 } else { waiters.partitions() };
        let before = self.counted.swap(partitions, Ordering::Relaxed);
        self.waited.replace(before, partitions);
    }
}

/// A waiter of a queue; leaves when dropped.
pub(crate) struct WaiterGuard<'a> {
    waiters: &'a SharedWaiters,
    pub(crate) id: WaiterId,
    pub(crate) signal: Arc<Notify>,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        let mut waiters = self.waiters.lock();
        waiters.leave(self.id);
        self.waiters.count(&waiters);
    }
}
