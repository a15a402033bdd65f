//! Which servers, and how they are used.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Result};
use redis::io::tcp::TcpSettings;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo};

use crate::layout::MAX_PARTITIONS;
use crate::servers::{Cluster, Maker, Node, Sentinels, Servers};

/// Which servers, and how they are used.
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
    /// The server, or one like those that are named elsewhere.
    server: ConnectionInfo,
    found: Found,
    tls: TlsFiles,
    pub(crate) usage: Usage,
}

/// How the servers are found.
#[derive(Clone, PartialEq, Eq)]
enum Found {
    /// There is only one.
    There,
    /// Sentinels know it.
    Sentinels { hosts: Vec<Host>, service: String, user: Option<String>, password: Option<String> },
    /// These nodes of a cluster, or some of them, know all of them.
    Cluster { hosts: Vec<Host> },
}

/// A name and a port.
type Host = (String, u16);

/// A name, and a port if one was said.
type BareHost = (String, Option<u16>);

/// How a server is used, whichever way it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) retry_for: Duration,
    pub(crate) response_timeout: Duration,
    pub(crate) default_ttl: Option<Duration>,
    pub(crate) coalesce: bool,
    pub(crate) durability: Option<Durability>,
    /// The least number of partitions of every queue.
    pub(crate) partitions: u32,
}

/// What an answered send or settle has reached beside the primary. See
/// [`RedisOptions::durability`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Durability {
    /// How many replicas must have it.
    pub replicas: u32,
    /// How long they are waited for.
    pub timeout: Duration,
}

impl Durability {
    /// So many replicas, which are waited for no longer than a second.
    pub const fn replicas(replicas: u32) -> Self {
        Self { replicas, timeout: Duration::from_secs(1) }
    }

    /// Waits so long for them.
    #[must_use]
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Nothing, where no replica is asked for; and no wait that is none or has no end.
    fn sensible(self) -> Option<Self> {
        let timeout = self.timeout.clamp(A_MOMENT, A_DAY);
        (self.replicas > 0).then_some(Self { timeout, ..self })
    }
}

impl Default for Usage {
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

/// Less than any answer takes.
const A_MOMENT: Duration = Duration::from_millis(1);

/// More than anybody waits for.
const A_DAY: Duration = Duration::from_secs(86_400);

/// A century: Redis cannot count much more in milliseconds.
pub(crate) const LONGEST_TTL: Duration = Duration::from_secs(36_525 * 86_400);

impl Usage {
    /// How long the server remembers what a call has answered: longer than it is made again.
    pub(crate) fn remembered(&self) -> Duration {
        self.retry_for * 2 + Duration::from_secs(60)
    }

    /// Whether nothing is beyond what the options promise.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn is_sensible(&self) -> bool {
        let waits = self.durability.map(|durability| durability.timeout);
        self.retry_for <= A_DAY
            && (A_MOMENT..=A_DAY).contains(&self.response_timeout)
            && self.default_ttl.is_none_or(|ttl| !ttl.is_zero() && ttl <= LONGEST_TTL)
            && waits.is_none_or(|timeout| (A_MOMENT..=A_DAY).contains(&timeout))
            && (1..=MAX_PARTITIONS).contains(&self.partitions)
    }

    /// Sets an option of a URL. Says whether there is such an option, and the value is a good one.
    fn set(&mut self, name: &str, value: &str) -> bool {
        let seconds = value.parse().ok().and_then(|time| Duration::try_from_secs_f64(time).ok());
        let positive = seconds.filter(|time| !time.is_zero());
        let count = value.parse::<u32>();
        let durability = self.durability.unwrap_or(Durability::replicas(0));
        match (name, positive, count) {
            ("replicas", _, Ok(replicas)) => {
                self.durability = Some(Durability { replicas, ..durability });
                return true;
            }
            ("replicas_timeout", Some(timeout), _) => {
                self.durability = Some(Durability { timeout, ..durability });
                return true;
            }
            ("partitions", _, Ok(partitions @ 1..=MAX_PARTITIONS)) => {
                self.partitions = partitions;
                return true;
            }
            _ => {}
        }
        match (name, seconds, positive, value.parse()) {
            ("retry_for", Some(time), ..) => self.retry_for = time.min(A_DAY),
            ("response_timeout", _, Some(time), _) => {
                self.response_timeout = time.clamp(A_MOMENT, A_DAY);
            }
            ("default_ttl", _, Some(time), _) => self.default_ttl = Some(time.min(LONGEST_TTL)),
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

const FORMS: &str = "redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE], \
                     redis+unix:///PATH?db=N&user=U&pass=P, \
                     redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DATABASE], \
                     redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],..., or with rediss in place of \
                     redis the same over TLS; then perhaps retry_for=SECONDS, \
                     response_timeout=SECONDS, default_ttl=SECONDS, coalesce=true|false, \
                     replicas=N, replicas_timeout=SECONDS, partitions=N, for sentinels \
                     sentinel_user=U, sentinel_password=P, and for TLS ca=FILE, cert=FILE, key=FILE";

/// The port of sentinels that do not name theirs.
const SENTINEL_PORT: u16 = 26379;

/// The port of servers that do not name theirs.
const PORT: u16 = 6379;

impl RedisOptions {
    /// Reads a URL:
    ///
    /// * `redis://[[USER]:PASSWORD@]HOST[:PORT][/DATABASE]`: one server
    /// * `redis+unix:///PATH?db=N&user=U&pass=P`: one server, by a Unix socket
    /// * `redis-sentinel://[[USER]:PASSWORD@]HOST[:PORT],.../SERVICE[/DATABASE]`: the server that
    ///   these sentinels name as the primary of a service. User and password are those of the
    ///   server; the sentinels' own are `?sentinel_user=U&sentinel_password=P`
    /// * `redis-cluster://[[USER]:PASSWORD@]HOST[:PORT],...`: the cluster that these nodes belong to;
    ///   one that answers is enough
    /// * `rediss://`, `rediss-sentinel://`, `rediss-cluster://`: the same over TLS (feature `tls`),
    ///   with the certificates that the machine trusts, or those of `?ca=FILE`; with a certificate of
    ///   our own by `cert=FILE` and `key=FILE`
    ///
    /// After a `?`, and with `&` between them: `retry_for`, `response_timeout` and `default_ttl` in
    /// seconds, `coalesce=true|false`, `replicas=N` and `replicas_timeout` in seconds for the
    /// [durability](Self::durability), `partitions=N`. See the methods of the same names. A password
    /// with special characters is written with percent signs, as in any URL.
    ///
    /// No error tells more of the URL than its scheme and the names of options.
    pub fn from_url(url: &str) -> Result<Self> {
        let invalid = |problem: &str| Error::invalid(None, "backend URL", problem, FORMS);
        let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme).to_ascii_lowercase();
        let (one, kind) = scheme.split_once('-').unwrap_or((&scheme, ""));
        if one == "rediss" && !cfg!(feature = "tls") {
            return Err(invalid("this program was built without the feature for TLS"));
        }
        let (first, hosts) = match kind {
            "sentinel" | "cluster" => first_host(url, one).map_err(|problem| invalid(&problem))?,
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
        let mut usage = Usage::default();
        let (mut user, mut password) = (None, None);
        let mut left = Vec::new();
        for (name, value) in parsed.query_pairs() {
            if native.contains(&name.as_ref()) {
                left.push((name.into_owned(), value.into_owned()));
                continue;
            }
            let known = match (kind, &*name) {
                ("sentinel", "sentinel_user") => user.replace(value.into_owned()).is_none(),
                ("sentinel", "sentinel_password") => password.replace(value.into_owned()).is_none(),
                _ => usage.set(&name, &value) || one == "rediss" && tls.set(&name, &value),
            };
            // Only its name: the value may be a secret. Where there is an @, so may the name.
            if !known && parsed.query().is_some_and(|query| query.contains('@')) {
                return Err(invalid("unknown option; in a password, a ? is written %3F"));
            }
            if !known {
                return Err(invalid(&format!("unknown option or value of {name:?}")));
            }
        }
        if tls.certificate.is_some() != tls.key.is_some() {
            return Err(invalid("cert and key belong together"));
        }
        usage.durability = usage.durability.and_then(Durability::sensible);
        parsed.set_query(None);
        if !left.is_empty() {
            parsed.query_pairs_mut().extend_pairs(left);
        }
        let found = match kind {
            "sentinel" => {
                let path = parsed.path().trim_start_matches('/').to_owned();
                let (service, database) = path.split_once('/').unwrap_or((&path, ""));
                if path.contains('@') {
                    // It would be told wherever the server is named.
                    return Err(invalid(
                        "behind the hosts is an @: a / in a password is written %2F",
                    ));
                }
                if service.is_empty() {
                    return Err(invalid("the name of the service is missing: .../SERVICE"));
                }
                let service = percent_decoded(service)
                    .ok_or_else(|| invalid("the name of the service is not text"))?;
                parsed.set_path(database);
                let hosts = with_ports(hosts, SENTINEL_PORT);
                Found::Sentinels { hosts, service, user, password }
            }
            "cluster" => {
                if !matches!(parsed.path(), "" | "/" | "/0") {
                    return Err(invalid("a cluster has only the database 0"));
                }
                Found::Cluster { hosts: with_ports(hosts, PORT) }
            }
            _ => Found::There,
        };
        let server = parsed
            .into_connection_info()
            .map_err(|error| invalid(error.detail().map_or(error.category(), |detail| detail)))?;
        Ok(Self { server: robust(server), found, tls, usage })
    }

    /// The servers. Nothing is connected yet.
    pub(crate) fn servers(&self) -> Result<Servers> {
        if self.usage.default_ttl.is_some() && self.usage.partitions > 1 {
            let allowed = "1 where there is a default_ttl";
            return Err(Error::invalid(
                None,
                "partitions",
                self.usage.partitions.to_string(),
                allowed,
            ));
        }
        let client = crate::tls::client(self.server.clone(), &self.tls)?;
        let response_timeout = self.usage.response_timeout;
        let maker = Maker { like: client.get_connection_info().clone() };
        Ok(match &self.found {
            Found::There => Servers::One(Arc::new(Node::of(client, response_timeout))),
            Found::Cluster { hosts } => {
                Servers::Cluster(Cluster::new(self.place().into(), hosts, maker, response_timeout))
            }
            Found::Sentinels { hosts, service, user, password } => {
                let mut settings = redis::RedisConnectionInfo::default();
                if let Some(user) = user {
                    settings = settings.set_username(user);
                }
                if let Some(password) = password {
                    settings = settings.set_password(password);
                }
                let sentinels = Sentinels {
                    place: self.place().into(),
                    addresses: hosts.clone(),
                    sentinels: Maker { like: maker.like.clone().set_redis_settings(settings) },
                    service: service.clone(),
                    servers: maker,
                };
                Servers::One(Arc::new(Node::behind(sentinels, response_timeout)))
            }
        })
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
    /// settled for this long, unless whoever opens the queue
    /// [names](pillarbox_core::QueueOptions::default_ttl) another time. Defaults to never; so does zero.
    pub fn default_ttl(mut self, time: Duration) -> Self {
        self.usage.default_ttl = Some(time.min(LONGEST_TTL)).filter(|time| !time.is_zero());
        self
    }

    /// Whether operations that callers of one queue ask for at the same time are put together into
    /// one call to the server. They are, unless told otherwise.
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.usage.coalesce = coalesce;
        self
    }

    /// Answers a send or a settle only when so many replicas have confirmed that they have it, too;
    /// otherwise it is an error after the time given, though the primary has done it. Zero replicas is
    /// what there is without: the primary answers, and tells the replicas afterwards.
    ///
    /// Many callers are confirmed together (one `WAIT`), and receivers do not wait for it. What it does
    /// and does not promise is said in `docs/redis.md`.
    pub fn durability(mut self, durability: Durability) -> Self {
        self.usage.durability = durability.sensible();
        self
    }

    /// Spreads every queue that is used over at least so many partitions, 1,000 at most, as
    /// [`QueueOptions::partitions`](pillarbox_core::QueueOptions::partitions) does for one.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.usage.partitions = partitions.clamp(1, MAX_PARTITIONS);
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

    /// Where the servers are, without secrets.
    pub(crate) fn place(&self) -> String {
        let one = scheme(&self.server);
        match &self.found {
            Found::There => place(&self.server),
            Found::Sentinels { hosts, service, .. } => {
                format!("{one}-sentinel://{}/{service}", hosts_text(hosts))
            }
            Found::Cluster { hosts } => format!("{one}-cluster://{}", hosts_text(hosts)),
        }
    }
}

/// Takes a URL with several hosts apart: a URL of another scheme with only the first of them, and all
/// of them with their ports, if they have any.
fn first_host(url: &str, scheme: &str) -> Result<(String, Vec<BareHost>), String> {
    let rest = url.split_once("://").ok_or("no hosts are named")?.1;
    let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (user, names) = authority.rsplit_once('@').map_or(("", authority), |(u, n)| (u, n));
    if user.contains('@') {
        return Err(
            "there are two @: of user and password there is one for all hosts, and an @ in them \
                    is written %40"
                .into(),
        );
    }
    let mut hosts = Vec::new();
    for name in names.split(',') {
        // As one of a URL of its own, so that the same names are good.
        let alone = url::Url::parse(&format!("{scheme}://{name}/"));
        let alone = alone.map_err(|error| format!("one of the hosts: {error}"))?;
        let host = alone.host_str().filter(|host| !host.is_empty()).ok_or("a host is missing")?;
        hosts.push((host.trim_matches(['[', ']']).to_owned(), alone.port()));
    }
    let first = names.split(',').next().unwrap_or_default();
    let at = if authority.contains('@') { "@" } else { "" };
    Ok((format!("{scheme}://{user}{at}{first}{tail}"), hosts))
}

fn with_ports(hosts: Vec<BareHost>, usual: u16) -> Vec<Host> {
    hosts.into_iter().map(|(host, port)| (host, port.unwrap_or(usual))).collect()
}

fn percent_decoded(text: &str) -> Option<String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8().ok()?;
    Some(decoded.into_owned())
}

/// Several hosts, as they are written in a URL.
pub(crate) fn hosts_text(hosts: &[Host]) -> String {
    let hosts: Vec<_> = hosts.iter().map(|(host, port)| host_text(host, *port)).collect();
    hosts.join(",")
}

fn host_text(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
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

/// `rediss` with TLS, and `redis` without.
fn scheme(server: &ConnectionInfo) -> &'static str {
    match server.addr() {
        ConnectionAddr::TcpTls { .. } => "rediss",
        _ => "redis",
    }
}

/// Where a server is, for people and without secrets.
pub(crate) fn place(server: &ConnectionInfo) -> String {
    let db = server.redis_settings().db();
    match server.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            format!("{}://{}/{db}", scheme(server), host_text(host, *port))
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
            ..Usage::default()
        };
        assert_eq!(options.usage, expected);
        let usage = read("redis://h?replicas=2&replicas_timeout=0.5&partitions=12").usage;
        let durability = Durability::replicas(2).timeout(Duration::from_millis(500));
        assert_eq!((usage.durability, usage.partitions), (Some(durability), 12));
        assert_eq!(read("redis://h?replicas=0&replicas_timeout=5").usage, Usage::default());
    }

    #[test]
    fn sentinels_and_nodes_are_named_together() {
        let sentinel = read(
            "redis-sentinel://me:hunter2@a,b:7,[::1]:8/the%20jobs%26more/3?sentinel_password=s",
        );
        assert_eq!(sentinel.place(), "redis-sentinel://a:26379,b:7,[::1]:8/the jobs&more");
        let settings = sentinel.server.redis_settings();
        assert_eq!((settings.username(), settings.password()), (Some("me"), Some("hunter2")));
        assert_eq!(settings.db(), 3);
        let Found::Sentinels { password, user, .. } = &sentinel.found else { panic!() };
        assert_eq!((user.as_deref(), password.as_deref()), (None, Some("s")));
        let cluster = read("redis-cluster://:hunter2@a:7000,b");
        assert_eq!(cluster.place(), "redis-cluster://a:7000,b:6379");
        assert_eq!(cluster.server.redis_settings().password(), Some("hunter2"));
        assert!(!format!("{cluster:?} {sentinel:?}").contains("hunter2"));
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
    fn an_answer_has_a_moment_at_least() {
        assert_eq!(read("redis://h?response_timeout=1e-9").usage.response_timeout, A_MOMENT);
    }

    #[test]
    fn times_beyond_reason_are_cut_short() {
        let huge = read("redis://h?retry_for=1e18&response_timeout=1e18&default_ttl=1e18").usage;
        assert_eq!((huge.retry_for, huge.response_timeout), (A_DAY, A_DAY));
        assert_eq!(huge.default_ttl, Some(LONGEST_TTL));
        let options = read("redis://h").retry_for(Duration::MAX).default_ttl(Duration::MAX);
        assert_eq!(
            (options.usage.retry_for, options.usage.default_ttl),
            (A_DAY, Some(LONGEST_TTL))
        );
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
            assert!(text.contains("redis://[[USER]") && !text.contains("hunter2"), "{text}");
        }
        let text = format!("{:?}", read("redis://me:hunter2@h"));
        assert!(text.contains("redis://h") && !text.contains("hunter2"), "{text}");
    }
}
