//! Queues that are broken on purpose, which the tests must detect.

use std::sync::Arc;

use pillarbox_core::{
    Attributes, Backend, BoxFuture, Capabilities, Counts, Delivery, Diagnosis, Mailboxes,
    MemoryBackend, MessageId, Outgoing, Queue, QueueName, QueueOptions, Receive, Result, Sent,
    Settle, SettleAction,
};
use pillarbox_testing::forward_queue;

/// Ways to break a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// Accepts every acknowledgement.
    AcceptsStale,
    /// Stores a repeated id under a new one.
    ForgetsIds,
    /// Reports a duplicate as stored.
    CallsAllNew,
    /// Acknowledges instead of a nack.
    LosesNacked,
    /// Delivers in the reverse order within a batch.
    Reverses,
    /// Reports one delivery too few from the second on.
    ResetsCount,
    /// Counts a nacked delivery as unsettled.
    TakesNacksForUnsettled,
    /// Treats a release as a nack.
    CountsReleases,
    /// Forgets that a delivery was started.
    ForgetsStarts,
    /// Ignores extensions.
    DoesNotExtend,
    /// Forgets attributes and reply addresses from the second delivery on.
    ForgetsAttributes,
    /// Reports only present messages as ever sent.
    ForgetsSent,
}

/// A memory backend whose queues are broken.
pub(crate) fn backend(breakage: Breakage) -> Mailboxes {
    Mailboxes::new(BrokenBackend(MemoryBackend::new(), breakage))
}

#[derive(Debug)]
struct BrokenBackend(MemoryBackend, Breakage);

#[derive(Debug)]
struct BrokenQueue(Arc<dyn Queue>, Breakage);

impl Backend for BrokenBackend {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        Ok(Arc::new(BrokenQueue(self.0.queue(name, options)?, self.1)))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        self.0.queues()
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        self.0.diagnose(repair)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.0.close()
    }
}

impl Queue for BrokenQueue {
    forward_queue!(0: name capabilities peek purge close is_closed);

    fn send(&self, mut batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
            if let Breakage::ForgetsIds = self.1 {
                for message in &mut batch {
                    let page = self.0.peek(1000, None).await?;
                    if page.messages.iter().any(|peeked| peeked.message.id == message.id) {
                        message.id = MessageId::new();
                    }
                }
            }
            let mut results = self.0.send(batch).await?;
            for (id, result) in ids.into_iter().zip(&mut results) {
                match self.1 {
                    Breakage::CallsAllNew => *result = Ok(Sent::stored(id)),
                    Breakage::ForgetsIds => *result = Ok(Sent::duplicate(id)),
                    _ => {}
                }
            }
            Ok(results)
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            let mut deliveries = self.0.receive(request).await?;
            match self.1 {
                Breakage::Reverses => deliveries.reverse(),
                Breakage::ResetsCount => {
                    for delivery in &mut deliveries {
                        let count = &mut delivery.message.delivery_count;
                        *count = (*count - 1).max(1);
                    }
                }
                Breakage::TakesNacksForUnsettled => {
                    for delivery in &mut deliveries {
                        delivery.message.unsettled = delivery.message.delivery_count - 1;
                    }
                }
                Breakage::ForgetsAttributes => {
                    for message in deliveries.iter_mut().map(|delivery| &mut delivery.message) {
                        if message.delivery_count > 1 {
                            message.attributes = Attributes::new();
                            message.reply_to = None;
                        }
                    }
                }
                _ => {}
            }
            Ok(deliveries)
        })
    }

    fn settle(&self, mut batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            for settle in &mut batch {
                match (self.1, settle.action) {
                    (Breakage::LosesNacked, SettleAction::Nack { .. }) => {
                        settle.action = SettleAction::Acknowledge;
                    }
                    (Breakage::CountsReleases, SettleAction::Release { delay }) => {
                        settle.action = SettleAction::Nack { delay };
                    }
                    (Breakage::ForgetsStarts, SettleAction::Start { timeout }) => {
                        settle.action = SettleAction::Extend { timeout };
                    }
                    (Breakage::DoesNotExtend, SettleAction::Extend { .. }) => {
                        return Ok(vec![Ok(())]);
                    }
                    _ => {}
                }
            }
            let results = self.0.settle(batch).await?;
            match self.1 {
                Breakage::AcceptsStale => Ok(results.into_iter().map(|_| Ok(())).collect()),
                _ => Ok(results),
            }
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            let counts = self.0.counts().await?;
            match self.1 {
                Breakage::ForgetsSent => Ok(counts.with_sent(Some(counts.total()))),
                _ => Ok(counts),
            }
        })
    }
}
