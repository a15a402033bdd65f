//! Opens a database, refuses files that are not ours, and checks that an open one is still in place.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use crate::checkpoint;
use crate::connection::{BUSY_TIMEOUT, open_to_read};
use crate::database_files::{DatabaseFiles, FileInfo, companion_path, create_options};
use crate::failure::{Failure, is_damage};
use crate::options::{FilePermissions, SqliteOptions};
use crate::overwrite::{self, ComparedFiles, OverwriteDetector};
use crate::schema::{self, Content};
use crate::write_lock::{LockWait, WriteGuard, lock_for_writing, open_lock_file};

/// Page cache of the writer's connection, in KiB.
const CACHE_KIB: i64 = 64 * 1024;
/// Number of statements that the writer's connection keeps prepared: all that it uses.
const STATEMENTS: usize = 128;
/// Size to which a log that grew behind a slow reader is truncated.
const LOG_LIMIT_BYTES: i64 = 64 << 20;

/// Place where the queues are stored.
#[derive(Debug)]
pub(crate) enum Storage {
    InMemory,
    File(Box<OpenDatabase>),
}

/// A database that is open, with its companion files.
#[derive(Debug)]
pub(crate) struct OpenDatabase {
    pub(crate) files: DatabaseFiles,
    lock: File,
    log: File,
    detector: OverwriteDetector,
}

/// Opens a database, creates it if it does not exist, and migrates its schema.
///
/// Files that are not ours are refused before anything is written.
pub(crate) fn open(
    options: &SqliteOptions,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(Connection, Storage), Failure> {
    let Some(path) = &options.path else {
        let mut connection = Connection::open_in_memory()?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        schema::migrate(&mut connection)?;
        return Ok((connection, Storage::InMemory));
    };
    // SQLite would take a path that begins with `file:` for a URI. `join` leaves an absolute path as it is.
    let path = &Path::new(".").join(path);
    let mut wait = LockWait::new(is_cancelled);
    check_path(path, options)?;
    overwrite::check_record(path)?;
    check_content(path, options, &mut wait)?;
    let lock = open_lock_file(path, options.permissions)?;
    let guard = lock_for_writing(&lock, &mut wait)?;
    let opened = open_locked(path, options, &lock, &mut wait);
    drop(guard);
    let (connection, files, log, detector) = opened?;
    Ok((connection, Storage::File(Box::new(OpenDatabase { files, lock, log, detector }))))
}

fn check_path(path: &Path, options: &SqliteOptions) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(Failure::NotAFile(path.to_owned())),
        Ok(file) if file.len() == 0 && !options.create => {
            return Err(Failure::NoFile(path.to_owned()));
        }
        // Before SQLite creates a log for this name.
        Ok(file) if FileInfo::of(&file).links > 1 => return Err(Failure::Linked(path.to_owned())),
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::io("cannot stat the file", error)),
    }
    let Some(directory) = path.parent() else { return Err(Failure::NotAFile(path.to_owned())) };
    if !directory.is_dir() {
        return Err(Failure::NoDirectory(directory.to_owned()));
    }
    if !options.create {
        return Err(Failure::NoFile(path.to_owned()));
    }
    // SQLite would take it for a leftover, and delete it.
    if fs::metadata(companion_path(path, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(Failure::LogWithoutFile(path.to_owned()));
    }
    Ok(())
}

fn open_locked(
    path: &Path,
    options: &SqliteOptions,
    lock: &File,
    wait: &mut LockWait<'_>,
) -> Result<(Connection, DatabaseFiles, File, OverwriteDetector), Failure> {
    // Again, now that no other process of ours writes.
    check_content(path, options, wait)?;
    create_file(path, options.permissions);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    // Otherwise a statement with a bound LIMIT is compiled again each time it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = wait
        .retry(|| Ok(connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?))?;
    if mode != "wal" {
        return Err(Failure::NoWal(path.to_owned()));
    }
    // `NORMAL` whatever the options say: see `sync`. `fullfsync` matters on macOS, whose fsync does not
    // reach the disk.
    connection.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL;
         PRAGMA fullfsync = ON;
         PRAGMA checkpoint_fullfsync = ON;
         PRAGMA wal_autocheckpoint = 0;
         PRAGMA journal_size_limit = {LOG_LIMIT_BYTES};
         PRAGMA cache_size = -{CACHE_KIB};
         PRAGMA temp_store = MEMORY;"
    ))?;
    // The first transaction creates the log.
    let content = schema::content(&connection)?;
    let files = DatabaseFiles::of(path)?;
    files.check()?;
    let log = files.open_log()?;
    let detector = OverwriteDetector::default();
    let compared = ComparedFiles { path: &files.database.path, lock, log: &log };
    if share_log(&log) {
        detector.accept_current(compared, &connection);
    } else {
        detector.check(files.check()?, compared, &connection)?;
    }
    if content != Content::Ours(schema::VERSION) {
        wait.retry(|| schema::migrate(&mut connection))?;
    }
    Ok((connection, files, log, detector))
}

/// Creates a database that does not exist with the requested permissions, which SQLite copies to the log and its
/// index. An error is left to SQLite to report.
fn create_file(path: &Path, permissions: FilePermissions) {
    if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let _ = create_options(permissions).open(path);
    }
}

/// Takes a shared lock on the log, to show other engines that this one has it open, and returns whether this is
/// the only one. SQLite does not lock the log itself; the lock ends with the process.
fn share_log(log: &File) -> bool {
    // On other systems a lock would keep SQLite from writing.
    if cfg!(not(unix)) {
        return true;
    }
    let is_only = !matches!(log.try_lock(), Err(TryLockError::WouldBlock));
    let _ = log.try_lock_shared();
    is_only
}

/// Reads the schema without writing, and refuses a file that is not ours.
fn check_content(
    path: &Path,
    options: &SqliteOptions,
    wait: &mut LockWait<'_>,
) -> Result<(), Failure> {
    if !fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let connection = open_to_read(path)?;
    let content = wait.retry(|| schema::content(&connection));
    check_log(path, &connection, &content)?;
    match content {
        Ok(Content::Nothing) => Ok(()),
        Ok(Content::Ours(version)) => schema::check_version(version),
        Ok(Content::NameClash) => Err(Failure::NameClash(path.to_owned())),
        Ok(Content::Foreign) if options.adopt => Ok(()),
        Ok(Content::Foreign) => Err(Failure::Foreign(path.to_owned())),
        Err(Failure::Sqlite(error)) if is_damage(&error) => {
            Err(Failure::NotADatabase(path.to_owned()))
        }
        Err(failure) => Err(failure),
    }
}

/// Fails if the index of the log lists pages and the log has none: other processes write to a log that was
/// deleted, and this is a new one of the same name.
fn check_log(
    path: &Path,
    connection: &Connection,
    content: &Result<Content, Failure>,
) -> Result<(), Failure> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let log = companion_path(&path, "-wal");
    let has_pages = match content {
        Ok(_) => checkpoint::log_pages(connection).is_some_and(|(pages, _)| pages > 0),
        // The index points past the end of the log.
        Err(failure) => failure.is_short_read() && companion_path(&path, "-shm").exists(),
    };
    if has_pages && !overwrite::is_written_log(&log) {
        return Err(Failure::LogGone(log));
    }
    Ok(())
}

impl OpenDatabase {
    /// Opens the companion files of a database that this process has open, for another connection to it.
    pub(crate) fn reopen(
        files: &DatabaseFiles,
        permissions: FilePermissions,
    ) -> Result<Self, Failure> {
        let lock = open_lock_file(&files.database.path, permissions)?;
        let (log, detector) = (files.open_log()?, OverwriteDetector::default());
        Ok(Self { files: files.clone(), lock, log, detector })
    }

    pub(crate) fn lock_for_writing(
        &self,
        wait: &mut LockWait<'_>,
    ) -> Result<WriteGuard<'_>, Failure> {
        lock_for_writing(&self.lock, wait)
    }

    /// Fails if the database or its log is not the one that this process has opened. Requires the write lock.
    pub(crate) fn check_content(&self, connection: &Connection) -> Result<(), Failure> {
        self.detector.check(self.files.check()?, self.compared_files(), connection)
    }

    /// Runs a checkpoint. Requires the write lock.
    pub(crate) fn during_checkpoint<T>(
        &self,
        connection: &Connection,
        checkpoint: impl FnOnce() -> T,
    ) -> T {
        self.detector.during_checkpoint(self.compared_files(), connection, checkpoint)
    }

    /// Returns the size of the log in bytes.
    pub(crate) fn log_len(&self) -> u64 {
        self.log.metadata().map_or(0, |log| log.len())
    }

    fn compared_files(&self) -> ComparedFiles<'_> {
        ComparedFiles { path: &self.files.database.path, lock: &self.lock, log: &self.log }
    }
}

impl Storage {
    /// Waits until this process may write.
    ///
    /// SQLite's own lock goes to whichever process polls at the right moment, at intervals that grow, so a process
    /// can wait for seconds. This lock is polled at short intervals.
    pub(crate) fn lock_for_writing(
        &self,
        wait: &mut LockWait<'_>,
    ) -> Result<WriteGuard<'_>, Failure> {
        match self {
            Self::InMemory => Ok(WriteGuard::UNSHARED),
            Self::File(file) => file.lock_for_writing(wait),
        }
    }

    /// Returns the database and its log.
    pub(crate) fn files(&self) -> Option<&DatabaseFiles> {
        match self {
            Self::InMemory => None,
            Self::File(file) => Some(&file.files),
        }
    }

    /// Returns a handle of the write-ahead log, to sync it.
    pub(crate) fn log(&self) -> Result<Option<File>, Failure> {
        let Self::File(file) = self else { return Ok(None) };
        let log = file.log.try_clone();
        Ok(Some(log.map_err(|error| Failure::io("cannot duplicate the handle of the log", error))?))
    }

    /// Fails if the paths no longer lead to the open files. Returns whether the database was written since it
    /// was last checked.
    pub(crate) fn check(&self) -> Result<bool, Failure> {
        match self {
            Self::InMemory => Ok(false),
            Self::File(file) => Ok(file.detector.is_changed(file.files.check()?)),
        }
    }

    /// Fails like [`check`](Self::check), and if the database was written by something other than SQLite. Requires
    /// the write lock.
    pub(crate) fn check_content(&self, connection: &Connection) -> Result<(), Failure> {
        match self {
            Self::InMemory => Ok(()),
            Self::File(file) => file.check_content(connection),
        }
    }

    /// Runs a checkpoint. Requires the write lock.
    pub(crate) fn during_checkpoint(&self, connection: &Connection, checkpoint: impl FnOnce()) {
        match self {
            Self::InMemory => checkpoint(),
            Self::File(file) => file.during_checkpoint(connection, checkpoint),
        }
    }

    /// Records a commit. Must be called after each, with the write lock still held.
    pub(crate) fn after_commit(&self, connection: &Connection) {
        if let Self::File(file) = self {
            file.detector.after_commit(file.compared_files(), connection);
        }
    }

    /// Prepares for closing the connection. The last connection to close checkpoints the log, which must
    /// not happen if the database or the log was replaced. A log that was deleted is still complete, and is saved
    /// by that checkpoint.
    pub(crate) fn before_close(&self, connection: &Connection) {
        let Self::File(file) = self else { return };
        // If another process has the lock, this is not the last connection.
        if let Ok(_guard) = file.lock_for_writing(&mut LockWait::new(&|| true)) {
            let _ = file.check_content(connection);
        }
        if file.files.has_another_log() || file.detector.is_overwritten() {
            let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            if let Err(error) = connection.set_db_config(keep, true) {
                tracing::error!(%error, "the log may be copied to a file that it does not belong to");
            }
        }
    }
}
