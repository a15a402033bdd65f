//! Pillarbox mailboxes in one SQLite file: durable, shared by processes, transactional.
//!
//! A file holds any number of queues. Any number of processes of one machine may have it open, and
//! any of them may be killed at any moment: what was answered is in the file.
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
//! # What is on the disk
//!
//! | file | what it is |
//! |---|---|
//! | `jobs.db` | the database |
//! | `jobs.db-wal`, `jobs.db-shm` | SQLite's write-ahead log and its index. They belong to the database: copy or move them along, or close all programs first, which removes them |
//! | `jobs.db-lock` | a small file whose lock goes round between processes, so that each gets its turn to write |
//!
//! New files can be read and written by their owner alone, unless
//! [`permissions`](SqliteOptions::permissions) says otherwise.
//!
//! The file must be on a file system of the machine: a network share cannot hold a write-ahead log.
//! Space of acknowledged messages is used again; the file does not shrink by itself (`VACUUM` makes
//! it smaller).
//!
//! # Looking inside
//!
//! Two views are made for people:
//!
//! ```console
//! $ sqlite3 jobs.db 'SELECT queue, id, state, delivery_count, unsettled, until, body FROM pillarbox'
//! $ sqlite3 jobs.db 'SELECT * FROM pillarbox_queues'
//! ```
//!
//! The tables behind them, with what each column means:
//!
//! ```sql
#![doc = include_str!("schema.sql")]
#![doc = include_str!("schema-2.sql")]
#![doc = include_str!("schema-3.sql")]
#![doc = include_str!("schema-4.sql")]
//! ```
//!
//! Read them as you like; do not write to them. To write inside a transaction of your own, see
//! [`transaction`].
//!
//! # When something is wrong
//!
//! A file that is no database, belongs to another program or was written by a newer version is refused
//! when it is opened, and not touched; so is one whose damage shows then. A full disk, a file that cannot be read or written, a lock
//! that another program does not let go of, a file or a log that was deleted, replaced, copied over or linked while it
//! is open: each is an
//! [`Error::Connection`](pillarbox_core::Error::Connection) that says what to do, the operation was
//! not done, and the next one succeeds once the reason is gone. Only where a file goes astray in the midst of an
//! operation, or after an fsync that failed, it is unknown what was done, and the error says so; after the latter the
//! program must be restarted. `SQLITE_BUSY` does not reach callers:
//! they wait their turn.

mod backend;
mod checkpoint;
mod clock;
mod diagnose;
mod engine;
mod failure;
mod file;
mod frames;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod inbox;
mod options;
mod overwrite;
mod schema;
mod store;
mod sync;
pub mod transaction;
mod verify;
mod writer;

pub use backend::SqliteBackend;
pub use options::{FilePermissions, SqliteOptions, Synchronous};
pub use rusqlite;
pub use verify::verify;
