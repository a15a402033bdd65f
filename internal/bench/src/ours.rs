//! Pillarbox: a backend, as bytes by [`Queue`].

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    Delivery, Mailboxes, Outgoing, Queue, QueueOptions, Receipt, Receive, Settle,
};
use pillarbox_redis::{RedisBackend, RedisOptions};

use crate::cycles::{BODY, Contestant, WAIT, body};
use crate::measure::{Result, expect_eq};

/// The most messages that one call may send or receive.
const BATCH: u64 = 1000;
/// As long as a lease can be.
const LONG: Duration = Duration::from_secs(12 * 60 * 60);

/// One queue of a backend.
#[derive(Debug, Clone)]
pub(crate) struct Ours {
    backend: Arc<Mailboxes>,
    queue: Arc<dyn Queue>,
}

impl Ours {
    /// Opens a server as users do.
    pub(crate) async fn open(url: &str) -> Result<Self> {
        Self::open_with(RedisOptions::from_url(url)?).await
    }

    /// Opens a server so that each call of a caller's is one to the server.
    pub(crate) async fn open_uncoalesced(url: &str) -> Result<Self> {
        Self::open_with(RedisOptions::from_url(url)?.coalesce(false)).await
    }

    /// Opens what these options name.
    pub(crate) async fn open_with(options: RedisOptions) -> Result<Self> {
        Self::of(Mailboxes::new(RedisBackend::open(options).await?))
    }

    /// A queue of any backend.
    pub(crate) fn of(backend: Mailboxes) -> Result<Self> {
        let queue = backend.queue("bench", QueueOptions::new())?;
        Ok(Self { backend: Arc::new(backend), queue })
    }

    /// Another queue of the same backend.
    pub(crate) fn another(&self, name: &str) -> Result<Self> {
        let queue = self.backend.queue(name, QueueOptions::new())?;
        Ok(Self { backend: self.backend.clone(), queue })
    }

    /// Receives up to `max` messages. Waits at most `wait` for the first.
    pub(crate) async fn receive_up_to(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>> {
        Ok(self.queue.receive(Receive::up_to(max).wait(wait)).await?)
    }

    /// How many messages the queue holds, in whatever state.
    pub(crate) async fn count(&self) -> Result<u64> {
        Ok(self.queue.counts().await?.total())
    }

    /// Sends `messages` messages to an empty queue, in large batches.
    pub(crate) async fn fill(&self, messages: u64) -> Result<()> {
        self.add(messages).await?;
        expect_eq("messages in the queue", self.count().await?, messages)
    }

    /// Sends `messages` more messages, in large batches.
    pub(crate) async fn add(&self, messages: u64) -> Result<()> {
        for batch in batches(messages) {
            self.send(batch.map(|seq| body(seq, BODY)).collect()).await?;
        }
        Ok(())
    }

    /// Receives `messages` messages, in large batches, with leases that are longer than a run.
    pub(crate) async fn hold(&self, messages: u64) -> Result<()> {
        for batch in batches(messages) {
            let request = Receive::up_to(batch.clone().count()).visibility(LONG);
            let deliveries = self.queue.receive(request).await?;
            expect_eq("messages received", deliveries.len(), batch.count())?;
        }
        expect_eq("messages in flight", self.queue.counts().await?.in_flight, messages)
    }
}

impl Contestant for Ours {
    type Receipt = Receipt;

    async fn send(&self, bodies: Vec<Bytes>) -> Result<()> {
        match <[Bytes; 1]>::try_from(bodies) {
            Ok([body]) => drop(self.queue.send_one(Outgoing::new(body)).await?),
            Err(bodies) => {
                all(self.queue.send(bodies.into_iter().map(Outgoing::new).collect()).await?)?;
            }
        }
        Ok(())
    }

    async fn receive(&self, max: usize) -> Result<Vec<(Bytes, Receipt)>> {
        let deliveries = self.receive_up_to(max, WAIT).await?;
        if deliveries.is_empty() {
            return Err("waited for a message that is lost".into());
        }
        let pair = |delivery: Delivery| (delivery.message.body, delivery.receipt);
        Ok(deliveries.into_iter().map(pair).collect())
    }

    async fn acknowledge(&self, receipts: Vec<Receipt>) -> Result<()> {
        match <[Receipt; 1]>::try_from(receipts) {
            Ok([receipt]) => self.queue.settle_one(Settle::acknowledge(receipt)).await?,
            Err(receipts) => {
                let settles = receipts.into_iter().map(Settle::acknowledge);
                all(self.queue.settle(settles.collect()).await?)?;
            }
        }
        Ok(())
    }

    async fn close(self, left: u64) -> Result<()> {
        let count = self.count().await?;
        self.backend.close().await;
        expect_eq("messages left", count, left)
    }
}

/// Splits the numbers of `messages` messages into batches that one call can take.
fn batches(messages: u64) -> impl Iterator<Item = Range<u64>> {
    let starts = (0..messages).step_by(BATCH as usize);
    starts.map(move |start| start..messages.min(start + BATCH))
}

/// Fails if any entry of a batch failed.
fn all<T>(results: Vec<pillarbox_core::Result<T>>) -> Result<()> {
    results.into_iter().try_for_each(|result| result.map(drop))?;
    Ok(())
}
