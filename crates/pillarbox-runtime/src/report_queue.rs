//! The reports of the workers of a pool, on their way to the driver.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures_util::task::AtomicWaker;
use pillarbox_core::internal::lock;

use crate::dispatcher::{Finished, Key};

/// What a worker reports to the driver.
#[derive(Debug)]
pub(crate) enum WorkerReport {
    /// It is through with a delivery.
    Finished(Finished),
    /// It took a delivery, and waits until the start is recorded in the queue.
    Starting { key: Key },
    /// It came to a delivery that had been taken back.
    Skipped { worker: usize },
    /// It did not run a delivery because of a stop.
    Declined { key: Key, worker: usize },
}

/// Reports that the driver has not taken. Adding some never waits, so that a worker can report while its handler is
/// pending. Bounded by the deliveries in flight, each of which is reported on twice at most.
#[derive(Debug, Default)]
pub(crate) struct ReportQueue {
    reports: Mutex<Vec<WorkerReport>>,
    driver: AtomicWaker,
    is_closed: AtomicBool,
}

impl ReportQueue {
    /// Adds reports and wakes the driver. Returns false if the driver has ended.
    pub(crate) fn add(&self, reports: &mut Vec<WorkerReport>) -> bool {
        if reports.is_empty() {
            return !self.is_closed();
        }
        lock(&self.reports).append(reports);
        self.driver.wake();
        !self.is_closed()
    }

    /// Takes all reports. Pending if there are none.
    pub(crate) fn poll_take(
        &self,
        context: &mut Context<'_>,
        taken: &mut Vec<WorkerReport>,
    ) -> Poll<()> {
        // Register before the look, so that no report in between is missed.
        self.driver.register(context.waker());
        if self.take(taken) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Takes all reports. Returns whether there were some. `taken` must be empty, and its memory is used again.
    pub(crate) fn take(&self, taken: &mut Vec<WorkerReport>) -> bool {
        std::mem::swap(&mut *lock(&self.reports), taken);
        !taken.is_empty()
    }

    /// Makes workers that want to report end instead.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}
