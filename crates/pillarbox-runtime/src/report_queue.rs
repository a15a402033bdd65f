//! The reports of the workers of a pool, on their way to the driver.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::task::AtomicWaker;
use pillarbox_core::internal::lock;
use tokio::time::Instant;

use crate::dispatcher::{Finished, Key};

/// The longest time for which reports are collected, from the beginning of the first handler. A handler that waits for
/// something does not delay them: only one that blocks its thread does.
const COLLECT: Duration = Duration::from_micros(50);

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
/// pending. Bounded by the assignments in the channels of the workers, each of which is reported on twice at most.
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

/// Reports of one worker that are not passed on yet, so that those of short handlers go together. What is left when the
/// worker ends is passed on as well.
#[derive(Debug)]
pub(crate) struct CollectedReports {
    queue: Arc<ReportQueue>,
    reports: Vec<WorkerReport>,
    /// When the handler of the first report began.
    since: Option<Instant>,
}

impl CollectedReports {
    pub(crate) const fn new(queue: Arc<ReportQueue>) -> Self {
        Self { queue, reports: Vec::new(), since: None }
    }

    /// Adds a report. Returns whether the reports are to be passed on now.
    pub(crate) fn add(&mut self, report: WorkerReport, now: Instant) -> bool {
        let took = match &report {
            WorkerReport::Finished(finished) => finished.took.unwrap_or_default(),
            _ => Duration::ZERO,
        };
        self.reports.push(report);
        now - *self.since.get_or_insert(now - took) >= COLLECT
    }

    /// Passes the reports on. Returns false if the driver has ended.
    pub(crate) fn pass_on(&mut self) -> bool {
        self.since = None;
        self.queue.add(&mut self.reports)
    }

    /// Runs a future, and passes the reports on once it waits for something: it may take long.
    pub(crate) async fn pass_on_while_pending<F: Future>(&mut self, future: F) -> F::Output {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            let ended = future.as_mut().poll(context);
            if ended.is_pending() {
                self.pass_on();
            }
            ended
        })
        .await
    }
}

impl Drop for CollectedReports {
    fn drop(&mut self) {
        self.pass_on();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const SKIPPED: WorkerReport = WorkerReport::Skipped { worker: 0 };

    fn collected() -> (Arc<ReportQueue>, CollectedReports) {
        let queue = Arc::new(ReportQueue::default());
        (queue.clone(), CollectedReports::new(queue))
    }

    fn taken(queue: &ReportQueue) -> usize {
        let mut taken = Vec::new();
        queue.take(&mut taken);
        taken.len()
    }

    #[test]
    fn reports_are_collected_for_a_short_time() {
        let (queue, mut collected) = collected();
        let now = Instant::now();
        assert!(!collected.add(SKIPPED, now) && !collected.add(SKIPPED, now + COLLECT / 2));
        assert_eq!(taken(&queue), 0);
        assert!(collected.add(SKIPPED, now + COLLECT) && collected.pass_on());
        assert_eq!(taken(&queue), 3);
        assert!(!collected.add(SKIPPED, now + COLLECT), "the time begins again");
    }

    #[test]
    fn reports_are_passed_on_while_a_handler_waits_and_when_the_worker_ends() {
        let (queue, mut collected) = collected();
        collected.add(SKIPPED, Instant::now());
        assert_eq!(collected.pass_on_while_pending(async {}).now_or_never(), Some(()));
        assert_eq!(taken(&queue), 0, "it did not wait");
        let waiting = collected.pass_on_while_pending(std::future::pending::<()>());
        assert_eq!(waiting.now_or_never(), None);
        assert_eq!(taken(&queue), 1);
        collected.add(SKIPPED, Instant::now());
        drop(collected);
        assert_eq!(taken(&queue), 1);
    }

    #[test]
    fn after_the_end_of_the_driver_no_report_is_accepted() {
        let (queue, mut collected) = collected();
        assert!(collected.pass_on());
        queue.close();
        assert!(!collected.pass_on());
    }
}
