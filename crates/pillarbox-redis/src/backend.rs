//! A server as a backend.

use std::sync::{Arc, LazyLock};

use futures_util::future::join_all;
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Diagnosis, Error, Gate, Partitions, Queue, QueueName,
    QueueOptions, Result,
};
use redis::Client;
use redis::aio::ConnectionLike;
use tokio::runtime::Handle;

use crate::diagnose;
use crate::engine::{Engine, LIST_ROUTE, foreign_list};
use crate::failure::Failure;
use crate::format::{Keys, REGISTRY};
use crate::layout::{MAX_PARTITIONS, Number};
use crate::link::Link;
use crate::options::{RedisOptions, Usage};
use crate::queue::RedisQueue;
use crate::reply::Words;
use crate::scripts;
use crate::servers::{Node, Route, Servers};
use crate::state::QueueState;

/// The longest body. Redis itself ends at 512 MiB, for everything that is sent at once.
const MAX_BODY: usize = 256 << 20;

pub(crate) static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = Capabilities::full("redis");
    capabilities.durable = true;
    capabilities.max_body = Some(MAX_BODY);
    capabilities.reports_first_received = false;
    capabilities.max_partitions = MAX_PARTITIONS;
    capabilities.default_ttl = true;
    capabilities
});

/// Those of a queue that is spread over partitions.
pub(crate) static SPREAD_CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = CAPABILITIES.clone();
    capabilities.fifo = false;
    // Each partition takes its share.
    capabilities.bounded = false;
    // Its keys are not used together, and some would be deleted.
    capabilities.default_ttl = false;
    capabilities
});

/// How long a queue that holds nothing stays on the list, in seconds. Longer than it takes until a
/// program that sends to it puts it there again.
const LISTED_FOR: f64 = 3600.0;

/// How many queues are asked for at the same time.
const LOOKS_AT_ONCE: usize = 1000;

/// Queues on Redis or Valkey: one server, one with replicas that sentinels watch, or a cluster.
///
/// One connection to each server serves all queues, and a second one listens for all who wait. Must be used within
/// the tokio runtime that it was opened in.
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
    pub(crate) engine: Arc<Engine>,
}

impl RedisBackend {
    /// Connects to a server, and fails where that does not succeed within
    /// [`retry_for`](RedisOptions::retry_for). Warns where the server may throw messages away.
    pub async fn open(options: RedisOptions) -> Result<Self> {
        let servers = options.servers()?;
        let backend = Self::new(Link::new(servers, options.usage))?;
        diagnose::warn(&backend.engine).await.map_err(|failure| failure.on(None, "open"))?;
        Ok(backend)
    }

    /// Uses a client that the program has already. Connects when first used.
    ///
    /// Fails outside of a tokio runtime.
    pub fn from_client(client: Client) -> Result<Self> {
        let usage = Usage::default();
        let node = Node::of(client, usage.response_timeout);
        Self::new(Link::new(Servers::One(Arc::new(node)), usage))
    }

    /// Uses a connection that the program has already, such as a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection) or a connection manager, which is
    /// then shared.
    ///
    /// A connection cannot also listen: receivers that wait look every half second, and find what
    /// this process sends at once. Nor is it made anew when it breaks, unless it does so itself. Where
    /// you can, give the client instead. Fails outside of a tokio runtime.
    pub fn from_connection<C>(connection: C) -> Result<Self>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let node = Node::given(connection);
        Self::new(Link::new(Servers::One(Arc::new(node)), Usage::default()))
    }

    fn new(link: Link) -> Result<Self> {
        let runtime =
            Handle::try_current().map_err(|error| Error::connection(None, "open", error))?;
        Ok(Self { engine: Engine::new(link, runtime) })
    }

    /// The queues on the list that are there. Those that are not, and were not used for long, are
    /// taken off it.
    async fn list(&self) -> Result<Vec<QueueName>, Failure> {
        let Engine { link, gate, .. } = &*self.engine;
        let now: f64 = link.ask(gate, *LIST_ROUTE, &redis::cmd("TIME")).await?.parsed()?;
        let mut list = redis::cmd("ZRANGE");
        list.arg(REGISTRY).arg(0).arg(-1).arg("WITHSCORES");
        let listed = match link.ask(gate, *LIST_ROUTE, &list).await {
            Ok(words) => listed(words)?,
            Err(failure) => return Err(foreign_list(&self.engine, failure).await),
        };
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for some in listed.chunks(LOOKS_AT_ONCE) {
            let exists = some.iter().map(async |(name, _)| {
                let mut exists = redis::cmd("EXISTS");
                let keys = Keys::new(name, 0);
                let Keys { pending, invisible, data, meta, .. } = &keys;
                exists.arg(pending).arg(invisible).arg(data).arg(meta).arg(keys.partitions());
                link.ask(gate, Route::Slot(keys.slot), &exists).await?.integer()
            });
            for ((name, used), exists) in some.iter().zip(join_all(exists).await) {
                // One whose server cannot be reached may be there.
                if exists.or_else(|failure| failure.passing(1))? > 0 {
                    there.push(name.clone());
                } else if now - used > LISTED_FOR {
                    gone.push((name.as_str(), used));
                }
            }
        }
        for (name, used) in gone {
            self.engine.run_on_list(&scripts::UNLIST, &[name, &used.to_string()]).await?;
        }
        there.sort();
        Ok(there)
    }

    /// A queue that is spread has keys that are not used together, some of which would be deleted.
    fn check_no_ttl(&self, queue: &QueueName, partitions: u32) -> Result<()> {
        let ttl = self.engine.named_ttl(queue).or(self.engine.link.usage.default_ttl);
        if partitions > 1 && ttl.is_some() {
            let allowed = "1 where there is a default_ttl";
            return Err(Error::invalid(Some(queue), "partitions", partitions.to_string(), allowed));
        }
        Ok(())
    }

    /// What is known of a queue, whether it is open or not.
    fn state(&self, queue: &QueueName) -> Result<QueueState> {
        self.engine.gate.check(queue)?;
        Ok(QueueState::new(queue.clone(), self.engine.clone()))
    }
}

/// Reads the list of queues: names, and when each was last used. What is no name is passed over.
pub(crate) fn listed(mut words: Words) -> Result<Vec<(QueueName, f64)>, Failure> {
    let mut listed = Vec::new();
    while !words.is_empty() {
        let (name, used): (String, f64) = (words.parsed()?, words.parsed()?);
        if let Ok(name) = QueueName::new(&name) {
            listed.push((name, used));
        }
    }
    Ok(listed)
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        match self.engine.link.usage.partitions {
            1 => &CAPABILITIES,
            _ => &SPREAD_CAPABILITIES,
        }
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.engine.gate.check(name)?;
        if let Some(partitions) = options.partitions {
            CAPABILITIES.check_partitions(name, partitions)?;
        }
        let gate = Gate::child(&self.engine.gate);
        Ok(Arc::new(RedisQueue::new(self.engine.open_hub(name, &options)?, options, gate)))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.engine.gate.check_backend()?;
            self.list().await.map_err(|failure| failure.on(None, "list queues"))
        })
    }

    fn partitions<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Partitions>> {
        Box::pin(async move {
            let layout = self.state(queue)?.learn_layout(1).await;
            layout.map(Into::into).map_err(|failure| failure.on(Some(queue), "read the layout"))
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
                self.engine.list(queue).await?;
                state.spread(partitions as Number).await
            };
            let layout = spread.await;
            layout.map(Into::into).map_err(|failure| failure.on(Some(queue), "spread"))
        })
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            self.engine.gate.check_backend()?;
            let diagnosis = async {
                let listed = match self.list().await {
                    Ok(queues) => Ok(queues),
                    // It is told beside whatever else is found.
                    Err(failure @ Failure::ForeignKey { .. }) => Err(failure),
                    Err(failure) => return Err(failure),
                };
                diagnose::diagnose(&self.engine, listed, repair).await
            };
            diagnosis.await.map_err(|failure| failure.on(None, "diagnose"))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.engine.close())
    }
}
