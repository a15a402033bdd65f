//! Receipts of the dead letters that a pass has received and skips.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{Queue, Receipt, Result, Settle};
use tokio::time::Instant;

/// Dead letters that were received and skipped, in their order.
pub(super) struct HeldReceipts {
    queue: Arc<dyn Queue>,
    lease: Duration,
    receipts: VecDeque<Receipt>,
    /// When all leases are extended next.
    extend_at: Instant,
}

impl HeldReceipts {
    pub(super) fn new(queue: Arc<dyn Queue>, lease: Duration) -> Self {
        Self { queue, lease, receipts: VecDeque::new(), extend_at: after(lease / 2) }
    }

    pub(super) fn len(&self) -> usize {
        self.receipts.len()
    }

    pub(super) fn push(&mut self, receipt: Receipt) {
        self.receipts.push_back(receipt);
    }

    /// Returns the time until the leases must be extended.
    pub(super) fn extend_in(&self) -> Duration {
        self.extend_at.saturating_duration_since(Instant::now())
    }

    /// Waits until `deadline`, and extends the leases meanwhile, so that none expires: each was begun or
    /// extended less than half of its duration ago.
    pub(super) async fn keep_until(&mut self, deadline: Instant) -> Result<()> {
        loop {
            tokio::time::sleep_until(deadline.min(self.extend_at)).await;
            if Instant::now() < self.extend_at {
                return Ok(());
            }
            self.extend_at = after(self.lease / 2);
            let receipts: Vec<&Receipt> = self.receipts.iter().collect();
            for some in receipts.chunks(self.queue.capabilities().max_batch) {
                let settles =
                    some.iter().map(|receipt| Settle::extend((*receipt).clone(), self.lease));
                // One whose lease was lost is received and examined again.
                self.queue.settle(settles.collect()).await?;
            }
        }
    }

    /// Releases all of them, in their order.
    pub(super) async fn release(&mut self) -> Result<()> {
        let max = self.queue.capabilities().max_batch;
        while !self.receipts.is_empty() {
            let some = self.receipts.drain(..max.min(self.receipts.len()));
            let settles = some.map(|receipt| Settle::release(receipt, Duration::ZERO));
            self.queue.settle(settles.collect()).await?;
        }
        Ok(())
    }
}
