//! The nodes of a cluster, and which of them has which keys.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, Shared};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use rand::seq::SliceRandom;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::sync::Notify;

use super::Maker;
use super::node::Node;
use super::slots::{Address, SlotMap};

/// How long one node may take to tell what it knows before another one is asked as well.
const HEDGE: Duration = Duration::from_millis(200);

/// How long nodes are asked in all.
const PATIENCE: Duration = Duration::from_secs(5);

/// The nodes of a cluster, and which of them has which keys.
///
/// What is known is learnt from the nodes themselves: from all slots of one node at first and whenever
/// something fails, and from each redirection for the slot that it is about.
pub(crate) struct Cluster {
    /// Where it is, for people.
    pub(crate) place: Arc<str>,
    shared: Arc<Known>,
    /// The attempt to learn the map anew that all who need it share.
    learning: Mutex<Option<Shared<BoxFuture<'static, RedisResult<()>>>>>,
}

struct Known {
    seeds: Vec<Address>,
    maker: Maker,
    response_timeout: Duration,
    state: Mutex<State>,
    /// A slot is elsewhere.
    moved: Notify,
}

#[derive(Default)]
struct State {
    map: SlotMap,
    /// Every node that was ever called.
    nodes: HashMap<Address, Arc<Node>>,
}

impl Cluster {
    pub(crate) fn new(
        place: Arc<str>,
        seeds: &[(String, u16)],
        maker: Maker,
        response_timeout: Duration,
    ) -> Self {
        let seeds: Vec<Address> =
            seeds.iter().map(|(host, port)| address(host, *port).into()).collect();
        let state = Mutex::default();
        let moved = Notify::new();
        let shared = Arc::new(Known { seeds, maker, response_timeout, state, moved });
        Self { place, shared, learning: Mutex::default() }
    }

    /// The node that has a slot, as far as is known.
    pub(crate) async fn node(&self, slot: u16) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.shared.node(slot)? {
            return Ok(node);
        }
        self.learn().await?;
        self.shared.node(slot)?.ok_or_else(|| {
            // It may be on its way to another.
            std::io::Error::other("no node of the cluster has the slot of the queue").into()
        })
    }

    /// The node that has a slot, if that is known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        self.shared.node(slot).ok().flatten()
    }

    /// The node at an address that a server has named.
    pub(crate) fn node_at(&self, address: &str) -> RedisResult<Arc<Node>> {
        self.shared.node_at(address)
    }

    /// Notes that a slot is at a node now.
    pub(crate) fn has_moved(&self, slot: u16, address: &str) {
        let mut state = self.shared.lock();
        let is_known = state.map.node(slot).is_some_and(|known| **known == *address);
        state.map.learn(slot, address);
        if !is_known {
            self.shared.moved.notify_one();
        }
    }

    /// Returns when slots have moved since it was last asked. For one who asks.
    pub(crate) async fn moved(&self) {
        self.shared.moved.notified().await;
    }

    /// All nodes that have slots.
    pub(crate) async fn primaries(&self) -> RedisResult<Vec<Arc<Node>>> {
        self.learn().await?;
        let primaries = self.shared.lock().map.primaries();
        primaries.iter().map(|address| self.shared.node_at(address)).collect()
    }

    /// How many slots nobody has, as far as is known.
    pub(crate) fn uncovered(&self) -> usize {
        self.shared.lock().map.uncovered()
    }

    /// Asks the nodes which of them has which slots, together with whoever asks at the same time.
    pub(crate) async fn learn(&self) -> RedisResult<()> {
        let attempt = {
            let mut learning = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
            let begin = || {
                let known = self.shared.clone();
                async move { known.learn().await }.boxed().shared()
            };
            learning.get_or_insert_with(begin).clone()
        };
        let learnt = attempt.clone().await;
        let mut learning = self.learning.lock().unwrap_or_else(PoisonError::into_inner);
        if learning.as_ref().is_some_and(|current| current.ptr_eq(&attempt)) {
            *learning = None;
        }
        learnt
    }

    /// Lets go of all connections.
    pub(crate) fn disconnect(&self) {
        self.shared.lock().nodes.values().for_each(|node| node.disconnect());
    }
}

impl Known {
    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self, slot: u16) -> RedisResult<Option<Arc<Node>>> {
        let address = self.lock().map.node(slot).cloned();
        address.map(|address| self.node_at(&address)).transpose()
    }

    fn node_at(&self, address: &str) -> RedisResult<Arc<Node>> {
        if let Some(node) = self.lock().nodes.get(address) {
            return Ok(node.clone());
        }
        let (host, port) = parts(address)?;
        let client = self.maker.client(host, port)?;
        let node = Arc::new(Node::of(client, self.response_timeout));
        Ok(self.lock().nodes.entry(address.into()).or_insert(node).clone())
    }

    /// Asks one node after the other, in random order, without waiting long for any of them.
    async fn learn(&self) -> RedisResult<()> {
        let mut addresses: Vec<Address> = self.lock().map.everyone().cloned().collect();
        addresses.sort();
        addresses.dedup();
        addresses.shuffle(&mut rand::rng());
        let seeds = self.seeds.iter().filter(|seed| !addresses.contains(seed));
        let mut addresses: Vec<_> = addresses.iter().chain(seeds).cloned().collect();
        addresses.reverse();
        let learn = async {
            let mut asked = FuturesUnordered::new();
            let mut problem = None;
            loop {
                if let Some(address) = addresses.pop() {
                    asked.push(self.ask(address));
                }
                let answer = if addresses.is_empty() {
                    asked.next().await
                } else {
                    match tokio::time::timeout(HEDGE, asked.next()).await {
                        Ok(answer) => answer,
                        Err(_) => continue,
                    }
                };
                match answer {
                    Some(Ok(map)) => return Ok(map),
                    Some(Err(error)) => problem = Some(error),
                    None if addresses.is_empty() => {
                        return Err(problem.unwrap_or_else(|| strange("it has no nodes")));
                    }
                    None => {}
                }
            }
        };
        let late = || Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        let map = tokio::time::timeout(PATIENCE, learn).await.unwrap_or_else(|_| late())?;
        let mut state = self.lock();
        let State { map: current, nodes } = &mut *state;
        let has_moved = *current != map;
        *current = map;
        if has_moved {
            self.moved.notify_one();
        }
        // Nobody goes to those that are gone, unless they come back.
        nodes.retain(|address, _| {
            current.everyone().any(|known| known == address) || self.seeds.contains(address)
        });
        Ok(())
    }

    async fn ask(&self, address: Address) -> RedisResult<SlotMap> {
        let node = self.node_at(&address)?;
        let answer = node.call(redis::cmd("CLUSTER").arg("SLOTS"), false).await;
        let answer = answer.map_err(|failed| {
            node.discard(&failed);
            failed.error
        })?;
        let (host, _) = parts(&address)?;
        let map = slot_map(answer, host)?;
        if map.primaries().is_empty() {
            // A node that has met no others yet, or has forgotten them.
            return Err(std::io::Error::other("a node of the cluster knows of no slots").into());
        }
        Ok(map)
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cluster").field(&self.place).finish()
    }
}

/// How servers write where a node is.
fn address(host: &str, port: u16) -> String {
    format!("{host}:{port}")
}

fn parts(address: &str) -> RedisResult<(&str, u16)> {
    let (host, port) = address.rsplit_once(':').ok_or_else(|| strange("an address"))?;
    Ok((host, port.parse().map_err(|_| strange("a port"))?))
}

fn strange(what: &'static str) -> RedisError {
    (ErrorKind::Parse, "the cluster answers in an unexpected form", what.to_owned()).into()
}

/// Reads what `CLUSTER SLOTS` answers: ranges of slots, each with its primary and then its replicas. A
/// node that does not know its own name means the one by which we have reached it.
pub(crate) fn slot_map(answer: Value, reached_at: &str) -> RedisResult<SlotMap> {
    let mut map = SlotMap::default();
    let Value::Array(ranges) = answer else { return Err(strange("no list")) };
    for range in ranges {
        let Value::Array(range) = range else { return Err(strange("no range")) };
        let mut words = range.into_iter();
        let mut slot = || match words.next() {
            Some(Value::Int(slot)) => u16::try_from(slot).map_err(|_| strange("a slot")),
            _ => Err(strange("a slot")),
        };
        let (first, last) = (slot()?, slot()?);
        for (place, node) in words.enumerate() {
            let Value::Array(node) = node else { return Err(strange("a node")) };
            let (host, port) = match (node.first(), node.get(1)) {
                (Some(Value::BulkString(host)), Some(Value::Int(port))) => {
                    (String::from_utf8_lossy(host).into_owned(), *port)
                }
                (Some(Value::Nil), Some(Value::Int(port))) => (String::new(), *port),
                _ => return Err(strange("a node")),
            };
            let host = if host.is_empty() { reached_at } else { &host };
            let Ok(port) = u16::try_from(port) else { return Err(strange("a port")) };
            // A node whose name is not known, or that has failed, cannot be called.
            if host == "?" || port == 0 {
                continue;
            }
            let address = address(host, port);
            if place == 0 {
                map.learn_range(first, last, &address);
            } else {
                map.learn_replica(&address);
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
    fn what_a_node_knows_is_read() {
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
    fn what_makes_no_sense_is_refused() {
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
