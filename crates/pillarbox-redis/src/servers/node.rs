//! One server, and the connections to it: made when needed, shared by all, made anew when they break.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, ProtocolVersion, RedisError,
    RedisResult, Value,
};

use super::sentinel::Sentinels;

/// How long one attempt to connect may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// One server, and the connections to it.
pub(crate) struct Node {
    /// Where it is, for people.
    pub(crate) place: Arc<str>,
    source: Source,
    response_timeout: Duration,
    /// The connection for calls that are answered at once.
    calls: SharedConnection,
    /// The connection for those that may keep others waiting.
    waits: SharedConnection,
}

/// Where connections come from.
enum Source {
    /// We make them.
    Client(Box<Client>),
    /// We make them to whichever server the sentinels name.
    Sentinels(Arc<Sentinels>),
    /// The caller gave one, which mends itself or not.
    Given(Box<dyn Wire>),
}

/// What is asked of a connection, whatever its type.
trait Wire: Send + Sync {
    fn call<'a>(&'a self, command: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Wire for C {
    fn call<'a>(&'a self, command: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
        let mut connection = self.clone();
        async move { connection.req_packed_command(command).await?.extract_error() }.boxed()
    }
}

/// Why a call got no answer, and on which connection.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: RedisError,
    /// Whether there was a connection to send it on: the server may have got it.
    pub(crate) is_sent: bool,
    connection: u64,
}

impl Failed {
    /// There was no server to send it to.
    pub(crate) const fn unsent(error: RedisError) -> Self {
        Self { error, is_sent: false, connection: u64::MAX }
    }
}

impl Node {
    /// The server of a client.
    pub(crate) fn of(client: Client, response_timeout: Duration) -> Self {
        let place = crate::options::place(client.get_connection_info()).into();
        Self::new(place, Source::Client(Box::new(client)), response_timeout)
    }

    /// The server that sentinels name.
    pub(crate) fn behind(sentinels: Sentinels, response_timeout: Duration) -> Self {
        let place = sentinels.place.clone();
        Self::new(place, Source::Sentinels(Arc::new(sentinels)), response_timeout)
    }

    /// The server of a connection that the caller has.
    pub(crate) fn given<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let place = "the server of the given connection".into();
        Self::new(place, Source::Given(Box::new(connection)), Duration::ZERO)
    }

    fn new(place: Arc<str>, source: Source, response_timeout: Duration) -> Self {
        let (calls, waits) = Default::default();
        Self { place, source, response_timeout, calls, waits }
    }

    /// Whether connections can be made to it.
    pub(crate) fn can_connect(&self) -> bool {
        !matches!(self.source, Source::Given(_))
    }

    /// Whether another server takes over when this one fails.
    pub(crate) fn has_failover(&self) -> bool {
        matches!(self.source, Source::Sentinels(_))
    }

    /// Asks for a command once; with `asking` for a key that is on its way to this server.
    pub(crate) async fn call(&self, command: &Cmd, asking: bool) -> Result<Value, Failed> {
        if let Source::Given(wire) = &self.source {
            let failed = |error| Failed { error, is_sent: true, connection: 0 };
            return wire.call(command).await.map_err(failed);
        }
        if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            return match self.pipeline_on(&self.calls, self.response_timeout, &both).await?.pop() {
                Some(answer) => answer.extract_error().map_err(|error| Failed {
                    error,
                    is_sent: true,
                    connection: u64::MAX,
                }),
                None => Ok(Value::Nil),
            };
        }
        let (connection, number) = self.connection(&self.calls, self.response_timeout).await?;
        let failed = |error| Failed { error, is_sent: true, connection: number };
        connection.call(command).await.map_err(failed)
    }

    /// Asks for several commands at once, the last of which may take `longer` than usual. They keep
    /// nobody else waiting. Errors of one command are among the answers.
    pub(crate) async fn wait_for(
        &self,
        commands: &Pipeline,
        longer: Duration,
    ) -> Result<Vec<Value>, Failed> {
        self.pipeline_on(&self.waits, self.response_timeout + longer, commands).await
    }

    async fn pipeline_on(
        &self,
        shared: &SharedConnection,
        timeout: Duration,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, Failed> {
        let (mut connection, number) = self.connection(shared, timeout).await?;
        let answers = connection.req_packed_commands(commands, 0, commands.len()).await;
        answers.map_err(|error| Failed { error, is_sent: true, connection: number })
    }

    async fn connection(
        &self,
        shared: &SharedConnection,
        timeout: Duration,
    ) -> Result<(MultiplexedConnection, u64), Failed> {
        let Current { number, connection } = shared.get(|| self.connect(timeout));
        match connection.await {
            Ok(connection) => Ok((connection, number)),
            Err(error) => {
                // An attempt that failed is nobody's connection.
                shared.discard(number);
                Err(Failed { error, is_sent: false, connection: number })
            }
        }
    }

    fn connect(&self, timeout: Duration) -> BoxFuture<'static, RedisResult<MultiplexedConnection>> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(timeout));
        let (client, place) = (self.client(), self.place.clone());
        async move {
            let client = client.await?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            refuse_old_server(&connection).await?;
            tracing::debug!(%place, "connected");
            Ok(connection)
        }
        .boxed()
    }

    /// A connection that hears what is published and hands it to `push`.
    pub(crate) async fn listen(
        &self,
        push: impl AsyncPushSender,
    ) -> RedisResult<MultiplexedConnection> {
        let client = self.client().await?;
        let server = client.get_connection_info();
        let settings = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // With the certificates that the client has already.
        let client = Client::open(server.clone().set_redis_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.response_timeout))
            .set_push_sender(push);
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn client(&self) -> BoxFuture<'static, RedisResult<Client>> {
        match &self.source {
            Source::Client(client) => std::future::ready(Ok((**client).clone())).boxed(),
            Source::Sentinels(sentinels) => {
                let sentinels = sentinels.clone();
                async move { sentinels.primary().await }.boxed()
            }
            Source::Given(_) => {
                let error = (ErrorKind::InvalidClientConfig, "no connection can be made");
                std::future::ready(Err(error.into())).boxed()
            }
        }
    }

    /// Has a new connection made for the next call, unless somebody did so since.
    pub(crate) fn discard(&self, failed: &Failed) {
        self.calls.discard(failed.connection);
    }

    /// Has a new connection made for the next [`wait_for`](Self::wait_for).
    pub(crate) fn stop_waiting(&self) {
        *self.waits.lock() = None;
    }

    /// Lets go of the connections.
    pub(crate) fn disconnect(&self) {
        *self.calls.lock() = None;
        self.stop_waiting();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.place).finish()
    }
}

/// A connection, or the attempt to make one, that all share.
#[derive(Default)]
struct SharedConnection {
    current: Mutex<Option<Current>>,
}

/// A connection that may still be in the making.
#[derive(Clone)]
struct Current {
    number: u64,
    connection: Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>,
}

/// How many connections there have been: each has a number of its own.
static CONNECTIONS: AtomicU64 = AtomicU64::new(1);

impl SharedConnection {
    /// The connection; one is begun where there is none.
    fn get(
        &self,
        connect: impl FnOnce() -> BoxFuture<'static, RedisResult<MultiplexedConnection>>,
    ) -> Current {
        let begin = || Current {
            number: CONNECTIONS.fetch_add(1, Ordering::Relaxed),
            connection: connect().shared(),
        };
        self.lock().get_or_insert_with(begin).clone()
    }

    fn discard(&self, number: u64) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.number == number) {
            *current = None;
        }
    }

    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fails on a server that lacks commands which the scripts need.
async fn refuse_old_server(connection: &MultiplexedConnection) -> RedisResult<()> {
    let info = match connection.call(redis::cmd("INFO").arg("server")).await {
        Ok(info) => info,
        // It may not be for us to ask.
        Err(error) if error.code() == Some("NOPERM") => return Ok(()),
        Err(error) => return Err(error),
    };
    let info: String = redis::from_redis_value(info)?;
    let Some(version) = field(&info, "redis_version") else { return Ok(()) };
    if is_too_old(version) {
        let detail = format!("it is Redis {version}, and Pillarbox needs 6.2 or later, or Valkey");
        return Err((ErrorKind::InvalidClientConfig, "too old", detail).into());
    }
    Ok(())
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 2)
}

/// A field of the text that INFO answers.
pub(crate) fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_told_from_new_ones() {
        for old in ["2.8.24", "5.0.14", "6.0.16", "6.1.240"] {
            assert!(is_too_old(old), "{old}");
        }
        for new in ["6.2.0", "6.2.14", "7.0.15", "7.2.4", "8.0", "10.0.1"] {
            assert!(!is_too_old(new), "{new}");
        }
    }

    #[test]
    fn fields_of_info_are_found() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(field(info, "redis"), None);
    }
}
