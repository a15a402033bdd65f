//! Where a message is stored: one integer made of its queue, its region and its place.
//!
//! ```text
//!   62 ........ 45   44   43 .......................... 0
//!   queue (18 bits)  │    place in the queue (44 bits)
//!                    └ 1: the message was sent with a delay
//! ```
//!
//! SQLite keeps rows in the order of such an integer, so the messages of one queue are side by
//! side and in the order in which they were sent, without an index. Those sent with a delay have
//! a region of their own, where the scan for what was never delivered does not meet them.

const QUEUE_SHIFT: u32 = 45;
const DELAYED: i64 = 1 << 44;

/// The highest number of a queue.
pub(super) const MAX_QUEUE: i64 = (1 << 18) - 1;
/// The highest place in a queue. A hundred thousand messages a second use them up in five years.
pub(super) const MAX_PLACE: i64 = (1 << 44) - 1;

/// The number of a queue within its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct QueueNumber(pub(super) i64);

impl QueueNumber {
    /// Before the first key of the queue.
    pub(super) const fn base(self) -> i64 {
        self.0 << QUEUE_SHIFT
    }

    /// The last key of the queue.
    pub(super) const fn last(self) -> i64 {
        self.base() | ((1 << QUEUE_SHIFT) - 1)
    }

    /// The key of a message that is ready when sent; also that of a place in line.
    pub(super) const fn key(self, place: i64) -> i64 {
        self.base() | place
    }

    /// The last key of a message that was ready when sent.
    pub(super) const fn last_ready(self) -> i64 {
        self.key(MAX_PLACE)
    }

    /// The key of a message that is delayed when sent.
    pub(super) const fn delayed_key(self, place: i64) -> i64 {
        self.base() | DELAYED | place
    }
}

/// The place of a key, whatever its queue and region.
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
