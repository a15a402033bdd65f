//! Pillarbox mailboxes in one SQLite file: durable, shared by processes, transactional.
//!
//! A file holds any number of queues. Any number of processes on one machine may have it open, and any of them may
//! be killed at any moment: every confirmed operation is in the file.
//!
//! ```
//! use pillarbox_core::{Mailbox, Mailboxes};
//! use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let path = directory.path().join("jobs.db");
//! let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(path)).await?);
//! let jobs: Mailbox<String> = backend.mailbox("jobs")?;
//! jobs.send(&"sweep the floor".to_owned()).await?;
//! # Ok(()) }
//! ```
//!
//! Programs that use the `pillarbox` crate open it by URL: `sqlite:jobs.db`, and others as in
//! [`SqliteOptions::from_url`].
//!
//! # Files on the disk
//!
//! | file | content |
//! |---|---|
//! | `jobs.db` | the database |
//! | `jobs.db-wal`, `jobs.db-shm` | SQLite's write-ahead log and its index. They belong to the database: copy or move them along, or close all programs first, which removes them |
//! | `jobs.db-lock` | a small file that processes lock in turn to write |
//!
//! New files are readable and writable by their owner alone, unless
//! [`permissions`](SqliteOptions::permissions) are set.
//!
//! The file must be on a local file system: a network share cannot hold a write-ahead log. The space of acknowledged
//! messages is reused; the file does not shrink by itself (`VACUUM` shrinks it).
//!
//! # Looking inside
//!
//! Two views are meant for people:
//!
//! ```console
//! $ sqlite3 jobs.db 'SELECT queue, id, state, delivery_count, unsettled, until, body FROM pillarbox'
//! $ sqlite3 jobs.db 'SELECT * FROM pillarbox_queues'
//! ```
//!
//! The tables behind them:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
#![doc = include_str!("schema-2.sql")]
#![doc = include_str!("schema-3.sql")]
#![doc = include_str!("schema-4.sql")]
//! ```
//!
//! Other programs may read them, but must not write to them. To send and settle inside a transaction of your own, see
//! [`transaction`].
//!
//! # Errors
//!
//! A file that is no database, belongs to another program, was written by a newer version or is found to be damaged
//! is refused when it is opened, and not touched. While it is open, a full disk, a file that cannot be read or
//! written, a lock that another program does not release, a database or a log that was deleted, replaced, copied over
//! or hard-linked: each is an [`Error::Connection`](pillarbox_core::Error::Connection) that says what to do. The
//! operation was not done, and the next one succeeds once the cause is gone. There are two exceptions: if the file is
//! lost in the middle of an operation, and after an fsync that failed, it is unknown whether the operation was done,
//! and the error says so; after a failed fsync the program must be restarted. `SQLITE_BUSY` does not reach callers:
//! they wait instead.

mod backend;
mod change_poll;
mod checkpoint;
mod clock;
mod connection;
mod database_files;
mod diagnose;
mod engine;
mod failure;
mod file;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod log_watch;
mod options;
mod overwrite;
#[cfg(test)]
mod power_failure;
mod requests;
mod schema;
mod shared_writer;
mod store;
mod sync;
pub mod transaction;
mod verify;
mod write_lock;
mod writer;

pub use backend::SqliteBackend;
pub use options::{FilePermissions, SqliteOptions, Synchronous};
pub use rusqlite;
pub use verify::verify;
