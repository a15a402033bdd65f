//! Pillarbox: the memory backend, as bytes by [`Queue`] and typed by [`Mailbox`].
//!
//! Every message has an id of its own, a lease with a deadline while it is in flight, and a
//! receipt that is checked when it is acknowledged. That is more than any of the others keep.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pillarbox_core::{
    Delivery, Error, Mailbox, Mailboxes, MemoryBackend, Outgoing, Queue, QueueOptions, Receive,
    Settle,
};

use super::load::{CONSUMERS, Job, PRODUCERS, Pace, Tally, TextJob, bytes, crowd, seq_of, share};
use crate::measure::{Result, expect_eq};

/// A queue that is sent to and received from in turn, with its place in the sequence.
pub(super) struct Line {
    queue: Arc<dyn Queue>,
    sent: u64,
    received: u64,
}

impl Line {
    /// Makes an empty queue.
    pub(super) fn new() -> Result<Self> {
        Ok(Self { queue: queue()?, sent: 0, received: 0 })
    }

    /// Adds messages, one by one.
    pub(super) async fn fill(&mut self, messages: u64) -> Result<()> {
        for _ in 0..messages {
            self.send(1).await?;
        }
        self.check_left().await
    }

    /// Takes all messages out.
    pub(super) async fn drain(&mut self) -> Result<()> {
        while self.received < self.sent {
            self.receive(1).await?;
        }
        self.check_left().await
    }

    /// Sends at the tail, and receives and acknowledges at the head, until `n` messages have gone
    /// each way.
    pub(super) async fn cycles(&mut self, n: u64, batch: u64) -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..n / batch {
            self.send(batch).await?;
            self.receive(batch).await?;
        }
        let elapsed = start.elapsed();
        self.check_left().await?;
        Ok(elapsed)
    }

    async fn send(&mut self, batch: u64) -> Result<()> {
        if batch == 1 {
            self.queue.send_one(Outgoing::new(bytes(self.sent))).await?;
            self.sent += 1;
            return Ok(());
        }
        let messages = (self.sent..self.sent + batch).map(|seq| Outgoing::new(bytes(seq)));
        all(self.queue.send(messages.collect()).await?)?;
        self.sent += batch;
        Ok(())
    }

    async fn receive(&mut self, batch: u64) -> Result<()> {
        let deliveries = self.queue.receive(Receive::up_to(batch as usize)).await?;
        expect_eq("messages received", deliveries.len() as u64, batch)?;
        for delivery in &deliveries {
            expect_eq("next in line", seq_of(&delivery.message.body)?, self.received)?;
            self.received += 1;
        }
        acknowledge(&*self.queue, deliveries).await
    }

    async fn check_left(&self) -> Result<()> {
        let left = self.queue.counts().await?.total();
        expect_eq("messages left", left, self.sent - self.received)
    }
}

/// Full cycles on a queue of bytes.
pub(super) async fn cycles(n: u64, batch: u64) -> Result<Duration> {
    Line::new()?.cycles(n, batch).await
}

/// Full cycles on a typed mailbox with JSON bodies, one by one.
pub(super) async fn typed_cycles(n: u64) -> Result<Duration> {
    let mailbox: Mailbox<TextJob> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
    let start = Instant::now();
    for seq in 0..n {
        mailbox.send(&TextJob::new(seq)).await?;
        let batch = mailbox.receive(Receive::one()).await?;
        expect_eq("messages received", batch.len(), 1)?;
        for message in batch {
            expect_eq("next in line", message.body().seq()?, seq)?;
            message.acknowledge().await?;
        }
    }
    let elapsed = start.elapsed();
    expect_eq("messages left", mailbox.approximate_count().await?, 0)?;
    Ok(elapsed)
}

/// Producers that send one by one, and consumers that wait for up to `batch` messages.
pub(super) async fn many(n: u64, batch: usize) -> Result<Duration> {
    let queue = queue()?;
    let settled = Arc::new(AtomicU64::new(0));
    let producers = (0..PRODUCERS).map(|producer| produce(queue.clone(), producer, n));
    let consumers = (0..CONSUMERS).map(|_| consume(queue.clone(), batch, settled.clone(), n));
    crowd(n, producers, consumers).await
}

async fn produce(queue: Arc<dyn Queue>, producer: u64, n: u64) -> Result<()> {
    let mut pace = Pace::default();
    for seq in share(producer, n) {
        queue.send_one(Outgoing::new(bytes(seq))).await?;
        pace.step(1).await;
    }
    Ok(())
}

/// Receives and acknowledges until all messages are settled. The consumer that settles the last message
/// closes the queue, which ends the waits of the others.
async fn consume(
    queue: Arc<dyn Queue>,
    batch: usize,
    settled: Arc<AtomicU64>,
    n: u64,
) -> Result<Tally> {
    let request = Receive::up_to(batch).wait(Duration::from_secs(20));
    let (mut tally, mut pace) = (Tally::default(), Pace::default());
    loop {
        let deliveries = match queue.receive(request).await {
            Err(Error::Closed { .. }) => return Ok(tally),
            deliveries => deliveries?,
        };
        for delivery in &deliveries {
            tally.add(seq_of(&delivery.message.body)?);
        }
        let count = deliveries.len() as u64;
        acknowledge(&*queue, deliveries).await?;
        if settled.fetch_add(count, Ordering::Relaxed) + count == n {
            queue.close().await;
        }
        pace.step(count).await;
    }
}

/// Opens a queue on a backend of its own.
pub(super) fn queue() -> Result<Arc<dyn Queue>> {
    Ok(Mailboxes::new(MemoryBackend::new()).queue("bench", QueueOptions::new())?)
}

async fn acknowledge(queue: &dyn Queue, deliveries: Vec<Delivery>) -> Result<()> {
    let deliveries = match <[Delivery; 1]>::try_from(deliveries) {
        Ok([delivery]) => {
            return Ok(queue.settle_one(Settle::acknowledge(delivery.receipt)).await?);
        }
        Err(deliveries) => deliveries,
    };
    let settles = deliveries.into_iter().map(|delivery| Settle::acknowledge(delivery.receipt));
    all(queue.settle(settles.collect()).await?)
}

/// Fails if any entry of a batch failed.
fn all<T>(results: Vec<pillarbox_core::Result<T>>) -> Result<()> {
    results.into_iter().try_for_each(|result| result.map(drop))?;
    Ok(())
}
