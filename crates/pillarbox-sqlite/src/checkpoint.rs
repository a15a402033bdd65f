//! Keeping the write-ahead log short.

use std::time::{Duration, Instant};

use rusqlite::Connection;

/// The write-ahead log, whose pages are moved into the file itself now and then.
pub(crate) struct Log {
    /// Commits since its length was last asked for.
    commits: u32,
    /// How many pages it had then.
    pages: i64,
    /// At so many pages the next attempt is made.
    next: i64,
    warned: bool,
}

impl Log {
    /// Commits after which its length is asked for.
    const COMMITS: u32 = 8;
    /// Pages after which the log is moved into the file: 4 MiB.
    const PAGES: i64 = 1000;
    /// Pages from which on writing stops for a moment, so that readers let go of the log: 64 MiB.
    const MANY_PAGES: i64 = 16_000;
    /// For how long at most. A reader may have to end, and then another that began meanwhile.
    const PAUSE: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self { commits: 0, pages: 0, next: Self::PAGES, warned: false }
    }

    /// Whether it is time to make it shorter. To be asked after each commit.
    pub(crate) fn is_long(&mut self, connection: &Connection) -> bool {
        self.commits += 1;
        if self.commits < Self::COMMITS {
            return false;
        }
        self.commits = 0;
        self.pages = length(connection).map_or(0, |(pages, _)| pages);
        self.pages >= self.next
    }

    /// Moves the log into the file. To be called between two transactions, while no other process
    /// can write.
    pub(crate) fn shorten(&mut self, connection: &Connection) {
        let mut whole = move_pages(connection);
        if !whole && self.pages > Self::MANY_PAGES {
            whole = self.outwait_readers(connection);
        }
        // Where all was moved, the next transaction starts the log again from its beginning.
        let later = self.pages + self.pages / 4 + Self::PAGES;
        self.next = if whole { Self::PAGES } else { later };
        self.warned &= !whole;
    }

    /// Stops writing until the readers that hold on to old pages have ended. New ones do not, while
    /// nobody writes. Says whether all was moved.
    fn outwait_readers(&mut self, connection: &Connection) -> bool {
        let end = Instant::now() + Self::PAUSE;
        // Not by asking SQLite to wait, which waits for a place that the next reader takes at once.
        let mut whole = false;
        while !whole && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            whole = move_pages(connection);
        }
        if whole {
            // From now on new readers have no need of the log. Those of before must end too.
            let _ = connection.busy_timeout(Self::PAUSE);
            checkpoint(connection, "PRAGMA wal_checkpoint(RESTART)");
            let _ = connection.busy_timeout(crate::file::BUSY_TIMEOUT);
        } else if !self.warned {
            self.warned = true;
            let pages = self.pages;
            tracing::warn!(pages, "a reader that does not end keeps the write-ahead log long");
        }
        whole
    }
}

/// How many pages the log has, and how many of them are in the file. Changes nothing. `None`: it
/// cannot be told.
pub(crate) fn length(connection: &Connection) -> Option<(i64, i64)> {
    checkpoint(connection, "PRAGMA wal_checkpoint(NOOP)")
}

/// Moves what can be moved without waiting for anybody. Says whether that was all.
pub(crate) fn move_pages(connection: &Connection) -> bool {
    let done = checkpoint(connection, "PRAGMA wal_checkpoint(PASSIVE)");
    done.is_some_and(|(pages, moved)| pages == moved)
}

/// Says how many pages the log has and how many of them are in the file. `None`: it could not be
/// tried.
fn checkpoint(connection: &Connection, pragma: &str) -> Option<(i64, i64)> {
    let mut statement = connection.prepare_cached(pragma).ok()?;
    let found = statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))).ok();
    // Negative: the connection has not read anything yet, and knows of no log.
    found.filter(|(pages, _)| *pages >= 0)
}
