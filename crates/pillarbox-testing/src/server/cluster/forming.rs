//! Forms a cluster by commands, quickly, because each test starts its own.
//!
//! The slow part is a rule of the server: a primary refuses all commands in its first two seconds, in case
//! it was restarted after a failure. A promoted replica does not. Hence each primary is started as the
//! replica of a placeholder, a node that does not exist, and is promoted at once.

use std::fs;
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use rand::RngExt as _;

use super::{AGAIN, RedisCluster, SLOTS};
use crate::server::{LASTING_PORTS, PAUSE, PORTS};

/// Offset of a node's cluster bus port from its client port.
const BUS: u16 = 10_000;
/// Whether a node refuses all commands while any slot has no primary.
pub(super) const COVERAGE: &str = "cluster-require-full-coverage";

impl RedisCluster {
    /// Starts all nodes at the same time.
    pub(super) fn start_nodes(&mut self) {
        for node in 0..self.nodes.len() {
            self.start_node(node);
        }
        for node in 0..self.nodes.len() {
            let mut tries = 1;
            while !self.nodes[node].wait_for_start() {
                assert!(tries < PORTS, "a node does not come up:\n{}", self.nodes[node].log());
                tries += 1;
                self.start_node(node);
            }
        }
        for node in self.primaries..self.nodes.len() {
            self.ids[node] = self.nodes[node].command(&["CLUSTER", "MYID"]);
        }
    }

    fn start_node(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        node.port = free_ports();
        node.write_configuration();
        if number < self.primaries {
            let part = |number| number * usize::from(SLOTS) / self.primaries;
            let (id, placeholder) = (&self.ids[number], placeholder_of(&self.ids[number]));
            let (port, bus, no_bus) = (node.port, node.port + BUS, 1 + BUS);
            let (first, last) = (part(number), part(number + 1) - 1);
            // Distinct epochs, or the nodes would first have to resolve the conflict.
            let text = format!(
                "{id} 127.0.0.1:{port}@{bus} myself,slave {placeholder} 0 0 0 connected\n\
                 {placeholder} 127.0.0.1:1@{no_bus} master - 0 0 0 connected {first}-{last}\n\
                 vars currentEpoch {number} lastVoteEpoch 0\n"
            );
            fs::write(node.directory().join("nodes.conf"), text).expect("nodes.conf is written");
        }
        node.start_again();
    }

    /// Promotes each primary in place of its placeholder, which is forgotten.
    pub(super) fn place_primaries(&self) {
        let start = Instant::now();
        for primary in 0..self.primaries {
            // A node that fails here already considers its placeholder down, and refuses commands for its
            // first two seconds after all.
            while self.is_well(primary).is_err() && start.elapsed() < Duration::from_secs(1) {
                thread::sleep(PAUSE);
            }
            let node = &self.nodes[primary];
            node.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
            node.command(&["CLUSTER", "FORGET", &placeholder_of(&self.ids[primary])]);
        }
    }

    /// Introduces all nodes to each other, and makes replicas follow their primaries.
    pub(super) fn acquaint(&self) {
        let mut met: Option<Instant> = None;
        self.wait(|| {
            let meet = met.is_none_or(|met| met.elapsed() > AGAIN);
            let mut missing = Ok(());
            for node in 0..self.nodes.len() {
                let view = self.view(node)?;
                for other in node + 1..self.nodes.len() {
                    if view.line(other).is_none() {
                        missing = Err(format!("node {node} does not know node {other}"));
                        if meet {
                            let port = self.nodes[other].port().to_string();
                            self.ask(node, &["CLUSTER", "MEET", "127.0.0.1", &port])?;
                        }
                    }
                }
                let head = self.family_of(node).next().unwrap_or(node);
                let own = view.line(node).ok_or("a node does not know itself")?;
                if node != head && own.primary != Some(head) {
                    missing = Err(format!("node {node} does not follow node {head}"));
                    if view.line(head).is_some_and(|head| !head.slots.is_empty()) {
                        self.ask(node, &["CLUSTER", "REPLICATE", &self.ids[head]])?;
                    }
                }
                if view.owners().contains(&None) {
                    missing = missing.and(Err(format!("node {node} does not know all slots")));
                }
            }
            if meet {
                met = Some(Instant::now());
            }
            missing
        });
    }

    /// Makes nodes refuse commands while any slot has no primary, unless that was configured otherwise.
    ///
    /// If it were set from the start, each primary, which knew only its own slots, would report the cluster as
    /// down.
    pub(super) fn demand_full_coverage(&mut self, settings: &[(String, String)]) {
        let set = settings.iter().rfind(|(name, _)| name == COVERAGE);
        let demand = set.map_or("yes", |(_, value)| value);
        for node in &mut self.nodes {
            node.command(&["CONFIG", "SET", COVERAGE, demand]);
            // For a later restart.
            node.options.settings.push((COVERAGE.to_owned(), demand.to_owned()));
            node.write_configuration();
        }
    }
}

/// Returns the id of the placeholder whose replica this node is at first.
fn placeholder_of(id: &str) -> String {
    id.chars().rev().collect()
}

/// Returns a free client port whose cluster bus port is free too.
fn free_ports() -> u16 {
    let mut random = rand::rng();
    loop {
        let port = random.random_range(LASTING_PORTS.start..LASTING_PORTS.end - BUS);
        let bind = |port| TcpListener::bind(("127.0.0.1", port));
        if bind(port).is_ok() && bind(port + BUS).is_ok() {
            return port;
        }
    }
}
