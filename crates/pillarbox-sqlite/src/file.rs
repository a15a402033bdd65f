//! The file itself: opening it, locking it, and noticing that it is gone.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::checkpoint;
use crate::failure::Failure;
use crate::options::{FilePermissions, SqliteOptions};
use crate::overwrite::{self, Files, Stamp, Watch};
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
    overwrite::check_note(path)?;
    inspect(path, options, &mut patience)?;
    let lock = lock_file(path, options.permissions)?;
    let turn = take_turn(&lock, &mut patience)?;
    let opened = open_locked(path, options, &lock, &mut patience);
    drop(turn);
    let Opened { connection, pair, log, watch } = opened?;
    Ok((connection, Place::File(Box::new(OpenFile { pair, lock, log, watch }))))
}

fn check_path(path: &Path, options: &SqliteOptions) -> Result<(), Failure> {
    match fs::metadata(path) {
        Ok(file) if !file.is_file() => return Err(Failure::NotAFile(path.to_owned())),
        Ok(file) if file.len() == 0 && !options.create => {
            return Err(Failure::NoFile(path.to_owned()));
        }
        // Before SQLite makes a log for this name.
        Ok(file) if Seen::of(&file).links > 1 => return Err(Failure::Linked(path.to_owned())),
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

/// A file that was opened, before it is known whose turn it is next.
struct Opened {
    connection: Connection,
    pair: Pair,
    log: File,
    watch: Watch,
}

fn open_locked(
    path: &Path,
    options: &SqliteOptions,
    lock: &File,
    patience: &mut Patience<'_>,
) -> Result<Opened, Failure> {
    // Again, now that nobody else of ours is at it.
    inspect(path, options, patience)?;
    make_file(path, options.permissions);
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
    // The log is there from the first transaction on.
    let content = schema::content(&connection)?;
    let pair = Pair::of(path)?;
    pair.check()?;
    let log = pair.open_log()?;
    let watch = Watch::default();
    let files = Files { path: &pair.file.path, lock, log: &log };
    if share_log(&log) {
        watch.begin(files, &connection);
    } else {
        watch.check(pair.check()?, files, &connection)?;
    }
    if content != Content::Ours(schema::VERSION) {
        patience.retry(|| schema::migrate(&mut connection))?;
    }
    Ok(Opened { connection, pair, log, watch })
}

/// Makes a file that is not there, with the permissions that it is to have: SQLite gives the same to
/// its log and the index of it. Where that fails, SQLite says why.
fn make_file(path: &Path, permissions: FilePermissions) {
    if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let _ = creating(permissions).open(path);
    }
}

/// How to open a file that is made if it is not there.
fn creating(permissions: FilePermissions) -> OpenOptions {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    if permissions == FilePermissions::Private {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    #[cfg(not(unix))]
    let _ = permissions;
    options
}

/// Says whether no other engine has this log open, and shows the others that this one has. A lock of the
/// log is not one of SQLite's, and ends with the process.
fn share_log(log: &File) -> bool {
    // Elsewhere a lock would keep SQLite from writing.
    if cfg!(not(unix)) {
        return true;
    }
    let is_alone = !matches!(log.try_lock(), Err(TryLockError::WouldBlock));
    let _ = log.try_lock_shared();
    is_alone
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
    let content = patience.retry(|| schema::content(&connection));
    check_log(path, &connection, &content)?;
    match content {
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

/// Fails if the index of the log tells of pages and the log has none: others write one that was
/// deleted, and this is a new one of its name.
fn check_log(
    path: &Path,
    connection: &Connection,
    content: &Result<Content, Failure>,
) -> Result<(), Failure> {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let log = beside(&path, "-wal");
    let has_pages = match content {
        Ok(_) => checkpoint::length(connection).is_some_and(|(pages, _)| pages > 0),
        // What the index leads to is past the end of the log.
        Err(failure) => failure.is_short_read() && beside(&path, "-shm").exists(),
    };
    if has_pages && !overwrite::is_written_log(&log) {
        return Err(Failure::LogGone(log));
    }
    Ok(())
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

/// Opens the file beside the database whose lock goes round between processes, and which says how the
/// database was when its log was last moved into it ([`overwrite`]).
///
/// Not the database itself: to close any handle of a file drops the locks that SQLite has on it.
pub(crate) fn lock_file(path: &Path, permissions: FilePermissions) -> Result<File, Failure> {
    let name = beside(path, "-lock");
    let is_new = !name.exists();
    let lock = creating(permissions).open(&name);
    let lock = lock.map_err(|error| Failure::Beside(name, Arc::new(error)))?;
    // Whoever may write the database may take a turn. SQLite does the same for its own files.
    if is_new && let Ok(database) = fs::metadata(path) {
        let _ = lock.set_permissions(database.permissions());
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            // Only the superuser can, and need.
            let _ = fchown(&lock, Some(database.uid()), Some(database.gid()));
        }
    }
    Ok(lock)
}

/// Where the queues are.
#[derive(Debug)]
pub(crate) enum Place {
    InMemory,
    File(Box<OpenFile>),
}

/// A file that is open, and those beside it.
#[derive(Debug)]
pub(crate) struct OpenFile {
    pub(crate) pair: Pair,
    lock: File,
    log: File,
    watch: Watch,
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
        let found = path.canonicalize().and_then(|path| Ok((Seen::at(&path)?, path)));
        let (seen, path) = found.map_err(|error| Failure::io("cannot look at the file", error))?;
        Ok(Self { path, identity: seen.identity })
    }

    /// Fails if the path no longer leads to the file that is open, or is not its only name.
    fn check(&self, gone: impl FnOnce() -> Failure) -> Result<Seen, Failure> {
        match Seen::at(&self.path) {
            Ok(found) if found.identity != self.identity => Err(gone()),
            Ok(found) if found.links > 1 => Err(Failure::Linked(self.path.clone())),
            Ok(found) => Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone()),
            Err(error) => Err(Failure::io("cannot look at the file", error)),
        }
    }
}

/// A database and its write-ahead log.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    pub(crate) file: Located,
    log: Located,
}

impl Pair {
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let file = Located::of(path)?;
        let name = beside(&file.path, "-wal");
        let log =
            Seen::at(&name).map_err(|error| Failure::Beside(name.clone(), Arc::new(error)))?;
        let log = Located { path: name, identity: log.identity };
        Ok(Self { file, log })
    }

    /// Fails if one of the two paths no longer leads to the file that is open, or if there are other
    /// ways to it. Nothing that was written may be answered before this is known: the next program that
    /// opens the file would not find it.
    pub(crate) fn check(&self) -> Result<Stamp, Failure> {
        let file = self.file.check(|| Failure::Replaced)?;
        let log = self.log.check(|| Failure::LogGone(self.log.path.clone()))?;
        if file.identity.0 != log.identity.0 {
            return Err(Failure::OtherDevice(self.log.path.clone()));
        }
        Ok(file.stamp)
    }

    /// Opens the log. SQLite keeps no locks on it, so that closing it later drops none.
    fn open_log(&self) -> Result<File, Failure> {
        let log = OpenOptions::new().read(true).write(true).open(&self.log.path);
        log.map_err(|error| Failure::Beside(self.log.path.clone(), Arc::new(error)))
    }

    /// Whether another log, which holds something, has taken the place of the one that is open.
    fn has_another_log(&self) -> bool {
        Seen::at(&self.log.path)
            .is_ok_and(|found| found.identity != self.log.identity && !found.stamp.is_empty())
    }
}

impl OpenFile {
    /// The files of a database that this process has open, for another connection to it.
    pub(crate) fn again(pair: &Pair, permissions: FilePermissions) -> Result<Self, Failure> {
        let lock = lock_file(&pair.file.path, permissions)?;
        Ok(Self { pair: pair.clone(), lock, log: pair.open_log()?, watch: Watch::default() })
    }

    pub(crate) fn take_turn(&self, patience: &mut Patience<'_>) -> Result<Turn<'_>, Failure> {
        take_turn(&self.lock, patience)
    }

    /// Fails if the file or its log is not what this process has opened. To be called when it is its
    /// turn.
    pub(crate) fn check_content(&self, connection: &Connection) -> Result<(), Failure> {
        self.watch.check(self.pair.check()?, self.files(), connection)
    }

    /// Moves pages of the log into the file, when it is this process's turn.
    pub(crate) fn while_moving<T>(&self, connection: &Connection, shift: impl FnOnce() -> T) -> T {
        self.watch.while_moving(self.files(), connection, shift)
    }

    /// The size of the log.
    pub(crate) fn log_len(&self) -> u64 {
        self.log.metadata().map_or(0, |log| log.len())
    }

    fn files(&self) -> Files<'_> {
        Files { path: &self.pair.file.path, lock: &self.lock, log: &self.log }
    }
}

impl Place {
    /// Waits until it is this process's turn to write.
    ///
    /// SQLite's own lock goes to whoever asks at the right moment, and SQLite asks ever less often,
    /// so that a process can be kept waiting for seconds. This one is asked for all the time.
    pub(crate) fn take_turn(&self, patience: &mut Patience<'_>) -> Result<Turn<'_>, Failure> {
        match self {
            Self::InMemory => Ok(Turn(None)),
            Self::File(file) => file.take_turn(patience),
        }
    }

    /// The database and its log.
    pub(crate) fn pair(&self) -> Option<&Pair> {
        match self {
            Self::InMemory => None,
            Self::File(file) => Some(&file.pair),
        }
    }

    /// The write-ahead log, to be synced.
    pub(crate) fn log(&self) -> Result<Option<File>, Failure> {
        let Self::File(file) = self else { return Ok(None) };
        let log = file.log.try_clone();
        Ok(Some(log.map_err(|error| Failure::io("cannot open the log once more", error))?))
    }

    /// Fails if the paths no longer lead to the files that are open. Says whether the database was
    /// written since it was last looked at.
    pub(crate) fn check(&self) -> Result<bool, Failure> {
        match self {
            Self::InMemory => Ok(false),
            Self::File(file) => Ok(file.watch.is_changed(file.pair.check()?)),
        }
    }

    /// The same, and fails if the database was written by something that is not SQLite. To be called
    /// when it is this process's turn.
    pub(crate) fn check_content(&self, connection: &Connection) -> Result<(), Failure> {
        match self {
            Self::InMemory => Ok(()),
            Self::File(file) => file.check_content(connection),
        }
    }

    /// Moves pages of the log into the file, when it is this process's turn.
    pub(crate) fn while_moving(&self, connection: &Connection, shift: impl FnOnce()) {
        match self {
            Self::InMemory => shift(),
            Self::File(file) => file.while_moving(connection, shift),
        }
    }

    /// To be called after each commit, while it is still this process's turn.
    pub(crate) fn committed(&self, connection: &Connection) {
        if let Self::File(file) = self {
            file.watch.committed(file.files(), connection);
        }
    }

    /// To be called before the connection is closed: the last one to close moves the log into the file,
    /// which must not happen where one of them is not what it was. A log that was deleted is still
    /// whole, and is saved by it.
    pub(crate) fn before_close(&self, connection: &Connection) {
        let Self::File(file) = self else { return };
        // Where it is the turn of somebody else, this is not the last one to close.
        if let Ok(_turn) = file.take_turn(&mut Patience::new(&|| true)) {
            let _ = file.check_content(connection);
        }
        if file.pair.has_another_log() || file.watch.is_copied_over() {
            let keep = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
            if let Err(error) = connection.set_db_config(keep, true) {
                tracing::error!(%error, "the log may be moved into a file that it does not belong to");
            }
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

/// What tells a file from another of the same name: its device and its number there.
type Identity = (u64, u64);

/// A file as a path leads to it.
struct Seen {
    identity: Identity,
    /// How many names it has.
    links: u64,
    stamp: Stamp,
}

impl Seen {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::metadata(path)?))
    }

    #[cfg(unix)]
    fn of(file: &fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let identity = (file.dev(), file.ino());
        Self { identity, links: file.nlink(), stamp: Stamp::of(file) }
    }

    /// Elsewhere an open file cannot be deleted or replaced.
    #[cfg(not(unix))]
    fn of(file: &fs::Metadata) -> Self {
        Self { identity: (0, 0), links: 1, stamp: Stamp::of(file) }
    }
}
