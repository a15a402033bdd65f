//! Queues and leases that a connection knows without a query.
//!
//! The cache is valid until another connection writes: the user of a [`Store`](super::Store) clears it then, and when
//! a transaction is rolled back.

use hashbrown::{HashMap, HashSet};
use pillarbox_core::{MessageId, Nonce, QueueName, Timestamp};

use super::deliveries::Deliveries;
use super::key::QueueNumber;

/// Number of queues that are cached.
const MAX_QUEUES: usize = 4096;
/// Number of leases of a queue that are cached. Those that have ended stay until the limit is reached.
const MAX_LEASES: usize = 1 << 15;

/// Cached queues. `None` if there is no queue of that name.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    queues: HashMap<QueueName, Option<QueueState>>,
    /// Whether rows of a purged queue are left to be deleted. `None` if unknown.
    pub(super) has_purged_queue: Option<bool>,
    /// Whether the version of the schema was checked.
    pub(super) schema_checked: bool,
}

/// A row of `pillarbox_queue`, and unwritten changes and leases of the queue.
#[derive(Debug, Clone)]
pub(super) struct QueueState {
    pub(super) number: QueueNumber,
    pub(super) next_place: i64,
    pub(super) cursor: i64,
    pub(super) next_timer: i64,
    pub(super) total: u64,
    pub(super) in_flight: u64,
    pub(super) delayed: u64,
    pub(super) requeued: u64,
    pub(super) sent: u64,
    /// No timer ends before this. `None` if there are no timers.
    pub(super) next_due: Option<Timestamp>,
    /// Whether the row in the file is out of date.
    pub(super) dirty: bool,
    /// Ranges of timers that are not written yet. The last one may be written already, and is kept to be extended.
    pub(super) expiry: Vec<Expiry>,
    pub(super) expiry_written: bool,
    /// Leases that this connection has given, unless they were evicted.
    pub(super) leases: HashMap<MessageId, Lease>,
    /// Timers up to this time were swept: a lease with an earlier deadline has expired.
    pub(super) swept: Timestamp,
    /// Keys of acknowledged messages that are still to be deleted.
    pub(super) acknowledged: HashSet<i64>,
}

/// A delivery whose lease has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) key: i64,
    pub(super) nonce: Nonce,
    pub(super) due: Timestamp,
    pub(super) deliveries: Deliveries,
    /// Whether the handler was started.
    pub(super) is_started: bool,
    /// Place from which the message was delivered.
    pub(super) place: i64,
}

/// Keys from `lo` to `hi` have timers that end in this bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry {
    pub(super) bucket: i64,
    pub(super) lo: i64,
    pub(super) hi: i64,
}

/// A tenth of a second.
const BUCKET_NANOS: i64 = 100_000_000;

/// Returns the bucket of timers that end at `at`.
pub(super) fn bucket_of(at: Timestamp) -> i64 {
    at.as_nanos().div_euclid(BUCKET_NANOS)
}

/// Returns when the first timer of a bucket may end.
pub(super) fn bucket_start(bucket: i64) -> Timestamp {
    Timestamp::from_nanos(bucket.saturating_mul(BUCKET_NANOS))
}

impl Cache {
    pub(super) fn get(&self, name: &QueueName) -> Option<&Option<QueueState>> {
        self.queues.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &QueueName) -> Option<&mut QueueState> {
        self.queues.get_mut(name)?.as_mut()
    }

    pub(super) fn insert(&mut self, name: &QueueName, state: Option<QueueState>) {
        self.queues.insert(name.clone(), state);
    }

    /// Returns the queues whose rows must be written.
    pub(super) fn dirty(&mut self) -> impl Iterator<Item = &mut QueueState> {
        self.queues.values_mut().flatten().filter(|queue| queue.dirty)
    }

    /// Removes everything: another connection has written, or a transaction was rolled back.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Evicts the queues if there are too many. Requires that all changes are written.
    pub(super) fn trim(&mut self) {
        if self.queues.len() > MAX_QUEUES {
            self.queues.clear();
        }
    }
}

impl QueueState {
    pub(super) fn new(number: QueueNumber) -> Self {
        Self {
            number,
            next_place: 1,
            cursor: 0,
            next_timer: 1,
            total: 0,
            in_flight: 0,
            delayed: 0,
            requeued: 0,
            sent: 0,
            next_due: None,
            dirty: false,
            expiry: Vec::new(),
            expiry_written: false,
            leases: HashMap::new(),
            swept: Timestamp::MIN,
            acknowledged: HashSet::new(),
        }
    }

    /// Counts messages that were stored.
    pub(super) fn count_stored(&mut self, messages: u64) {
        self.total += messages;
        self.sent += messages;
    }

    /// Caches a lease.
    pub(super) fn remember_lease(&mut self, id: MessageId, lease: Lease) {
        if self.leases.len() >= MAX_LEASES {
            self.leases.clear();
        }
        self.leases.insert(id, lease);
    }

    /// Removes a lease and returns it, if it is cached, has not expired and has this nonce.
    pub(super) fn take_lease(
        &mut self,
        id: MessageId,
        nonce: Nonce,
        now: Timestamp,
    ) -> Option<Lease> {
        let lease = self.leases.get(&id)?;
        let runs = lease.nonce == nonce && lease.due > now.max(self.swept);
        if runs { self.leases.remove(&id) } else { None }
    }

    pub(super) fn ready(&self) -> u64 {
        self.total.saturating_sub(self.in_flight + self.delayed)
    }

    /// Returns the number of ready messages that were never delivered, which are those past the cursor.
    pub(super) fn fresh(&self) -> u64 {
        self.ready().saturating_sub(self.requeued)
    }

    /// Returns a new place, after all others.
    pub(super) fn allocate_place(&mut self) -> i64 {
        self.next_place += 1;
        self.next_place - 1
    }

    /// Records that the message with `key` has a timer that ends at `due`, and returns the order of that timer among
    /// those of the same moment.
    pub(super) fn set_timer(&mut self, key: i64, due: Timestamp) -> i64 {
        self.next_due = Some(self.next_due.map_or(due, |next| next.min(due)));
        let bucket = bucket_of(due);
        match self.expiry.last_mut() {
            Some(last) if last.bucket == bucket && (last.lo..=last.hi + 1).contains(&key) => {
                if key > last.hi {
                    last.hi = key;
                    self.expiry_written = false;
                }
            }
            _ => {
                if self.expiry_written {
                    self.expiry.clear();
                    self.expiry_written = false;
                }
                self.expiry.push(Expiry { bucket, lo: key, hi: key });
            }
        }
        self.next_timer += 1;
        self.next_timer - 1
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn timers_of_consecutive_keys_share_a_range() {
        let mut queue = QueueState::new(QueueNumber(1));
        let due = Timestamp::from_secs(100);
        for key in [5, 6, 7, 6, 9] {
            queue.set_timer(key, due);
        }
        queue.set_timer(10, due + Duration::from_millis(100));
        let ranges: Vec<_> = queue.expiry.iter().map(|e| (e.bucket, e.lo, e.hi)).collect();
        assert_eq!(ranges, [(1000, 5, 7), (1000, 9, 9), (1001, 10, 10)]);
        assert_eq!(queue.next_due, Some(due));
    }

    #[test]
    fn a_written_range_can_be_extended() {
        let mut queue = QueueState::new(QueueNumber(1));
        let due = Timestamp::from_secs(100);
        queue.set_timer(5, due);
        queue.expiry_written = true;
        queue.set_timer(5, due);
        assert!(queue.expiry_written, "nothing new to write");
        queue.set_timer(6, due);
        assert!(!queue.expiry_written);
        assert_eq!(queue.expiry, [Expiry { bucket: 1000, lo: 5, hi: 6 }]);
    }
}
