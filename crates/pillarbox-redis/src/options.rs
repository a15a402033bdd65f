//! Options of a backend, and their URL form.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pillarbox_core::{Error, QueueName, Result};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::partition_layout::MAX_PARTITIONS;

/// Servers of a backend, and how it uses them.
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
    /// The server, or a template for those of the topology.
    pub(crate) server: ConnectionInfo,
    pub(crate) topology: Topology,
    pub(crate) tls: TlsFiles,
    pub(crate) settings: Settings,
}

/// Way in which the servers are found.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One server.
    Single,
    /// The primary that these sentinels name.
    Sentinels { hosts: Vec<Host>, service: String, user: Option<String>, password: Option<String> },
    /// The cluster of these nodes, some of which may be down.
    Cluster { hosts: Vec<Host> },
}

/// Name and port.
pub(crate) type Host = (String, u16);

/// Name, and the port if the URL has one.
type BareHost = (String, Option<u16>);

/// Options that do not depend on how the servers are found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) retry_for: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) coalesce: bool,
    pub(crate) durability: Option<Durability>,
    /// Minimum number of partitions of every queue.
    pub(crate) partitions: u32,
}

/// Number of replicas that must confirm a send or settle before it is answered. See
/// [`RedisOptions::durability`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// Number of replicas that must confirm.
    pub replicas: u32,
    /// Time within which they must confirm.
    pub timeout: Duration,
}

impl Durability {
    /// Creates a durability of this number of replicas, with a timeout of one second.
    pub const fn replicas(replicas: u32) -> Self {
        Self { replicas, timeout: Duration::from_secs(1) }
    }

    /// Sets the time within which the replicas must confirm. Defaults to one second.
    /// [`RedisOptions::durability`] replaces a value outside a millisecond to a day by the nearest.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Clamps the timeout. `None` if no replica has to confirm.
    fn normalized(self) -> Option<Self> {
        let timeout = self.timeout.clamp(MIN_TIMEOUT, MAX_TIMEOUT);
        (self.replicas > 0).then_some(Self { timeout, ..self })
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            retry_for: Duration::from_secs(15),
            response_timeout: Duration::from_secs(5),
            default_ttl: None,
            coalesce: true,
            durability: None,
            partitions: 1,
        }
    }
}

/// Shortest timeout of an answer.
const MIN_TIMEOUT: Duration = Duration::from_millis(1);

/// Longest timeout: a day.
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);

/// Shortest time to live: Redis counts in milliseconds.
const MIN_TTL: Duration = Duration::from_millis(1);

/// Longest time to live: a century. Redis cannot count much more in milliseconds.
pub(crate) const MAX_TTL: Duration = Duration::from_secs(36_525 * 86_400);

impl Settings {
    /// Returns the time for which the server remembers the answer of a call: longer than the call is retried.
    pub(crate) fn record_ttl(&self) -> Duration {
        self.retry_for * 2 + Duration::from_secs(60)
    }

    /// Returns whether all values are within their bounds.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn is_within_bounds(&self) -> bool {
        let replicas_timeout = self.durability.map(|durability| durability.timeout);
        self.retry_for <= MAX_TIMEOUT
            && (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&self.response_timeout)
            && self.default_ttl.is_none_or(|ttl| !ttl.is_zero() && ttl <= MAX_TTL)
            && replicas_timeout.is_none_or(|timeout| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&timeout))
            && (1..=MAX_PARTITIONS).contains(&self.partitions)
    }

    /// Sets an option of a URL, and returns whether it exists. The error is the list of allowed values.
    fn set(&mut self, name: &str, value: &str) -> Result<bool, String> {
        let timeout = || seconds(value, MIN_TIMEOUT, MAX_TIMEOUT);
        let durability = self.durability.unwrap_or(Durability::replicas(0));
        match name {
            "retry_for" => self.retry_for = seconds(value, Duration::ZERO, MAX_TIMEOUT)?,
            "response_timeout" => self.response_timeout = timeout()?,
            "default_ttl" => self.default_ttl = Some(seconds(value, MIN_TTL, MAX_TTL)?),
            "replicas" => {
                let replicas = integer(value, 0, u32::MAX)?;
                self.durability = Some(Durability { replicas, ..durability });
            }
            "replicas_timeout" => {
                self.durability = Some(Durability { timeout: timeout()?, ..durability });
            }
            "partitions" => self.partitions = integer(value, 1, MAX_PARTITIONS)?,
            "coalesce" => self.coalesce = value.parse().map_err(|_| "true or false")?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Parses a number of seconds. The error is the range.
fn seconds(value: &str, min: Duration, max: Duration) -> Result<Duration, String> {
    let time = value.parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok());
    time.filter(|time| (min..=max).contains(time))
        .ok_or_else(|| format!("{} to {} seconds", min.as_secs_f64(), max.as_secs_f64()))
}

/// Parses an integer. The error is the range.
fn integer(value: &str, min: u32, max: u32) -> Result<u32, String> {
    let number = value.parse().ok().filter(|number| (min..=max).contains(number));
    number.ok_or_else(|| format!("an integer from {min} to {max}"))
}

/// Files in PEM format for TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) certificate: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl TlsFiles {
    /// Sets an option of a URL, and returns whether it exists.
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

const FORMS: &str = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], \
                     redis+unix:///PATH?db=N&user=U&pass=P, \
                     redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DATABASE], \
                     redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],..., or with rediss instead of \
                     redis the same over TLS; then optionally retry_for=SECONDS, \
                     response_timeout=SECONDS, default_ttl=SECONDS, coalesce=true|false, \
                     replicas=N, replicas_timeout=SECONDS, partitions=N, for sentinels \
                     sentinel_user=U, sentinel_password=P, and for TLS ca=FILE, cert=FILE, key=FILE";

/// Default port of sentinels.
const SENTINEL_PORT: u16 = 26379;

/// Default port of servers.
const PORT: u16 = 6379;

impl RedisOptions {
    /// Parses a URL:
    ///
    /// * `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`: one server
    /// * `redis+unix:///PATH?db=N&user=U&pass=P`: one server, on a Unix socket
    /// * `redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DATABASE]`: the server that
    ///   these sentinels name as the primary of a service. User and password are those of the
    ///   server; the sentinels' own are `?sentinel_user=U&sentinel_password=P`
    /// * `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],...`: the cluster that these nodes belong to;
    ///   one that answers is enough
    /// * `rediss://`, `rediss-sentinel://`, `rediss-cluster://`: the same over TLS (feature `tls`),
    ///   with the certificates that the machine trusts, or those of `?ca=FILE`; with a client
    ///   certificate by `cert=FILE` and `key=FILE`
    ///
    /// Options follow after a `?`, separated by `&`: `retry_for`, `response_timeout` and `default_ttl` in
    /// seconds, `coalesce=true|false`, `replicas=N` and `replicas_timeout` in seconds for the
    /// [durability](Self::durability), `partitions=N`. See the methods of the same names. Special
    /// characters in a password are percent-encoded, as in any URL.
    ///
    /// Errors show no more of the URL than its scheme and the names of options.
    pub fn from_url(url: &str) -> Result<Self> {
        let invalid = |problem: &str| Error::invalid(None, "backend URL", problem, FORMS);
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let (one, kind) = scheme.split_once('-').unwrap_or((&scheme, ""));
        if one == "rediss" && !cfg!(feature = "tls") {
            return Err(invalid("this program was built without the feature for TLS"));
        }
        let (first, hosts) = match kind {
            "sentinel" | "cluster" => split_hosts(url, one).map_err(|problem| invalid(&problem))?,
            _ => (url.to_owned(), Vec::new()),
        };
        let mut parsed = url::Url::parse(&first).map_err(|error| invalid(&error.to_string()))?;
        let native: &[&str] = match scheme.as_str() {
            "redis+unix" => &["db", "user", "pass"],
            "redis" | "rediss" | "redis-sentinel" | "rediss-sentinel" | "redis-cluster"
            | "rediss-cluster" => &[],
            other => return Err(invalid(&format!("unknown scheme {other:?}"))),
        };
        let mut tls = TlsFiles::default();
        let mut settings = Settings::default();
        let (mut user, mut password) = (None, None);
        let mut left = Vec::new();
        for (name, value) in parsed.query_pairs() {
            if native.contains(&name.as_ref()) {
                left.push((name.into_owned(), value.into_owned()));
                continue;
            }
            let known = match (kind, &*name) {
                ("sentinel", "sentinel_user") => Ok(user.replace(value.into_owned()).is_none()),
                ("sentinel", "sentinel_password") => {
                    Ok(password.replace(value.into_owned()).is_none())
                }
                _ => settings
                    .set(&name, &value)
                    .map(|known| known || one == "rediss" && tls.set(&name, &value)),
            };
            // Only its name: the value may be a secret. If there is an @, so may the name.
            let problem = match known {
                Ok(true) => continue,
                _ if parsed.query().is_some_and(|query| query.contains('@')) => {
                    "unknown option; write a ? in a password as %3F".to_owned()
                }
                Ok(false) => format!("unknown option {name:?}"),
                Err(allowed) => {
                    let problem = format!("wrong value of {name:?}");
                    return Err(Error::invalid(None, "backend URL", problem, allowed));
                }
            };
            return Err(invalid(&problem));
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(invalid("cert and key belong together"));
        }
        settings.durability = settings.durability.and_then(Durability::normalized);
        parsed.set_query(None);
        if !left.is_empty() {
            parsed.query_pairs_mut().extend_pairs(left);
        }
        let topology = match kind {
            "sentinel" => {
                let path = parsed.path().trim_start_matches('/').to_owned();
                let (service, database) = path.split_once('/').unwrap_or((&path, ""));
                if path.contains('@') {
                    // It would be shown wherever the server is named.
                    return Err(invalid(
                        "there is an @ after the hosts: write a / in a password as %2F",
                    ));
                }
                if service.is_empty() {
                    return Err(invalid("the name of the service is missing: .../SERVICE"));
                }
                let service = percent_decoded(service)
                    .ok_or_else(|| invalid("the name of the service is not text"))?;
                parsed.set_path(database);
                let hosts = with_ports(hosts, SENTINEL_PORT);
                Topology::Sentinels { hosts, service, user, password }
            }
            "cluster" => {
                if !matches!(parsed.path(), "" | "/" | "/0") {
                    return Err(invalid("a cluster has only the database 0"));
                }
                Topology::Cluster { hosts: with_ports(hosts, PORT) }
            }
            _ => Topology::Single,
        };
        let server = parsed
            .into_connection_info()
            .map_err(|error| invalid(error.detail().map_or(error.category(), |detail| detail)))?;
        Ok(Self { server: with_tcp_settings(server), topology, tls, settings })
    }

    /// Sets the time for which an operation is retried, with growing delays, while the server is
    /// unreachable, loads its data or is a replica. After that, the error is returned. Defaults to 15
    /// seconds. More than a day counts as a day.
    pub fn retry_for(mut self, time: Duration) -> Self {
        self.settings.retry_for = time.min(MAX_TIMEOUT);
        self
    }

    /// Sets the time within which an answer must arrive before the connection is closed and the
    /// operation retried. Defaults to 5 seconds; at least a millisecond, at most a day: other values are
    /// replaced by the nearest. If bodies are large and the network is slow, it must be longer than a batch
    /// takes to be sent or received.
    pub fn response_timeout(mut self, time: Duration) -> Self {
        self.settings.response_timeout = time.clamp(MIN_TIMEOUT, MAX_TIMEOUT);
        self
    }

    /// Sets the time without a send, receive or settle after which the server deletes a queue, **with all its
    /// messages**, unless the queue is opened with [another
    /// time](pillarbox_core::QueueOptions::default_ttl). Defaults to never, which zero means, too; at most a
    /// century.
    pub fn default_ttl(mut self, time: Duration) -> Self {
        self.settings.default_ttl = Some(time.min(MAX_TTL)).filter(|time| !time.is_zero());
        self
    }

    /// Sets whether concurrent operations on a queue are coalesced into one call to the server, and reported so in
    /// [`Capabilities::coalesces`](pillarbox_core::Capabilities::coalesces). Defaults to true.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.settings.coalesce = coalesce;
        self
    }

    /// Sets the number of replicas that must confirm a send or a settle before it is answered; if they do
    /// not in time, it is an error although the primary has done it. Defaults to zero replicas: the primary
    /// answers, and replicates afterwards.
    ///
    /// Concurrent calls are confirmed together (one `WAIT`), and receives do not wait for it. What it does
    /// and does not guarantee is in `docs/redis.md`.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.settings.durability = durability.normalized();
        self
    }

    /// Sets the minimum number of partitions of every queue that is used, as
    /// [`QueueOptions::partitions`](pillarbox_core::QueueOptions::partitions) does for one. Defaults to 1;
    /// a value outside 1 to 1,000 is replaced by the nearest.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.settings.partitions = partitions.clamp(1, MAX_PARTITIONS);
        self
    }

    /// Sets a file of trusted certificates, in PEM format. Defaults to the certificates of the machine.
    pub fn ca_file(mut self, path: impl AsRef<Path>) -> Self {
        self.tls.ca = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the client certificate and its key, both files in PEM format. Defaults to none.
    pub fn certificate(mut self, certificate: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.tls.certificate = Some(certificate.as_ref().to_owned());
        self.tls.key = Some(key.as_ref().to_owned());
        self
    }

    /// Returns the URL of the servers, without secrets.
    pub(crate) fn endpoint(&self) -> String {
        let one = scheme(&self.server);
        match &self.topology {
            Topology::Single => endpoint(&self.server),
            Topology::Sentinels { hosts, service, .. } => {
                format!("{one}-sentinel://{}/{service}", hosts_text(hosts))
            }
            Topology::Cluster { hosts } => format!("{one}-cluster://{}", hosts_text(hosts)),
        }
    }
}

/// Splits a URL with several hosts into a URL of `scheme` with only the first of them, and the list of all.
fn split_hosts(url: &str, scheme: &str) -> Result<(String, Vec<BareHost>), String> {
    let rest = url.split_once("://").ok_or("no hosts are named")?.1;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, names) = authority.rsplit_once('@').map_or(("", authority), |(u, n)| (u, n));
    if user.contains('@') {
        return Err(
            "there are two @: give user and password once, for all hosts, and write an @ in them as \
                    %40"
                .into(),
        );
    }
    let mut hosts = Vec::new();
    for name in names.split(',') {
        // Parsed as the host of a URL, so that the same names are valid.
        let parsed = url::Url::parse(&format!("{scheme}://{name}/"));
        let parsed = parsed.map_err(|error| format!("one of the hosts: {error}"))?;
        let host = parsed.host_str().filter(|host| !host.is_empty()).ok_or("a host is missing")?;
        hosts.push((host.trim_matches(['[', ']']).to_owned(), parsed.port()));
    }
    let first = names.split(',').next().unwrap_or_default();
    let at = if authority.contains('@') { "@" } else { "" };
    Ok((format!("{scheme}://{user}{at}{first}{tail}"), hosts))
}

fn with_ports(hosts: Vec<BareHost>, default: u16) -> Vec<Host> {
    hosts.into_iter().map(|(host, port)| (host, port.unwrap_or(default))).collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Returns hosts as they are written in a URL.
fn hosts_text(hosts: &[Host]) -> String {
    let hosts: Vec<_> = hosts.iter().map(|(host, port)| host_text(host, *port)).collect();
    hosts.join(",")
}

fn host_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

/// Returns the error for partitions together with a `default_ttl`: the partitions of a queue are not used
/// together, and the server would delete some of them.
pub(crate) fn partitions_with_ttl(queue: Option<&QueueName>, partitions: u32) -> Error {
    let allowed = "1 if there is a default_ttl";
    Error::invalid(queue, "partitions", partitions.to_string(), allowed)
}

impl fmt::Debug for RedisOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisOptions")
            .field("server", &self.endpoint())
            .field("tls", &self.tls)
            .field("settings", &self.settings)
            .finish()
    }
}

/// Returns `rediss` with TLS, and `redis` without.
fn scheme(server: &ConnectionInfo) -> &'static str {
    match server.addr() {
        ConnectionAddr::TcpTls { .. } => "rediss",
        _ => "redis",
    }
}

/// Returns the URL of a server, without secrets.
pub(crate) fn endpoint(server: &ConnectionInfo) -> String {
    let db = server.redis_settings().db();
    match server.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}://{}/{db}", scheme(server), host_text(host, *port))
        }
        ConnectionAddr::Unix(path) => format!("redis+unix://{}?db={db}", path.display()),
        _ => "a server".to_owned(),
    }
}

/// Sends small packets at once, and detects a peer that has vanished.
fn with_tcp_settings(server: ConnectionInfo) -> ConnectionInfo {
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
    fn urls_of_single_servers_are_parsed() {
        assert_eq!(read("redis://localhost").endpoint(), "redis://localhost:6379/0");
        assert_eq!(read("redis://127.0.0.1:7000/3").endpoint(), "redis://127.0.0.1:7000/3");
        assert_eq!(read("redis://[::1]:7000").endpoint(), "redis://[::1]:7000/0");
        let unix = read("redis+unix:///run/redis.sock?db=2&user=me&pass=hunter2");
        assert_eq!(unix.endpoint(), "redis+unix:///run/redis.sock?db=2");
        assert_eq!(unix.server.redis_settings().username(), Some("me"));
        assert_eq!(unix.server.redis_settings().password(), Some("hunter2"));
        let user = read("redis://me:p%40ss%2F@h");
        assert_eq!(user.server.redis_settings().password(), Some("p@ss/"));
        let only = read("redis://:hunter2@h").server;
        assert_eq!(only.redis_settings().username(), None);
        assert_eq!(only.redis_settings().password(), Some("hunter2"));
    }

    #[test]
    fn every_option_can_be_set_in_a_url() {
        let options =
            read("redis://h?retry_for=2.5&response_timeout=1&default_ttl=60&coalesce=false");
        let expected = Settings {
            retry_for: Duration::from_millis(2500),
            response_timeout: Duration::from_secs(1),
            default_ttl: Some(Duration::from_secs(60)),
            coalesce: false,
            ..Settings::default()
        };
        assert_eq!(options.settings, expected);
        let settings = read("redis://h?replicas=2&replicas_timeout=0.5&partitions=12").settings;
        let durability = Durability::replicas(2).timeout(Duration::from_millis(500));
        assert_eq!((settings.durability, settings.partitions), (Some(durability), 12));
        assert_eq!(read("redis://h?replicas=0&replicas_timeout=5").settings, Settings::default());
    }

    #[test]
    fn urls_of_sentinels_and_clusters_name_several_hosts() {
        let sentinel = read(
            "redis-sentinel://me:hunter2@a,b:7,[::1]:8/the%20jobs%26more/3?sentinel_password=s",
        );
        assert_eq!(sentinel.endpoint(), "redis-sentinel://a:26379,b:7,[::1]:8/the jobs&more");
        let settings = sentinel.server.redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("hunter2")));
        assert_eq!(settings.db(), 3);
        let Topology::Sentinels { password, user, .. } = &sentinel.topology else { panic!() };
        assert_eq!((user.as_deref(), password.as_deref()), (None, Some("s")));
        let cluster = read("redis-cluster://:hunter2@a:7000,b");
        assert_eq!(cluster.endpoint(), "redis-cluster://a:7000,b:6379");
        assert_eq!(cluster.server.redis_settings().password(), Some("hunter2"));
        assert!(!format!("{cluster:?} {sentinel:?}").contains("hunter2"));
    }

    #[cfg(feature = "tls")]
    #[test]
    fn tls_files_can_be_set_in_a_url() {
        let options = read("rediss://h?ca=/etc/ca.pem&cert=c.pem&key=k.pem");
        assert_eq!(options.endpoint(), "rediss://h:6379/0");
        assert_eq!(options.tls.ca, Some("/etc/ca.pem".into()));
        assert_eq!(options.tls.key, Some("k.pem".into()));
        let error = RedisOptions::from_url("rediss://h?cert=c.pem").unwrap_err().to_string();
        assert!(error.contains("cert and key belong together"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_is_refused_in_a_url_with_the_range() {
        for (option, range) in [
            ("retry_for=86400.5", "0 to 86400 seconds"),
            ("retry_for=soon", "0 to 86400 seconds"),
            ("response_timeout=1e-9", "0.001 to 86400 seconds"),
            ("response_timeout=1e18", "0.001 to 86400 seconds"),
            ("default_ttl=0", "0.001 to 3155760000 seconds"),
            ("default_ttl=1e18", "0.001 to 3155760000 seconds"),
            ("replicas=-1", "an integer from 0 to 4294967295"),
            ("replicas=1&replicas_timeout=86401", "0.001 to 86400 seconds"),
            ("partitions=0", "an integer from 1 to 1000"),
            ("partitions=1001", "an integer from 1 to 1000"),
            ("coalesce=1", "true or false"),
        ] {
            let error = RedisOptions::from_url(&format!("redis://h?{option}")).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{option}: {error}");
            let name = option.rsplit('&').next().unwrap().split('=').next().unwrap();
            let text = format!("invalid backend URL: wrong value of {name:?}; allowed: {range}");
            assert_eq!(error.to_string(), text, "{option}");
        }
        let limits =
            "retry_for=86400&response_timeout=0.001&default_ttl=3155760000&partitions=1000";
        let settings = read(&format!("redis://h?{limits}")).settings;
        assert_eq!(
            (settings.retry_for, settings.response_timeout, settings.default_ttl),
            (MAX_TIMEOUT, MIN_TIMEOUT, Some(MAX_TTL))
        );
    }

    #[test]
    fn a_builder_replaces_a_value_out_of_range_by_the_nearest() {
        let options = read("redis://h").retry_for(Duration::MAX).default_ttl(Duration::MAX);
        let options = options.response_timeout(Duration::ZERO).partitions(5_000);
        let settings = options.settings;
        assert_eq!((settings.retry_for, settings.default_ttl), (MAX_TIMEOUT, Some(MAX_TTL)));
        assert_eq!((settings.response_timeout, settings.partitions), (MIN_TIMEOUT, MAX_PARTITIONS));
    }

    #[test]
    fn invalid_urls_are_refused_without_showing_secrets() {
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
            "redis://me:hunter2@h?replicas=-1",
            "redis://me:hunter2@h?replicas_timeout=0",
            "redis://me:hunter2@h?partitions=0",
            "redis://me:hunter2@h?partitions=1001",
            "redis://me:hunter2@h?sentinel_password=hunter2",
            "redis-sentinel:hunter2",
            "redis-sentinel://me:hunter2@h",
            "redis-sentinel://me:hunter2@/service",
            "redis-sentinel://me:hunter2@h,,i/service",
            "redis-sentinel://me:hunter2@h/service/two",
            "redis-cluster://me:hunter2@h:hunter2",
            "redis-cluster://me:hunter2@h/1",
            "redis-cluster://me:hunter2@h,me:hunter2@i",
            "redis-sentinel://me:hunter2@h/%ff",
            "redis-ring://me:hunter2@h",
            "redis://me?hunter2=1@h",
            "http://me:hunter2@h",
            "hunter2",
        ] {
            let error = RedisOptions::from_url(url).unwrap_err();
            assert!(matches!(error, Error::InvalidParameter { .. }), "{url}: {error}");
            let text = error.to_string();
            let is_helpful = text.contains("redis://[[USER]") || text.contains("wrong value of");
            assert!(is_helpful && !text.contains("hunter2"), "{text}");
        }
        let text = format!("{:?}", read("redis://me:hunter2@h"));
        assert!(text.contains("redis://h") && !text.contains("hunter2"), "{text}");
    }
}
