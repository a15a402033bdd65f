//! A cluster of real servers.

mod forming;
mod moving;
mod view;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use self::forming::COVERAGE;
use self::view::{Line, View, owners};
use super::{
    Flavour, RedisServer, RedisServerBuilder, addresses, field_of, random_id, running, wait_for,
};

/// Number of slots of a cluster.
pub const SLOTS: u16 = 16384;
/// Interval after which a step that may get lost is repeated.
const AGAIN: Duration = Duration::from_secs(3);

/// Returns the slot of a key: by the text between the first `{` and the next `}`, if there is any.
pub fn slot_of(key: &str) -> u16 {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let hashed = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    crc16(hashed.as_bytes()) % SLOTS
}

/// The checksum CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Builder of a [`RedisCluster`].
#[derive(Debug, Clone)]
#[must_use]
pub struct RedisClusterBuilder {
    node: RedisServerBuilder,
    primaries: usize,
    replicas: usize,
}

impl RedisClusterBuilder {
    /// Sets the flavour. Defaults to the distribution's Redis.
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.node.flavour = flavour;
        self
    }

    /// Sets the number of primaries. Defaults to 3.
    pub fn primaries(mut self, primaries: usize) -> Self {
        self.primaries = primaries;
        self
    }

    /// Sets the number of replicas of each primary. Defaults to 1.
    pub fn replicas(mut self, replicas: usize) -> Self {
        self.replicas = replicas;
        self
    }

    /// Sets the time without an answer after which a node counts as down. Defaults to 1 s.
    pub fn node_timeout(self, timeout: Duration) -> Self {
        self.setting("cluster-node-timeout", &timeout.as_millis().to_string())
    }

    /// Adds a line to the configuration file of every node.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.node = self.node.setting(name, value);
        self
    }

    /// Enables the append-only file, synced `always`, `everysec` or `no`.
    pub fn appendonly(self, fsync: &str) -> Self {
        self.setting("appendonly", "yes").setting("appendfsync", fsync)
    }

    /// Starts it and waits until all nodes agree.
    ///
    /// # Panics
    ///
    /// If the program is not installed, a node does not start, or they do not form a cluster.
    pub fn start(self) -> RedisCluster {
        assert!(self.primaries > 0, "a cluster has a primary");
        let count = self.primaries * (1 + self.replicas);
        // Until all know each other: see `demand_full_coverage`.
        let node = self.node.clone().setting(COVERAGE, "no");
        let nodes = (0..count).map(|_| node.clone().prepare()).collect();
        let ids = (0..count).map(|_| random_id()).collect();
        let mut cluster =
            RedisCluster { nodes, ids, primaries: self.primaries, replicas: self.replicas };
        cluster.start_nodes();
        cluster.place_primaries();
        cluster.acquaint();
        cluster.demand_full_coverage(&self.node.settings);
        cluster.wait_until_whole();
        cluster
    }
}

/// A running cluster. Dropping it kills the processes and removes their directories.
///
/// Nodes are identified by index. At first the primaries are the nodes 0, 1 and so on, each with an
/// equal part of the slots, in order; then come the replicas of the first primary, those of the
/// second, and so on. After a failover, see [`primary_of_slot`](Self::primary_of_slot).
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
    /// Ids of the nodes.
    ids: Vec<String>,
    /// Number of primaries at first.
    primaries: usize,
    /// Number of replicas of each.
    replicas: usize,
}

impl RedisCluster {
    /// Starts three primaries of the distribution's Redis with a replica each.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a builder.
    pub fn builder() -> RedisClusterBuilder {
        let node = RedisServer::builder()
            .replicated()
            .setting("cluster-enabled", "yes")
            // A replica may be elected however long its link was down.
            .setting("cluster-replica-validity-factor", "0")
            // It stays with its primary.
            .setting("cluster-migration-barrier", "1000");
        let builder = RedisClusterBuilder { node, primaries: 3, replicas: 1 };
        builder.node_timeout(Duration::from_secs(1))
    }

    /// Returns its URL: `redis-cluster://127.0.0.1:PORT,127.0.0.1:PORT,...`, with all nodes.
    pub fn url(&self) -> String {
        format!("redis-cluster://{}", addresses(&self.nodes))
    }

    /// Returns its nodes, including those that were killed.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// Returns one of its nodes.
    pub fn node(&self, node: usize) -> &RedisServer {
        &self.nodes[node]
    }

    /// Returns one of its nodes, to stop and start it.
    pub fn node_mut(&mut self, node: usize) -> &mut RedisServer {
        &mut self.nodes[node]
    }

    /// Returns the slot of a key.
    pub fn slot_of(&self, key: &str) -> u16 {
        slot_of(key)
    }

    /// Returns the index of the primary of a slot according to the node that answers and has the newest epoch.
    /// It may be down.
    ///
    /// # Panics
    ///
    /// If no node answers, or none knows.
    pub fn primary_of_slot(&self, slot: u16) -> usize {
        let owners = owners(&self.views());
        owners[usize::from(slot)]
            .unwrap_or_else(|| panic!("no node knows the primary of slot {slot}"))
    }

    /// Returns the index of the primary of a key.
    ///
    /// # Panics
    ///
    /// If no node answers, or none knows.
    pub fn primary_of(&self, key: &str) -> usize {
        self.primary_of_slot(slot_of(key))
    }

    /// Returns the indices of the nodes that are primaries of any slot.
    pub fn primaries(&self) -> Vec<usize> {
        let owners: BTreeSet<_> = owners(&self.views()).into_iter().flatten().collect();
        owners.into_iter().collect()
    }

    /// Returns the indices of the replicas of a node, according to themselves or, if they do not answer, to
    /// the other nodes.
    pub fn replicas_of(&self, primary: usize) -> Vec<usize> {
        let views = self.views();
        let replicates = |node: &usize| {
            let own = views.iter().find(|view| view.of == *node);
            let known = own.or(views.first()).and_then(|view| view.line(*node));
            known.is_some_and(|line| line.primary == Some(primary))
        };
        (0..self.nodes.len()).filter(replicates).collect()
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].kill();
    }

    /// Restarts a node, after killing it if it still runs, and waits until it answers. It may not know its
    /// role yet: see [`wait_until_whole`](Self::wait_until_whole).
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node].restart();
    }

    /// Waits until all running nodes know each other and agree: every slot has a running primary, every replica
    /// is up to date, and the state is `ok`.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute; the message says what is missing.
    pub fn wait_until_whole(&self) {
        self.wait(|| self.is_whole());
    }

    /// Waits until every running replica has received all writes of its primary until now.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn wait_until_replicated(&self) {
        for primary in self.primaries() {
            if !self.nodes[primary].is_running() {
                continue;
            }
            let replicas = self.replicas_of(primary);
            let done = self.wait(|| self.nodes[primary].offset("master_repl_offset"));
            for replica in replicas.into_iter().filter(|node| self.nodes[*node].is_running()) {
                self.wait(|| self.nodes[replica].has_received(done));
            }
        }
    }

    /// Waits until another node has replaced this one according to all nodes that answer. Returns its index.
    ///
    /// # Panics
    ///
    /// If that takes longer than a minute.
    pub fn wait_for_promotion(&self, old: usize) -> usize {
        self.wait(|| self.successor_of(old))
    }

    /// Hands this primary over to a replica without losing writes, and waits until it is done. Returns the index
    /// of the new primary.
    ///
    /// # Panics
    ///
    /// If it has no replica that runs, or that takes longer than a minute.
    pub fn failover(&self, primary: usize) -> usize {
        let replicas = self.replicas_of(primary);
        let successor = replicas.into_iter().find(|replica| self.nodes[*replica].is_running());
        let successor =
            successor.unwrap_or_else(|| panic!("node {primary} has no replica that runs"));
        let mut asked: Option<Instant> = None;
        self.wait(|| {
            // The replica gives up if the handover takes too long.
            if asked.is_none_or(|asked| asked.elapsed() > AGAIN * 2) {
                asked = Some(Instant::now());
                self.ask(successor, &["CLUSTER", "FAILOVER"])?;
            }
            self.successor_of(primary)
        })
    }

    /// Returns the number of keys that match a pattern on each node; 0 if it does not answer.
    pub fn keys_by_node(&self, pattern: &str) -> Vec<usize> {
        let count =
            |node| self.ask(node, &["KEYS", pattern]).map_or(0, |keys| keys.lines().count());
        (0..self.nodes.len()).map(count).collect()
    }

    /// Waits until `check` succeeds; its error says what is missing.
    fn wait<T>(&self, look: impl FnMut() -> Result<T, String>) -> T {
        let rest = || {
            let views = self.views();
            let views = views.iter().map(|view| format!("node {}:\n{}", view.of, view.text));
            views.collect::<Vec<_>>().join("\n")
        };
        wait_for(look, rest)
    }

    /// Runs one command on a node that may be down or hang.
    fn ask(&self, node: usize, words: &[&str]) -> Result<String, String> {
        self.nodes[node].query(words).map_err(|error| format!("node {node}: {error}"))
    }

    /// Returns the view of each node that answers.
    fn views(&self) -> Vec<View> {
        running(&self.nodes).filter_map(|node| self.view(node).ok()).collect()
    }

    fn view(&self, node: usize) -> Result<View, String> {
        let text = self.ask(node, &["CLUSTER", "NODES"])?;
        let lines = text.lines().filter_map(|line| Line::read(line, &self.ids)).collect();
        Ok(View { of: node, lines, text })
    }

    fn is_well(&self, node: usize) -> Result<(), String> {
        let info = self.ask(node, &["CLUSTER", "INFO"])?;
        match field_of(&info, "cluster_state") {
            Some("ok") => Ok(()),
            state => Err(format!("node {node} says that the cluster's state is {state:?}")),
        }
    }

    /// Checks that all running nodes agree; the error says what is missing.
    fn is_whole(&self) -> Result<(), String> {
        let running: Vec<usize> = running(&self.nodes).collect();
        let views = running.iter().map(|node| self.view(*node)).collect::<Result<Vec<_>, _>>()?;
        let owners = owners(&views);
        for (slot, owner) in owners.iter().enumerate() {
            if !owner.is_some_and(|owner| running.contains(&owner)) {
                return Err(format!("slot {slot} has no primary that runs, but {owner:?}"));
            }
        }
        for view in &views {
            self.is_well(view.of)?;
            if view.owners() != owners {
                return Err(format!("node {} does not know who has which slots", view.of));
            }
            for node in &running {
                let line = view.line(*node);
                if !line.is_some_and(|line| line.connected && line.well) {
                    return Err(format!("node {} is not in touch with node {node}", view.of));
                }
                let own = views.iter().find_map(|own| own.line(*node).filter(|_| own.of == *node));
                if line.map(|line| line.primary) != own.map(|own| own.primary) {
                    return Err(format!("node {} does not know what node {node} is", view.of));
                }
            }
            let own = view.line(view.of).ok_or("a node does not know itself")?;
            let Some(primary) = own.primary else { continue };
            if !owners.contains(&Some(primary)) {
                return Err(format!("node {} replicates {primary}, with no slots", view.of));
            }
            let link = self.nodes[view.of].replication("master_link_status")?;
            if link.as_deref() != Some("up") {
                return Err(format!("node {} has not what {primary} has", view.of));
            }
        }
        Ok(())
    }

    /// Returns the nodes that started as a primary and its replicas, one of which is this.
    fn family_of(&self, node: usize) -> impl Iterator<Item = usize> {
        let head = match node.checked_sub(self.primaries) {
            None => node,
            Some(replica) => replica / self.replicas,
        };
        let first = self.primaries + head * self.replicas;
        std::iter::once(head).chain(first..first + self.replicas)
    }

    /// Returns the node that replaced another.
    fn successor_of(&self, old: usize) -> Result<usize, String> {
        let mut views = self.views();
        views.retain(|view| view.of != old);
        let owners = owners(&views);
        let mut successors = self.family_of(old).filter(|node| {
            let own = views.iter().find(|view| view.of == *node).and_then(|own| own.line(*node));
            *node != old && own.is_some_and(|own| own.primary.is_none() && !own.slots.is_empty())
        });
        let successor =
            successors.next().ok_or_else(|| format!("none has the place of node {old}"))?;
        for view in &views {
            self.is_well(view.of)?;
            if view.owners() != owners {
                return Err(format!("node {} does not know who has which slots", view.of));
            }
        }
        Ok(successor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here() -> impl Iterator<Item = Flavour> {
        Flavour::ALL.into_iter().filter(|flavour| flavour.is_installed())
    }

    /// Writes a key, and returns its primary and the replica that has it.
    ///
    /// If the processors are busy, a primary may be silent for longer than the node timeout and be replaced
    /// although it runs: writes of that time are lost.
    fn written_and_replicated(cluster: &RedisCluster) -> (usize, usize) {
        cluster.wait(|| {
            let primary = cluster.primary_of("key");
            cluster.ask(primary, &["SET", "key", "value"])?;
            cluster.wait_until_replicated();
            let replicas = cluster.replicas_of(primary);
            let held = cluster.keys_by_node("key");
            let successor = replicas.into_iter().find(|replica| held[*replica] == 1);
            match successor.filter(|_| cluster.primary_of("key") == primary) {
                Some(successor) => Ok((primary, successor)),
                None => Err(format!("node {primary} was replaced: {held:?}")),
            }
        })
    }

    #[test]
    fn a_cluster_of_every_flavour_replaces_a_dead_primary_which_comes_back_as_a_replica() {
        for flavour in here() {
            let started = Instant::now();
            let mut cluster = RedisCluster::builder().flavour(flavour).start();
            println!("{} cluster started within {:?}", flavour.name(), started.elapsed());
            assert_eq!(cluster.primaries(), [0, 1, 2]);
            assert_eq!([0, 1, 2].map(|primary| cluster.replicas_of(primary)), [[3], [4], [5]]);
            assert_eq!(cluster.primary_of_slot(5461), 1);
            let (old, successor) = written_and_replicated(&cluster);
            cluster.kill(old);
            let killed = Instant::now();
            assert!(cluster.node(old).try_command(&["PING"]).is_err());
            let new = cluster.wait_for_promotion(old);
            println!("{} replica promoted within {:?}", flavour.name(), killed.elapsed());
            assert_eq!(new, successor);
            assert_eq!(cluster.primary_of("key"), new);
            assert_eq!(cluster.node(new).command(&["GET", "key"]), "value");
            cluster.wait_until_whole();
            cluster.restart(old);
            cluster.wait_until_whole();
            assert_eq!(cluster.replicas_of(new), [old]);
            assert_eq!(cluster.keys_by_node("k*")[old], 1);
        }
    }

    #[test]
    fn repeated_failovers_of_a_cluster_lose_nothing() {
        let cluster = RedisCluster::builder().primaries(1).replicas(2).start();
        cluster.node(0).command(&["SET", "key", "value"]);
        let mut primary = 0;
        for _ in 0..3 {
            let next = cluster.failover(primary);
            assert_ne!(next, primary);
            assert_eq!(cluster.node(next).command(&["GET", "key"]), "value");
            cluster.wait_until_whole();
            assert_eq!(cluster.primaries(), [next]);
            assert_eq!(cluster.replicas_of(next).len(), 2);
            primary = next;
        }
    }

    #[test]
    fn a_primary_that_hangs_is_replaced_and_becomes_a_replica_when_it_resumes() {
        let cluster = RedisCluster::builder().flavour(Flavour::Redis).start();
        cluster.node(1).pause();
        assert_eq!(cluster.wait_for_promotion(1), 4);
        cluster.node(1).resume();
        cluster.wait_until_whole();
        assert_eq!(cluster.replicas_of(4), [1]);
    }

    #[test]
    fn a_cluster_without_replicas_keeps_its_slots_and_keys_over_a_restart() {
        let mut cluster = RedisCluster::builder().replicas(0).appendonly("always").start();
        let primary = cluster.primary_of("key");
        cluster.node(primary).command(&["SET", "key", "value"]);
        cluster.restart(primary);
        cluster.wait_until_whole();
        assert_eq!(cluster.primaries(), [0, 1, 2]);
        assert_eq!(cluster.node(primary).command(&["GET", "key"]), "value");
        let coverage = cluster.node(primary).command(&["CONFIG", "GET", COVERAGE]);
        assert_eq!(coverage, format!("{COVERAGE}\nyes"));
    }

    #[test]
    fn a_slot_moves_with_its_keys_at_once_and_in_steps() {
        for flavour in here() {
            let cluster = RedisCluster::builder().flavour(flavour).start();
            let slot = slot_of("{tag}");
            let from = cluster.primary_of_slot(slot);
            let to = (from + 1) % 3;
            for number in 0..250 {
                cluster.node(from).command(&["SET", &format!("{{tag}}:{number}"), "value"]);
            }
            cluster.begin_move(slot, to);
            assert_eq!(cluster.move_keys(slot, 100), 100);
            let held = cluster.keys_by_node("{tag}:*");
            assert_eq!((held[from], held[to]), (150, 100));
            let error = cluster.node(from).try_command(&["GET", "{tag}:none"]);
            assert!(error.expect_err("redirected").starts_with("ASK "), "{flavour:?}");
            assert_eq!(cluster.move_keys(slot, 200), 150);
            assert_eq!(cluster.move_keys(slot, 200), 0);
            cluster.end_move(slot);
            assert_eq!(cluster.primary_of("{tag}:1"), to);
            let error = cluster.node(from).try_command(&["GET", "{tag}:1"]);
            assert!(error.expect_err("redirected").starts_with("MOVED "), "{flavour:?}");
            cluster.wait_until_whole();
            cluster.move_slot(slot, from);
            cluster.wait_until_whole();
            assert_eq!(cluster.primary_of_slot(slot), from);
            cluster.wait_until_replicated();
            let held = cluster.keys_by_node("{tag}:*");
            assert_eq!((held[from], held[to], held[from + 3]), (250, 0, 250));
        }
    }

    #[test]
    fn a_key_is_in_the_slot_of_its_tag() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of("foo"), 12182);
        assert_eq!(slot_of("{user1000}.following"), slot_of("user1000"));
        assert_eq!(slot_of("foo{{bar}}zap"), slot_of("{bar"));
        assert_eq!(slot_of("foo{bar}{zap}"), slot_of("bar"));
        assert_eq!(slot_of("foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
    }
}
