//! Output files.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use clap::ValueEnum;

/// Permissions of new files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Permissions {
    /// Accessible by the owner only.
    Private,
    /// As the umask allows.
    Umask,
}

/// Returns options to write a file, which has these permissions if it is new.
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

/// Creates a new file. Its name is on disk when this returns.
pub(crate) fn create(path: &Path, permissions: Permissions) -> io::Result<File> {
    let file = options(permissions).create_new(true).open(path)?;
    #[cfg(unix)]
    {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(file)
}
