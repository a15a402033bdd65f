//! Pillarbox mailboxes on Redis and Valkey: four keys a queue, one script a batch; on one server, behind
//! Sentinel, or on a Cluster.
//!
//! ```no_run
//! use pillarbox_core::{Mailbox, Mailboxes};
//! use pillarbox_redis::{RedisBackend, RedisOptions};
//!
//! # async fn run() -> pillarbox_core::Result<()> {
//! let options = RedisOptions::from_url("redis://localhost")?;
//! let backend = Mailboxes::new(RedisBackend::open(options).await?);
//! let jobs: Mailbox<String> = backend.mailbox("jobs")?;
//! jobs.send(&"sweep the floor".to_owned()).await?;
//! # Ok(()) }
//! ```
//!
//! Programs that use the `pillarbox` crate open it by URL, with the feature `redis` or `redis-tls`.
//!
//! # What is in the server
//!
//! | key | type | what it holds |
//! |---|---|---|
//! | `{queue:NAME}:pending` | list | ids of ready messages; sent at the left, delivered from the right |
//! | `{queue:NAME}:invisible` | sorted set | ids in flight or delayed, by the microsecond at which they become ready |
//! | `{queue:NAME}:data` | hash | id → time of sending, perhaps JSON, a newline, the body |
//! | `{queue:NAME}:meta` | hash | id → secret of the receipt while in flight, and delivery count; `#sent`, `#delayed` |
//!
//! `docs/redis.md` in the repository says more, and how to look at them with `redis-cli`. Every
//! operation is one of the scripts in `scripts/`, each of which says what it reads, writes and answers,
//! and why it may run twice.
//!
//! Of a queue that is spread over partitions, each has such keys: `{queue:NAME}` the first, and
//! `{queue:NAME#K}` the others.
//!
//! # When something is wrong
//!
//! A connection that breaks, a server that restarts, loads, is a replica or is replaced by one: the operation is repeated
//! for as long as [`RedisOptions::retry_for`] says, and takes effect once. Then, and at once where
//! waiting does not help (wrong password, a key of another type), it is an
//! [`Error::Connection`](pillarbox_core::Error::Connection) that says what to do. A send for which the
//! server has no memory is an [`Error::MailboxFull`](pillarbox_core::Error::MailboxFull).

mod backend;
mod confirm;
mod diagnose;
mod ears;
mod engine;
mod failure;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod hub;
mod lane;
mod layout;
mod line;
mod link;
mod operations;
mod options;
mod partition;
mod queue;
mod reply;
mod scripts;
mod servers;
mod state;
mod tls;

pub use backend::RedisBackend;
pub use options::{Durability, RedisOptions};
pub use redis;
