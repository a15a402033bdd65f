//! Pillarbox mailboxes on Redis and Valkey: four keys per queue, one script call per batch; on one server,
//! behind Sentinel, or on a Cluster.
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
//! # Stored data
//!
//! | key | type | contents |
//! |---|---|---|
//! | `{queue:NAME}:pending` | list | ids of ready messages; sent at the left, delivered from the right |
//! | `{queue:NAME}:invisible` | sorted set | ids in flight or delayed, by the microsecond at which they become ready |
//! | `{queue:NAME}:data` | hash | id → time of sending, optionally JSON, a newline, the body |
//! | `{queue:NAME}:meta` | hash | id → secret of the receipt while in flight, and delivery count; `#sent`, `#delayed` |
//!
//! See `docs/redis.md` in the repository for details, and for how to inspect them with `redis-cli`. Every
//! operation is one of the scripts in `scripts/`, each of which documents what it reads, writes and answers,
//! and why it is idempotent.
//!
//! Each partition of a queue has such keys: the first under `{queue:NAME}`, the others under
//! `{queue:NAME#K}`.
//!
//! # Errors
//!
//! If a connection breaks, or a server restarts, loads its data, is a replica or is replaced by one, the
//! operation is retried for [`RedisOptions::retry_for`], and takes effect once. After that, or at once if
//! a retry does not help (wrong password, a key of another type), it is an
//! [`Error::Connection`](pillarbox_core::Error::Connection) that says what to do. A send for which the
//! server has no memory is an [`Error::MailboxFull`](pillarbox_core::Error::MailboxFull).

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod batcher;
mod caller;
mod confirmations;
mod context;
mod diagnose;
mod failure;
mod format;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod open_queues;
mod operations;
mod options;
mod partition;
mod partition_layout;
mod partitioned_queue;
mod queue;
mod queue_state;
mod registration;
mod reply;
mod retrying_client;
mod script_call;
mod script_runner;
mod scripts;
mod servers;
mod tls;
mod waiting;

pub use backend::RedisBackend;
pub use options::{Durability, RedisOptions};
pub use redis;
