//! The database file and its write-ahead log, identified by path and inode.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use crate::failure::Failure;
use crate::options::FilePermissions;

/// A database and its write-ahead log.
#[derive(Debug, Clone)]
pub(crate) struct DatabaseFiles {
    pub(crate) database: TrackedFile,
    log: TrackedFile,
}

impl DatabaseFiles {
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let database = TrackedFile::of(path)?;
        let name = companion_path(&database.path, "-wal");
        let log = FileInfo::at(&name)
            .map_err(|error| Failure::CompanionFile(name.clone(), Arc::new(error)))?;
        let log = TrackedFile { path: name, identity: log.identity };
        Ok(Self { database, log })
    }

    /// Fails if one of the two paths no longer leads to the file that is open, or if that file has other
    /// names. No write may be confirmed before this check: the next program that opens the database would
    /// not find it.
    pub(crate) fn check(&self) -> Result<FileStamp, Failure> {
        let database = self.database.check(|| Failure::Replaced)?;
        let log = self.log.check(|| Failure::LogGone(self.log.path.clone()))?;
        if database.identity.0 != log.identity.0 {
            return Err(Failure::OtherDevice(self.log.path.clone()));
        }
        Ok(database.stamp)
    }

    pub(crate) fn log_path(&self) -> &Path {
        &self.log.path
    }

    /// Opens the log. SQLite keeps no locks on it, so closing the handle drops none.
    pub(crate) fn open_log(&self) -> Result<File, Failure> {
        let log = OpenOptions::new().read(true).write(true).open(&self.log.path);
        log.map_err(|error| Failure::CompanionFile(self.log.path.clone(), Arc::new(error)))
    }

    /// Returns whether another, non-empty log has replaced the one that is open.
    pub(crate) fn has_another_log(&self) -> bool {
        FileInfo::at(&self.log.path)
            .is_ok_and(|found| found.identity != self.log.identity && !found.stamp.is_empty())
    }
}

/// An open file: its absolute path, since the program may change its working directory, and its identity.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct TrackedFile {
    pub(crate) path: PathBuf,
    identity: Identity,
}

impl TrackedFile {
    pub(crate) fn of(path: &Path) -> Result<Self, Failure> {
        let found = path.canonicalize().and_then(|path| Ok((FileInfo::at(&path)?, path)));
        let (info, path) = found.map_err(|error| Failure::io("cannot stat the file", error))?;
        Ok(Self { path, identity: info.identity })
    }

    /// Fails if the path no longer leads to the file that is open, or is not its only name.
    fn check(&self, gone: impl FnOnce() -> Failure) -> Result<FileInfo, Failure> {
        match FileInfo::at(&self.path) {
            Ok(found) if found.identity != self.identity => Err(gone()),
            Ok(found) if found.links > 1 => Err(Failure::Linked(self.path.clone())),
            Ok(found) => Ok(found),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(gone()),
            Err(error) => Err(Failure::io("cannot stat the file", error)),
        }
    }
}

/// The device and the inode of a file.
type Identity = (u64, u64);

/// Result of `stat` for a path.
pub(crate) struct FileInfo {
    identity: Identity,
    /// Number of hard links.
    pub(crate) links: u64,
    stamp: FileStamp,
}

impl FileInfo {
    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::of(&fs::metadata(path)?))
    }

    #[cfg(unix)]
    pub(crate) fn of(file: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        let identity = (file.dev(), file.ino());
        Self { identity, links: file.nlink(), stamp: FileStamp::of(file) }
    }

    /// On other systems an open file cannot be deleted or replaced.
    #[cfg(not(unix))]
    pub(crate) fn of(file: &Metadata) -> Self {
        Self { identity: (0, 0), links: 1, stamp: FileStamp::of(file) }
    }
}

/// Size and modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileStamp {
    pub(crate) len: u64,
    /// In nanoseconds since 1970.
    pub(crate) modified: i128,
}

impl FileStamp {
    pub(crate) fn of(file: &Metadata) -> Self {
        let modified = file.modified().map_or(0, |time| match time.duration_since(UNIX_EPOCH) {
            Ok(since) => since.as_nanos() as i128,
            Err(before) => -(before.duration().as_nanos() as i128),
        });
        Self { len: file.len(), modified }
    }

    pub(crate) fn at(path: &Path) -> Option<Self> {
        fs::metadata(path).ok().as_ref().map(Self::of)
    }

    const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Returns the path of a file that belongs to the database, such as its log.
pub(crate) fn companion_path(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns options that open a file and create it if it does not exist.
pub(crate) fn create_options(permissions: FilePermissions) -> OpenOptions {
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
