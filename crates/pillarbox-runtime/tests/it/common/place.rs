//! Where queues are that several processes share.

use std::path::PathBuf;

use pillarbox_core::Mailboxes;
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::server::RedisServer;
use tempfile::TempDir;

/// A backend with a directory of its own, for the files of the test too.
pub(crate) struct Place {
    pub(crate) url: String,
    /// The server, where there is one.
    pub(crate) server: Option<RedisServer>,
    directory: TempDir,
}

impl Place {
    /// A file.
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", directory.path().join("queues.db").display());
        Self { url, server: None, directory }
    }

    /// A server that forgets nothing that it has answered.
    pub(crate) fn redis() -> Self {
        let server = RedisServer::builder().appendonly("always").start();
        let directory = tempfile::tempdir().expect("a directory");
        Self { url: server.url(), server: Some(server), directory }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The name of the backend, for what is printed.
    pub(crate) fn name(&self) -> &'static str {
        if self.server.is_some() { "Redis" } else { "SQLite" }
    }
}

/// Opens the backend at a URL, in whichever process.
pub(crate) async fn open(url: &str) -> Mailboxes {
    let opened = match url.starts_with("sqlite:") {
        true => match SqliteOptions::from_url(url) {
            Ok(options) => SqliteBackend::open(options).await.map(Mailboxes::new),
            Err(error) => Err(error),
        },
        false => match RedisOptions::from_url(url) {
            Ok(options) => RedisBackend::open(options).await.map(Mailboxes::new),
            Err(error) => Err(error),
        },
    };
    opened.unwrap_or_else(|error| panic!("{error}"))
}

/// Each story on each backend.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $story:ident;)*) => {
        mod sqlite {
            $(#[test] $(#[$attribute])* fn $story() { super::$story(super::Place::sqlite()); })*
        }
        mod redis {
            $(#[test] $(#[$attribute])* fn $story() { super::$story(super::Place::redis()); })*
        }
    };
}

pub(crate) use on_both;
