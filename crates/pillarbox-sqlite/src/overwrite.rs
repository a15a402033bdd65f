//! Detects that another file was copied over a database that is open.
//!
//! Such a copy keeps the inode: the path still leads to the open file, and to go on would mix the log of one
//! database with the pages of another. But with a write-ahead log, the database file changes only during a
//! checkpoint. Each checkpoint of ours records the size and the modification time of the file in the lock
//! file, which all processes share and write only while they hold the lock. If the file does not match the
//! record, there are three explanations: a connection of another program has checkpointed, which the log
//! shows; it has begun to, which the pages show ([`frames`]); or the file was overwritten.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use crate::checkpoint;
use crate::database_files::{FileStamp, companion_path};
use crate::failure::Failure;
use crate::frames;

/// Time to wait for another program to complete a checkpoint.
const FOREIGN_CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(3);
/// Interval at which its progress is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Length of the record, so that each overwrites the last one and needs no further space on the disk.
const RECORD_BYTES: usize = 128;

/// Compares the database that this process has open with the checkpoint record.
#[derive(Debug, Default)]
pub(crate) struct OverwriteDetector {
    /// The file when it was last found to be right.
    accepted: Cell<Option<FileStamp>>,
    /// The next commit restarts the log, which must be recorded although it copies nothing.
    is_log_at_end: Cell<bool>,
    is_overwritten: Cell<bool>,
}

/// The files that are compared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ComparedFiles<'a> {
    pub(crate) path: &'a Path,
    pub(crate) lock: &'a File,
    pub(crate) log: &'a File,
}

impl OverwriteDetector {
    /// Accepts the file as it is: no other process has it open. Requires the write lock.
    pub(crate) fn accept_current(&self, compared: ComparedFiles<'_>, connection: &Connection) {
        let progress = LogProgress::read(connection, compared.log);
        if let Some(found) = FileStamp::at(compared.path) {
            self.accept(found, progress, CheckpointRecord::Unknown, compared);
        }
    }

    /// Returns whether the file is not as it was accepted.
    pub(crate) fn is_changed(&self, found: FileStamp) -> bool {
        self.accepted.get() != Some(found)
    }

    /// Fails if the file was written by something other than SQLite. Requires the write lock. Costs nothing if
    /// the file is unchanged.
    pub(crate) fn check(
        &self,
        found: FileStamp,
        compared: ComparedFiles<'_>,
        connection: &Connection,
    ) -> Result<(), Failure> {
        if !self.is_changed(found) {
            return Ok(());
        }
        let end = Instant::now() + FOREIGN_CHECKPOINT_TIMEOUT;
        loop {
            // Before the file: a checkpoint in between then explains a later change of the file.
            let progress = LogProgress::read(connection, compared.log);
            let Some(found) = FileStamp::at(compared.path) else { return Err(Failure::Replaced) };
            let record = CheckpointRecord::read(compared.lock);
            let (stamp, recorded, is_reported) = match record {
                CheckpointRecord::Unknown => {
                    self.accept(found, progress, record, compared);
                    return Ok(());
                }
                CheckpointRecord::Known(stamp, recorded) => (stamp, recorded, false),
                CheckpointRecord::Overwritten(stamp, recorded) => (stamp, recorded, true),
            };
            let is_explained =
                stamp == found || progress.is_some_and(|now| recorded.may_have_advanced(now));
            let is_late = is_reported || Instant::now() >= end;
            if is_explained || (is_late && recorded.explains(compared.path, compared.log)) {
                self.accept(found, progress, record, compared);
                return Ok(());
            }
            if is_late {
                self.is_overwritten.set(true);
                CheckpointRecord::Overwritten(stamp, recorded).write(compared.lock);
                return Err(Failure::Overwritten(compared.path.to_owned()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Runs a checkpoint and records its result. Requires the write lock. If the process is killed meanwhile, the
    /// next one finds no record and draws no conclusion.
    pub(crate) fn during_checkpoint<T>(
        &self,
        compared: ComparedFiles<'_>,
        connection: &Connection,
        checkpoint: impl FnOnce() -> T,
    ) -> T {
        CheckpointRecord::Unknown.write(compared.lock);
        let done = checkpoint();
        self.accept_current(compared, connection);
        done
    }

    /// Records that the log was restarted, if it was. To be called after each commit, with the write lock still
    /// held.
    pub(crate) fn after_commit(&self, compared: ComparedFiles<'_>, connection: &Connection) {
        if !self.is_log_at_end.get() {
            return;
        }
        let progress = LogProgress::read(connection, compared.log);
        if let Some(found) = FileStamp::at(compared.path).filter(|found| !self.is_changed(*found)) {
            self.accept(found, progress, CheckpointRecord::Unknown, compared);
        }
    }

    /// Returns whether the last check found the file overwritten.
    pub(crate) fn is_overwritten(&self) -> bool {
        self.is_overwritten.get()
    }

    /// Accepts the file as it was `found`, after the log was as in `progress`.
    fn accept(
        &self,
        found: FileStamp,
        progress: Option<LogProgress>,
        record: CheckpointRecord,
        compared: ComparedFiles<'_>,
    ) {
        self.accepted.set(Some(found));
        self.is_overwritten.set(false);
        let record = match record {
            CheckpointRecord::Known(stamp, _) if stamp == found => record,
            _ => {
                let record = progress.map_or(CheckpointRecord::Unknown, |progress| {
                    CheckpointRecord::Known(found, progress)
                });
                record.write(compared.lock);
                record
            }
        };
        let is_in_log =
            matches!(record, CheckpointRecord::Known(_, progress) if !progress.is_at_end());
        self.is_log_at_end.set(!is_in_log);
    }
}

/// Fails if a program has found the database overwritten and its log is still there: SQLite would checkpoint
/// the log into a file that it does not belong to.
pub(crate) fn check_record(path: &Path) -> Result<(), Failure> {
    let Ok(lock) = File::open(companion_path(path, "-lock")) else { return Ok(()) };
    let CheckpointRecord::Overwritten(stamp, recorded) = CheckpointRecord::read(&lock) else {
        return Ok(());
    };
    let name = companion_path(path, "-wal");
    let has_log = std::fs::metadata(&name).is_ok_and(|log| log.len() > 0);
    if !has_log || FileStamp::at(path) == Some(stamp) {
        return Ok(());
    }
    // It may have been a false alarm, or the former file is back.
    if File::open(name).is_ok_and(|log| recorded.explains(path, &log)) {
        return Ok(());
    }
    Err(Failure::Overwritten(path.to_owned()))
}

/// Returns whether the file at this path is a log with a header.
pub(crate) fn is_written_log(log: &Path) -> bool {
    File::open(log).is_ok_and(|log| frames::salt(&log).is_some())
}

/// The number of pages of the log that were copied to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogProgress {
    /// The salt of the log, which changes each time the log is restarted. `None` if the log is empty.
    salt: Option<u64>,
    copied_pages: i64,
    /// Whether those were all pages.
    is_complete: bool,
    /// Modification time of the log, in nanoseconds since 1970.
    modified: i128,
}

impl LogProgress {
    fn read(connection: &Connection, log: &File) -> Option<Self> {
        let (pages, copied_pages) = checkpoint::log_pages(connection)?;
        let modified = FileStamp::of(&log.metadata().ok()?).modified;
        let is_complete = pages == copied_pages;
        Some(Self { salt: frames::salt(log), copied_pages, is_complete, modified })
    }

    /// Returns whether pages may have been copied between this and `now`.
    fn may_have_advanced(self, now: Self) -> bool {
        match (self.salt, now.salt) {
            (Some(then), Some(same)) if then == same => self.copied_pages != now.copied_pages,
            // It was written, checkpointed and truncated; or never written.
            (None, None) => self.modified != now.modified,
            // It is restarted once all of it was copied.
            _ => true,
        }
    }

    /// Returns whether a checkpoint that was interrupted, or still runs, explains the content of the file.
    fn explains(self, path: &Path, log: &File) -> bool {
        let copied = self.copied_pages.try_into().unwrap_or(0);
        self.salt.is_some_and(|salt| frames::matches_log(path, log, salt, copied))
    }

    /// Returns whether the next commit restarts the log.
    const fn is_at_end(self) -> bool {
        self.is_complete || self.salt.is_none()
    }
}

/// The record in the lock file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CheckpointRecord {
    /// A checkpoint is under way, or an older version has created the lock file.
    Unknown,
    /// The database and its log after the last checkpoint.
    Known(FileStamp, LogProgress),
    /// The same, and the database was overwritten since.
    Overwritten(FileStamp, LogProgress),
}

impl CheckpointRecord {
    fn read(mut lock: &File) -> Self {
        let mut bytes = Vec::new();
        let read = lock.seek(SeekFrom::Start(0)).and_then(|_| {
            let mut record = lock.take(RECORD_BYTES as u64);
            record.read_to_end(&mut bytes)
        });
        let text = read.ok().and_then(|_| std::str::from_utf8(&bytes).ok());
        text.and_then(Self::parse).unwrap_or(Self::Unknown)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace();
        let kind = words.next()?;
        let (len, modified) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let stamp = FileStamp { len, modified };
        let salt = match words.next()? {
            "-" => None,
            number => Some(number.parse().ok()?),
        };
        let copied_pages = words.next()?.parse().ok()?;
        let is_complete = words.next()? == "whole";
        let modified = words.next()?.parse().ok()?;
        let progress = LogProgress { salt, copied_pages, is_complete, modified };
        match kind {
            "is" => Some(Self::Known(stamp, progress)),
            "copied-over" => Some(Self::Overwritten(stamp, progress)),
            _ => None,
        }
    }

    /// Writes the record. A failure is not fatal: at worst a later change cannot be explained, or an overwrite is
    /// taken for a checkpoint.
    fn write(self, mut lock: &File) {
        let text = match self {
            Self::Unknown => "nothing".to_owned(),
            Self::Known(stamp, progress) => Self::format("is", stamp, progress),
            Self::Overwritten(stamp, progress) => Self::format("copied-over", stamp, progress),
        };
        let line = format!("{text:width$}\n", width = RECORD_BYTES - 1);
        let written = lock.seek(SeekFrom::Start(0)).and_then(|_| lock.write_all(line.as_bytes()));
        if let Err(error) = written {
            tracing::debug!(%error, "cannot write to the lock file");
        }
    }

    fn format(kind: &str, stamp: FileStamp, progress: LogProgress) -> String {
        let FileStamp { len, modified } = stamp;
        let salt = progress.salt.map_or("-".to_owned(), |number| number.to_string());
        let whole = if progress.is_complete { "whole" } else { "part" };
        let (pages, log_modified) = (progress.copied_pages, progress.modified);
        format!("{kind} {len} {modified} {salt} {pages} {whole} {log_modified}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(salt: Option<u64>, copied_pages: i64, is_complete: bool) -> LogProgress {
        LogProgress { salt, copied_pages, is_complete, modified: 1_700_000_000_000_000_000 }
    }

    #[test]
    fn a_record_is_read_as_it_was_written_over_a_longer_one() {
        let lock = tempfile::tempfile().unwrap();
        assert_eq!(CheckpointRecord::read(&lock), CheckpointRecord::Unknown);
        let stamp = FileStamp { len: 1 << 40, modified: 1_700_000_000_000_000_000 };
        for record in [
            CheckpointRecord::Overwritten(stamp, progress(Some(u64::MAX), 1 << 31, false)),
            CheckpointRecord::Known(FileStamp { len: 0, modified: -1 }, progress(None, 0, true)),
            CheckpointRecord::Unknown,
        ] {
            record.write(&lock);
            assert_eq!(CheckpointRecord::read(&lock), record);
            assert_eq!(lock.metadata().unwrap().len(), RECORD_BYTES as u64);
        }
    }

    #[test]
    fn pages_may_have_been_copied_if_the_number_or_the_log_has_changed() {
        let (part, all) = (progress(Some(7), 5, false), progress(Some(7), 9, true));
        assert!(!part.may_have_advanced(part) && !all.may_have_advanced(all));
        assert!(part.may_have_advanced(all));
        assert!(part.may_have_advanced(progress(Some(8), 0, false)));
        let empty = progress(None, 0, true);
        assert!(!empty.may_have_advanced(empty));
        assert!(empty.may_have_advanced(LogProgress { modified: 0, ..empty }), "truncated again");
        assert!(empty.may_have_advanced(part) && part.may_have_advanced(empty));
    }
}
