//! The map from the slots of a cluster to its nodes. Pure.

use std::sync::Arc;

/// Number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16384;

/// Maximum number of primaries of a map, more than a working cluster can have: the map searches all of them for
/// each that it adds.
const MAX_NODES: usize = 4096;

/// Address of a node: `HOST:PORT`, as servers write it.
pub(crate) type Address = Arc<str>;

/// Returns the slot of a key: of the text between the first braces, if there is any.
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

/// The primary of each slot, as far as known.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    /// For each slot, the index of its node in `primaries`, counted from 1; 0 if unknown.
    owners: Vec<u16>,
    primaries: Vec<Address>,
    replicas: Vec<Address>,
}

impl SlotMap {
    /// Returns the node that has a slot.
    pub(crate) fn node(&self, slot: u16) -> Option<&Address> {
        let index = usize::from(*self.owners.get(usize::from(slot))?).checked_sub(1)?;
        self.primaries.get(index)
    }

    /// Sets the node of a slot.
    pub(super) fn set_slot(&mut self, slot: u16, node: &str) {
        let Some(index) = self.index(node) else { return };
        self.owners.resize(SLOTS.into(), 0);
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = index;
        }
    }

    /// Sets the node of a range of slots, `last` included.
    pub(super) fn set_range(&mut self, first: u16, last: u16, node: &str) {
        let last = last.min(SLOTS - 1);
        if first <= last
            && let Some(index) = self.index(node)
        {
            self.owners.resize(SLOTS.into(), 0);
            self.owners[usize::from(first)..=usize::from(last)].fill(index);
        }
    }

    /// Adds a replica.
    pub(super) fn add_replica(&mut self, node: &str) {
        self.replicas.push(node.into());
    }

    /// Returns the index of a node, counted from 1, and adds the node if it is new. `None` if there are too many.
    fn index(&mut self, node: &str) -> Option<u16> {
        let known = self.primaries.iter().position(|known| **known == *node);
        if known.is_none() {
            if self.primaries.len() >= MAX_NODES {
                return None;
            }
            self.primaries.push(node.into());
        }
        u16::try_from(known.map_or(self.primaries.len(), |known| known + 1)).ok()
    }

    /// Returns the nodes that have slots.
    pub(crate) fn primaries(&self) -> Vec<Address> {
        let mut has_slots = vec![false; self.primaries.len() + 1];
        self.owners.iter().for_each(|owner| has_slots[usize::from(*owner)] = true);
        let nodes = self.primaries.iter().zip(&has_slots[1..]);
        nodes.filter(|(_, has_slots)| **has_slots).map(|(node, _)| node.clone()).collect()
    }

    /// Returns all nodes.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Address> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// Returns the number of slots without a node.
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
    fn slots_are_those_that_servers_compute() {
        // As CLUSTER KEYSLOT answers.
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
    fn the_number_of_nodes_is_limited() {
        let mut map = SlotMap::default();
        for port in 0..=MAX_NODES {
            map.set_range(7, 7, &format!("h:{port}"));
            map.set_range(9, 8, "of no slot");
        }
        assert_eq!(map.node(7).map(|node| node.to_string()), Some(format!("h:{}", MAX_NODES - 1)));
        assert_eq!(map.nodes().count(), MAX_NODES);
    }

    #[test]
    fn slots_are_set_one_by_one_and_by_range() {
        let mut map = SlotMap::default();
        assert_eq!((map.node(3), map.uncovered()), (None, 16384));
        map.set_range(0, 99, "h:1");
        map.set_range(100, 16383, "h:2");
        map.add_replica("h:3");
        assert_eq!(map.node(99).map(|node| &**node), Some("h:1"));
        assert_eq!(map.node(100).map(|node| &**node), Some("h:2"));
        assert_eq!(map.uncovered(), 0);
        map.set_slot(99, "h:4");
        assert_eq!(map.node(99).map(|node| &**node), Some("h:4"));
        assert_eq!(map.node(98).map(|node| &**node), Some("h:1"));
        map.set_range(0, 99, "h:4");
        let names = |nodes: Vec<Address>| nodes.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(map.primaries()), ["h:2", "h:4"]);
        assert_eq!(map.nodes().count(), 4);
        map.set_range(16000, 40000, "h:1");
        map.set_range(9, 8, "h:9");
        assert_eq!(map.node(16384), None);
    }
}
