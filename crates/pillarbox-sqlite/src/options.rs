//! Options with which a database is opened.

use std::path::{Path, PathBuf};

use pillarbox_core::{Error, Result};

/// Path of a database, and the options with which it is opened.
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
    /// `None` if in memory.
    pub(crate) path: Option<PathBuf>,
    pub(crate) synchronous: Synchronous,
    pub(crate) create: bool,
    pub(crate) adopt: bool,
    pub(crate) permissions: FilePermissions,
}

/// Durability of a confirmed operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Synchronous {
    /// Synced to the disk before the call returns: a power failure loses nothing. A receive does not wait for that: a
    /// power failure may undo a delivery that nobody has settled.
    #[default]
    Full,
    /// Written to the operating system: `kill -9` loses nothing; a power failure may lose the last commits, but
    /// does not damage the file. Faster with few concurrent callers.
    Normal,
}

/// Permissions of new files. Existing files keep theirs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum FilePermissions {
    /// Readable and writable by the owner alone: mode 0600.
    #[default]
    Private,
    /// Mode 0666 without the bits of the process's umask.
    Umask,
}

impl SqliteOptions {
    /// Creates options for the file at `path`, which is created if it does not exist.
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

    /// Creates options for queues in SQLite's own memory, private to the backend and deleted when it is dropped.
    pub fn in_memory() -> Self {
        Self { path: None, ..Self::new("") }
    }

    /// Sets the durability of confirmed operations. Defaults to [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets whether a file that does not exist is created. Defaults to `true`.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Sets whether queues may be stored in the database of another program, beside its own tables. Defaults to
    /// `false`: the file is refused and not touched. An adopted file uses a write-ahead log from then on, for the
    /// other program too.
    ///
    /// A file that already holds queues is opened whatever else it holds.
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// Sets the permissions of new files: the database, its log, the index of the log and the lock file. Defaults to
    /// [`FilePermissions::Private`]. An existing database keeps its permissions, and the files beside it get the
    /// same. Has no effect on systems other than Unix.
    pub fn permissions(mut self, permissions: FilePermissions) -> Self {
        self.permissions = permissions;
        self
    }

    /// Parses `sqlite:PATH`, `sqlite://PATH` or `sqlite::memory:`, with options after a `?`:
    /// `synchronous=full|normal`, `create=true|false`, `adopt=true|false`, `permissions=private|umask`.
    ///
    /// The path is not decoded; one that contains a `?` needs [`SqliteOptions::new`].
    pub fn from_url(url: &str) -> Result<Self> {
        let allowed = "sqlite:PATH or sqlite::memory:, optionally with ?synchronous=full|normal, \
                       create=true|false, adopt=true|false, permissions=private|umask, separated by &";
        let invalid = |problem: String| Error::invalid(None, "backend URL", problem, allowed);
        let rest = url.strip_prefix("sqlite:").ok_or_else(|| invalid(format!("{url:?}")))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = path.strip_prefix("//").unwrap_or(path);
        let mut options = match path {
            "" => return Err(invalid(format!("{url:?} names no file"))),
            path if path.starts_with("file:") => {
                return Err(invalid(format!("{url:?}: SQLite's own file: URIs are not supported")));
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
                // Only the name is shown: the value may be a secret of a server's URL. If there is an @, so may the
                // name.
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
    fn urls_name_files_in_the_usual_ways() {
        let path = |url: &str| SqliteOptions::from_url(url).unwrap().path;
        assert_eq!(path("sqlite:a/b.db"), Some("a/b.db".into()));
        assert_eq!(path("sqlite://a/b.db"), Some("a/b.db".into()));
        assert_eq!(path("sqlite:/var/b.db"), Some("/var/b.db".into()));
        assert_eq!(path("sqlite:///var/b.db?create=false"), Some("/var/b.db".into()));
        assert_eq!(path("sqlite::memory:"), None);
    }

    #[test]
    fn a_url_can_set_every_option() {
        let url = "sqlite:f?synchronous=normal&create=false&adopt=true&permissions=umask";
        let options = SqliteOptions::new("f").synchronous(Synchronous::Normal);
        let options = options.create(false).adopt(true).permissions(FilePermissions::Umask);
        assert_eq!(SqliteOptions::from_url(url).unwrap(), options);
        let url = "sqlite:f?permissions=private";
        assert_eq!(SqliteOptions::from_url(url).unwrap(), SqliteOptions::new("f"));
    }

    #[test]
    fn no_error_shows_a_password() {
        let error = SqliteOptions::from_url("sqlite://me:a?hunter2=b@h").unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_known_ones() {
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
