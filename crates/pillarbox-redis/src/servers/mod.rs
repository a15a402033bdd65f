//! The servers of a backend: one, the primary that sentinels name, or the nodes of a cluster.

mod cluster;
mod node;
mod sentinel;
mod slots;

use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisError, RedisResult};

pub(crate) use self::cluster::Cluster;
#[cfg(feature = "fuzzing")]
pub(crate) use self::cluster::slot_map;
pub(crate) use self::node::{Failed, Node, field};
pub(crate) use self::sentinel::Sentinels;
#[cfg(feature = "fuzzing")]
pub(crate) use self::sentinel::named;
pub(crate) use self::slots::slot;

/// The servers of a backend.
#[derive(Debug)]
pub(crate) enum Servers {
    /// One at a time.
    One(Arc<Node>),
    /// Several, each of which has some of the keys.
    Cluster(Cluster),
}

/// Which server a call goes to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Route<'a> {
    /// The one that has the keys of this slot.
    Slot(u16),
    /// This one.
    To(&'a Arc<Node>),
}

impl Servers {
    /// Where they are, for people.
    pub(crate) fn place(&self) -> &Arc<str> {
        match self {
            Self::One(node) => &node.place,
            Self::Cluster(cluster) => &cluster.place,
        }
    }

    /// The server that a call goes to.
    pub(crate) async fn node(&self, route: Route<'_>) -> RedisResult<Arc<Node>> {
        match (self, route) {
            (_, Route::To(node)) => Ok(node.clone()),
            (Self::One(node), Route::Slot(_)) => Ok(node.clone()),
            (Self::Cluster(cluster), Route::Slot(slot)) => cluster.node(slot).await,
        }
    }

    /// The server that has a slot, if that is known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.known_node(slot),
        }
    }

    /// All servers that have keys.
    pub(crate) async fn all(&self) -> RedisResult<Vec<Arc<Node>>> {
        match self {
            Self::One(node) => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => cluster.primaries().await,
        }
    }

    /// Follows a server that sends us to another one: gives that.
    pub(crate) fn redirected(&self, error: &RedisError, for_good: bool) -> Option<Arc<Node>> {
        let Self::Cluster(cluster) = self else { return None };
        let (address, slot) = error.redirect_node()?;
        let node = cluster.node_at(address).ok()?;
        if for_good {
            cluster.has_moved(slot, address);
        }
        Some(node)
    }

    /// Looks around after a failure: perhaps another server has taken over.
    pub(crate) async fn look_around(&self) {
        if let Self::Cluster(cluster) = self
            && let Err(error) = cluster.learn().await
        {
            tracing::debug!(place = %cluster.place, %error, "the cluster does not tell its nodes");
        }
    }

    /// Whether there may be others than those that are known.
    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Returns when slots have moved since it was last asked. For one who asks.
    pub(crate) async fn moved(&self) {
        match self {
            Self::One(_) => std::future::pending().await,
            Self::Cluster(cluster) => cluster.moved().await,
        }
    }

    /// Whether another server takes over when one fails.
    pub(crate) fn has_failover(&self) -> bool {
        match self {
            Self::One(node) => node.has_failover(),
            Self::Cluster(_) => true,
        }
    }

    /// Whether connections can be made.
    pub(crate) fn can_connect(&self) -> bool {
        match self {
            Self::One(node) => node.can_connect(),
            Self::Cluster(_) => true,
        }
    }

    /// Lets go of all connections.
    pub(crate) fn disconnect(&self) {
        match self {
            Self::One(node) => node.disconnect(),
            Self::Cluster(cluster) => cluster.disconnect(),
        }
    }
}

/// Makes clients of servers that are alike: the same user, database and certificates.
#[derive(Clone)]
pub(crate) struct Maker {
    /// One of them.
    pub(crate) like: ConnectionInfo,
}

impl Maker {
    pub(crate) fn client(&self, host: &str, port: u16) -> RedisResult<Client> {
        let host = host.to_owned();
        let addr = match self.like.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        Client::open(self.like.clone().set_addr(addr))
    }
}

impl std::fmt::Debug for Maker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Maker").field(&crate::options::place(&self.like)).finish()
    }
}
