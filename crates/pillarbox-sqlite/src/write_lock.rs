//! The advisory lock that processes take in turn to write to a database.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::database_files::{companion_path, create_options};
use crate::failure::Failure;
use crate::options::FilePermissions;

/// Time for which another program may keep the database locked before the wait fails.
const LOCK_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which a warning is logged.
const LOCK_WARNING: Duration = Duration::from_secs(5);

/// The right to write, released when dropped.
#[derive(Debug)]
pub(crate) struct WriteGuard<'a>(Option<&'a File>);

impl WriteGuard<'_> {
    /// The guard of a database in memory, which no other process can write to.
    pub(crate) const UNSHARED: Self = Self(None);
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        // The operating system releases a lock that cannot be released here when the process ends.
        if let Some(Err(error)) = self.0.map(File::unlock) {
            tracing::error!(%error, "cannot unlock the lock file");
        }
    }
}

/// A wait for a lock of another program, which is cancelled or fails after [`LOCK_TIMEOUT`].
pub(crate) struct LockWait<'a> {
    start: Instant,
    has_warned: bool,
    /// Another program had the lock.
    pub(crate) has_waited: bool,
    is_cancelled: &'a dyn Fn() -> bool,
}

impl<'a> LockWait<'a> {
    pub(crate) fn new(is_cancelled: &'a dyn Fn() -> bool) -> Self {
        Self { start: Instant::now(), has_warned: false, has_waited: false, is_cancelled }
    }

    /// Fails if the wait was too long or is cancelled.
    fn check(&mut self) -> Result<(), Failure> {
        self.has_waited = true;
        let waited = self.start.elapsed();
        if waited > LOCK_TIMEOUT || (self.is_cancelled)() {
            return Err(Failure::Locked(waited));
        }
        if waited > LOCK_WARNING && !self.has_warned {
            self.has_warned = true;
            tracing::warn!("another program keeps the file locked; waiting for it");
        }
        Ok(())
    }

    /// Retries while others have the database locked. SQLite itself waits for a while each time.
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

/// Opens the lock file beside the database. It also holds the checkpoint record
/// ([`overwrite`](crate::overwrite)).
///
/// The database itself cannot be locked: closing any handle of a file drops the locks that SQLite has on it.
pub(crate) fn open_lock_file(path: &Path, permissions: FilePermissions) -> Result<File, Failure> {
    let name = companion_path(path, "-lock");
    let is_new = !name.exists();
    let lock = create_options(permissions).open(&name);
    let lock = lock.map_err(|error| Failure::CompanionFile(name, Arc::new(error)))?;
    // Every user who may write the database may lock it. SQLite does the same for its own files.
    if is_new && let Ok(database) = fs::metadata(path) {
        let _ = lock.set_permissions(database.permissions());
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            // Only the superuser can do this, and only the superuser needs to.
            let _ = fchown(&lock, Some(database.uid()), Some(database.gid()));
        }
    }
    Ok(lock)
}

/// Polls for the lock until it is free. A blocking call would never return if the process that holds the lock
/// was stopped.
pub(crate) fn lock_for_writing<'a>(
    lock: &'a File,
    wait: &mut LockWait<'_>,
) -> Result<WriteGuard<'a>, Failure> {
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(WriteGuard(Some(lock))),
            Err(TryLockError::WouldBlock) => wait.check()?,
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => {
                return Err(Failure::io("cannot lock the lock file", error));
            }
        }
        // A batch usually takes less than a millisecond. The interval grows with the time waited.
        let waited = wait.start.elapsed();
        std::thread::sleep(
            (waited / 64).clamp(Duration::from_micros(60), Duration::from_millis(2)),
        );
    }
}
