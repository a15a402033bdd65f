//! The nodes of a cluster and their slots.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use pillarbox_core::internal::lock;
use rand::seq::SliceRandom;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Notify;

use super::client_factory::ClientFactory;
use super::node::Node;
use super::slots::{Address, SlotMap};

/// Time without an answer after which another node is queried as well.
const HEDGE_DELAY: Duration = Duration::from_millis(200);

/// Time within which one of the nodes must answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of a cluster and their slots.
///
/// The slots are read from one of the nodes, at first and after failures; a redirection updates the slot that
/// it is about.
pub(crate) struct Cluster {
    /// URL of the cluster, without secrets.
    pub(super) endpoint: Arc<str>,
    pub(super) nodes: Arc<Nodes>,
    /// Refresh under way, shared by all who need it.
    refresh: Mutex<Option<Shared<BoxFuture<'static, RedisResult<()>>>>>,
}

pub(super) struct Nodes {
    seeds: Vec<Address>,
    clients: ClientFactory,
    response_timeout: Duration,
    /// Never locked across an await.
    state: Mutex<ClusterState>,
    /// Notified when a slot has moved. For a single task.
    pub(super) moved: Notify,
}

#[derive(Default)]
struct ClusterState {
    map: SlotMap,
    /// Nodes that were called.
    nodes: HashMap<Address, Arc<Node>>,
}

impl Cluster {
    pub(super) fn new(
        endpoint: Arc<str>,
        seeds: &[(String, u16)],
        clients: ClientFactory,
        response_timeout: Duration,
    ) -> Self {
        let seeds: Vec<Address> =
            seeds.iter().map(|(host, port)| address(host, *port).into()).collect();
        let state = Mutex::default();
        let moved = Notify::new();
        let nodes = Arc::new(Nodes { seeds, clients, response_timeout, state, moved });
        Self { endpoint, nodes, refresh: Mutex::default() }
    }

    /// Returns the node that has a slot, and reads the slots if it is not known.
    pub(crate) async fn node(&self, slot: u16) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.nodes.node(slot)? {
            return Ok(node);
        }
        self.refresh().await?;
        self.nodes.node(slot)?.ok_or_else(|| {
            // It may be moving to another node.
            std::io::Error::other("no node of the cluster has the slot of the queue").into()
        })
    }

    /// Returns the node that has a slot, if known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        self.nodes.node(slot).ok().flatten()
    }

    /// Records that a slot has moved to a node.
    pub(super) fn slot_moved(&self, slot: u16, address: &str) {
        let mut state = lock(&self.nodes.state);
        let is_known = state.map.node(slot).is_some_and(|known| **known == *address);
        state.map.set_slot(slot, address);
        if !is_known {
            self.nodes.moved.notify_one();
        }
    }

    /// Reads the slots and returns all nodes that have some.
    pub(crate) async fn primaries(&self) -> RedisResult<Vec<Arc<Node>>> {
        self.refresh().await?;
        let primaries = lock(&self.nodes.state).map.primaries();
        primaries.iter().map(|address| self.nodes.node_at(address)).collect()
    }

    /// Returns the number of slots without a node.
    pub(crate) fn uncovered(&self) -> usize {
        lock(&self.nodes.state).map.uncovered()
    }

    /// Reads the slots from one of the nodes, once for all concurrent callers.
    pub(crate) async fn refresh(&self) -> RedisResult<()> {
        let refresh = {
            let begin = || {
                let nodes = self.nodes.clone();
                async move { nodes.refresh().await }.boxed().shared()
            };
            lock(&self.refresh).get_or_insert_with(begin).clone()
        };
        let refreshed = refresh.clone().await;
        let mut current = lock(&self.refresh);
        if current.as_ref().is_some_and(|current| current.ptr_eq(&refresh)) {
            *current = None;
        }
        refreshed
    }

    /// Closes all connections.
    pub(crate) fn disconnect(&self) {
        lock(&self.nodes.state).nodes.values().for_each(|node| node.disconnect());
    }
}

impl Nodes {
    fn node(&self, slot: u16) -> RedisResult<Option<Arc<Node>>> {
        let address = lock(&self.state).map.node(slot).cloned();
        address.map(|address| self.node_at(&address)).transpose()
    }

    pub(super) fn node_at(&self, address: &str) -> RedisResult<Arc<Node>> {
        if let Some(node) = lock(&self.state).nodes.get(address) {
            return Ok(node.clone());
        }
        let (host, port) = parts(address)?;
        let client = self.clients.client(host, port)?;
        let node = Arc::new(Node::new(client, self.response_timeout));
        Ok(lock(&self.state).nodes.entry(address.into()).or_insert(node).clone())
    }

    /// Queries one node after the other, in random order, without waiting long for any of them.
    async fn refresh(&self) -> RedisResult<()> {
        let mut addresses: Vec<Address> = lock(&self.state).map.nodes().cloned().collect();
        addresses.sort();
        addresses.dedup();
        addresses.shuffle(&mut rand::rng());
        let seeds = self.seeds.iter().filter(|seed| !addresses.contains(seed));
        let mut addresses: Vec<_> = addresses.iter().chain(seeds).cloned().collect();
        addresses.reverse();
        let query = async {
            let mut queries = FuturesUnordered::new();
            let mut last_error = None;
            loop {
                if let Some(address) = addresses.pop() {
                    queries.push(self.query(address));
                }
                let answer = if addresses.is_empty() {
                    queries.next().await
                } else {
                    match tokio::time::timeout(HEDGE_DELAY, queries.next()).await {
                        Ok(answer) => answer,
                        Err(_) => continue,
                    }
                };
                match answer {
                    Some(Ok(map)) => return Ok(map),
                    Some(Err(error)) => last_error = Some(error),
                    None if addresses.is_empty() => {
                        return Err(last_error.unwrap_or_else(|| unexpected("it has no nodes")));
                    }
                    None => {}
                }
            }
        };
        let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let map = tokio::time::timeout(TIMEOUT, query).await.unwrap_or_else(|_| late())?;
        let mut state = lock(&self.state);
        let ClusterState { map: current, nodes } = &mut *state;
        let has_moved = *current != map;
        *current = map;
        if has_moved {
            self.moved.notify_one();
        }
        // Forgets the nodes that have left the cluster.
        nodes.retain(|address, _| {
            current.nodes().any(|known| known == address) || self.seeds.contains(address)
        });
        Ok(())
    }

    async fn query(&self, address: Address) -> RedisResult<SlotMap> {
        let node = self.node_at(&address)?;
        let answer = node.call(redis::cmd("CLUSTER").arg("SLOTS"), false).await;
        let answer = answer.map_err(|failed| {
            node.discard(&failed);
            failed.error
        })?;
        let (host, _) = parts(&address)?;
        let map = slot_map(answer, host)?;
        if map.primaries().is_empty() {
            // A node that has not met the others yet, or has forgotten them.
            return Err(std::io::Error::other("a node of the cluster knows no slots").into());
        }
        Ok(map)
    }
}

/// Returns the address of a node as servers write it.
fn address(host: &str, port: u16) -> String {
    format!("{host}:{port}")
}

fn parts(address: &str) -> RedisResult<(&str, u16)> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| unexpected("an address"))?;
    Ok((host, port.parse().map_err(|_| unexpected("a port"))?))
}

fn unexpected(what: &'static str) -> RedisError {
    (ErrorKind::Parse, "the cluster gave an unexpected reply", what.to_owned()).into()
}

/// Reads the answer of `CLUSTER SLOTS`: ranges of slots, each with its primary and then its replicas. A node
/// that does not know its own name means the one it was reached by.
pub(crate) fn slot_map(answer: Value, reached_at: &str) -> RedisResult<SlotMap> {
    let mut map = SlotMap::default();
    let Value::Array(ranges) = answer else { return Err(unexpected("no list")) };
    for range in ranges {
        let Value::Array(range) = range else { return Err(unexpected("no range")) };
        let mut words = range.into_iter();
        let mut slot = || match words.next() {
            Some(Value::Int(slot)) => u16::try_from(slot).map_err(|_| unexpected("a slot")),
            _ => Err(unexpected("a slot")),
        };
        let (first, last) = (slot()?, slot()?);
        for (index, node) in words.enumerate() {
            let Value::Array(node) = node else { return Err(unexpected("a node")) };
            let (host, port) = match (node.first(), node.get(1)) {
                (Some(Value::BulkString(host)), Some(Value::Int(port))) => {
                    (String::from_utf8_lossy(host).into_owned(), *port)
                }
                (Some(Value::Nil), Some(Value::Int(port))) => (String::new(), *port),
                _ => return Err(unexpected("a node")),
            };
            let host = if host.is_empty() { reached_at } else { &host };
            let Ok(port) = u16::try_from(port) else { return Err(unexpected("a port")) };
            // A node without a name, or that has failed, cannot be called.
            if host == "?" || port == 0 {
                continue;
            }
            let address = address(host, port);
            if index == 0 {
                map.set_range(first, last, &address);
            } else {
                map.add_replica(&address);
            }
        }
    }
    Ok(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: i64, last: i64, nodes: &[(&str, i64)]) -> Value {
        let node = |(host, port): &(&str, i64)| {
            Value::Array(vec![
                Value::BulkString((*host).into()),
                Value::Int(*port),
                Value::BulkString("0123".into()),
            ])
        };
        let mut words = vec![Value::Int(first), Value::Int(last)];
        words.extend(nodes.iter().map(node));
        Value::Array(words)
    }

    #[test]
    fn the_slots_of_a_cluster_are_read() {
        let answer = Value::Array(vec![
            range(0, 5460, &[("10.0.0.1", 7000), ("10.0.0.2", 7001)]),
            range(5461, 10922, &[("", 7002)]),
            range(10923, 16383, &[("?", 7003), ("::1", 7004)]),
        ]);
        let map = slot_map(answer, "node.example").unwrap();
        let node = |slot| map.node(slot).map(|node| node.to_string());
        assert_eq!(node(5460), Some("10.0.0.1:7000".into()));
        assert_eq!(node(5461), Some("node.example:7002".into()));
        assert_eq!(node(16383), None);
        assert_eq!(map.uncovered(), 5461);
        assert_eq!(parts("::1:7004").unwrap(), ("::1", 7004));
    }

    #[test]
    fn invalid_replies_are_refused() {
        for answer in [
            Value::Int(1),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![range(-1, 5, &[("h", 1)])]),
            Value::Array(vec![range(0, 5, &[("h", 70_000)])]),
        ] {
            assert!(slot_map(answer.clone(), "h").is_err(), "{answer:?}");
        }
        assert!(parts("nowhere").is_err() && parts("h:many").is_err());
    }
}
