//! How a slot moves from one primary to another, at once or in steps.

use super::{RedisCluster, owners};

/// How many keys are moved by one command.
const HANDFUL: usize = 100;
/// How long a node may take to send keys to another, in milliseconds.
const PATIENCE_MILLIS: &str = "30000";

impl RedisCluster {
    /// Moves a slot with all its keys to another primary, unless it is there.
    ///
    /// # Panics
    ///
    /// When a node does not do its part.
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

    /// Begins to move a slot to another primary: from now on who asks for a key that is not there
    /// is sent to the other.
    ///
    /// # Panics
    ///
    /// When a node does not do its part.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = self.primary_of_slot(slot);
        let slot = slot.to_string();
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves some keys of a slot that is moving, at most this many, and gives how many it has
    /// moved. No key may have a line break in its name.
    ///
    /// # Panics
    ///
    /// When the slot is not moving, or a node does not do its part.
    pub fn move_keys(&self, slot: u16, at_most: usize) -> usize {
        let (from, to) = self.ends_of(slot);
        let (slot, at_most) = (slot.to_string(), at_most.to_string());
        let keys = self.nodes[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, &at_most]);
        let keys: Vec<&str> = keys.lines().collect();
        if keys.is_empty() {
            return 0;
        }
        let port = self.nodes[to].port().to_string();
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", PATIENCE_MILLIS, "KEYS"];
        words.extend(&keys);
        // They may have been removed meanwhile.
        if self.nodes[from].command(&words) == "NOKEY" { 0 } else { keys.len() }
    }

    /// Ends the move of a slot of which all keys have been moved, and waits until all nodes that
    /// run know that it has.
    ///
    /// # Panics
    ///
    /// When the slot is not moving, there are keys left, or a node does not do its part.
    pub fn end_move(&self, slot: u16) {
        let (from, to) = self.ends_of(slot);
        let left = self.keys_left(slot);
        assert_eq!(left, 0, "slot {slot} still has keys at node {from}, see `move_keys`");
        let others = self.primaries().into_iter().filter(|node| ![from, to].contains(node));
        // Its new primary before all others, else for a moment nobody has it.
        for node in [to, from].into_iter().chain(others) {
            if self.nodes[node].is_running() {
                let words = ["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &self.ids[to]];
                self.nodes[node].command(&words);
            }
        }
        self.wait(|| {
            for node in self.running() {
                if owners([&self.view(node)?])[usize::from(slot)] != Some(to) {
                    return Err(format!("node {node} does not know that {slot} is at node {to}"));
                }
            }
            Ok(())
        });
    }

    /// How many keys of a slot its primary holds.
    fn keys_left(&self, slot: u16) -> usize {
        let primary = &self.nodes[self.primary_of_slot(slot)];
        let left = primary.command(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]);
        left.parse().expect("a number of keys")
    }

    /// From where to where a slot moves.
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
