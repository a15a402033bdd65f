//! The layout of a queue: its partitions, and which messages go to which. Pure.
//!
//! Partition 0 has the keys of a queue without partitions, so that a queue to which partitions are added
//! keeps its messages in place. Messages are sent to the first [`Layout::sent_to`] partitions, and received
//! from all [`Layout::received_from`].

use pillarbox_core::{Outgoing, Partitions};

/// Maximum number of partitions of a queue. The mark of a receipt has room for more.
pub(crate) const MAX_PARTITIONS: u32 = 1000;

/// Number of a partition, or of partitions.
pub(crate) type PartitionNumber = u16;

/// Layout of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Number of partitions that are sent to.
    pub(crate) sent_to: PartitionNumber,
    /// Number of partitions that may hold messages.
    pub(crate) received_from: PartitionNumber,
    /// Increases with every change.
    pub(crate) version: u64,
}

impl Layout {
    /// The layout of a queue without partitions.
    pub(crate) const SINGLE: Self = Self { sent_to: 1, received_from: 1, version: 0 };

    /// Reads the stored form. `None` if it is invalid.
    pub(crate) fn read(stored: &[u8]) -> Option<Self> {
        std::str::from_utf8(stored).ok().and_then(Self::parse)
    }

    /// Parses the stored form: three numbers, and others that only the scripts use.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (sent_to, received_from, version) = (next()?, next()?, next()?);
        let sent_to = PartitionNumber::try_from(sent_to).ok()?;
        let received_from = PartitionNumber::try_from(received_from).ok()?;
        let is_valid =
            sent_to >= 1 && received_from >= sent_to && u32::from(received_from) <= MAX_PARTITIONS;
        is_valid.then_some(Self { sent_to, received_from, version })
    }

    /// Returns the partition of a message: by its group if it has one, or else by the run that its id belongs
    /// to. So a message that is sent again goes to the same partition, and a batch stays together.
    pub(crate) fn partition_of(&self, message: &Outgoing) -> PartitionNumber {
        match message.group() {
            _ if self.sent_to == 1 => 0,
            Some(group) => jump(hash(group.as_bytes()), self.sent_to),
            None => jump(hash(&message.id.run().to_be_bytes()), self.sent_to),
        }
    }

    /// Returns the share of each partition in the `max_size` of the queue, rounded up.
    pub(crate) fn share(&self, max_size: u64) -> u64 {
        max_size.div_ceil(self.sent_to.into())
    }
}

impl From<Layout> for Partitions {
    fn from(layout: Layout) -> Self {
        Self::new(layout.sent_to.into(), layout.received_from.into())
    }
}

/// FNV-1a with a final mix, so that similar texts do not have similar hashes.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// Jump consistent hashing (Lamping and Veach): when partitions are added, as little as possible moves, and
/// only to the new ones.
fn jump(mut hash: u64, partitions: PartitionNumber) -> PartitionNumber {
    let (mut bucket, mut next) = (0_i64, 0_i64);
    while next < i64::from(partitions) {
        bucket = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((bucket + 1) as f64 * (f64::from(1_u32 << 31) / ((hash >> 33) + 1) as f64)) as i64;
    }
    bucket as PartitionNumber
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(sent_to: PartitionNumber) -> Layout {
        Layout { sent_to, received_from: sent_to, version: 1 }
    }

    fn of_group(group: &str) -> Outgoing {
        let mut message = Outgoing::new("");
        message.attributes.insert(Outgoing::GROUP, group);
        message
    }

    #[test]
    fn only_a_valid_stored_form_is_parsed() {
        let read = Layout::parse("4 12 7 1");
        assert_eq!(read, Some(Layout { sent_to: 4, received_from: 12, version: 7 }));
        for wrong in ["", "4", "4 12", "0 1 1", "3 2 1", "1 1001 1", "1 -1 1", "a b c", "1 70000 1"]
        {
            assert_eq!(Layout::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_message_that_is_sent_again_goes_to_the_same_partition_and_a_batch_stays_together() {
        let twelve = layout(12);
        let mut held = [0_u32; 12];
        let mut last = None;
        let mut changes = 0;
        for n in 0..100_000 {
            let message = Outgoing::new(n.to_string());
            let number = twelve.partition_of(&message);
            assert_eq!(twelve.partition_of(&Outgoing::with_id(message.id, "again")), number);
            assert_eq!(layout(1).partition_of(&message), 0);
            held[usize::from(number)] += 1;
            changes += u32::from(last.replace(number) != Some(number));
        }
        assert!(changes < 400, "{changes}");
        assert!(held.iter().all(|count| (3000..16_000).contains(count)), "{held:?}");
        // Ids from other sources have no runs.
        let mut held = [0_u32; 12];
        for n in 0..12_000 {
            let id = pillarbox_core::MessageId::from_key(&n.to_string());
            held[usize::from(twelve.partition_of(&Outgoing::with_id(id, "")))] += 1;
        }
        assert!(held.iter().all(|count| (850..1150).contains(count)), "{held:?}");
    }

    #[test]
    fn groups_are_spread_evenly() {
        let mut held = [0_u32; 12];
        for n in 0..12_000 {
            held[usize::from(layout(12).partition_of(&of_group(&n.to_string())))] += 1;
        }
        assert!(held.iter().all(|count| (850..1150).contains(count)), "{held:?}");
    }

    #[test]
    fn added_partitions_take_over_few_groups_and_no_others_move() {
        let mut moved = 0;
        for n in 0..10_000 {
            let message = of_group(&n.to_string());
            let (before, after) =
                (layout(8).partition_of(&message), layout(12).partition_of(&message));
            assert!(before == after || after >= 8, "{before} {after}");
            moved += u32::from(before != after);
        }
        assert!((3000..3700).contains(&moved), "{moved}");
    }

    #[test]
    fn every_partition_has_a_share_of_a_limit() {
        for (max_size, partitions) in [(0, 3), (1, 3), (10, 3), (11, 4), (1_000_000, 12)] {
            let all = layout(partitions).share(max_size) * u64::from(partitions);
            assert!((max_size..max_size + u64::from(partitions)).contains(&all), "{all}");
        }
    }
}
