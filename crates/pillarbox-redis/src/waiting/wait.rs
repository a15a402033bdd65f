//! One receive that waits: which partitions it queries, and when.

use std::pin::Pin;

use tokio::time::Instant;

use super::shared_waiters::{SharedWaiters, WaiterGuard};
use crate::partition_layout::PartitionNumber;

/// The wait of one receive.
pub(crate) struct Wait<'a, S, F> {
    /// Subscribes to the wake-ups of partitions, and returns these partitions.
    subscribe: S,
    /// A subscription under way.
    subscribing: Option<Pin<Box<F>>>,
    /// Number of partitions for which this wait has tried to subscribe.
    subscribed: usize,
    waiters: &'a SharedWaiters,
    waiter: WaiterGuard<'a>,
    end: Instant,
    has_queried: bool,
    is_over: bool,
}

impl<'a, S, F> Wait<'a, S, F>
where
    S: Fn(Vec<PartitionNumber>) -> F,
    F: Future<Output = Vec<PartitionNumber>>,
{
    /// Begins to wait, behind the receives that wait already.
    pub(crate) fn begin(waiters: &'a SharedWaiters, end: Instant, subscribe: S) -> Self {
        Self {
            subscribe,
            subscribing: None,
            subscribed: 0,
            waiters,
            waiter: waiters.join(),
            end,
            has_queried: false,
            is_over: false,
        }
    }

    /// Returns the partitions to query at once.
    pub(crate) fn first(&mut self) -> Vec<PartitionNumber> {
        let maybe_ready = self.waiters.lock().maybe_ready(Instant::now());
        self.queried(maybe_ready)
    }

    /// Waits until there is something to query, and returns the partitions: none if it is only the layout that
    /// must be read. `None` if the time is up. If the time is up before any query, it first returns the
    /// partitions of a last query.
    pub(crate) async fn next(&mut self) -> Option<Vec<PartitionNumber>> {
        self.subscribe_to_new();
        let until = self.waiters.next_poll(self.waiter.id);
        let until = until.map_or(self.end, |next| next.min(self.end));
        let now_subscribed = async {
            match &mut self.subscribing {
                Some(subscribing) => subscribing.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            // Subscribe first, query second: a message that arrives in between is seen by one of them.
            partitions = now_subscribed => {
                self.subscribing = None;
                return Some(self.queried(partitions));
            }
            () = self.waiter.signal.notified() => {}
            () = tokio::time::sleep_until(until) => {}
        }
        let now = Instant::now();
        if now < self.end {
            let queries = self.waiters.take_queries(self.waiter.id, now);
            return Some(self.queried(queries));
        }
        self.is_over = true;
        // A wake-up may still be on its way.
        (!self.has_queried).then(|| self.waiters.lock().maybe_ready(now))
    }

    /// Returns whether the time is up, so that the last partitions returned are the last to query.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Begins to subscribe to partitions that were added.
    fn subscribe_to_new(&mut self) {
        let (unsubscribed, partitions) = {
            let waiters = self.waiters.lock();
            (waiters.unsubscribed(), waiters.partitions())
        };
        self.subscribed = partitions.min(self.subscribed);
        if !unsubscribed.is_empty() && self.subscribed < partitions {
            self.subscribed = partitions;
            self.subscribing = Some(Box::pin((self.subscribe)(unsubscribed)));
        }
    }

    /// Records that partitions are queried, if there are any.
    fn queried(&mut self, partitions: Vec<PartitionNumber>) -> Vec<PartitionNumber> {
        self.has_queried |= !partitions.is_empty();
        partitions
    }
}
