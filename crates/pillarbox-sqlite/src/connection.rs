//! Connections to the database beside that of the writer.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::failure::Failure;

/// Time for which SQLite itself waits for a lock before the caller decides whether to continue.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

/// Opens a read-only connection.
pub(crate) fn open_to_read(path: &Path) -> Result<Connection, Failure> {
    open(path, OpenFlags::SQLITE_OPEN_READ_ONLY)
}

/// Opens a connection that writes to the log only: it never checkpoints by itself.
pub(crate) fn open_to_write(path: &Path) -> Result<Connection, Failure> {
    let connection = open(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.execute_batch(
        "PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY; PRAGMA wal_autocheckpoint = 0",
    )?;
    Ok(connection)
}

fn open(path: &Path, flags: OpenFlags) -> Result<Connection, Failure> {
    let connection = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}
