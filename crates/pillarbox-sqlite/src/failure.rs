//! Failures of a database file, with texts that say what to do.

use std::path::PathBuf;
use std::sync::Arc;

use pillarbox_core::{Error, QueueName};
use rusqlite::ErrorCode;
use rusqlite::ffi::{SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_SHORT_READ};

/// The reason why a database could not be opened, read or written.
///
/// It is the cause of an [`Error::Connection`]. Nothing was done, and the same call succeeds once the reason is
/// gone, except for [`SyncFailed`](Self::SyncFailed) and [`Unconfirmed`](Self::Unconfirmed): then it is unknown
/// whether the operation was done.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{}", explain(.0))]
    Sqlite(Arc<rusqlite::Error>),
    #[error("{} does not exist: create the directory first", .0.display())]
    NoDirectory(PathBuf),
    #[error("{} is not a file", .0.display())]
    NotAFile(PathBuf),
    #[error("there is no file {}, or it is empty, and the options forbid creating it: check the path", .0.display())]
    NoFile(PathBuf),
    #[error(
        "{} is not a SQLite database, or it is damaged; it was not touched. Use another file, or \
         restore this one from a backup", .0.display()
    )]
    NotADatabase(PathBuf),
    #[error(
        "{} is a SQLite database of another program; it was not touched. Use another file, or set \
         adopt=true to store queues in it beside its own tables", .0.display()
    )]
    Foreign(PathBuf),
    #[error(
        "the file has version {found} of the schema and this program knows versions up to {known}: \
         it was written by a newer Pillarbox. Upgrade this program; the file was not touched"
    )]
    Newer { found: i64, known: i64 },
    #[error(
        "the file has version {found} of the schema and this program writes version {known}: open it \
         once as a backend, which migrates it; nothing was done"
    )]
    Older { found: i64, known: i64 },
    #[error(
        "the file was moved, deleted or replaced while it was open. Put it back and this works again; \
         its content, and that of the -wal file beside it, is nowhere else"
    )]
    Replaced,
    #[error(
        "{}, the log of the file, was moved, deleted or replaced while it was in use. If it was moved, put \
         it back and this works again. If it was deleted, close all programs that use the file, and do not \
         kill them: the last one to close copies the log to the file", .0.display()
    )]
    LogGone(PathBuf),
    #[error(
        "{} has several names (hard links), and would have a separate log under each of them: delete \
         all names but one (find DIRECTORY -samefile FILE lists them), and this works again", .0.display()
    )]
    Linked(PathBuf),
    #[error(
        "{}, the log of the file, is on another device than the file, and could be lost without it. Mount \
         the directory that contains the file, not the file alone", .0.display()
    )]
    OtherDevice(PathBuf),
    #[error(
        "{path} was written by something other than SQLite while it was in use. Stop all programs that use it. If \
         nothing was copied over it (it was touched, or the former file is back), delete {path}-lock and open it \
         again: nothing is lost. If another file was copied over it, put the former one back and do the same; or, to \
         continue with the other one, delete {path}-wal, the log of the former one, and the messages in it",
        path = .0.display()
    )]
    Overwritten(PathBuf),
    #[error("it is unknown whether this was done: {}", .0)]
    Unconfirmed(Arc<Failure>),
    #[error(
        "cannot open {}, which belongs to the database: {}. Check that this user may write to it and to \
         the directory", .0.display(), .1
    )]
    CompanionFile(PathBuf, Arc<std::io::Error>),
    #[error(
        "{path} does not exist, but its log {path}-wal does: the file was moved or deleted while a program used \
         it, and the log holds messages. Put the file back; or, if the messages may be lost, delete the log",
        path = .0.display()
    )]
    LogWithoutFile(PathBuf),
    #[error(
        "{} has tables or views of other programs whose names begin with pillarbox; it was not touched. \
         Use another file", .0.display()
    )]
    NameClash(PathBuf),
    #[error(
        "the connection of this transaction is to a file without queues: connect to the file that the \
         mailbox is in"
    )]
    NoQueues,
    #[error(
        "another connection is writing, or has written since this transaction began to read. Roll it back, \
         and begin with TransactionBehavior::Immediate, which waits instead"
    )]
    LockUpgrade,
    #[error(
        "another program has kept the file locked for {} s; nothing was done. End its transaction, or \
         resume it if it was stopped. If the transaction is one of this program: do not use a mailbox \
         while it is open", .0.as_secs()
    )]
    Locked(std::time::Duration),
    #[error("{}: {}", .0, .1)]
    Io(&'static str, Arc<std::io::Error>),
    #[error("the file system of {} does not support a write-ahead log (is it a network share?): use a local one", .0.display())]
    NoWal(PathBuf),
    #[error(
        "the disk did not keep what was written; it is unknown whether this was done. Check the disk \
         and restart this program"
    )]
    SyncFailed,
    #[error("the queue has used all its message numbers: drain it, and it starts again")]
    PlacesExhausted,
    #[error("the file holds 262,143 queues, the maximum: use another file for further ones")]
    TooManyQueues,
    #[error("the file was closed; if the program did not close it, its writer thread has panicked")]
    WriterStopped,
}

impl Failure {
    pub(crate) fn io(problem: &'static str, error: std::io::Error) -> Self {
        Self::Io(problem, Arc::new(error))
    }

    /// Returns whether another connection has the database locked, so that a retry may succeed.
    pub(crate) fn is_busy(&self) -> bool {
        let Self::Sqlite(error) = self else { return false };
        let code = error.sqlite_error_code();
        matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
    }

    /// Returns whether a file is shorter than SQLite expects.
    pub(crate) fn is_short_read(&self) -> bool {
        matches!(self, Self::Sqlite(error) if extended_code(error) == Some(SQLITE_IOERR_SHORT_READ))
    }

    /// Returns whether part of the file cannot be read, while other parts may be readable.
    pub(crate) fn is_unreadable(&self) -> bool {
        matches!(self, Self::Sqlite(error) if is_unreadable(error))
    }

    /// Returns whether one request of a batch may have caused this, so that the others succeed without it: a body
    /// too large for the disk, a row that cannot be read.
    pub(crate) fn may_concern_one_request(&self) -> bool {
        match self {
            Self::Sqlite(_) => !self.is_busy(),
            Self::PlacesExhausted | Self::TooManyQueues => true,
            _ => false,
        }
    }

    pub(crate) fn during(self, action: &'static str, queue: Option<&QueueName>) -> Error {
        Error::connection(queue, action, self)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(Arc::new(error))
    }
}

/// Returns the failure to report for one inside a transaction of the caller.
pub(crate) fn in_transaction(failure: Failure) -> Failure {
    match &failure {
        Failure::Sqlite(_) if failure.is_busy() => Failure::LockUpgrade,
        Failure::Sqlite(error) if error.to_string().contains("no such table: pillarbox_") => {
            Failure::NoQueues
        }
        _ => failure,
    }
}

/// Returns whether SQLite reports the file as damaged, or as no database.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    let damage = [ErrorCode::NotADatabase, ErrorCode::DatabaseCorrupt];
    error.sqlite_error_code().is_some_and(|code| damage.contains(&code))
}

/// Returns whether the content of the file is to blame, and not permissions or a full disk: a damaged page, a sector
/// that the disk cannot read, an invalid value.
pub(crate) fn is_unreadable(error: &rusqlite::Error) -> bool {
    use ErrorCode::{DatabaseCorrupt, NotADatabase, SystemIoFailure};
    let codes = [DatabaseCorrupt, NotADatabase, SystemIoFailure];
    error.sqlite_error_code().is_some_and(|code| codes.contains(&code)) || is_conversion(error)
}

fn is_conversion(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, InvalidColumnType};
    matches!(error, FromSqlConversionFailure(..) | InvalidColumnType(..))
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

const DISK_FULL: &str =
    "the disk is full; nothing was lost, and this works again once there is space";

/// Explains an error of SQLite, and what to do about it.
fn explain(error: &rusqlite::Error) -> String {
    let advice = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => DISK_FULL,
        // No space for the index of the log.
        _ if extended_code(error) == Some(SQLITE_IOERR_SHMSIZE) => DISK_FULL,
        Some(ErrorCode::ReadOnly) => "the file, or its directory, cannot be written by this user",
        Some(ErrorCode::CannotOpen) => {
            "the file or one beside it cannot be opened; check that this user may write to it and \
             to the directory"
        }
        Some(ErrorCode::PermissionDenied) => "this user has no access to the file",
        Some(ErrorCode::DatabaseCorrupt) => {
            "the file is damaged; check it with `sqlite3 FILE 'PRAGMA integrity_check'` and \
             restore it from a backup"
        }
        Some(ErrorCode::NotADatabase) => "the file is not a SQLite database",
        Some(ErrorCode::SystemIoFailure) => {
            "the operating system could not read or write the file; nothing was lost, and this \
             works again once it can"
        }
        Some(ErrorCode::TooBig) => "a message is larger than SQLite can hold",
        _ if is_conversion(error) => {
            "a row of the file cannot be read; `pillarbox doctor --fix` repairs it"
        }
        _ => return format!("SQLite reports: {error}"),
    };
    format!("{advice} (SQLite reports: {error})")
}
