//! The loop of a receive that waits.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use pillarbox_core::{Delivery, Error, Result};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::queue_waiters::QueueWaiters;
use super::waiters::WaiterId;
use crate::layout::PartitionNumber;

/// A queue, as the wait loop uses it.
pub(crate) trait WaitedQueue: Sync {
    fn waiters(&self) -> &QueueWaiters;

    /// Reads the layout again if it is old or was reported to have changed.
    fn refresh_layout(&self) -> impl Future<Output = Result<()>> + Send;

    /// Delivers messages that are ready in these partitions.
    fn query(
        &self,
        partitions: &[PartitionNumber],
    ) -> impl Future<Output = Result<Vec<Delivery>>> + Send;

    /// Subscribes to these partitions, and returns when they are subscribed or cannot be at present.
    fn subscribe(&self, partitions: &[PartitionNumber]) -> impl Future<Output = ()> + Send;

    /// Resolves when the queue is closed.
    fn closed(&self) -> impl Future<Output = Error> + Send;
}

/// Waits until there are messages, or until `end`.
pub(crate) async fn wait<Q: WaitedQueue>(queue: &Q, end: Instant) -> Result<Vec<Delivery>> {
    let waiters = queue.waiters();
    let waiter = WaiterGuard::join(waiters);
    let (mut has_queried, mut subscribed) = (false, 0);
    let mut subscribing: Option<BoxFuture<'_, Vec<PartitionNumber>>> = None;
    let mut to_query = waiters.lock().maybe_ready(Instant::now());
    loop {
        if !to_query.is_empty() {
            has_queried = true;
            let found = queue.query(&to_query).await?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        queue.refresh_layout().await?;
        let (unsubscribed, partitions) = {
            let waiters = waiters.lock();
            (waiters.unsubscribed(), waiters.partitions())
        };
        subscribed = partitions.min(subscribed);
        if !unsubscribed.is_empty() && subscribed < partitions {
            subscribed = partitions;
            subscribing = Some(Box::pin(async move {
                queue.subscribe(&unsubscribed).await;
                unsubscribed
            }));
        }
        let until = waiters.next_poll(waiter.id).map_or(end, |next| next.min(end));
        let now_subscribed = async {
            match &mut subscribing {
                Some(subscribing) => subscribing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            error = queue.closed() => return Err(error),
            // Subscribe first, query second: a message that arrives in between is seen by one of them.
            partitions = now_subscribed => {
                subscribing = None;
                to_query = partitions;
                continue;
            }
            () = waiter.signal.notified() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        let now = Instant::now();
        if now >= end {
            // A wake-up may still be on its way.
            if has_queried {
                return Ok(Vec::new());
            }
            let maybe_ready = waiters.lock().maybe_ready(now);
            return queue.query(&maybe_ready).await;
        }
        let intervals = waiters.poll_intervals();
        to_query = waiters.lock().take_queries(waiter.id, now, intervals);
    }
}

/// A waiter of a queue; leaves when dropped.
struct WaiterGuard<'a> {
    waiters: &'a QueueWaiters,
    id: WaiterId,
    signal: Arc<Notify>,
}

impl<'a> WaiterGuard<'a> {
    fn join(waiters: &'a QueueWaiters) -> Self {
        let (id, signal) = waiters.join();
        Self { waiters, id, signal }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.waiters.leave(self.id);
    }
}
