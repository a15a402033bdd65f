//! Which node of a cluster has which keys. Pure: learns from what servers say.

use std::sync::Arc;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The most primaries of a map, which is more than a cluster can have and still work: it looks through all of them for
/// each that it learns.
const MOST_NODES: usize = 4096;

/// Where a node is: `HOST:PORT`, as servers write it.
pub(crate) type Address = Arc<str>;

/// The slot of a key: of what stands between the first braces, if there is anything.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    let hashed = tag.map(|(tag, _)| tag).filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// CRC-16 as clusters use it (XMODEM).
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 }
        })
    })
}

/// Which primary has which slots, as far as is known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    /// Of each slot, the place of its node among `nodes`, counted from 1; 0 where none is known.
    owners: Vec<u16>,
    nodes: Vec<Address>,
    replicas: Vec<Address>,
}

impl SlotMap {
    /// The node that has a slot.
    pub(crate) fn node(&self, slot: u16) -> Option<&Address> {
        let place = usize::from(*self.owners.get(usize::from(slot))?).checked_sub(1)?;
        self.nodes.get(place)
    }

    /// Notes that a slot is at a node.
    pub(crate) fn learn(&mut self, slot: u16, node: &str) {
        let Some(place) = self.place(node) else { return };
        self.owners.resize(SLOTS.into(), 0);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = place;
        }
    }

    /// Notes that slots, the last one included, are at a node.
    pub(crate) fn learn_range(&mut self, first: u16, last: u16, node: &str) {
        let last = last.min(SLOTS - 1);
        if first <= last
            && let Some(place) = self.place(node)
        {
            self.owners.resize(SLOTS.into(), 0);
            self.owners[usize::from(first)..=usize::from(last)].fill(place);
        }
    }

    /// Notes a node that has copies.
    pub(crate) fn learn_replica(&mut self, node: &str) {
        self.replicas.push(node.into());
    }

    /// The place of a node, counted from 1. `None` for one that is more than a cluster has.
    fn place(&mut self, node: &str) -> Option<u16> {
        let known = self.nodes.iter().position(|known| **known == *node);
        if known.is_none() {
            if self.nodes.len() >= MOST_NODES {
                return None;
            }
            self.nodes.push(node.into());
        }
        u16::try_from(known.map_or(self.nodes.len(), |known| known + 1)).ok()
    }

    /// The nodes that have slots.
    pub(crate) fn primaries(&self) -> Vec<Address> {
        let mut has_slots = vec![false; self.nodes.len() + 1];
        self.owners.iter().for_each(|owner| has_slots[usize::from(*owner)] = true);
        let nodes = self.nodes.iter().zip(&has_slots[1..]);
        nodes.filter(|(_, has_slots)| **has_slots).map(|(node, _)| node.clone()).collect()
    }

    /// All nodes.
    pub(crate) fn everyone(&self) -> impl Iterator<Item = &Address> {
        self.nodes.iter().chain(&self.replicas)
    }

    /// How many slots no node has.
    pub(crate) fn uncovered(&self) -> usize {
        match self.owners.len() {
            0 => SLOTS.into(),
            _ => self.owners.iter().filter(|owner| **owner == 0).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_where_servers_look_for_them() {
        // As CLUSTER KEYSLOT says.
        for (key, expected) in [
            ("", 0),
            ("foo", 12182),
            ("123456789", 12739),
            ("{foo}bar", 12182),
            ("x{foo}{bar}", 12182),
            ("{queue:jobs}:data", slot("queue:jobs")),
            ("{}foo", slot("{}foo")),
        ] {
            assert_eq!(slot(key), expected, "{key}");
        }
        assert_ne!(slot("{}foo"), slot("foo"));
        assert_eq!(slot("{queue:a}:data"), slot("{queue:a}:meta"));
    }

    #[test]
    fn a_server_that_names_nodes_without_end_is_not_believed() {
        let mut map = SlotMap::default();
        for port in 0..=MOST_NODES {
            map.learn_range(7, 7, &format!("h:{port}"));
            map.learn_range(9, 8, "of no slot");
        }
        assert_eq!(map.node(7).map(|node| node.to_string()), Some(format!("h:{}", MOST_NODES - 1)));
        assert_eq!(map.everyone().count(), MOST_NODES);
    }

    #[test]
    fn a_map_knows_what_it_was_told() {
        let mut map = SlotMap::default();
        assert_eq!((map.node(3), map.uncovered()), (None, 16384));
        map.learn_range(0, 99, "h:1");
        map.learn_range(100, 16383, "h:2");
        map.learn_replica("h:3");
        assert_eq!(map.node(99).map(|node| &**node), Some("h:1"));
        assert_eq!(map.node(100).map(|node| &**node), Some("h:2"));
        assert_eq!(map.uncovered(), 0);
        map.learn(99, "h:4");
        assert_eq!(map.node(99).map(|node| &**node), Some("h:4"));
        assert_eq!(map.node(98).map(|node| &**node), Some("h:1"));
        map.learn_range(0, 99, "h:4");
        let names = |nodes: Vec<Address>| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(map.primaries()), ["h:2", "h:4"]);
        assert_eq!(map.everyone().count(), 4);
        map.learn_range(16000, 40000, "h:1");
        map.learn_range(9, 8, "h:9");
        assert_eq!(map.node(16384), None);
    }
}
