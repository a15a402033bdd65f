//! Permissions of the files of a run.

use std::fs::{File, OpenOptions};
use std::path::Path;

/// Permissions of the files of a new run, which hold inputs and outputs. Has no effect on systems without Unix
/// permissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FilePermissions {
    /// Mode 0600: accessible by the owner only.
    #[default]
    Private,
    /// Mode 0666 without the bits of the umask of the process.
    Umask,
}

/// File mode for new files, before the umask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode(u32);

impl Mode {
    /// Returns the mode of an existing file, or that of [`FilePermissions::Private`].
    pub(super) fn of(path: &Path) -> Self {
        #[cfg(unix)]
        if let Ok(metadata) = std::fs::metadata(path) {
            use std::os::unix::fs::PermissionsExt;
            return Self(metadata.permissions().mode() & 0o666);
        }
        let _ = path;
        FilePermissions::Private.into()
    }

    /// Returns options that create files with this mode.
    pub(super) fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, self.0);
        options
    }

    /// Creates a file, replacing an existing one.
    pub(super) fn create(self, path: &Path) -> std::io::Result<File> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => self.options().write(true).create_new(true).open(path),
        }
    }
}

impl From<FilePermissions> for Mode {
    fn from(permissions: FilePermissions) -> Self {
        Self(match permissions {
            FilePermissions::Private => 0o600,
            FilePermissions::Umask => 0o666,
        })
    }
}
