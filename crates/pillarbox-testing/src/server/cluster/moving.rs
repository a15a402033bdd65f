//! Moves a slot from one primary to another, at once or in steps.

use super::{RedisCluster, owners, running};

/// Number of keys moved by one command.
const HANDFUL: usize = 100;
/// Timeout of a move of keys between nodes, in milliseconds.
const MIGRATE_TIMEOUT_MILLIS: &str = "30000";

impl RedisCluster {
    /// Moves a slot with all its keys to another primary, unless it is there.
    ///
    /// # Panics
    ///
    /// If a node fails.
    pub fn move_slot(&self, slot: u16, to: usize) {
        if self.primary_of_slot(slot) == to {
            return;
        }
        self.begin_move(slot, to);
        while self.keys_left(slot) > 0 {
            self.move_keys(slot, HANDFUL);
        }
        self.end_move(slot);
    }

    /// Begins to move a slot to another primary: from now on, clients are redirected there for keys that are not
    /// on the old one.
    ///
    /// # Panics
    ///
    /// If a node fails.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.primary_of_slot(slot);
        let slot = slot.to_string();
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves at most this many keys of a slot that is being moved, and returns the number of keys moved. Key names
    /// must not contain line breaks.
    ///
    /// # Panics
    ///
    /// If the slot is not being moved, or a node fails.
    pub fn move_keys(&self, slot: u16, at_most: usize) -> usize {
        let (from, to) = self.ends_of(slot);
        let (slot, at_most) = (slot.to_string(), at_most.to_string());
        let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, &at_most]);
        let keys: Vec<&str> = keys.lines().collect();
        if keys.is_empty() {
            return 0;
        }
        let port = self.nodes[to].port().to_string();
        let mut words =
            vec!["MIGRATE", "127.0.0.1", &port, "", "0", MIGRATE_TIMEOUT_MILLIS, "KEYS"];
        words.extend(&keys);
        // They may have been removed meanwhile.
        if self.nodes[from].command(&words) == "NOKEY" { 0 } else { keys.len() }
    }

    /// Ends the move of a slot whose keys have all been moved, and waits until all running nodes know.
    ///
    /// # Panics
    ///
    /// If the slot is not being moved, keys are left, or a node fails.
    pub fn end_move(&self, slot: u16) {
        let (from, to) = self.ends_of(slot);
        let left = self.keys_left(slot);
        assert_eq!(left, 0, "slot {slot} still has keys at node {from}, see `move_keys`");
        let others = self.primaries().into_iter().filter(|node| ![from, to].contains(node));
        // Its new primary first, or for a moment the slot would have none.
        for node in [to, from].into_iter().chain(others) {
            if self.nodes[node].is_running() {
                let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]];
                self.nodes[node].command(&words);
            }
        }
        self.wait(|| {
            for node in running(&self.nodes) {
                if owners([&self.view(node)?])[usize::from(slot)] != Some(to) {
                    return Err(format!("node {node} does not know that {slot} is at node {to}"));
                }
            }
            Ok(())
        });
    }

    /// Returns the number of keys of a slot on its primary.
    fn keys_left(&self, slot: u16) -> usize {
        let primary = &self.nodes[self.primary_of_slot(slot)];
        let left = primary.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
        left.parse().expect("a number of keys")
    }

    /// Returns the source and the destination of a slot that is being moved.
    fn ends_of(&self, slot: u16) -> (usize, usize) {
        let views = self.views();
        let own = |node| views.iter().find(|view| view.of == node)?.line(node);
        let from = self.primary_of_slot(slot);
        let leaving = own(from).and_then(|own| {
            own.leaving.iter().find(|(moving, _)| *moving == slot).map(|(_, to)| *to)
        });
        let to = leaving.unwrap_or_else(|| {
            panic!("slot {slot} is not moving from node {from}, see `begin_move`")
        });
        (from, to)
    }
}
