//! A backend that several processes share.

use std::path::PathBuf;

use pillarbox_core::Mailboxes;
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::server::RedisServer;
use tempfile::TempDir;

/// A backend with its own directory, which holds the files of the test as well.
pub(crate) struct SharedBackend {
    pub(crate) url: String,
    /// The server, if there is one.
    pub(crate) server: Option<RedisServer>,
    directory: TempDir,
}

impl SharedBackend {
    /// A SQLite file.
    pub(crate) fn sqlite() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let url = format!("sqlite:{}", directory.path().join("queues.db").display());
        Self { url, server: None, directory }
    }

    /// A Redis server that syncs every write.
    pub(crate) fn redis() -> Self {
        let server = RedisServer::builder().appendonly("always").start();
        let directory = tempfile::tempdir().expect("a directory");
        Self { url: server.url(), server: Some(server), directory }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Returns the name of the backend, for output.
    pub(crate) fn name(&self) -> &'static str {
        if self.server.is_some() { "Redis" } else { "SQLite" }
    }
}

/// Opens the backend at a URL, in any process.
pub(crate) async fn open(url: &str) -> Mailboxes {
    if url.starts_with("sqlite:") {
        let options = SqliteOptions::from_url(url).expect("a valid URL");
        Mailboxes::new(SqliteBackend::open(options).await.expect("a backend"))
    } else {
        let options = RedisOptions::from_url(url).expect("a valid URL");
        Mailboxes::new(RedisBackend::open(options).await.expect("a backend"))
    }
}

/// Runs each test on each backend.
macro_rules! on_both {
    ($($(#[$attribute:meta])* $test:ident;)*) => {
        mod sqlite {
            $(#[test] $(#[$attribute])* fn $test() { super::$test(super::SharedBackend::sqlite()); })*
        }
        mod redis {
            $(#[test] $(#[$attribute])* fn $test() { super::$test(super::SharedBackend::redis()); })*
        }
    };
}

pub(crate) use on_both;
