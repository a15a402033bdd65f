//! Durable mailboxes for Rust: point-to-point queues with SQS semantics that behave the same on
//! every backend.
//!
//! A received message stays in its queue, invisible to other receivers, until it is acknowledged. If the receiver
//! dies or takes too long, its lease expires and the message is delivered again under a new receipt; the old receipt
//! is no longer valid. *No message lost, no stale receipt accepted.*
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
//! A [`Worker`] replaces a loop like the one above. It adds concurrency, leases that are extended while a
//! handler runs, retries, dead letters, and a graceful shutdown that loses nothing:
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
//! [`open`] chooses the backend by a URL:
//!
//! | URL | backend | feature |
//! |---|---|---|
//! | `sqlite:PATH` | one durable file, shared by several processes; created if it does not exist | `sqlite`, on by default |
//! | `sqlite:PATH?synchronous=normal` | the same, faster; a power failure may lose the most recent changes | |
//! | `sqlite::memory:` | SQLite without a file, private to the returned handle | |
//! | `redis://[USER:PASSWORD@]HOST[:PORT][/DATABASE]` | a Redis (6.2 or later) or Valkey server | `redis` |
//! | `redis+unix:///PATH` | the same over a Unix socket | `redis` |
//! | `redis-sentinel://HOST[:PORT],.../SERVICE` | the primary that these sentinels name | `redis` |
//! | `redis-cluster://HOST[:PORT],...` | the cluster that these nodes belong to | `redis` |
//! | `rediss://...`, `rediss-sentinel://...`, `rediss-cluster://...` | the same over TLS | `redis-tls` |
//! | `sqs://REGION[/PREFIX]` | AWS SQS in this region: the queues whose names start with the prefix | `sqs` |
//! | `sqs+http://HOST[:PORT][/PREFIX]` | a local server with the SQS API | `sqs` |
//! | `memory:` | in memory, private to the returned handle | always available |
//! | `memory:NAME` | in memory, shared by all handles of this name in the process | always available |
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `runtime` (default) | workers: [`Worker`], [`dead_letters`], [`loops`], [`group`] |
//! | `sqlite` (default) | the backend [`sqlite`], with transactional sends and acknowledgements |
//! | `redis` | the backend `redis`, on a Redis or Valkey server |
//! | `redis-tls` | TLS for `redis`, by rustls |
//! | `sqs` | the backend `sqs`, on AWS SQS |
//! | `anyhow` | error types of handlers that return `anyhow::Result`, for policies and dead letters |
//! | `health` | health and metrics of a [`group::LoopGroup`] over HTTP |
//! | `evals` | eval runs: the module `evals` |
//! | `blocking` | mailboxes for plain threads, without async: the module `blocking` |
//! | `msgpack` | the `MessagePack` codec |

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
mod open;

pub use open::{open, open_existing, url_forms};
#[cfg(feature = "msgpack")]
pub use pillarbox_core::MessagePack;
pub use pillarbox_core::{
    Attributes, Backend, Batch, BatchResults, BodyEncoding, BoxFuture, Capabilities, Cause, Clock,
    Codec, Counts, Cursor, Delivery, Diagnosis, Error, Fact, Factory, Finding, Json, Leased,
    Mailbox, MailboxBuilder, MailboxResolver, Mailboxes, ManualClock, MemoryBackend, Message,
    MessageId, MessageState, NoReplies, Outgoing, Partitions, Peek, PeekPage, Peeked, Queue,
    QueueName, QueueOptions, Raw, RawMessage, ReadableBody, Receipt, Receive, Redrive, Registry,
    RegistryThenFactory, Repair, Result, SendOptions, Sent, Settle, SettleAction, Severity,
    SystemClock, Timestamp, Undecodable, clock, codec, events,
};
#[cfg(feature = "evals")]
pub use pillarbox_evals as evals;
#[cfg(feature = "redis")]
pub use pillarbox_redis as redis;
#[cfg(feature = "runtime")]
pub use pillarbox_runtime::{
    About, Backoff, BoxError, Control, DlqAction, DlqConsumer, Event, Events, FailedAttempt,
    Failure, FailureKind, IntoDlqAction, LoopFailure, NoHandler, Outcome, ProducerHandle, Ready,
    ReadyWorker, Router, Runnable, Running, Worker, dead_letters, group, handler, loops, service,
    stats, tower, trace,
};
#[cfg(feature = "sqlite")]
pub use pillarbox_sqlite as sqlite;
#[cfg(feature = "sqs")]
pub use pillarbox_sqs as sqs;

/// The items that most programs need: `use pillarbox::prelude::*;`
pub mod prelude {
    pub use std::time::Duration;

    pub use pillarbox_core::{
        Batch, Error, Mailbox, MailboxResolver, Mailboxes, Message, MessageId, Receipt, Receive,
        SendOptions,
    };
    #[cfg(feature = "runtime")]
    pub use pillarbox_runtime::{
        Backoff, Control, DlqAction, DlqConsumer, Event, Outcome, ProducerHandle, ReadyWorker,
        Router, Runnable, Worker,
        dead_letters::{DeadLetter, Dlq, DlqPolicy},
        group::LoopGroup,
        handler::{Attempt, Context, Heartbeat, Metadata, Replies, WorkerId},
        loops::{CallError, Client, MainLoop, MainLoopRequest, MainLoopResult, Run},
    };
}
