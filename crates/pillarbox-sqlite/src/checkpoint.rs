//! Checkpoints: they copy the pages of the write-ahead log to the database, which keeps the log short.

use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::connection::BUSY_TIMEOUT;

/// Decides when to checkpoint, and does so.
pub(crate) struct Checkpointer {
    /// Commits since the length of the log was last read.
    commits: u32,
    /// Commits since the last checkpoint.
    commits_since_checkpoint: u32,
    /// Pages that the log had then.
    pages: i64,
    /// Number of pages at which the next checkpoint is due.
    threshold: i64,
    has_warned: bool,
}

impl Checkpointer {
    /// Commits between two reads of the length.
    const COMMITS: u32 = 16;
    /// Pages at which a checkpoint is due: 4 MiB.
    const PAGES: i64 = 1000;
    /// Commits between two checkpoints, unless the log has [`LONG_LOG_PAGES`](Self::LONG_LOG_PAGES). A page that was
    /// written by several of them is copied once: with large messages, which reuse the pages of acknowledged ones,
    /// checkpoints copy a fraction of the log.
    const COMMITS_PER_CHECKPOINT: u32 = 64;
    /// Pages at which a checkpoint is due however few commits wrote them: 48 MiB.
    const LONG_LOG_PAGES: i64 = 12_000;
    /// Pages from which on writing pauses, so that readers release the log: 64 MiB.
    const MANY_PAGES: i64 = 16_000;
    /// Longest time to wait for a reader, and then for those that began meanwhile.
    const PAUSE: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self {
            commits: 0,
            commits_since_checkpoint: 0,
            pages: 0,
            threshold: Self::PAGES,
            has_warned: false,
        }
    }

    /// Returns whether a checkpoint is due. To be called after each commit.
    pub(crate) fn is_due(&mut self, connection: &Connection) -> bool {
        self.commits += 1;
        self.commits_since_checkpoint += 1;
        if self.commits < Self::COMMITS {
            return false;
        }
        self.commits = 0;
        self.pages = log_pages(connection).map_or(0, |(pages, _)| pages);
        let has_many_commits = self.commits_since_checkpoint >= Self::COMMITS_PER_CHECKPOINT;
        self.pages >= self.threshold && (has_many_commits || self.pages >= Self::LONG_LOG_PAGES)
    }

    /// Returns whether the next commit is one after which the length of the log is read, and a checkpoint may be due.
    pub(crate) const fn may_be_due_next(&self) -> bool {
        self.commits + 1 >= Self::COMMITS
    }

    /// Checkpoints. To be called between two transactions, while no other process can write.
    pub(crate) fn run(&mut self, connection: &Connection) {
        self.commits_since_checkpoint = 0;
        let mut is_complete = checkpoint(connection);
        if !is_complete && self.pages > Self::MANY_PAGES {
            is_complete = self.wait_for_readers(connection);
        }
        // After a complete checkpoint the next transaction writes from the start of the log.
        let later = self.pages + self.pages / 4 + Self::PAGES;
        self.threshold = if is_complete { Self::PAGES } else { later };
        self.has_warned &= !is_complete;
    }

    /// Pauses writing until the readers that need old pages have ended; new ones do not need them while nothing
    /// is written. Returns whether all pages were copied.
    fn wait_for_readers(&mut self, connection: &Connection) -> bool {
        let end = Instant::now() + Self::PAUSE;
        // Not by SQLite's own wait, which waits for a lock that the next reader takes at once.
        let mut is_complete = false;
        while !is_complete && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(2));
            is_complete = checkpoint(connection);
        }
        if is_complete {
            // From now on new readers do not need the log. The earlier ones must end too.
            let _ = connection.busy_timeout(Self::PAUSE);
            run_pragma(connection, "PRAGMA wal_checkpoint(RESTART)");
            let _ = connection.busy_timeout(BUSY_TIMEOUT);
        } else if !self.has_warned {
            self.has_warned = true;
            let pages = self.pages;
            tracing::warn!(pages, "a reader that does not end keeps the write-ahead log long");
        }
        is_complete
    }
}

/// Returns the number of pages in the log and the number of those that are in the database, and changes
/// nothing. `None` if it is unknown.
pub(crate) fn log_pages(connection: &Connection) -> Option<(i64, i64)> {
    run_pragma(connection, "PRAGMA wal_checkpoint(NOOP)")
}

/// Copies the pages that can be copied without waiting. Returns whether those were all.
pub(crate) fn checkpoint(connection: &Connection) -> bool {
    let done = run_pragma(connection, "PRAGMA wal_checkpoint(PASSIVE)");
    done.is_some_and(|(pages, copied)| pages == copied)
}

/// Returns the number of pages in the log and the number of those that are in the database. `None` if the
/// pragma failed.
fn run_pragma(connection: &Connection, pragma: &str) -> Option<(i64, i64)> {
    let mut statement = connection.prepare_cached(pragma).ok()?;
    let found = statement.query_row([], |row| Ok((row.get(1)?, row.get(2)?))).ok();
    // Negative: the connection has not read anything yet, and has no log open.
    found.filter(|(pages, _)| *pages >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Commits transactions of about this number of pages until a checkpoint is due, and returns the number of commits and
    /// that of the pages of the log.
    fn commits_until_due(pages: usize) -> (u32, i64) {
        let directory = tempfile::tempdir().unwrap();
        let connection = Connection::open(directory.path().join("jobs.db")).unwrap();
        let setup =
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF; PRAGMA wal_autocheckpoint = 0;
            CREATE TABLE t (body)";
        connection.execute_batch(setup).unwrap();
        let mut checkpointer = Checkpointer::new();
        let mut commits = 0;
        loop {
            let replace = "DELETE FROM t; INSERT INTO t VALUES (zeroblob(?1))";
            let sql = replace.replace("?1", &(pages * 4096).to_string());
            connection.execute_batch(&format!("BEGIN; {sql}; COMMIT")).unwrap();
            commits += 1;
            if checkpointer.is_due(&connection) {
                return (commits, checkpointer.pages);
            }
        }
    }

    #[test]
    fn the_log_of_small_transactions_is_short() {
        let (_, pages) = commits_until_due(5);
        assert!((Checkpointer::PAGES..2 * Checkpointer::PAGES).contains(&pages), "{pages} pages");
    }

    #[test]
    fn several_large_transactions_share_a_checkpoint() {
        let (commits, pages) = commits_until_due(50);
        assert_eq!(commits, Checkpointer::COMMITS_PER_CHECKPOINT);
        assert!(pages > 3 * Checkpointer::PAGES, "{pages} pages");
    }

    #[test]
    fn the_log_of_huge_transactions_is_bounded() {
        let (commits, pages) = commits_until_due(1000);
        assert!(commits < Checkpointer::COMMITS_PER_CHECKPOINT);
        assert!(pages < 2 * Checkpointer::LONG_LOG_PAGES, "{pages} pages");
    }
}
