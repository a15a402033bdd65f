//! Pillarbox: the SQLite backend, as bytes by [`Queue`].
//!
//! Opened with `Synchronous::Full`, as users get it: nothing is confirmed before the disk has it. How
//! that is done is the backend's own affair, and not always what SQLite does under that name.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    Clock, Delivery, Mailboxes, Outgoing, Queue, QueueOptions, Receipt, Receive, Settle,
};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions, Synchronous};

use super::load::{BODY, Durable, Numbers, WAIT, body, crowd};
use crate::measure::{Result, expect_eq};

/// The most messages that one call may send or receive.
pub(super) const BATCH: usize = 1000;

/// One queue of a file.
#[derive(Debug, Clone)]
pub(super) struct Ours {
    backend: Arc<Mailboxes>,
    queue: Arc<dyn Queue>,
}

impl Ours {
    /// Opens a file as users do: with [`Synchronous::Full`].
    pub(super) async fn open(path: &Path) -> Result<Self> {
        Self::open_with(path, Synchronous::Full).await
    }

    pub(super) async fn open_with(path: &Path, synchronous: Synchronous) -> Result<Self> {
        let options = SqliteOptions::new(path).synchronous(synchronous);
        Self::of(SqliteBackend::open(options).await?)
    }

    /// Opens a file that takes its time from `clock`.
    pub(super) async fn open_with_clock(path: &Path, clock: Arc<dyn Clock>) -> Result<Self> {
        Self::of(SqliteBackend::open_with_clock(SqliteOptions::new(path), clock).await?)
    }

    fn of(backend: SqliteBackend) -> Result<Self> {
        let backend = Mailboxes::new(backend);
        let queue = backend.queue("bench", QueueOptions::new())?;
        Ok(Self { backend: Arc::new(backend), queue })
    }

    /// Sends several messages in one call.
    pub(super) async fn send_all(&self, bodies: Vec<Bytes>) -> Result<()> {
        all(self.queue.send(bodies.into_iter().map(Outgoing::new).collect()).await?)
    }

    /// Receives up to `max` messages. Waits at most `wait` for the first.
    pub(super) async fn receive_up_to(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>> {
        Ok(self.queue.receive(Receive::up_to(max).wait(wait)).await?)
    }

    /// How many messages the queue holds, in whatever state.
    pub(super) async fn count(&self) -> Result<u64> {
        Ok(self.queue.counts().await?.total())
    }

    /// Sends messages until the queue holds `level` of them: in large batches, and by several at a
    /// time. To be called on a runtime of several threads.
    pub(super) async fn fill(&self, level: u64) -> Result<()> {
        const SENDERS: u64 = 4;
        let before = self.count().await?;
        let missing = level.saturating_sub(before);
        let batches = Numbers::up_to(missing.div_ceil(BATCH as u64));
        let senders = (0..SENDERS).map(|_| {
            let (queue, batches) = (self.clone(), batches.clone());
            async move {
                while let Some(batch) = batches.take() {
                    let start = batch * BATCH as u64;
                    let end = missing.min(start + BATCH as u64);
                    queue.send_all((start..end).map(|seq| body(seq, BODY)).collect()).await?;
                }
                Ok(())
            }
        });
        crowd(senders).await?;
        expect_eq("messages in the queue", self.count().await?, level.max(before))
    }
}

impl Durable for Ours {
    type Receipt = Receipt;

    async fn send(&self, body: Bytes) -> Result<()> {
        self.send_all(vec![body]).await
    }

    async fn receive(&self) -> Result<(Bytes, Receipt)> {
        let deliveries = self.receive_up_to(1, WAIT).await?;
        let delivery = deliveries.into_iter().next().ok_or("waited for a message that is lost")?;
        Ok((delivery.message.body, delivery.receipt))
    }

    async fn acknowledge(&self, receipt: Receipt) -> Result<()> {
        all(self.queue.settle(vec![Settle::acknowledge(receipt)]).await?)
    }

    async fn close(self, left: u64) -> Result<()> {
        let count = self.count().await?;
        self.backend.close().await;
        expect_eq("messages left", count, left)
    }
}

/// Fails if any entry of a batch failed.
fn all<T>(results: Vec<pillarbox_core::Result<T>>) -> Result<()> {
    results.into_iter().try_for_each(|result| result.map(drop))?;
    Ok(())
}
