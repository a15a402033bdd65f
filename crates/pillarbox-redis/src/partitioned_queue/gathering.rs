//! A receive from several partitions.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::{Delivery, Receive};

use super::PartitionedQueue;
use crate::failure::{Failure, Result};
use crate::operations::{MAX_DELIVERED_BYTES, UnclaimedDeliveries};
use crate::partition_layout::PartitionNumber;

/// A receive from several partitions.
pub(super) struct Gathering<'a> {
    pub(super) queue: &'a Arc<PartitionedQueue>,
    pub(super) request: Receive,
    pub(super) received: Vec<UnclaimedDeliveries>,
    pub(super) failed: Option<Failure>,
}

impl Gathering<'_> {
    /// Returns the number of messages still wanted.
    fn wanted(&self) -> usize {
        self.request.max - self.received.iter().map(UnclaimedDeliveries::len).sum::<usize>()
    }

    /// Returns whether more messages can be received.
    pub(super) fn has_room(&self) -> bool {
        let bytes: usize = self.received.iter().map(UnclaimedDeliveries::bytes).sum();
        self.wanted() > 0 && bytes < MAX_DELIVERED_BYTES
    }

    /// Receives at most the given number of messages from each partition, and no more than wanted in all.
    /// Returns whether any partition has answered.
    pub(super) async fn receive_from(
        &mut self,
        partitions: &[(PartitionNumber, usize)],
        limit: Duration,
    ) -> bool {
        let mut wanted = self.wanted();
        let mut queries = Vec::new();
        for (number, messages) in partitions {
            let mut request = self.request;
            request.max = wanted.min(*messages);
            wanted -= request.max;
            if request.max > 0 {
                let partition = self.queue.partition(*number);
                let receive = async move { partition.receive(request).await };
                queries.push(self.queue.answer_or_skip(*number, limit, receive));
            }
        }
        let answers: Vec<_> = join_all(queries).await.into_iter().flatten().collect();
        let has_answered = !answers.is_empty();
        for answer in answers {
            match answer {
                Ok(received) => self.received.extend(received),
                Err(failure) => self.failed = Some(failure),
            }
        }
        has_answered
    }

    /// Returns the number of ready messages of each partition that has some, and whether any has answered.
    pub(super) async fn count_ready(
        &mut self,
        partitions: impl Iterator<Item = PartitionNumber>,
        limit: Duration,
    ) -> (Vec<(PartitionNumber, usize)>, bool) {
        let counts = partitions.map(|number| {
            let partition = self.queue.partition(number);
            let count = async move { (number, partition.count_ready().await) };
            self.queue.answer_or_skip(number, limit, count)
        });
        let answers: Vec<_> = join_all(counts).await.into_iter().flatten().collect();
        let has_answered = !answers.is_empty();
        let mut ready = Vec::new();
        for (number, answer) in answers {
            match answer {
                Ok(0) => {}
                Ok(messages) => {
                    ready.push((number, usize::try_from(messages).unwrap_or(usize::MAX)));
                }
                Err(failure) => self.failed = Some(failure),
            }
        }
        (ready, has_answered)
    }

    /// Returns what was received; or, if that is nothing, the failure of a partition.
    ///
    /// The deliveries are taken in the same poll that returns them, so that a dropped future holds none.
    pub(super) fn finish(self) -> Result<Vec<Delivery>> {
        match self.failed {
            Some(failure) if self.received.is_empty() => Err(failure),
            _ => Ok(self.received.into_iter().flat_map(UnclaimedDeliveries::take).collect()),
        }
    }
}
