//! The connection to a server: made when needed, shared by all, made anew when it breaks.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use pillarbox_core::Gate;
use rand::RngExt;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, ErrorKind, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::failure::{Failure, Verdict, judge};
use crate::options::Usage;
use crate::scripts::Script;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The way to a server, shared by everything that a backend does.
pub(crate) struct Link {
    /// Where the server is, for people.
    pub(crate) place: Arc<str>,
    pub(crate) usage: Usage,
    source: Source,
    /// The connection, or the attempt to make one, that all share.
    current: Mutex<Option<Current>>,
    made: AtomicU64,
}

/// Where connections come from.
enum Source {
    /// We make them.
    Client(Box<Client>),
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

/// How a call is made.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// With the text of the script, which the server does not know.
    whole: bool,
    /// After one that got no answer, and may still be on its way to the server.
    again: bool,
}

/// A connection that may still be in the making.
#[derive(Clone)]
struct Current {
    number: u64,
    connection: Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>>,
}

impl Link {
    /// A way to the server of a client.
    pub(crate) fn to(client: Client, usage: Usage) -> Self {
        let place = crate::options::place(client.get_connection_info()).into();
        Self::new(place, usage, Source::Client(Box::new(client)))
    }

    /// A way by a connection that the caller has.
    pub(crate) fn by<C>(connection: C, usage: Usage) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let place = "the server of the given connection".into();
        Self::new(place, usage, Source::Given(Box::new(connection)))
    }

    fn new(place: Arc<str>, usage: Usage, source: Source) -> Self {
        Self { place, usage, source, current: Mutex::default(), made: AtomicU64::new(0) }
    }

    /// The client, unless the caller gave only a connection.
    pub(crate) fn client(&self) -> Option<&Client> {
        match &self.source {
            Source::Client(client) => Some(client),
            Source::Given(_) => None,
        }
    }

    /// Runs a script, by its hash if the server knows it. `arguments` adds keys and arguments, and is
    /// told whether the call may have been made before; `again` says so from the first time on.
    pub(crate) async fn run(
        &self,
        gate: &Gate,
        script: &Script,
        again: bool,
        arguments: impl Fn(&mut Cmd, bool),
    ) -> Result<Value, Failure> {
        self.persist(gate, again, |Attempt { whole, again }| {
            let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
            command.arg(if whole { &script.code } else { &script.hash });
            arguments(&mut command, again);
            command
        })
        .await
    }

    /// Runs a command.
    pub(crate) async fn call(&self, gate: &Gate, command: &Cmd) -> Result<Value, Failure> {
        self.persist(gate, false, |_| command.clone()).await
    }

    /// Tries until there is an answer, an error that stays, or no time left.
    ///
    /// A call whose answer was lost is made again: every script may run twice.
    async fn persist(
        &self,
        gate: &Gate,
        again: bool,
        command: impl Fn(Attempt) -> Cmd,
    ) -> Result<Value, Failure> {
        let end = Instant::now() + self.usage.retry_for;
        let mut pauses = Pauses::new();
        let mut attempt = Attempt { whole: false, again };
        loop {
            let (number, error) = match self.call_once(&command(attempt)).await {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            match judge(&error) {
                Verdict::SendScript if !attempt.whole => {
                    attempt.whole = true;
                    continue;
                }
                Verdict::SendScript | Verdict::Wait => {}
                Verdict::Reconnect => {
                    attempt.again = true;
                    self.discard(number);
                }
                Verdict::GiveUp => return Err(Failure::server(&self.place, error)),
            }
            let pause = pauses.next();
            if Instant::now() + pause > end {
                return Err(Failure::server(&self.place, error).after(self.usage.retry_for));
            }
            tracing::debug!(place = %self.place, %error, ?pause, "a call failed and is made again");
            tokio::select! {
                biased;
                () = gate.closed() => return Err(Failure::Closed),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn call_once(&self, command: &Cmd) -> Result<Value, (u64, RedisError)> {
        match &self.source {
            Source::Given(wire) => wire.call(command).await.map_err(|error| (0, error)),
            Source::Client(client) => {
                let Current { number, connection } = self.current(client);
                let connection = match connection.await {
                    Ok(connection) => connection,
                    Err(error) => {
                        // An attempt that failed is nobody's connection.
                        self.discard(number);
                        return Err((number, error));
                    }
                };
                connection.call(command).await.map_err(|error| (number, error))
            }
        }
    }

    /// The connection that all share; one is begun where there is none.
    fn current(&self, client: &Client) -> Current {
        let begin = || Current {
            number: self.made.fetch_add(1, Ordering::Relaxed),
            connection: self.connect(client.clone()),
        };
        self.lock().get_or_insert_with(begin).clone()
    }

    fn connect(
        &self,
        client: Client,
    ) -> Shared<BoxFuture<'static, RedisResult<MultiplexedConnection>>> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(self.usage.response_timeout));
        let place = self.place.clone();
        async move {
            let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            refuse_old_server(&connection).await?;
            tracing::debug!(%place, "connected");
            Ok(connection)
        }
        .boxed()
        .shared()
    }

    /// Has a new connection made for the next call, unless somebody did so before.
    fn discard(&self, number: u64) {
        let mut current = self.lock();
        if current.as_ref().is_some_and(|current| current.number == number) {
            *current = None;
        }
    }

    /// Lets go of the connection.
    pub(crate) fn disconnect(&self) {
        *self.lock() = None;
    }

    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, Option<Current>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("place", &self.place).field("usage", &self.usage).finish()
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

/// Growing pauses between attempts, of random length so that many do not come back at once.
#[derive(Debug)]
pub(crate) struct Pauses {
    next: Duration,
}

impl Pauses {
    const FIRST: Duration = Duration::from_millis(5);
    const LONGEST: Duration = Duration::from_secs(1);

    pub(crate) const fn new() -> Self {
        Self { next: Self::FIRST }
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.next.mul_f64(rand::rng().random_range(0.5..1.0));
        self.next = (self.next * 2).min(Self::LONGEST);
        pause
    }
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
    fn pauses_grow_up_to_a_second() {
        let mut pauses = Pauses::new();
        let all: Vec<_> = (0..20).map(|_| pauses.next()).collect();
        assert!(all[0] <= Duration::from_millis(5) && all[19] >= Duration::from_millis(500));
        assert!(all.iter().all(|pause| *pause <= Duration::from_secs(1)), "{all:?}");
    }

    #[test]
    fn fields_of_info_are_found() {
        let info = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n";
        assert_eq!(field(info, "redis_version"), Some("7.0.15"));
        assert_eq!(field(info, "redis"), None);
    }
}
