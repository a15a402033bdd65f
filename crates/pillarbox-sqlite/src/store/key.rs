//! The key of a message: one integer made of its queue, its region and its place.
//!
//! ```text
//!   62 ........ 45   44   43 .......................... 0
//!   queue (18 bits)  │    place in the queue (44 bits)
//!                    └ 1: the message was sent with a delay
//! ```
//!
//! SQLite stores rows in the order of this integer, so the messages of a queue are adjacent and in the order in
//! which they were sent, without an index. Those sent with a delay have a region of their own, which the scan for
//! messages that were never delivered skips.

const QUEUE_SHIFT: u32 = 45;
const DELAYED: i64 = 1 << 44;

/// Highest number of a queue.
pub(super) const MAX_QUEUE: i64 = (1 << 18) - 1;
/// Highest place in a queue. At 100,000 messages a second it is reached after five years.
pub(super) const MAX_PLACE: i64 = (1 << 44) - 1;

/// Number of a queue within its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct QueueNumber(pub(super) i64);

impl QueueNumber {
    /// Returns the value before the first key of the queue.
    pub(super) const fn base(self) -> i64 {
        self.0 << QUEUE_SHIFT
    }

    /// Returns the last key of the queue.
    pub(super) const fn last(self) -> i64 {
        self.base() | ((1 << QUEUE_SHIFT) - 1)
    }

    /// Returns the key of a message sent without a delay, or of a row of `requeued`.
    pub(super) const fn key(self, place: i64) -> i64 {
        self.base() | place
    }

    /// Returns the last key of a message sent without a delay.
    pub(super) const fn last_ready(self) -> i64 {
        self.key(MAX_PLACE)
    }

    /// Returns the key of a message sent with a delay.
    pub(super) const fn delayed_key(self, place: i64) -> i64 {
        self.base() | DELAYED | place
    }
}

/// Returns the place in a key of any queue and region.
pub(super) const fn place_of(key: i64) -> i64 {
    key & MAX_PLACE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_different_queues_and_regions_do_not_mix() {
        let (one, next) = (QueueNumber(1), QueueNumber(2));
        assert!(one.key(1) < one.key(2) && one.key(MAX_PLACE) == one.last_ready());
        assert!(one.last_ready() < one.delayed_key(0));
        assert!(one.delayed_key(MAX_PLACE) == one.last() && one.last() < next.base());
        assert!(QueueNumber(MAX_QUEUE).last() == i64::MAX);
        assert_eq!(place_of(next.delayed_key(77)), 77);
        assert_eq!(place_of(next.key(MAX_PLACE)), MAX_PLACE);
    }
}
