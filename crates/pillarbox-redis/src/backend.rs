//! A server as a backend.

use std::sync::{Arc, LazyLock};

use futures_util::future::join_all;
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Diagnosis, Error, Gate, Queue, QueueName, QueueOptions,
    Result,
};
use redis::Client;
use redis::aio::ConnectionLike;
use tokio::runtime::Handle;

use crate::diagnose;
use crate::engine::Engine;
use crate::failure::Failure;
use crate::format::{Keys, REGISTRY};
use crate::link::Link;
use crate::options::{RedisOptions, Usage};
use crate::queue::RedisQueue;
use crate::reply::Reply;

/// The longest body. Redis itself ends at 512 MiB, for everything that is sent at once.
const MAX_BODY: usize = 256 << 20;

pub(crate) static CAPABILITIES: LazyLock<Capabilities> = LazyLock::new(|| {
    let mut capabilities = Capabilities::full("redis");
    capabilities.durable = true;
    capabilities.max_body = Some(MAX_BODY);
    capabilities
});

/// How long a queue that holds nothing stays on the list, in seconds. Longer than it takes until a
/// program that sends to it puts it there again.
const LISTED_FOR: f64 = 3600.0;

/// How many queues are asked for at the same time.
const LOOKS_AT_ONCE: usize = 1000;

/// Queues on a Redis or Valkey server.
///
/// One connection serves all queues, and a second one listens for all who wait. Must be used within
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
        let RedisOptions { server, tls, usage } = options;
        let client = crate::tls::client(server, &tls)?;
        let backend = Self::new(Link::to(client, usage))?;
        diagnose::warn(&backend.engine).await.map_err(|failure| failure.on(None, "open"))?;
        Ok(backend)
    }

    /// Uses a client that the program has already. Connects when first used.
    ///
    /// Fails outside of a tokio runtime.
    pub fn from_client(client: Client) -> Result<Self> {
        Self::new(Link::to(client, Usage::default()))
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
        Self::new(Link::by(connection, Usage::default()))
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
        let now: f64 = Reply::new(link.call(gate, &redis::cmd("TIME")).await?, &link.place)
            .flat_words()
            .parsed()?;
        let mut list = redis::cmd("ZRANGE");
        list.arg(REGISTRY).arg(0).arg(-1).arg("WITHSCORES");
        let mut words = Reply::new(link.call(gate, &list).await?, &link.place).flat_words();
        let mut listed = Vec::new();
        while !words.is_empty() {
            let (name, used): (String, f64) = (words.parsed()?, words.parsed()?);
            if let Ok(name) = QueueName::new(&name) {
                listed.push((name, used));
            }
        }
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for some in listed.chunks(LOOKS_AT_ONCE) {
            let exists = some.iter().map(async |(name, _)| {
                let mut exists = redis::cmd("EXISTS");
                let Keys { pending, invisible, data, meta, .. } = &Keys::new(name);
                exists.arg(pending).arg(invisible).arg(data).arg(meta);
                Reply::new(link.call(gate, &exists).await?, &link.place).flat_words().integer()
            });
            for ((name, used), exists) in some.iter().zip(join_all(exists).await) {
                if exists? > 0 {
                    there.push(name.clone());
                } else if now - used > LISTED_FOR {
                    gone.push((name.as_str(), used));
                }
            }
        }
        for (name, used) in gone {
            // Unless somebody has used it meanwhile.
            let mut remove = redis::cmd("EVAL");
            remove.arg(
                "if tonumber(redis.call('ZSCORE', KEYS[1], ARGV[1]) or 0) == tonumber(ARGV[2]) then \
                 redis.call('ZREM', KEYS[1], ARGV[1]) end",
            );
            link.call(gate, remove.arg(1).arg(REGISTRY).arg(name).arg(used)).await?;
        }
        there.sort();
        Ok(there)
    }
}

impl Backend for RedisBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.engine.gate.check(name)?;
        let gate = Gate::child(&self.engine.gate);
        Ok(Arc::new(RedisQueue::new(self.engine.open_hub(name), options, gate)))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.engine.gate.check_backend()?;
            self.list().await.map_err(|failure| failure.on(None, "list queues"))
        })
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            self.engine.gate.check_backend()?;
            let queues = self.queues().await?;
            diagnose::diagnose(&self.engine, &queues, repair)
                .await
                .map_err(|failure| failure.on(None, "diagnose"))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.engine.close())
    }
}
