//! Partitions that do not answer: others are used meanwhile, and they are probed until they answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::PartitionedQueue;
use crate::failure::Failure;
use crate::partition_layout::PartitionNumber;
use crate::retrying_client::retry_delay;

/// Time without an answer after which other partitions are used instead.
pub(super) const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

impl PartitionedQueue {
    /// Waits for an answer of a partition, and probes the partition if that takes long. The cause may be a
    /// large batch or slow replicas; or the partition is unresponsive, and later calls skip it.
    pub(super) async fn answer_or_probe<T>(
        self: &Arc<Self>,
        number: PartitionNumber,
        answer: impl Future<Output = T>,
    ) -> T {
        if self.is_single() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout(RESPONSE_TIMEOUT, &mut answer).await {
            return answer;
        }
        let queue = self.clone();
        self.context().spawn(async move {
            let partition = queue.partition(number);
            let _ = queue.answer_or_skip(number, RESPONSE_TIMEOUT, partition.count_ready()).await;
        });
        answer.await
    }

    /// Waits for the answer of a partition until `limit`. A partition that does not answer in time is unresponsive,
    /// and skipped until it answers a task that probes it. (A delivery that arrives too late is released.)
    pub(super) async fn answer_or_skip<T>(
        self: &Arc<Self>,
        number: PartitionNumber,
        limit: Duration,
        answer: impl Future<Output = T>,
    ) -> Option<T> {
        if self.state.waiters.lock().all_unresponsive() {
            // There is no other to be used instead.
            return Some(answer.await);
        }
        let answer = timeout(limit, answer).await.ok();
        if answer.is_none() {
            self.set_unresponsive(number);
        }
        answer
    }

    /// Marks a partition as unresponsive, and probes it until it answers.
    fn set_unresponsive(self: &Arc<Self>, number: PartitionNumber) {
        if !self.state.waiters.lock().set_unresponsive(number, true) {
            return;
        }
        let queue = self.name();
        tracing::warn!(%queue, number, "a partition does not answer; others are used meanwhile");
        let (queue, partition) = (Arc::downgrade(self), self.partition(number));
        self.context().spawn(async move {
            let mut delay = retry_delay();
            while let Err(failure) = partition.count_ready().await {
                if matches!(failure, Failure::Closed) || queue.strong_count() == 0 {
                    return;
                }
                tokio::time::sleep(delay.next_delay()).await;
            }
            let queue = &partition.runner.queue;
            queue.waiters.lock().set_unresponsive(number, false);
            tracing::info!(queue = %queue.name, number, "a partition answers again");
        });
    }
}
