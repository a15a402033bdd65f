//! How a queue is spread over partitions. Pure.
//!
//! Partition 0 has the keys that the queue has when it is whole, so a queue that is spread further
//! keeps its messages where they are. What is sent goes to the first [`Layout::sent_to`] partitions;
//! what is received may come from all [`Layout::held_in`].

use pillarbox_core::{Outgoing, Partitions};

/// The most partitions of a queue: so many fit into the mark of a receipt, and then some.
pub(crate) const MAX_PARTITIONS: u32 = 1000;

/// The number of a partition.
pub(crate) type Number = u16;

/// How a queue is spread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// How many partitions are sent to.
    pub(crate) sent_to: Number,
    /// How many partitions may hold messages.
    pub(crate) held_in: Number,
    /// Grows with every change.
    pub(crate) version: u64,
}

impl Layout {
    pub(crate) const WHOLE: Self = Self { sent_to: 1, held_in: 1, version: 0 };

    /// Reads what the server has stored, if it is text at all.
    pub(crate) fn read(stored: &[u8]) -> Option<Self> {
        std::str::from_utf8(stored).ok().and_then(Self::parse)
    }

    /// Reads what the server has stored: three numbers, and others that it needs for itself.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let (sent_to, held_in, version) = (next()?, next()?, next()?);
        let sent_to = Number::try_from(sent_to).ok()?;
        let held_in = Number::try_from(held_in).ok()?;
        let is_sound = sent_to >= 1 && held_in >= sent_to && u32::from(held_in) <= MAX_PARTITIONS;
        is_sound.then_some(Self { sent_to, held_in, version })
    }

    /// The partition of a message: that of its group, or, where it has none, that of the run that its id
    /// is of. So a message that is sent again goes to where it was sent, and a batch stays together.
    pub(crate) fn place(&self, message: &Outgoing) -> Number {
        match message.group() {
            _ if self.sent_to == 1 => 0,
            Some(group) => jump(hash(group.as_bytes()), self.sent_to),
            None => jump(hash(&message.id.run().to_be_bytes()), self.sent_to),
        }
    }

    /// How many of at most `max_size` messages of the queue may be in each partition: some room for all,
    /// and together hardly more.
    pub(crate) fn share(&self, max_size: u64) -> u64 {
        max_size.div_ceil(self.sent_to.into())
    }
}

impl From<Layout> for Partitions {
    fn from(layout: Layout) -> Self {
        Self::new(layout.sent_to.into(), layout.held_in.into())
    }
}

/// FNV-1a, and then mixed well: near texts must not have near hashes.
fn hash(bytes: &[u8]) -> u64 {
    let fnv = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mixed = (fnv ^ fnv >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ mixed >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ mixed >> 33
}

/// Jump consistent hashing (Lamping and Veach): when partitions are added, what moves goes to the new
/// ones only, and as little as possible moves.
fn jump(mut hash: u64, partitions: Number) -> Number {
    let (mut place, mut next) = (0_i64, 0_i64);
    while next < i64::from(partitions) {
        place = next;
        hash = hash.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        next = ((place + 1) as f64 * (f64::from(1_u32 << 31) / ((hash >> 33) + 1) as f64)) as i64;
    }
    place as Number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(sent_to: Number) -> Layout {
        Layout { sent_to, held_in: sent_to, version: 1 }
    }

    fn of_group(group: &str) -> Outgoing {
        let mut message = Outgoing::new("");
        message.attributes.insert(Outgoing::GROUP, group);
        message
    }

    #[test]
    fn what_a_server_has_stored_is_read_and_nonsense_is_not() {
        let read = Layout::parse("4 12 7 1");
        assert_eq!(read, Some(Layout { sent_to: 4, held_in: 12, version: 7 }));
        for wrong in ["", "4", "4 12", "0 1 1", "3 2 1", "1 1001 1", "1 -1 1", "a b c", "1 70000 1"]
        {
            assert_eq!(Layout::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_message_that_is_sent_again_goes_to_where_it_was_sent_and_a_batch_stays_together() {
        let twelve = layout(12);
        let mut held = [0_u32; 12];
        let mut last = None;
        let mut changes = 0;
        for n in 0..100_000 {
            let message = Outgoing::new(n.to_string());
            let place = twelve.place(&message);
            assert_eq!(twelve.place(&Outgoing::with_id(message.id, "again")), place);
            assert_eq!(layout(1).place(&message), 0);
            held[usize::from(place)] += 1;
            changes += u32::from(last.replace(place) != Some(place));
        }
        assert!(changes < 400, "{changes}");
        assert!(held.iter().all(|count| (3000..16_000).contains(count)), "{held:?}");
        // Ids that were made by others come from everywhere.
        let mut held = [0_u32; 12];
        for n in 0..12_000 {
            let id = pillarbox_core::MessageId::from_key(&n.to_string());
            held[usize::from(twelve.place(&Outgoing::with_id(id, "")))] += 1;
        }
        assert!(held.iter().all(|count| (850..1150).contains(count)), "{held:?}");
    }

    #[test]
    fn groups_are_spread_evenly() {
        let mut held = [0_u32; 12];
        for n in 0..12_000 {
            held[usize::from(layout(12).place(&of_group(&n.to_string())))] += 1;
        }
        assert!(held.iter().all(|count| (850..1150).contains(count)), "{held:?}");
    }

    #[test]
    fn what_moves_when_there_are_more_partitions_goes_to_the_new_ones() {
        let mut moved = 0;
        for n in 0..10_000 {
            let message = of_group(&n.to_string());
            let (before, after) = (layout(8).place(&message), layout(12).place(&message));
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
