//! The file itself: opening it, locking it, and noticing that it is gone.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::failure::Failure;
use crate::options::{SqliteOptions, Synchronous};
use crate::schema::{self, Content};

/// How long SQLite waits by itself for a lock before we look whether to go on.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);
/// Pages that the connection keeps in memory, as KiB.
const CACHE_KIB: i64 = 64 * 1024;
/// What a log that grew behind a slow reader is cut down to once it can be.
const LOG_LIMIT_BYTES: i64 = 64 << 20;

/// Opens the file, makes it where it is not there, and brings its schema up to date.
///
/// What cannot be ours is refused before anything is written.
pub(crate) fn open(options: &SqliteOptions) -> Result<(Connection, Place), Failure> {
    let Some(path) = &options.path else {
        let mut connection = Connection::open_in_memory()?;
        schema::migrate(&mut connection)?;
        return Ok((connection, Place::InMemory));
    };
    check_path(path, options)?;
    let lock = lock_file(path)?;
    lock.lock().map_err(|error| Failure::io("cannot lock the file beside it", error))?;
    let opened = open_locked(path, options);
    let unlocked = lock.unlock();
    let connection = opened?;
    unlocked.map_err(|error| Failure::io("cannot unlock the file beside it", error))?;
    let identity = identity(path).map_err(|error| Failure::io("cannot look at the file", error))?;
    Ok((connection, Place::File { path: path.clone(), lock, identity }))
}

fn check_path(path: &Path, options: &SqliteOptions) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(Failure::NotAFile(path.to_owned())),
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::io("cannot look at the file", error)),
    }
    let directory = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => return Err(Failure::NotAFile(path.to_owned())),
    };
    if !directory.is_dir() {
        return Err(Failure::NoDirectory(directory.to_owned()));
    }
    if !options.create {
        return Err(Failure::NoFile(path.to_owned()));
    }
    Ok(())
}

fn open_locked(path: &Path, options: &SqliteOptions) -> Result<Connection, Failure> {
    inspect(path, options)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Or else a statement with a bound LIMIT is compiled again whenever it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = retry_while_busy(|| {
        connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
    })?;
    if mode != "wal" {
        return Err(Failure::NoWal(path.to_owned()));
    }
    // `NORMAL` whatever is promised: see `sync`. `fullfsync` matters on macOS, whose fsync does not
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
    loop {
        match schema::migrate(&mut connection) {
            Err(failure) if failure.is_busy() => {}
            migrated => return migrated.map(|()| connection),
        }
    }
}

/// Looks at what is there, read-only, and refuses what is not ours.
fn inspect(path: &Path, options: &SqliteOptions) -> Result<(), Failure> {
    if !fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let content = loop {
        match schema::content(&connection) {
            Err(failure) if failure.is_busy() => {}
            content => break content,
        }
    };
    match content {
        Ok(Content::Nothing) => Ok(()),
        Ok(Content::Ours(version)) => schema::check_version(version),
        Ok(Content::Foreign) if options.adopt => Ok(()),
        Ok(Content::Foreign) => Err(Failure::Foreign(path.to_owned())),
        Err(Failure::Sqlite(error)) if is_damage(&error) => {
            Err(Failure::NotADatabase(path.to_owned()))
        }
        Err(failure) => Err(failure),
    }
}

fn is_damage(error: &rusqlite::Error) -> bool {
    let damage = [ErrorCode::NotADatabase, ErrorCode::DatabaseCorrupt];
    error.sqlite_error_code().is_some_and(|code| damage.contains(&code))
}

fn retry_while_busy<T>(mut run: impl FnMut() -> rusqlite::Result<T>) -> Result<T, Failure> {
    loop {
        match run().map_err(Failure::from) {
            Err(failure) if failure.is_busy() => {}
            result => return result,
        }
    }
}

/// Opens the empty file beside the database whose lock goes round between processes.
///
/// Not the database itself: to close any handle of a file drops the locks that SQLite has on it.
fn lock_file(path: &Path) -> Result<File, Failure> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let lock =
        OpenOptions::new().create(true).truncate(false).write(true).open(PathBuf::from(name));
    lock.map_err(|error| Failure::Lock(path.to_owned(), Arc::new(error)))
}

/// Where the queues are.
#[derive(Debug)]
pub(crate) enum Place {
    InMemory,
    File { path: PathBuf, lock: File, identity: Identity },
}

impl Place {
    /// Waits until it is this process's turn to write.
    ///
    /// SQLite's own lock is taken by whoever asks at the right moment, so that a process can be
    /// kept waiting for seconds; this one is queued for.
    pub(crate) fn lock(&self) -> Result<Turn<'_>, Failure> {
        let Self::File { lock, .. } = self else { return Ok(Turn(None)) };
        lock.lock().map_err(|error| Failure::io("cannot lock the file beside it", error))?;
        Ok(Turn(Some(lock)))
    }

    /// The write-ahead log, where it must be synced before anybody is answered.
    pub(crate) fn log_to_sync(&self, options: &SqliteOptions) -> Result<Option<File>, Failure> {
        let Self::File { path, .. } = self else { return Ok(None) };
        if options.synchronous == Synchronous::Normal {
            return Ok(None);
        }
        let mut name = path.as_os_str().to_owned();
        name.push("-wal");
        // SQLite keeps no locks on it, so that closing it later drops none.
        let log = OpenOptions::new().write(true).open(PathBuf::from(name));
        log.map(Some).map_err(|error| Failure::io("cannot open the write-ahead log", error))
    }

    /// Fails if the path no longer leads to the file that is open.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self::File { path, identity: opened, .. } = self else { return Ok(()) };
        match identity(path) {
            Ok(found) if found == *opened => Ok(()),
            Ok(_) => Err(Failure::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::Replaced),
            Err(error) => Err(Failure::io("cannot look at the file", error)),
        }
    }
}

/// The right to write, given back when dropped.
#[derive(Debug)]
pub(crate) struct Turn<'a>(Option<&'a File>);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // A lock that cannot be given back is given back when the process ends.
        if let Some(Err(error)) = self.0.map(File::unlock) {
            tracing::error!(%error, "cannot unlock the file beside the database");
        }
    }
}

/// What tells a file from another of the same name.
pub(crate) type Identity = (u64, u64);

#[cfg(unix)]
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Elsewhere an open file cannot be deleted or replaced.
#[cfg(not(unix))]
pub(crate) fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|_| (0, 0))
}
