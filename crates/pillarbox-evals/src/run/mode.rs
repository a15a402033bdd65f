//! Who may read the files of a run.

use std::fs::{File, OpenOptions};
use std::path::Path;

use super::FilePermissions;

/// The permissions of files that are made, of which the umask may take some away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mode(u32);

impl Mode {
    /// As a file has them that is there. Without it, those of its owner.
    pub(super) fn of(path: &Path) -> Self {
        #[cfg(unix)]
        if let Ok(metadata) = std::fs::metadata(path) {
            use std::os::unix::fs::PermissionsExt;
            return Self(metadata.permissions().mode() & 0o666);
        }
        let _ = path;
        FilePermissions::Private.into()
    }

    /// To open a file with, which has them if it is made.
    pub(super) fn options(self) -> OpenOptions {
        let mut options = OpenOptions::new();
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, self.0);
        options
    }

    /// Makes a file, in the place of one that is there.
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
