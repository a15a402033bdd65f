//! Pillarbox mailboxes in one SQLite file: durable, shared by processes, transactional.

mod backend;
mod clock;
mod failure;
mod file;
mod inbox;
mod options;
mod schema;
mod store;
mod writer;

pub use backend::SqliteBackend;
pub use options::{SqliteOptions, Synchronous};
pub use rusqlite;
