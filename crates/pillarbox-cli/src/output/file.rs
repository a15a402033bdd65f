//! Files that a command makes.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use crate::args::Permissions;

/// To write a file with, which has these permissions if it is new.
pub(crate) fn options(permissions: Permissions) -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(match permissions {
            Permissions::Private => 0o600,
            Permissions::Umask => 0o666,
        });
    }
    #[cfg(not(unix))]
    let _ = permissions;
    options.write(true);
    options
}

/// Makes a file that is not there yet. Its name is on the disk when this returns.
pub(crate) fn create(path: &Path, permissions: Permissions) -> io::Result<File> {
    let file = options(permissions).create_new(true).open(path)?;
    #[cfg(unix)]
    {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(file)
}
