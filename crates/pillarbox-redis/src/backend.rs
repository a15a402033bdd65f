//! The backend.

use std::sync::Arc;

use futures_util::future::join_all;
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Diagnosis, Error, Partitions, Queue, QueueName, QueueOptions,
    Result,
};
use redis::Client;
use redis::aio::ConnectionLike;
use tokio::runtime::Handle;

use crate::context::{BackendContext, REGISTRY_ROUTE};
use crate::diagnose;
use crate::failure::Failure;
use crate::format::{Keys, REGISTRY};
use crate::open_queues::OpenQueues;
use crate::options::{RedisOptions, Settings, partitions_with_ttl};
use crate::partition_layout::PartitionNumber;
use crate::queue::{CAPABILITIES, RedisQueue, capabilities};
use crate::queue_state::QueueState;
use crate::reply::ReplyReader;
use crate::retrying_client::RetryingClient;
use crate::scripts;
use crate::servers::{Node, Route, Servers};

/// Time in seconds after which a queue that does not exist is removed from the list. Longer than the interval
/// at which a program that sends to it puts it there again.
const REGISTRATION_TTL: f64 = 3600.0;

/// Maximum number of queues that are queried concurrently.
const MAX_CONCURRENT: usize = 1000;

/// Queues on Redis or Valkey: one server, one with replicas behind Sentinel, or a cluster.
///
/// One connection to each server serves all queues, and a second one receives wake-ups for waiting receives.
/// Must be used within the Tokio runtime that it was opened in.
///
/// ```no_run
/// use pillarbox_core::{Mailbox, Mailboxes};
/// use pillarbox_redis::{RedisBackend, RedisOptions};
///
/// # async fn run() -> pillarbox_core::Result<()> {
/// let options = RedisOptions::from_url("redis://localhost")?;
/// let backend = Mailboxes::new(RedisBackend::open(options).await?);
/// let jobs: Mailbox<String> = backend.mailbox("jobs")?;
/// jobs.send(&"sweep the floor".to_owned()).await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct RedisBackend {
    queues: Arc<OpenQueues>,
}

impl RedisBackend {
    /// Opens a backend: connects to the servers, and fails if that does not succeed within
    /// [`retry_for`](RedisOptions::retry_for). Logs a warning if a server may evict messages.
    pub async fn open(options: RedisOptions) -> Result<Self> {
        let servers = Servers::new(&options)?;
        let backend = Self::new(RetryingClient::new(servers, options.settings))?;
        let checked = diagnose::connect_and_warn(backend.context()).await;
        checked.map_err(|failure| failure.into_error(None, "open"))?;
        Ok(backend)
    }

    /// Creates a backend on an existing client. Connects when first used.
    ///
    /// Fails outside of a Tokio runtime.
    pub fn from_client(client: Client) -> Result<Self> {
        let settings = Settings::default();
        let node = Node::new(client, settings.response_timeout);
        Self::new(RetryingClient::new(Servers::One(Arc::new(node)), settings))
    }

    /// Creates a backend on an existing connection, such as a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection) or a connection manager, which is
    /// then shared.
    ///
    /// A connection cannot also subscribe: waiting receives poll every half second, and find what this
    /// process sends at once. It is not replaced when it breaks, unless it reconnects by itself. Prefer
    /// [`from_client`](Self::from_client). Fails outside of a Tokio runtime.
    pub fn from_connection<C>(connection: C) -> Result<Self>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let node = Node::given(connection);
        Self::new(RetryingClient::new(Servers::One(Arc::new(node)), Settings::default()))
    }

    fn new(client: RetryingClient) -> Result<Self> {
        let runtime =
            Handle::try_current().map_err(|error| Error::connection(None, "open", error))?;
        Ok(Self { queues: Arc::new(OpenQueues::new(BackendContext::new(client, runtime))) })
    }

    fn context(&self) -> &Arc<BackendContext> {
        &self.queues.context
    }

    /// Returns the queues on the list that exist. Those that do not, and were not used for long, are
    /// removed from it.
    async fn registered_queues(&self) -> Result<Vec<QueueName>, Failure> {
        let BackendContext { client, gate, .. } = &**self.context();
        let now: f64 = client.query(gate, *REGISTRY_ROUTE, &redis::cmd("TIME")).await?.parsed()?;
        let mut list = redis::cmd("ZRANGE");
        list.arg(REGISTRY).arg(0).arg(-1).arg("WITHSCORES");
        let registered = match client.query(gate, *REGISTRY_ROUTE, &list).await {
            Ok(reply) => read_registry(reply)?,
            Err(failure) => return Err(self.context().explain_registry(failure).await),
        };
        let (mut existing, mut gone) = (Vec::new(), Vec::new());
        for some in registered.chunks(MAX_CONCURRENT) {
            let exists = some.iter().map(async |(name, _)| {
                let mut exists = redis::cmd("EXISTS");
                let keys = Keys::new(name, 0);
                let Keys { pending, invisible, data, meta, .. } = &keys;
                exists.arg(pending).arg(invisible).arg(data).arg(meta).arg(keys.partitions());
                client.query(gate, Route::Slot(keys.slot), &exists).await?.integer()
            });
            for ((name, used), exists) in some.iter().zip(join_all(exists).await) {
                // A queue whose server is unreachable may exist.
                if exists.or_else(|failure| failure.or_if_transient(1))? > 0 {
                    existing.push(name.clone());
                } else if now - used > REGISTRATION_TTL {
                    gone.push((name.as_str(), used));
                }
            }
        }
        for (name, used) in gone {
            let arguments = [name, &used.to_string()];
            self.context().run_on_registry(&scripts::UNREGISTER, &arguments).await?;
        }
        existing.sort();
        Ok(existing)
    }

    fn check_no_ttl(&self, queue: &QueueName, partitions: u32) -> Result<()> {
        let ttl = self.queues.requested_ttl(queue);
        let ttl = ttl.or(self.context().client.settings.default_ttl);
        if partitions > 1 && ttl.is_some() {
            return Err(partitions_with_ttl(Some(queue), partitions));
        }
        Ok(())
    }

    /// Returns the state of a queue, open or not.
    fn state(&self, queue: &QueueName) -> Result<QueueState> {
        self.context().gate.check(queue)?;
        Ok(QueueState::new(queue.clone(), self.context().clone()))
    }
}

/// Reads the list of queues: names, and when each was last used. Invalid names are skipped.
pub(crate) fn read_registry(mut reply: ReplyReader) -> Result<Vec<(QueueName, f64)>, Failure> {
    let mut registered = Vec::new();
    while !reply.is_empty() {
        let (name, used): (String, f64) = (reply.parsed()?, reply.parsed()?);
        if let Ok(name) = QueueName::new(&name) {
            registered.push((name, used));
        }
    }
    Ok(registered)
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        let settings = &self.context().client.settings;
        capabilities(settings, settings.partitions > 1)
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.context().gate.check(name)?;
        if let Some(partitions) = options.partitions {
            CAPABILITIES.check_partitions(name, partitions)?;
        }
        Ok(Arc::new(RedisQueue::open(&self.queues, name, options)?))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.context().gate.check_backend()?;
            let queues = self.registered_queues().await;
            queues.map_err(|failure| failure.into_error(None, "list queues"))
        })
    }

    fn partitions<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Partitions>> {
        Box::pin(async move {
            let layout = self.state(queue)?.read_layout(1).await;
            layout
                .map(Into::into)
                .map_err(|failure| failure.into_error(Some(queue), "read the layout"))
        })
    }

    fn set_partitions<'a>(
        &'a self,
        queue: &'a QueueName,
        partitions: u32,
    ) -> BoxFuture<'a, Result<Partitions>> {
        Box::pin(async move {
            let state = self.state(queue)?;
            CAPABILITIES.check_partitions(queue, partitions)?;
            self.check_no_ttl(queue, partitions)?;
            let spread = async {
                self.context().register(queue).await?;
                state.spread(partitions as PartitionNumber).await
            };
            let layout = spread.await;
            layout.map(Into::into).map_err(|failure| failure.into_error(Some(queue), "spread"))
        })
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            self.context().gate.check_backend()?;
            let diagnosis = async {
                let registered = match self.registered_queues().await {
                    Ok(queues) => Ok(queues),
                    // It is reported beside whatever else is found.
                    Err(failure @ Failure::ForeignKey { .. }) => Err(failure),
                    Err(failure) => return Err(failure),
                };
                diagnose::diagnose(&self.queues, registered, repair).await
            };
            diagnosis.await.map_err(|failure| failure.into_error(None, "diagnose"))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.queues.close())
    }
}
