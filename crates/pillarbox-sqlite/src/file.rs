//! The file itself: opening it, locking it, and noticing that it is gone.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// How long another program may keep the file locked before somebody is told.
const LOCK_PATIENCE: Duration = Duration::from_secs(60);
/// How long it may do so before the log is.
const LOCK_WARNING: Duration = Duration::from_secs(5);

/// Waiting for others, no longer than is reasonable.
pub(crate) struct Patience<'a> {
    start: Instant,
    warned: bool,
    /// Says that there is no more need to wait.
    give_up: &'a dyn Fn() -> bool,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(give_up: &'a dyn Fn() -> bool) -> Self {
        Self { start: Instant::now(), warned: false, give_up }
    }

    /// Fails when it was too long.
    pub(crate) fn check(&mut self) -> Result<(), Failure> {
        let waited = self.start.elapsed();
        if waited > LOCK_PATIENCE || (self.give_up)() {
            return Err(Failure::Locked(waited));
        }
        if waited > LOCK_WARNING && !self.warned {
            self.warned = true;
            tracing::warn!("another program keeps the file locked; waiting for it");
        }
        Ok(())
    }

    /// Tries again while others have the file locked. SQLite itself waits a while each time.
    pub(crate) fn retry<T>(
        &mut self,
        mut run: impl FnMut() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match run() {
                Err(failure) if failure.is_busy() => self.check()?,
                result => return result,
            }
        }
    }
}

/// Opens the file, makes it where it is not there, and brings its schema up to date.
///
/// What cannot be ours is refused before anything is written.
pub(crate) fn open(
    options: &SqliteOptions,
    give_up: &dyn Fn() -> bool,
) -> Result<(Connection, Place), Failure> {
    let Some(path) = &options.path else {
        let mut connection = Connection::open_in_memory()?;
        schema::migrate(&mut connection)?;
        return Ok((connection, Place::InMemory));
    };
    // A path that begins with `file:` would be taken for a URI by SQLite. An absolute one stays as it is.
    let path = &Path::new(".").join(path);
    let mut patience = Patience::new(give_up);
    check_path(path, options)?;
    inspect(path, options, &mut patience)?;
    let lock = lock_file(path)?;
    let turn = take_turn(&lock, &mut patience)?;
    let connection = open_locked(path, options, &mut patience)?;
    drop(turn);
    Ok((connection, Place::File { located: Located::of(path)?, lock }))
}

fn check_path(path: &Path, options: &SqliteOptions) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(Failure::NotAFile(path.to_owned())),
        Ok(file) if file.len() == 0 && !options.create => {
            return Err(Failure::NoFile(path.to_owned()));
        }
        Ok(_) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::io("cannot look at the file", error)),
    }
    let Some(directory) = path.parent() else {
        return Err(Failure::NotAFile(path.to_owned()));
    };
    if !directory.is_dir() {
        return Err(Failure::NoDirectory(directory.to_owned()));
    }
    if !options.create {
        return Err(Failure::NoFile(path.to_owned()));
    }
    // SQLite would take it for a remnant, and delete it.
    if fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0) {
        return Err(Failure::LogWithoutFile(path.to_owned()));
    }
    Ok(())
}

/// The name of a file that belongs to the database.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn open_locked(
    path: &Path,
    options: &SqliteOptions,
    patience: &mut Patience<'_>,
) -> Result<Connection, Failure> {
    // Again, now that nobody else of ours is at it.
    inspect(path, options, patience)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Or else a statement with a bound LIMIT is compiled again whenever it is used.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    let mode: String = patience
        .retry(|| Ok(connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?))?;
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
    if schema::content(&connection)? != Content::Ours(schema::VERSION) {
        patience.retry(|| schema::migrate(&mut connection))?;
    }
    Ok(connection)
}

/// Looks at what is there, read-only, and refuses what is not ours.
fn inspect(
    path: &Path,
    options: &SqliteOptions,
    patience: &mut Patience<'_>,
) -> Result<(), Failure> {
    if !fs::metadata(path).is_ok_and(|file| file.len() > 0) {
        return Ok(());
    }
    let connection = open_to_read(path)?;
    match patience.retry(|| schema::content(&connection)) {
        Ok(Content::Nothing) => Ok(()),
        Ok(Content::Ours(version)) => schema::check_version(version),
        Ok(Content::Clash) => Err(Failure::Clash(path.to_owned())),
        Ok(Content::Foreign) if options.adopt => Ok(()),
        Ok(Content::Foreign) => Err(Failure::Foreign(path.to_owned())),
        Err(Failure::Sqlite(error)) if is_damage(&error) => {
            Err(Failure::NotADatabase(path.to_owned()))
        }
        Err(failure) => Err(failure),
    }
}

/// A connection that changes nothing.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, Failure> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Whether SQLite says that it cannot make sense of the file.
pub(crate) fn is_damage(error: &rusqlite::Error) -> bool {
    let damage = [ErrorCode::NotADatabase, ErrorCode::DatabaseCorrupt];
    error.sqlite_error_code().is_some_and(|code| damage.contains(&code))
}

/// Opens the empty file beside the database whose lock goes round between processes.
///
/// Not the database itself: to close any handle of a file drops the locks that SQLite has on it.
pub(crate) fn lock_file(path: &Path) -> Result<File, Failure> {
    let name = beside(path, "-lock");
    let is_new = !name.exists();
    let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&name);
    let lock = lock.map_err(|error| Failure::Beside(name, Arc::new(error)))?;
    // Whoever may write the database may take a turn. SQLite does the same for its own files.
    if is_new && let Ok(database) = fs::metadata(path) {
        let _ = lock.set_permissions(database.permissions());
    }
    Ok(lock)
}

/// Where the queues are.
#[derive(Debug)]
pub(crate) enum Place {
    InMemory,
    File { located: Located, lock: File },
}

/// A file that is open: its absolute name, for the program may change its directory, and what tells
/// it from another that takes its place.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Located {
    pub(crate) path: PathBuf,
    identity: Identity,
}

impl Located {
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let found = path.canonicalize().and_then(|path| Ok((identity(&path)?, path)));
        let (identity, path) =
            found.map_err(|error| Failure::io("cannot look at the file", error))?;
        Ok(Self { path, identity })
    }

    /// Fails if the path no longer leads to the file that is open.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match identity(&self.path) {
            Ok(found) if found == self.identity => Ok(()),
            Ok(_) => Err(Failure::Replaced),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Failure::Replaced),
            Err(error) => Err(Failure::io("cannot look at the file", error)),
        }
    }
}

impl Place {
    /// Waits until it is this process's turn to write.
    ///
    /// SQLite's own lock goes to whoever asks at the right moment, and SQLite asks ever less often,
    /// so that a process can be kept waiting for seconds. This one is asked for all the time.
    pub(crate) fn take_turn(&self, patience: &mut Patience<'_>) -> Result<Turn<'_>, Failure> {
        let Self::File { lock, .. } = self else { return Ok(Turn(None)) };
        take_turn(lock, patience)
    }

    /// The write-ahead log, where it must be synced before anybody is answered.
    pub(crate) fn log_to_sync(&self, options: &SqliteOptions) -> Result<Option<File>, Failure> {
        let Self::File { located, .. } = self else { return Ok(None) };
        if options.synchronous == Synchronous::Normal {
            return Ok(None);
        }
        // SQLite keeps no locks on it, so that closing it later drops none.
        let name = beside(&located.path, "-wal");
        match OpenOptions::new().write(true).open(&name) {
            Ok(log) => Ok(Some(log)),
            Err(error) => Err(Failure::Beside(name, Arc::new(error))),
        }
    }

    /// Fails if the path no longer leads to the file that is open.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match self {
            Self::InMemory => Ok(()),
            Self::File { located, .. } => located.check(),
        }
    }
}

/// Asks for the lock until it is free. Not by a call that blocks, which would never end if the process
/// that holds the lock was stopped.
pub(crate) fn take_turn<'a>(
    lock: &'a File,
    patience: &mut Patience<'_>,
) -> Result<Turn<'a>, Failure> {
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(Turn(Some(lock))),
            Err(TryLockError::WouldBlock) => patience.check()?,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => {
                return Err(Failure::io("cannot lock the file beside it", error));
            }
        }
        // A batch takes less than a millisecond as a rule. Who has waited long has to wait long.
        let waited = patience.start.elapsed();
        std::thread::sleep(
            (waited / 64).clamp(Duration::from_micros(60), Duration::from_millis(2)),
        );
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
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).map(|file| (file.dev(), file.ino()))
}

/// Elsewhere an open file cannot be deleted or replaced.
#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    fs::metadata(path).map(|_| (0, 0))
}
