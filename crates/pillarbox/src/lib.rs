//! Durable mailboxes for Rust: point-to-point queues with SQS semantics that behave the same on
//! every backend.
//!
//! A message that is received stays in its queue, invisible to others, until it is acknowledged.
//! If the receiver dies or takes too long, its lease ends and the message is delivered again,
//! under a new receipt: the old one settles nothing any more. *No message lost, no stale receipt
//! accepted.*
//!
//! ```
//! use pillarbox::prelude::*;
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Request { n: u64 }
//! #[derive(Serialize, Deserialize)]
//! struct Reply { n: u64 }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox::Result<()> {
//! let backend = pillarbox::open("memory:").await?;
//! let requests: Mailbox<Request, Reply> = backend.builder("requests").allow_reply_to("client-7").open()?;
//! let replies: Mailbox<Reply> = backend.mailbox("client-7")?;
//!
//! let options = SendOptions::new().reply_to("client-7").attribute("tenant", "acme");
//! requests.send_with(&Request { n: 1 }, options).await?;
//!
//! let batch = requests.receive(Receive::up_to(10).wait(Duration::from_secs(20))).await?;
//! for message in batch {
//!     let n = message.body().n;
//!     message.reply_mailbox()?.send(&Reply { n: n + 1 }).await?;
//!     message.acknowledge().await?;
//! }
//! for reply in replies.receive(Receive::one()).await? {
//!     assert_eq!(reply.body().n, 2);
//!     reply.acknowledge().await?;
//! }
//! # Ok(()) }
//! ```
//!
//! # Workers
//!
//! A loop like the one above is the beginning. The rest of it (many at a time, leases that are extended
//! while the work goes on, retries, dead letters, a stop that loses nothing) is a [`runtime::Worker`]:
//!
//! ```no_run
//! # use pillarbox::prelude::*;
//! # async fn f(jobs: Mailbox<String>) -> pillarbox::Result<()> {
//! Worker::new(jobs).handler(|job: String| async move { println!("{job}") }).run().await?;
//! # Ok(()) }
//! ```
//!
//! # Backends
//!
//! [`open`] takes a URL and picks the backend:
//!
//! | URL | backend | feature |
//! |---|---|---|
//! | `sqlite:PATH` | one durable file that several processes share; made if it is not there | `sqlite`, on by default |
//! | `sqlite:PATH?synchronous=normal` | the same, faster, where a power failure may cost the last moments | |
//! | `sqlite::memory:` | SQLite without a file, private to the handle that it gives | |
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` | a Redis (6.2 or later) or Valkey server | `redis` |
//! | `redis+unix:///PATH` | the same by a Unix socket | `redis` |
//! | `redis-sentinel://HOST[:PORT],.../SERVICE` | the primary that these sentinels name | `redis` |
//! | `redis-cluster://HOST[:PORT],...` | the cluster that these nodes belong to | `redis` |
//! | `rediss://...`, `rediss-sentinel://...`, `rediss-cluster://...` | the same over TLS | `redis-tls` |
//! | `sqs://REGION[/PREFIX]` | AWS SQS in this region: the queues whose names begin so | `sqs` |
//! | `sqs+http://HOST[:PORT][/PREFIX]` | a local server that speaks SQS | `sqs` |
//! | `memory:` | in memory, private to the handle that it gives | always there |
//! | `memory:NAME` | in memory, shared by all of the process that open this name | always there |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `runtime` (default) | workers: [`runtime::Worker`] and all that belongs to it |
//! | `sqlite` (default) | the backend [`sqlite`], with transactional sends and acknowledgements |
//! | `redis` | the backend `redis`, on a server |
//! | `redis-tls` | TLS for it, by rustls |
//! | `sqs` | the backend `sqs`, on AWS SQS |
//! | `health` | health and metrics of a [`runtime::LoopGroup`] over HTTP |
//! | `evals` | eval runs: the module `evals` |
//! | `blocking` | mailboxes for plain threads, without async: the module `blocking` |
//! | `msgpack` | the `MessagePack` codec |

#[cfg(feature = "blocking")]
pub mod blocking;
mod open;

pub use open::{open, open_existing, url_forms};
pub use pillarbox_core::*;
#[cfg(feature = "evals")]
pub use pillarbox_evals as evals;
#[cfg(feature = "redis")]
pub use pillarbox_redis as redis;
#[cfg(feature = "runtime")]
pub use pillarbox_runtime as runtime;
#[cfg(feature = "sqlite")]
pub use pillarbox_sqlite as sqlite;
#[cfg(feature = "sqs")]
pub use pillarbox_sqs as sqs;

/// What most programs need: `use pillarbox::prelude::*;`
pub mod prelude {
    pub use std::time::Duration;

    pub use pillarbox_core::{
        Batch, Error, Mailbox, MailboxResolver, Mailboxes, Message, MessageId, Receipt, Receive,
        SendOptions,
    };
    #[cfg(feature = "runtime")]
    pub use pillarbox_runtime::{
        Attempt, Backoff, CallError, Client, Context, Control, DeadLetter, Dlq, DlqAction,
        DlqConsumer, DlqPolicy, Event, Heartbeat, LoopGroup, MainLoop, MainLoopRequest,
        MainLoopResult, Metadata, Outcome, ProducerHandle, ReadyWorker, Replies, Router, Run,
        Runnable, Worker, WorkerId,
    };
}
