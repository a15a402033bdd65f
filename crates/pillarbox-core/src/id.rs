//! Message ids.

use std::cell::Cell;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use rand::Rng;
use uuid::Uuid;

/// Namespace of the UUIDs that are derived from a caller's key.
const KEY_NAMESPACE: Uuid = Uuid::from_u128(0x6f8a_5d3e_1c47_4b0e_9a52_70c1_8d2b_e4f6);

/// Number of consecutive ids of a thread that share their last 16 bits.
const RUN_LEN: u16 = 256;

/// Returns the run of this thread's next id. The rest of an id has 46 random bits, and the time in steps of a
/// quarter of a microsecond.
fn next_run() -> u16 {
    thread_local! {
        /// The current run, and the number of ids left in it.
        static CURRENT: Cell<(u16, u16)> = const { Cell::new((0, 0)) };
    }
    let (run, left) = match CURRENT.get() {
        (_, 0) => (rand::rng().next_u32() as u16, RUN_LEN),
        current => current,
    };
    CURRENT.set((run, left - 1));
    run
}

/// Id of a message within its queue.
///
/// The sender chooses it: [`MessageId::new`] creates a UUIDv7, which sorts by the sender's clock in steps of a
/// quarter of a microsecond. Sending an id that the queue already holds stores nothing and succeeds, so a send
/// whose reply was lost can be repeated with the same id.
///
/// ```
/// use pillarbox_core::MessageId;
///
/// let id = MessageId::new();
/// assert_eq!(id.to_string().parse::<MessageId>()?, id);
///
/// // The same business key always gives the same id.
/// assert_eq!(MessageId::from_key("invoice-4711"), MessageId::from_key("invoice-4711"));
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Uuid);

impl MessageId {
    /// Creates a new id.
    #[expect(clippy::new_without_default, reason = "two defaults would not be equal")]
    pub fn new() -> Self {
        // RFC 9562, section 6.2, method 3: 48 bits of milliseconds, then the fraction of the millisecond in
        // place of 12 random bits, then 62 random bits. No state is shared between threads: ids must be
        // unique, but their order is only a convenience.
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let fraction = u64::from(since_1970.subsec_nanos() % 1_000_000) * 4096 / 1_000_000;
        let high = (since_1970.as_millis() as u64) << 16 | 0x7000 | fraction;
        let low = 0b10 << 62 | rand::rng().next_u64() >> 2;
        Self(Uuid::from_u64_pair(high, low & !0xffff | u64::from(next_run())))
    }

    /// Returns the last 16 bits, which are equal for a run of ids that a thread creates one after the other
    /// and random otherwise. A backend that chooses partitions by them keeps batches together, and finds an
    /// id in the partition that it was sent to before.
    pub const fn run(&self) -> u16 {
        let bytes = self.0.as_bytes();
        u16::from_be_bytes([bytes[14], bytes[15]])
    }

    /// Derives an id from `key` (a UUIDv5): the same key always gives the same id.
    pub fn from_key(key: &str) -> Self {
        Self(Uuid::new_v5(&KEY_NAMESPACE, key.as_bytes()))
    }

    /// Creates an id from a UUID of any version.
    pub const fn from_uuid(uuid: Uuid) -> Self {
        Self(uuid)
    }

    /// Returns the id as a UUID.
    pub const fn as_uuid(&self) -> &Uuid {
        &self.0
    }

    /// Returns the 16 bytes of the id.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MessageId({})", self.0)
    }
}

impl From<Uuid> for MessageId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl From<MessageId> for Uuid {
    fn from(id: MessageId) -> Self {
        id.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::Error;

    #[test]
    fn ids_come_in_runs_of_random_values() {
        let runs: Vec<_> = (0..100_000).map(|_| MessageId::new().run()).collect();
        let changes = runs.windows(2).filter(|two| two[0] != two[1]).count();
        assert!((350..=391).contains(&changes), "{changes}");
        let threads = [(); 4].map(|()| std::thread::spawn(|| MessageId::new().run()));
        let firsts = HashSet::from(threads.map(|thread| thread.join().unwrap()));
        assert!(firsts.len() > 1);
    }

    #[test]
    fn new_ids_are_uuids_of_version_7_that_follow_the_clock() {
        let before = SystemTime::now();
        let id = MessageId::new();
        assert_eq!(id.as_uuid().get_version_num(), 7);
        assert_eq!(id.as_uuid().get_variant(), uuid::Variant::RFC4122);
        let (secs, nanos) = id.as_uuid().get_timestamp().unwrap().to_unix();
        let made = UNIX_EPOCH + std::time::Duration::new(secs, nanos);
        let millisecond = std::time::Duration::from_millis(1);
        assert!(made + millisecond > before && made <= SystemTime::now());

        std::thread::sleep(std::time::Duration::from_micros(2));
        assert!(MessageId::new() > id);
    }

    #[test]
    fn new_ids_do_not_repeat() {
        let ids: HashSet<_> = (0..100_000).map(|_| MessageId::new()).collect();
        assert_eq!(ids.len(), 100_000);
    }

    #[test]
    fn ids_survive_json_as_text() {
        let id = MessageId::from_key("k");
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<MessageId>(&json).unwrap(), id);
    }

    #[test]
    fn text_that_is_not_a_uuid_is_refused() {
        let error = "order-17".parse::<MessageId>().unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
    }
}
