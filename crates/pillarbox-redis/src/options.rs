//! Which server, and how it is used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pillarbox_core::{Error, Result};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

/// Which server, and how it is used.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_redis::RedisOptions;
///
/// let options = RedisOptions::from_url("redis://worker:secret@localhost:6380/2?retry_for=5")?;
/// assert!(!format!("{options:?}").contains("secret"));
///
/// let same = RedisOptions::from_url("redis://worker:secret@localhost:6380/2")?
///     .retry_for(Duration::from_secs(5));
/// # let _ = same;
/// # Ok::<(), pillarbox_core::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct RedisOptions {
    pub(crate) server: ConnectionInfo,
    pub(crate) tls: TlsFiles,
    pub(crate) usage: Usage,
}

/// How a server is used, whichever way it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) retry_for: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) coalesce: bool,
}

impl Default for Usage {
    fn default() -> Self {
        Self {
            retry_for: Duration::from_secs(15),
            response_timeout: Duration::from_secs(5),
            default_ttl: None,
            coalesce: true,
        }
    }
}

/// Less than any answer takes.
const A_MOMENT: Duration = Duration::from_millis(1);

/// More than anybody waits for.
const A_DAY: Duration = Duration::from_secs(86_400);

/// What Redis can count in milliseconds, and then some.
const A_CENTURY: Duration = Duration::from_secs(36_525 * 86_400);

impl Usage {
    /// Sets an option of a URL. Says whether there is such an option, and the value is a good one.
    fn set(&mut self, name: &str, value: &str) -> bool {
        let seconds = value.parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok());
        let positive = seconds.filter(|time| !time.is_zero());
        match (name, seconds, positive, value.parse()) {
            ("retry_for", Some(time), ..) => self.retry_for = time.min(A_DAY),
            ("response_timeout", _, Some(time), _) => self.response_timeout = time.min(A_DAY),
            ("default_ttl", _, Some(time), _) => self.default_ttl = Some(time.min(A_CENTURY)),
            ("coalesce", _, _, Ok(coalesce)) => self.coalesce = coalesce,
            _ => return false,
        }
        true
    }
}

/// Files in PEM format that TLS needs beside what the machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl TlsFiles {
    /// Sets an option of a URL. Says whether there is such an option.
    fn set(&mut self, name: &str, path: &str) -> bool {
        let file = match name {
            "ca" => &mut self.ca,
            "cert" => &mut self.certificate,
            "key" => &mut self.key,
            _ => return false,
        };
        *file = Some(path.into());
        true
    }
}

const FORMS: &str = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], rediss:// the same over TLS, \
                     or redis+unix:///PATH?db=N&user=U&pass=P; then perhaps retry_for=SECONDS, \
                     response_timeout=SECONDS, default_ttl=SECONDS, coalesce=true|false, and for \
                     TLS ca=FILE, cert=FILE, key=FILE";

impl RedisOptions {
    /// Reads a URL:
    ///
    /// * `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`
    /// * `rediss://...`: the same over TLS (feature `tls`), with the certificates that the machine
    ///   trusts, or those of `?ca=FILE`; with a certificate of our own by `cert=FILE` and `key=FILE`
    /// * `redis+unix:///PATH?db=N&user=U&pass=P`
    ///
    /// After a `?`, and with `&` between them: `retry_for`, `response_timeout` and `default_ttl` in
    /// seconds, `coalesce=true|false`. See the methods of the same names. A password with special
    /// characters is written with percent signs, as in any URL.
    ///
    /// No error tells more of the URL than its scheme and the names of options.
    pub fn from_url(url: &str) -> Result<Self> {
        let invalid = |problem: &str| Error::invalid(None, "backend URL", problem, FORMS);
        let mut parsed = url::Url::parse(url).map_err(|error| invalid(&error.to_string()))?;
        let scheme = parsed.scheme().to_owned();
        let native: &[&str] = match scheme.as_str() {
            "redis" => &[],
            "rediss" if cfg!(feature = "tls") => &[],
            "rediss" => return Err(invalid("this program was built without the feature for TLS")),
            "redis+unix" => &["db", "user", "pass"],
            other => return Err(invalid(&format!("unknown scheme {other:?}"))),
        };
        let mut tls = TlsFiles::default();
        let mut usage = Usage::default();
        let mut left = Vec::new();
        for (name, value) in parsed.query_pairs() {
            if native.contains(&name.as_ref()) {
                left.push((name.into_owned(), value.into_owned()));
                continue;
            }
            let known = usage.set(&name, &value) || scheme == "rediss" && tls.set(&name, &value);
            // Only its name: the value may be a secret.
            if !known {
                return Err(invalid(&format!("unknown option or value of {name:?}")));
            }
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(invalid("cert and key belong together"));
        }
        parsed.set_query(None);
        if !left.is_empty() {
            parsed.query_pairs_mut().extend_pairs(left);
        }
        let server = parsed
            .into_connection_info()
            .map_err(|error| invalid(error.detail().map_or(error.category(), |detail| detail)))?;
        Ok(Self { server: robust(server), tls, usage })
    }

    /// How long an operation is tried again, with growing pauses, while the server cannot be
    /// reached, loads its data or is a replica. After that, the error is the caller's. 15 seconds
    /// unless told otherwise, and a day at most.
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.usage.retry_for = time.min(A_DAY);
        self
    }

    /// How long an answer may take, the way there and back included, before the connection is given up
    /// and the operation tried anew. 5 seconds unless told otherwise. Where bodies are large and the
    /// network is slow, it must be longer than a batch takes to be sent or received.
    pub fn response_timeout(mut self, time: Duration) -> Self {
        self.usage.response_timeout = time.clamp(A_MOMENT, A_DAY);
        self
    }

    /// Lets the server delete a queue, **with all its messages**, when nothing was sent, received or
    /// settled for so long. Never, unless told otherwise, or told zero.
    pub fn default_ttl(mut self, time: Duration) -> Self {
        self.usage.default_ttl = Some(time.min(A_CENTURY)).filter(|time| !time.is_zero());
        self
    }

    /// Whether operations that callers of one queue ask for at the same time are put together into
    /// one call to the server. They are, unless told otherwise.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.usage.coalesce = coalesce;
        self
    }

    /// Trusts the certificates of this file, in PEM format, instead of those of the machine.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.tls.ca = Some(path.as_ref().to_owned());
        self
    }

    /// Shows a certificate of our own to the server. Both files are in PEM format.
    pub fn certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.tls.certificate = Some(certificate.as_ref().to_owned());
        self.tls.key = Some(key.as_ref().to_owned());
        self
    }

    /// Where the server is, without secrets.
    pub(crate) fn place(&self) -> String {
        place(&self.server)
    }
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("server", &self.place())
            .field("tls", &self.tls)
            .field("usage", &self.usage)
            .finish()
    }
}

/// Where a server is, for people and without secrets.
pub(crate) fn place(server: &ConnectionInfo) -> String {
    let db = server.redis_settings().db();
    let host = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
    match server.addr() {
        ConnectionAddr::Tcp(name, port) => format!("redis://{}:{port}/{db}", host(name)),
        ConnectionAddr::TcpTls { host: name, port, .. } => {
            format!("rediss://{}:{port}/{db}", host(name))
        }
        ConnectionAddr::Unix(path) => format!("redis+unix://{}?db={db}", path.display()),
        _ => "a server".to_owned(),
    }
}

/// Small packets go out at once, and a peer that vanished is noticed.
fn robust(server: ConnectionInfo) -> ConnectionInfo {
    let keepalive = redis::io::tcp::socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(15))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let tcp = tcp.set_user_timeout(Duration::from_secs(20));
    server.set_tcp_settings(tcp)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> RedisOptions {
        RedisOptions::from_url(url).unwrap()
    }

    #[test]
    fn urls_name_servers_as_people_write_them() {
        assert_eq!(read("redis://localhost").place(), "redis://localhost:6379/0");
        assert_eq!(read("redis://127.0.0.1:7000/3").place(), "redis://127.0.0.1:7000/3");
        assert_eq!(read("redis://[::1]:7000").place(), "redis://[::1]:7000/0");
        let unix = read("redis+unix:///run/redis.sock?db=2&user=me&pass=hunter2");
        assert_eq!(unix.place(), "redis+unix:///run/redis.sock?db=2");
        assert_eq!(unix.server.redis_settings().username(), Some("me"));
        assert_eq!(unix.server.redis_settings().password(), Some("hunter2"));
        let user = read("redis://me:p%40ss%2F@h");
        assert_eq!(user.server.redis_settings().password(), Some("p@ss/"));
        let only = read("redis://:hunter2@h").server;
        assert_eq!(only.redis_settings().username(), None);
        assert_eq!(only.redis_settings().password(), Some("hunter2"));
    }

    #[test]
    fn every_option_can_be_said() {
        let options =
            read("redis://h?retry_for=2.5&response_timeout=1&default_ttl=60&coalesce=false");
        let expected = Usage {
            retry_for: Duration::from_millis(2500),
            response_timeout: Duration::from_secs(1),
            default_ttl: Some(Duration::from_secs(60)),
            coalesce: false,
        };
        assert_eq!(options.usage, expected);
    }

    #[cfg(feature = "tls")]
    #[test]
    fn files_of_tls_can_be_said() {
        let options = read("rediss://h?ca=/etc/ca.pem&cert=c.pem&key=k.pem");
        assert_eq!(options.place(), "rediss://h:6379/0");
        assert_eq!(options.tls.ca, Some("/etc/ca.pem".into()));
        assert_eq!(options.tls.key, Some("k.pem".into()));
        let error = RedisOptions::from_url("rediss://h?cert=c.pem").unwrap_err().to_string();
        assert!(error.contains("cert and key belong together"), "{error}");
    }

    #[test]
    fn times_beyond_reason_are_cut_short() {
        let huge = read("redis://h?retry_for=1e18&response_timeout=1e18&default_ttl=1e18").usage;
        assert_eq!((huge.retry_for, huge.response_timeout), (A_DAY, A_DAY));
        assert_eq!(huge.default_ttl, Some(A_CENTURY));
        let options = read("redis://h").retry_for(Duration::MAX).default_ttl(Duration::MAX);
        assert_eq!((options.usage.retry_for, options.usage.default_ttl), (A_DAY, Some(A_CENTURY)));
    }

    #[test]
    fn what_is_not_known_is_refused_and_no_secret_told() {
        for url in [
            "redis:",
            "redis://",
            "redis://me:hunter2@",
            "redis://me:hunter2@h/two",
            "redis://me:hunter2@h:70000",
            "redis://me:hunter2@h?password=hunter2",
            "redis://me:hunter2@h?retry_for=hunter2",
            "redis://me:hunter2@h?retry_for=-1",
            "redis://me:hunter2@h?default_ttl=0",
            "redis://me:hunter2@h?ca=hunter2",
            "redis://me:hunter2@0.0.0.0",
            "redis+unix://hunter2",
            "redis+unix:///s?pass=hunter2&db=hunter2",
            "http://me:hunter2@h",
            "hunter2",
        ] {
            let error = RedisOptions::from_url(url).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{url}: {error}");
            let text = error.to_string();
            assert!(text.contains("redis://[[USER]") && !text.contains("hunter2"), "{text}");
        }
        let text = format!("{:?}", read("redis://me:hunter2@h"));
        assert!(text.contains("redis://h") && !text.contains("hunter2"), "{text}");
    }
}
