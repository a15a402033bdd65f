//! Files that a command makes.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

/// To write a file with. What is in it are messages, so a new one is for its owner alone, unless it is to be as the
/// umask says.
pub(crate) fn options(umask: bool) -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if umask { 0o666 } else { 0o600 });
    #[cfg(not(unix))]
    let _ = umask;
    options.write(true);
    options
}

/// Makes a file that is not there yet. Its name is on the disk when this returns.
pub(crate) fn create(path: &Path, umask: bool) -> io::Result<File> {
    let file = options(umask).create_new(true).open(path)?;
    #[cfg(unix)]
    {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(file)
}
