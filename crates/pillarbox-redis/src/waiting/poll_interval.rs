//! The interval at which waiters query a server without a wake-up.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which a subscribed partition is queried, in case a wake-up was lost or a sender may not
/// publish. A query is one call with six commands, and one that reads the layout.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Number of waited partitions up to which that interval applies. Beyond it, the interval grows with their
/// number, up to the maximum.
const FREQUENTLY_POLLED: u32 = 100;
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(60);

/// Interval at which a partition without a subscription is queried.
const UNSUBSCRIBED_INTERVAL: Duration = Duration::from_millis(500);

/// Longest time between two queries of a partition, with and without a subscription.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PollIntervals {
    pub(super) subscribed: Duration,
    pub(super) unsubscribed: Duration,
}

/// Number of partitions, of all queues of a backend, that have waiters.
#[derive(Debug, Default)]
pub(crate) struct WaitedPartitions(AtomicUsize);

impl WaitedPartitions {
    /// Replaces the share of one queue.
    pub(super) fn replace(&self, before: usize, partitions: usize) {
        self.0.fetch_add(partitions, Ordering::Relaxed);
        self.0.fetch_sub(before, Ordering::Relaxed);
    }

    pub(super) fn poll_intervals(&self) -> PollIntervals {
        poll_intervals(self.0.load(Ordering::Relaxed))
    }
}

fn poll_intervals(partitions: usize) -> PollIntervals {
    let partitions = u32::try_from(partitions).unwrap_or(u32::MAX).max(FREQUENTLY_POLLED);
    let subscribed = POLL_INTERVAL.saturating_mul(partitions) / FREQUENTLY_POLLED;
    PollIntervals {
        subscribed: subscribed.min(MAX_POLL_INTERVAL),
        unsubscribed: UNSUBSCRIBED_INTERVAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_interval_grows_with_the_number_of_waited_partitions_up_to_its_maximum() {
        let subscribed = |partitions| poll_intervals(partitions).subscribed.as_secs();
        for partitions in [0, 1, 20, 100] {
            assert_eq!(subscribed(partitions), 10, "{partitions}");
        }
        let many = [300, 600, 5000, usize::MAX].map(subscribed);
        assert_eq!(many, [30, 60, 60, 60]);
    }
}
