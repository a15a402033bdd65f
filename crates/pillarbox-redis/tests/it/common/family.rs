//! Servers with failover: a primary with replicas behind Sentinel, or a cluster.

use std::time::Duration;

use pillarbox_testing::server::{RedisCluster, RedisSentinels, RedisServer, slot_of};

/// Servers with failover. In a cluster, those that have the slot of a queue.
pub(crate) enum Family {
    Sentinels(RedisSentinels),
    Cluster(RedisCluster, u16),
}

impl Family {
    /// Starts a primary with two replicas.
    pub(crate) fn sentinels() -> Self {
        Self::Sentinels(RedisSentinels::start())
    }

    /// Starts three primaries with a replica each.
    pub(crate) fn cluster(queue: &str) -> Self {
        Self::of_cluster(RedisCluster::start(), queue)
    }

    pub(crate) fn of_cluster(cluster: RedisCluster, queue: &str) -> Self {
        Self::Cluster(cluster, slot_of(&format!("{{queue:{queue}}}")))
    }

    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Sentinels(_) => "sentinels",
            Self::Cluster(..) => "cluster",
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Sentinels(all) => all.url(),
            Self::Cluster(all, _) => all.url(),
        }
    }

    pub(crate) fn server(&self, number: usize) -> &RedisServer {
        match self {
            Self::Sentinels(all) => all.server(number),
            Self::Cluster(all, _) => all.node(number),
        }
    }

    pub(crate) fn primary(&self) -> usize {
        match self {
            Self::Sentinels(all) => all.primary(),
            Self::Cluster(all, slot) => all.primary_of_slot(*slot),
        }
    }

    pub(crate) fn replicas(&self) -> Vec<usize> {
        let primary = self.primary();
        match self {
            Self::Sentinels(all) => (0..all.servers().len()).filter(|n| *n != primary).collect(),
            Self::Cluster(all, _) => all.replicas_of(primary),
        }
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, number: usize) {
        match self {
            Self::Sentinels(all) => all.kill(number),
            Self::Cluster(all, _) => all.kill(number),
        }
    }

    pub(crate) fn restart(&mut self, number: usize) {
        match self {
            Self::Sentinels(all) => all.restart(number),
            Self::Cluster(all, _) => all.restart(number),
        }
    }

    pub(crate) fn wait_for_promotion(&self, old: usize) -> usize {
        match self {
            Self::Sentinels(all) => all.wait_for_promotion(old),
            Self::Cluster(all, _) => all.wait_for_promotion(old),
        }
    }

    pub(crate) fn wait_until_whole(&self) {
        match self {
            Self::Sentinels(all) => all.wait_until_whole(),
            Self::Cluster(all, _) => all.wait_until_whole(),
        }
    }

    pub(crate) fn wait_until_replicated(&self) {
        match self {
            Self::Sentinels(all) => all.wait_until_replicated(),
            Self::Cluster(all, _) => all.wait_until_replicated(),
        }
    }

    /// Starts an orderly failover to a replica, and returns its number.
    pub(crate) fn hand_over(&self) -> usize {
        match self {
            Self::Sentinels(all) => all.failover(),
            Self::Cluster(all, _) => all.failover(self.primary()),
        }
    }

    /// Cuts the replicas off from the primary for `lag`, and then stops the primary. Returns its number.
    ///
    /// Pausing the replicas alone is not enough: they read what was sent to them when they resume.
    pub(crate) fn fail_with_lag(&mut self, lag: Duration, stop: fn(&mut Self, usize)) -> usize {
        let (primary, replicas) = (self.primary(), self.replicas());
        replicas.iter().for_each(|replica| self.server(*replica).pause());
        self.server(primary).command(&["CLIENT", "KILL", "TYPE", "replica"]);
        std::thread::sleep(lag);
        stop(self, primary);
        replicas.iter().for_each(|replica| self.server(*replica).resume());
        primary
    }
}
