//! The servers of a backend: one, the primary that sentinels name, or the nodes of a cluster.

mod client_factory;
mod cluster;
mod node;
mod sentinel;
mod slots;

use std::sync::Arc;

use redis::{RedisError, RedisResult};

use self::client_factory::ClientFactory;
use self::cluster::Cluster;
#[cfg(feature = "fuzzing")]
pub(crate) use self::cluster::slot_map;
pub(crate) use self::node::{Node, TryError, info_field};
use self::sentinel::Sentinels;
#[cfg(feature = "fuzzing")]
pub(crate) use self::sentinel::parse_primary;
pub(crate) use self::slots::slot;
use crate::options::{RedisOptions, Topology, partitions_with_ttl};
use crate::tls;

/// The servers of a backend.
pub(crate) enum Servers {
    /// One server at a time.
    One(Arc<Node>),
    /// Several servers, each of which has some of the keys.
    Cluster(Cluster),
}

/// Server that a call goes to.
#[derive(Clone, Copy)]
pub(crate) enum Route<'a> {
    /// The server that has this slot.
    Slot(u16),
    /// This server.
    To(&'a Arc<Node>),
}

impl Servers {
    /// Creates the servers of a backend. Nothing is connected yet.
    pub(crate) fn new(options: &RedisOptions) -> pillarbox_core::Result<Self> {
        let settings = &options.settings;
        if settings.default_ttl.is_some() && settings.partitions > 1 {
            return Err(partitions_with_ttl(None, settings.partitions));
        }
        let client = tls::client(options.server.clone(), &options.tls)?;
        let response_timeout = settings.response_timeout;
        let clients = ClientFactory { template: client.get_connection_info().clone() };
        let endpoint = options.endpoint().into();
        Ok(match &options.topology {
            Topology::Single => Self::One(Arc::new(Node::new(client, response_timeout))),
            Topology::Cluster { hosts } => {
                Self::Cluster(Cluster::new(endpoint, hosts, clients, response_timeout))
            }
            Topology::Sentinels { hosts, service, user, password } => {
                let mut login = redis::RedisConnectionInfo::default();
                if let Some(user) = user {
                    login = login.set_username(user);
                }
                if let Some(password) = password {
                    login = login.set_password(password);
                }
                let template = clients.template.clone().set_redis_settings(login);
                let sentinels = Sentinels {
                    endpoint,
                    hosts: hosts.clone(),
                    sentinels: ClientFactory { template },
                    service: service.clone(),
                    servers: clients,
                };
                Self::One(Arc::new(Node::behind(sentinels, response_timeout)))
            }
        })
    }

    /// Returns the URL of the servers, without secrets.
    pub(crate) fn endpoint(&self) -> &Arc<str> {
        match self {
            Self::One(node) => &node.endpoint,
            Self::Cluster(cluster) => &cluster.endpoint,
        }
    }

    /// Returns the server of a route.
    pub(crate) async fn node(&self, route: Route<'_>) -> RedisResult<Arc<Node>> {
        match (self, route) {
            (_, Route::To(node)) => Ok(node.clone()),
            (Self::One(node), Route::Slot(_)) => Ok(node.clone()),
            (Self::Cluster(cluster), Route::Slot(slot)) => cluster.node(slot).await,
        }
    }

    /// Returns the server that has a slot, if known.
    pub(crate) fn known_node(&self, slot: u16) -> Option<Arc<Node>> {
        match self {
            Self::One(node) => Some(node.clone()),
            Self::Cluster(cluster) => cluster.known_node(slot),
        }
    }

    /// Returns all servers that have keys.
    pub(crate) async fn all(&self) -> RedisResult<Vec<Arc<Node>>> {
        match self {
            Self::One(node) => Ok(vec![node.clone()]),
            Self::Cluster(cluster) => cluster.primaries().await,
        }
    }

    /// Returns the server that a redirection names, and remembers it for the slot if it is permanent.
    pub(crate) fn redirected(&self, error: &RedisError, permanent: bool) -> Option<Arc<Node>> {
        let Self::Cluster(cluster) = self else { return None };
        let (address, slot) = error.redirect_node()?;
        let node = cluster.nodes.node_at(address).ok()?;
        if permanent {
            cluster.slot_moved(slot, address);
        }
        Some(node)
    }

    /// Reads the slots of a cluster again after a failure: another server may have taken over.
    pub(crate) async fn refresh(&self) {
        if let Self::Cluster(cluster) = self
            && let Err(error) = cluster.refresh().await
        {
            let endpoint = &cluster.endpoint;
            tracing::debug!(%endpoint, %error, "the slots of the cluster cannot be read");
        }
    }

    /// Waits until slots have moved since the last call. For a single task.
    pub(crate) async fn moved(&self) {
        match self {
            Self::One(_) => std::future::pending().await,
            Self::Cluster(cluster) => cluster.nodes.moved.notified().await,
        }
    }

    /// Returns whether another server takes over when one fails.
    pub(crate) fn has_failover(&self) -> bool {
        let Self::One(node) = self else { return true };
        node.has_failover()
    }

    /// Returns whether connections can be made.
    pub(crate) fn can_connect(&self) -> bool {
        let Self::One(node) = self else { return true };
        node.can_connect()
    }

    /// Closes all connections.
    pub(crate) fn disconnect(&self) {
        match self {
            Self::One(node) => node.disconnect(),
            Self::Cluster(cluster) => cluster.disconnect(),
        }
    }
}
