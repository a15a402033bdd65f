//! One server and its connections: made when needed, shared by all, replaced when they break.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use pillarbox_core::internal::lock;
use redis::aio::{AsyncPushSender, ConnectionLike, MultiplexedConnection};
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, ProtocolVersion, RedisError,
    RedisResult, Value,
};

use super::client_factory::CONNECT_TIMEOUT;
use super::sentinel::Sentinels;
use crate::options;

/// One server and its connections.
pub(crate) struct Node {
    /// URL of the server, without secrets.
    pub(crate) endpoint: Arc<str>,
    source: Source,
    response_timeout: Duration,
    /// Connection for calls that are answered at once.
    calls: SharedConnection,
    /// Connection for calls that block it.
    blocking: SharedConnection,
}

/// Source of connections.
enum Source {
    /// They are made to this server.
    Client(Box<Client>),
    /// They are made to the server that the sentinels name.
    Sentinels(Arc<Sentinels>),
    /// The program gave one, which may reconnect by itself.
    Given(Box<dyn Connection>),
}

/// A connection of any type.
trait Connection: Send + Sync {
    fn call<'a>(&'a self, command: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>>;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connection for C {
    fn call<'a>(&'a self, command: &'a Cmd) -> BoxFuture<'a, RedisResult<Value>> {
        let mut connection = self.clone();
        async move { connection.req_packed_command(command).await?.extract_error() }.boxed()
    }
}

/// Error of one try of a call.
#[derive(Debug)]
pub(crate) struct TryError {
    pub(crate) error: RedisError,
    /// Whether there was a connection: the server may have received the call.
    pub(crate) is_sent: bool,
    /// Number of the connection.
    connection: u64,
}

impl TryError {
    /// Creates the error of a call for which there was no server.
    pub(crate) const fn unsent(error: RedisError) -> Self {
        Self { error, is_sent: false, connection: u64::MAX }
    }
}

impl Node {
    /// Creates the server of a client.
    pub(crate) fn new(client: Client, response_timeout: Duration) -> Self {
        let endpoint = options::endpoint(client.get_connection_info()).into();
        Self::from_source(endpoint, Source::Client(Box::new(client)), response_timeout)
    }

    /// Creates the server that sentinels name.
    pub(super) fn behind(sentinels: Sentinels, response_timeout: Duration) -> Self {
        let endpoint = sentinels.endpoint.clone();
        Self::from_source(endpoint, Source::Sentinels(Arc::new(sentinels)), response_timeout)
    }

    /// Creates the server of a connection that the program has.
    pub(crate) fn given<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let endpoint = "the server of the given connection".into();
        Self::from_source(endpoint, Source::Given(Box::new(connection)), Duration::ZERO)
    }

    fn from_source(endpoint: Arc<str>, source: Source, response_timeout: Duration) -> Self {
        let (calls, blocking) = Default::default();
        Self { endpoint, source, response_timeout, calls, blocking }
    }

    /// Returns whether connections can be made to it.
    pub(crate) fn can_connect(&self) -> bool {
        !matches!(self.source, Source::Given(_))
    }

    /// Returns whether another server takes over when this one fails.
    pub(crate) fn has_failover(&self) -> bool {
        matches!(self.source, Source::Sentinels(_))
    }

    /// Runs a command. With `asking`, its keys are being moved to this server.
    pub(crate) async fn call(&self, command: &Cmd, asking: bool) -> Result<Value, TryError> {
        if let Source::Given(connection) = &self.source {
            let failed = |error| TryError { error, is_sent: true, connection: 0 };
            return connection.call(command).await.map_err(failed);
        }
        if asking {
            let mut both = redis::pipe();
            both.cmd("ASKING").add_command(command.clone());
            return match self.pipeline_on(&self.calls, self.response_timeout, &both).await?.pop() {
                Some(answer) => answer.extract_error().map_err(|error| TryError {
                    error,
                    is_sent: true,
                    connection: u64::MAX,
                }),
                None => Ok(Value::Nil),
            };
        }
        let (connection, number) = self.connection(&self.calls, self.response_timeout).await?;
        let failed = |error| TryError { error, is_sent: true, connection: number };
        connection.call(command).await.map_err(failed)
    }

    /// Runs several commands, the last of which may take `longer` than usual, on a connection of their own.
    /// Errors of one command are among the answers.
    pub(crate) async fn call_blocking(
        &self,
        commands: &Pipeline,
        longer: Duration,
    ) -> Result<Vec<Value>, TryError> {
        self.pipeline_on(&self.blocking, self.response_timeout + longer, commands).await
    }

    async fn pipeline_on(
        &self,
        shared: &SharedConnection,
        timeout: Duration,
        commands: &Pipeline,
    ) -> Result<Vec<Value>, TryError> {
        let (mut connection, number) = self.connection(shared, timeout).await?;
        let answers = connection.req_packed_commands(commands, 0, commands.len()).await;
        answers.map_err(|error| TryError { error, is_sent: true, connection: number })
    }

    async fn connection(
        &self,
        shared: &SharedConnection,
        timeout: Duration,
    ) -> Result<(MultiplexedConnection, u64), TryError> {
        let Current { number, connection } = shared.get(|| self.connect(timeout));
        match connection.await {
            Ok(connection) => Ok((connection, number)),
            Err(error) => {
                shared.discard(number);
                Err(TryError { error, is_sent: false, connection: number })
            }
        }
    }

    fn connect(&self, timeout: Duration) -> BoxFuture<'static, RedisResult<MultiplexedConnection>> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(timeout));
        let (client, endpoint) = (self.client(), self.endpoint.clone());
        async move {
            let client = client.await?;
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            refuse_old_server(&connection).await?;
            tracing::debug!(%endpoint, "connected");
            Ok(connection)
        }
        .boxed()
    }

    /// Makes a connection that passes what is published to `push`.
    pub(crate) async fn connect_with_pushes(
        &self,
        push: impl AsyncPushSender,
    ) -> RedisResult<MultiplexedConnection> {
        let client = self.client().await?;
        let server = client.get_connection_info();
        let settings = server.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // Reuses the certificates of the client.
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
                let error = (ErrorKind::InvalidClientConfig, "cannot make a connection");
                std::future::ready(Err(error.into())).boxed()
            }
        }
    }

    /// Closes the connection on which a call failed, unless it was replaced meanwhile.
    pub(crate) fn discard(&self, failed: &TryError) {
        self.calls.discard(failed.connection);
    }

    /// Closes the connection of [`call_blocking`](Self::call_blocking).
    pub(crate) fn discard_blocking(&self) {
        *lock(&self.blocking.current) = None;
    }

    /// Closes all connections.
    pub(crate) fn disconnect(&self) {
        *lock(&self.calls.current) = None;
        self.discard_blocking();
    }
}

/// A connection that all calls share.
#[derive(Default)]
struct SharedConnection {
    current: Mutex<Option<Current>>,
}

/// A connection, perhaps not established yet.
#[derive(Clone)]
struct Current {
    number: u64,
    connection: Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>,
}

/// Number of the next connection.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

impl SharedConnection {
    /// Returns the connection, and begins to make one if there is none.
    fn get(
        &self,
        connect: impl FnOnce() -> BoxFuture<'static, RedisResult<MultiplexedConnection>>,
    ) -> Current {
        let begin = || Current {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            connection: connect().shared(),
        };
        lock(&self.current).get_or_insert_with(begin).clone()
    }

    fn discard(&self, number: u64) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|current| current.number == number) {
            *current = None;
        }
    }
}

/// Fails on a server that lacks commands that the scripts need.
async fn refuse_old_server(connection: &MultiplexedConnection) -> RedisResult<()> {
    let info = match connection.call(redis::cmd("INFO").arg("server")).await {
        Ok(info) => info,
        // The user may not ask.
        Err(error) if error.code() == Some("NOPERM") => return Ok(()),
        Err(error) => return Err(error),
    };
    let info: String = redis::from_redis_value(info)?;
    let Some(version) = info_field(&info, "redis_version") else { return Ok(()) };
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

/// Returns a field of the answer of `INFO`.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_recognized() {
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
        assert_eq!(info_field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(info_field(info, "redis"), None);
    }
}
