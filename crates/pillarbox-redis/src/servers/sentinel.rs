//! Finding the primary by querying sentinels.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, Value};

use super::client_factory::{CONNECT_TIMEOUT, ClientFactory};

/// Time within which a sentinel must answer.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Sentinels, and the service that they monitor.
pub(super) struct Sentinels {
    /// URL of the service, without secrets.
    pub(super) endpoint: Arc<str>,
    /// Hosts of the sentinels.
    pub(super) hosts: Vec<(String, u16)>,
    /// Clients of the sentinels.
    pub(super) sentinels: ClientFactory,
    /// Name by which the sentinels know the primary and its replicas.
    pub(super) service: String,
    /// Clients of the servers.
    pub(super) servers: ClientFactory,
}

/// The primary as one sentinel names it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Primary {
    /// Of two primaries, the one with the higher epoch was elected later.
    epoch: u64,
    /// Whether it was promoted in this epoch and not all know it yet. Then it is the later one.
    is_promoted: bool,
    host: String,
    port: u16,
}

impl Sentinels {
    /// Returns a client of the current primary.
    ///
    /// Waits for a majority of the sentinels, as far as they answer: one that was cut off from the others may
    /// still name a server that has been replaced.
    pub(super) async fn primary(&self) -> RedisResult<Client> {
        let needed = self.hosts.len() / 2 + 1;
        let mut queries: FuturesUnordered<_> =
            self.hosts.iter().map(|(host, port)| self.query(host, *port)).collect();
        let (mut named, mut last_error) = (Vec::new(), None);
        while let Some(answer) = queries.next().await {
            match answer {
                Ok(primary) => named.push(primary),
                Err(error) => last_error = Some(error),
            }
            if named.len() >= needed {
                break;
            }
        }
        let Some(primary) = named.into_iter().max_by_key(Primary::rank) else {
            return Err(last_error.unwrap_or_else(|| transient("no sentinel is named")));
        };
        let client = self.servers.client(&primary.host, primary.port)?;
        refuse_replica(&client).await?;
        tracing::debug!(
            service = self.service,
            host = primary.host,
            primary.port,
            "found the primary"
        );
        Ok(client)
    }

    async fn query(&self, host: &str, port: u16) -> RedisResult<Primary> {
        let query = async {
            let client = self.sentinels.client(host, port)?;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(TIMEOUT))
                .set_response_timeout(Some(TIMEOUT));
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut both = redis::pipe();
            both.cmd("SENTINEL").arg("MASTER").arg(&self.service);
            both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
            // Each answer by itself: the error of a pipeline does not keep the code.
            let mut answers = connection.req_packed_commands(&both, 0, 2).await?.into_iter();
            let mut answer = || answers.next().unwrap_or(Value::Nil).extract_error();
            Primary::read(answer()?, answer()?)
        };
        let answer = tokio::time::timeout(TIMEOUT, query).await;
        answer.unwrap_or_else(|_| Err(transient("a sentinel does not answer"))).map_err(|error| {
            tracing::debug!(host, port, %error, "a sentinel cannot be queried");
            let wrong = |detail: String| {
                RedisError::from((ErrorKind::InvalidClientConfig, "sentinels", detail))
            };
            match (error.code(), error.detail()) {
                (_, Some(detail)) if detail.contains("No such master") => {
                    wrong(format!("the sentinels know no service {:?}", self.service))
                }
                (Some("NOAUTH" | "WRONGPASS" | "NOPERM"), _) => wrong(
                    "the sentinels require a user or password of their own: sentinel_user=U, \
                     sentinel_password=P"
                        .to_owned(),
                ),
                _ => error,
            }
        })
    }
}

impl Primary {
    /// Reads what a sentinel says of the service, names and values; and the host and port that it names to
    /// clients, which change first.
    fn read(about: Value, named: Value) -> RedisResult<Self> {
        let about: HashMap<String, String> = redis::from_redis_value(about)?;
        let named: Vec<String> = redis::from_redis_value(named)?;
        let known = |name: &str| about.get(name).map(String::as_str).unwrap_or_default();
        let no_primary = || transient("a sentinel names no primary");
        let [host, port] = <[String; 2]>::try_from(named).map_err(|_| no_primary())?;
        let is_promoted = (known("ip"), known("port")) != (&host, &port);
        let port = port.parse().ok().filter(|port| *port > 0);
        match (host.as_str(), port) {
            ("", _) | (_, None) => Err(no_primary()),
            (_, Some(port)) => {
                let epoch = known("config-epoch").parse().unwrap_or(0);
                Ok(Self { epoch, is_promoted, host, port })
            }
        }
    }

    /// Returns a rank by which the primary elected last is the highest.
    fn rank(&self) -> (u64, bool) {
        (self.epoch, self.is_promoted)
    }
}

/// Parses the primary that a sentinel names, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn parse_primary(about: Value, named: Value) -> RedisResult<(String, u16)> {
    Primary::read(about, named).map(|Primary { host, port, .. }| (host, port))
}

/// Fails on a server that is not a primary, or not one yet.
async fn refuse_replica(client: &Client) -> RedisResult<()> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(CONNECT_TIMEOUT));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let role: RedisResult<Vec<Value>> = redis::cmd("ROLE").query_async(&mut connection).await;
    match role {
        Ok(role) => match role.into_iter().next() {
            Some(Value::BulkString(role)) if role != b"master" => {
                Err(transient("the server that sentinels name is not a primary yet"))
            }
            _ => Ok(()),
        },
        // The user may not ask. A replica refuses the first write.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns an error after which the call is retried.
fn transient(what: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString((*word).into())).collect())
    }

    #[test]
    fn a_sentinel_names_the_primary_and_when_it_was_elected() {
        let about =
            list(&["name", "s", "ip", "10.0.0.7", "port", "6380", "config-epoch", "4", "x", "y"]);
        let read = |host, port| Primary::read(about.clone(), list(&[host, port]));
        let settled = read("10.0.0.7", "6380").unwrap();
        let promoted = read("10.0.0.8", "6380").unwrap();
        assert_eq!((settled.epoch, &*settled.host, settled.port), (4, "10.0.0.7", 6380));
        assert!(promoted.rank() > settled.rank());
        for wrong in [list(&[]), list(&["h"]), list(&["", "1"]), list(&["h", "0"]), Value::Int(3)] {
            assert!(Primary::read(about.clone(), wrong.clone()).is_err(), "{wrong:?}");
        }
        assert!(read("h", "70000").is_err());
    }
}
