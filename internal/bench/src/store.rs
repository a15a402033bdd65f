//! Where mailboxes are: in memory, in a file, or on a server, each as users get it.

use std::path::PathBuf;
use std::str::FromStr;

use pillarbox_core::{Mailboxes, MemoryBackend};
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_sqlite::{SqliteBackend, SqliteOptions};
use pillarbox_testing::server::RedisServer;
use tempfile::TempDir;

use crate::measure::Result;
use crate::{place, redis};

/// A kind of backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    /// A file that is synced before anything is answered.
    Sqlite,
    /// A server that keeps a log and syncs it every second.
    Redis,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Sqlite, Self::Redis];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "SQLite",
            Self::Redis => "Redis",
        }
    }
}

/// Something to store messages in, which is gone when dropped.
#[derive(Debug)]
pub(crate) enum Store {
    Memory,
    Sqlite(TempDir),
    Redis(Box<RedisServer>),
}

/// How a store is found, also by another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Address {
    Memory,
    Sqlite(PathBuf),
    Redis(String),
}

impl Store {
    /// One that holds nothing.
    pub(crate) fn fresh(kind: Kind) -> Result<Self> {
        Ok(match kind {
            Kind::Memory => Self::Memory,
            Kind::Sqlite => Self::Sqlite(place::fresh()?),
            Kind::Redis => Self::Redis(Box::new(redis::fresh(redis::Kept::EverySecond))),
        })
    }

    pub(crate) fn address(&self) -> Address {
        match self {
            Self::Memory => Address::Memory,
            Self::Sqlite(directory) => Address::Sqlite(directory.path().join("jobs.db")),
            Self::Redis(server) => Address::Redis(server.url()),
        }
    }
}

impl Address {
    /// Opens the backend as users do. For memory, each call opens a new, separate backend.
    pub(crate) async fn backend(&self) -> Result<Mailboxes> {
        Ok(match self {
            Self::Memory => Mailboxes::new(MemoryBackend::new()),
            Self::Sqlite(path) => {
                Mailboxes::new(SqliteBackend::open(SqliteOptions::new(path)).await?)
            }
            Self::Redis(url) => {
                Mailboxes::new(RedisBackend::open(RedisOptions::from_url(url)?).await?)
            }
        })
    }

    /// As an argument of a process.
    pub(crate) fn argument(&self) -> Result<String> {
        Ok(match self {
            Self::Memory => "memory".to_owned(),
            Self::Sqlite(path) => {
                format!("sqlite:{}", path.to_str().ok_or("the path of the file is not text")?)
            }
            Self::Redis(url) => url.clone(),
        })
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match text.split_once(':') {
            None if text == "memory" => Ok(Self::Memory),
            Some(("sqlite", path)) => Ok(Self::Sqlite(path.into())),
            Some(("redis", _)) => Ok(Self::Redis(text.to_owned())),
            _ => Err(format!("{text} is neither memory nor sqlite:PATH nor redis://...")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let addresses = [
            Address::Memory,
            Address::Sqlite("/tmp/a:b/jobs.db".into()),
            Address::Redis("redis://127.0.0.1:6379".to_owned()),
        ];
        for address in addresses {
            assert_eq!(address.argument().unwrap().parse(), Ok(address));
        }
        assert!("file".parse::<Address>().is_err());
    }
}
