//! How a file is opened.

use std::path::{Path, PathBuf};

use pillarbox_core::{Error, Result};

/// Which file, and how it is opened.
///
/// ```
/// use pillarbox_sqlite::{SqliteOptions, Synchronous};
///
/// let options = SqliteOptions::new("jobs.db").synchronous(Synchronous::Normal);
/// assert_eq!(SqliteOptions::from_url("sqlite:jobs.db?synchronous=normal")?, options);
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[must_use]
pub struct SqliteOptions {
    /// `None`: in memory.
    pub(crate) path: Option<PathBuf>,
    pub(crate) synchronous: Synchronous,
    pub(crate) create: bool,
    pub(crate) adopt: bool,
    pub(crate) permissions: FilePermissions,
}

/// What an answered operation has survived.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Synchronous {
    /// The disk was told to keep it before the answer was given: a power failure loses nothing.
    #[default]
    Full,
    /// The operating system has it: `kill -9` loses nothing, and a power failure loses the last
    /// commits, never the file. Faster where few callers are at work at a time.
    Normal,
}

/// Who may read and write files that are made. Files that are there keep their permissions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum FilePermissions {
    /// Their owner alone: mode 0600.
    #[default]
    Private,
    /// As the umask of the process says: mode 0666 without the bits of the umask.
    Umask,
}

impl SqliteOptions {
    /// The file at `path`, which is made if it is not there.
    pub fn new(path: impl AsRef<Path>) -> Self {
        let path = Some(path.as_ref().to_owned());
        Self {
            path,
            synchronous: Synchronous::default(),
            create: true,
            adopt: false,
            permissions: FilePermissions::default(),
        }
    }

    /// No file: queues in SQLite's own memory, private to the backend, gone with it.
    pub fn in_memory() -> Self {
        Self { path: None, ..Self::new("") }
    }

    /// What an answered operation has survived. [`Synchronous::Full`] unless told otherwise.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Whether a file that is not there is made. It is, unless told otherwise.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether the queues may be kept in a database of another program, beside its own tables.
    /// They may not, unless told otherwise: the file is refused and not touched. A file that is adopted
    /// has a write-ahead log from then on, for the other program too.
    ///
    /// A file that holds queues already is opened whatever else it holds.
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// Who may read and write the files that are made: the database, its log, the index of the log and
    /// the lock file. Defaults to [`FilePermissions::Private`]. A database that is there keeps its
    /// permissions, and the files beside it get the same. Without effect where the operating system is
    /// not a Unix.
    pub fn permissions(mut self, permissions: FilePermissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// Reads `sqlite:PATH`, `sqlite://PATH` or `sqlite::memory:`, with options after a `?`:
    /// `synchronous=full|normal`, `create=true|false`, `adopt=true|false`,
    /// `permissions=private|umask`.
    ///
    /// The path is taken as it stands; one that holds a `?` needs [`SqliteOptions::new`].
    pub fn from_url(url: &str) -> Result<Self> {
        let allowed = "sqlite:PATH or sqlite::memory:, then perhaps ?synchronous=full|normal, \
                       create=true|false, adopt=true|false, permissions=private|umask, with & \
                       between them";
        let invalid = |problem: String| Error::invalid(None, "backend URL", problem, allowed);
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| invalid(format!("{url:?}")))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        let mut options = match path {
            "" => return Err(invalid(format!("{url:?} names no file"))),
            path if path.starts_with("file:") => {
                return Err(invalid(format!("{url:?}: URIs of SQLite's own are not read")));
            }
            ":memory:" => Self::in_memory(),
            path => Self::new(path),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let known = match pair.split_once('=') {
                Some(("synchronous", "full")) => options.synchronous(Synchronous::Full),
                Some(("synchronous", "normal")) => options.synchronous(Synchronous::Normal),
                Some(("create", value @ ("true" | "false"))) => options.create(value == "true"),
                Some(("adopt", value @ ("true" | "false"))) => options.adopt(value == "true"),
                Some(("permissions", "private")) => options.permissions(FilePermissions::Private),
                Some(("permissions", "umask")) => options.permissions(FilePermissions::Umask),
                // Only its name: the value may be a secret of somebody who took this for a server. Where there is an @, so
                // may the name.
                _ if query.contains('@') => {
                    return Err(invalid(
                        "unknown option; a file has no user and no password".into(),
                    ));
                }
                _ => {
                    let name = pair.split('=').next().unwrap_or_default();
                    return Err(invalid(format!("unknown option or value of {name:?}")));
                }
            };
            options = known;
        }
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_files_as_people_write_them() {
        let path = |url: &str| SqliteOptions::from_url(url).unwrap().path;
        assert_eq!(path("sqlite:a/b.db"), Some("a/b.db".into()));
        assert_eq!(path("sqlite://a/b.db"), Some("a/b.db".into()));
        assert_eq!(path("sqlite:/var/b.db"), Some("/var/b.db".into()));
        assert_eq!(path("sqlite:///var/b.db?create=false"), Some("/var/b.db".into()));
        assert_eq!(path("sqlite::memory:"), None);
    }

    #[test]
    fn every_option_can_be_said() {
        let url = "sqlite:f?synchronous=normal&create=false&adopt=true&permissions=umask";
        let options = SqliteOptions::new("f").synchronous(Synchronous::Normal);
        let options = options.create(false).adopt(true).permissions(FilePermissions::Umask);
        assert_eq!(SqliteOptions::from_url(url).unwrap(), options);
        let url = "sqlite:f?permissions=private";
        assert_eq!(SqliteOptions::from_url(url).unwrap(), SqliteOptions::new("f"));
    }

    #[test]
    fn who_took_it_for_a_server_reads_no_password() {
        let error = SqliteOptions::from_url("sqlite://me:a?hunter2=b@h").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn what_is_not_known_is_refused_with_what_is() {
        for url in [
            "sqlite:",
            "sqlite://",
            "sqlite:file:f",
            "sqlite:f?synchronous=off",
            "sqlite:f?cache=1",
            "sqlite:f?permissions=0644",
            "f",
        ] {
            let error = SqliteOptions::from_url(url).unwrap_err().to_string();
            assert!(error.contains("synchronous=full|normal"), "{error}");
        }
    }
}
