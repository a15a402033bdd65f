//! What a connection knows of the file without asking it.
//!
//! The cache is true as long as nobody else has written: who uses a [`Store`](super::Store)
//! clears it when another connection has, and when a transaction is rolled back.

use hashbrown::{HashMap, HashSet};
use pillarbox_core::{MessageId, Nonce, QueueName, Timestamp};

use super::deliveries::Deliveries;
use super::key::QueueNumber;

/// How many queues are remembered.
const MAX_QUEUES: usize = 4096;
/// How many leases of a queue are. Leases that ended stay until there is no more room for others.
const MAX_LEASES: usize = 1 << 15;

/// The queues that were looked at. `None`: there is no queue of that name.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    queues: HashMap<QueueName, Option<QueueState>>,
    /// Whether a purged queue waits for its rows to be deleted. `None`: not known.
    pub(super) abandoned: Option<bool>,
    /// Whether the schema is one that this program knows.
    pub(super) schema_checked: bool,
}

/// A row of `pillarbox_queue`, and what is remembered beside it.
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
    /// No timer ends before this. `None`: there are no timers.
    pub(super) next_due: Option<Timestamp>,
    /// The row in the file is not like this.
    pub(super) dirty: bool,
    /// Where timers were set, as far as the file has not been told. The last one may be known to
    /// the file already and is kept to be made longer.
    pub(super) expiry: Vec<Expiry>,
    pub(super) expiry_written: bool,
    /// Leases that were given by this connection, as far as they are remembered.
    pub(super) leases: HashMap<MessageId, Lease>,
    /// Timers that ended up to here were swept: no lease that ends before runs.
    pub(super) swept: Timestamp,
    /// Messages that were acknowledged and are to be deleted from the file.
    pub(super) acknowledged: HashSet<i64>,
}

/// A delivery whose lease runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) key: i64,
    pub(super) nonce: Nonce,
    pub(super) due: Timestamp,
    pub(super) deliveries: Deliveries,
    /// Whether the work on the message was started.
    pub(super) is_started: bool,
    /// Where in line the message was.
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

/// The bucket of timers that end at `at`.
pub(super) fn bucket_of(at: Timestamp) -> i64 {
    at.as_nanos().div_euclid(BUCKET_NANOS)
}

/// When the first timer of a bucket may end.
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

    /// The queues whose rows in the file must be written.
    pub(super) fn dirty(&mut self) -> impl Iterator<Item = &mut QueueState> {
        self.queues.values_mut().flatten().filter(|queue| queue.dirty)
    }

    /// Forgets everything: somebody else has written, or a transaction was rolled back.
    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Forgets what is not worth keeping. Only where everything is written.
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

    /// Remembers a lease.
    pub(super) fn remember_lease(&mut self, id: MessageId, lease: Lease) {
        if self.leases.len() >= MAX_LEASES {
            self.leases.clear();
        }
        self.leases.insert(id, lease);
    }

    /// Forgets a lease and gives it, if it is remembered, runs and has this nonce.
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

    /// Of the ready ones, those that were never delivered and wait past the cursor.
    pub(super) fn fresh(&self) -> u64 {
        self.ready().saturating_sub(self.requeued)
    }

    /// The next place in line.
    pub(super) fn allocate_place(&mut self) -> i64 {
        self.next_place += 1;
        self.next_place - 1
    }

    /// Notes that the message of `key` has a timer that ends at `due`, and gives its order among
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
    fn timers_of_neighbours_share_a_range() {
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
    fn a_range_that_the_file_knows_can_be_made_longer() {
        let mut queue = QueueState::new(QueueNumber(1));
        let due = Timestamp::from_secs(100);
        queue.set_timer(5, due);
        queue.expiry_written = true;
        queue.set_timer(5, due);
        assert!(queue.expiry_written, "nothing new to tell");
        queue.set_timer(6, due);
        assert!(!queue.expiry_written);
        assert_eq!(queue.expiry, [Expiry { bucket: 1000, lo: 5, hi: 6 }]);
    }
}
