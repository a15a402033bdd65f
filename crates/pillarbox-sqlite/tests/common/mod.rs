//! Files that processes share.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::path::Path;
use std::sync::Arc;

use pillarbox_core::{Mailboxes, Queue, QueueOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};

pub(crate) async fn open(file: impl AsRef<Path>) -> Mailboxes {
    let backend = SqliteBackend::open(SqliteOptions::new(file)).await;
    Mailboxes::new(backend.unwrap_or_else(|error| panic!("{error}")))
}

pub(crate) fn queue(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    backend.queue(name, QueueOptions::new()).expect("a queue")
}
