//! Asking sentinels which server is the primary.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, Value};

use super::Maker;
use super::node::CONNECT_TIMEOUT;

/// How long a sentinel may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Sentinels, and the service that they watch for us.
#[derive(Debug)]
pub(crate) struct Sentinels {
    /// Where they are, for people.
    pub(crate) place: Arc<str>,
    /// Where each of them is.
    pub(crate) addresses: Vec<(String, u16)>,
    /// Makes connections to them.
    pub(crate) sentinels: Maker,
    /// The name of the primary and its replicas, as sentinels know it.
    pub(crate) service: String,
    /// Makes connections to the primary.
    pub(crate) servers: Maker,
}

/// What one sentinel says of the primary.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Primary {
    /// Of two that sentinels name, the one with the higher epoch was chosen later.
    epoch: u64,
    /// It has been promoted, and not all know it yet. Of the same epoch, it is the later one.
    is_promoted: bool,
    host: String,
    port: u16,
}

impl Sentinels {
    /// A client of the server that is the primary at present.
    ///
    /// The majority of the sentinels is heard, as far as they answer: one that was cut off from the
    /// others may still name a server that has been replaced.
    pub(crate) async fn primary(&self) -> RedisResult<Client> {
        let needed = self.addresses.len() / 2 + 1;
        let mut asked: FuturesUnordered<_> =
            self.addresses.iter().map(|(host, port)| self.ask(host, *port)).collect();
        let (mut named, mut problem) = (Vec::new(), None);
        while let Some(answer) = asked.next().await {
            match answer {
                Ok(primary) => named.push(primary),
                Err(error) => problem = Some(error),
            }
            if named.len() >= needed {
                break;
            }
        }
        let Some(primary) = named.into_iter().max_by_key(Primary::order) else {
            return Err(problem.unwrap_or_else(|| late("no sentinel is named")));
        };
        let client = self.servers.client(&primary.host, primary.port)?;
        refuse_replica(&client).await?;
        tracing::debug!(service = self.service, host = primary.host, primary.port, "the primary");
        Ok(client)
    }

    async fn ask(&self, host: &str, port: u16) -> RedisResult<Primary> {
        let ask = async {
            let client = self.sentinels.client(host, port)?;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(PATIENCE))
                .set_response_timeout(Some(PATIENCE));
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut both = redis::pipe();
            both.cmd("SENTINEL").arg("MASTER").arg(&self.service);
            both.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&self.service);
            // Each answer by itself: an error of one of several does not tell what it is.
            let mut answers = connection.req_packed_commands(&both, 0, 2).await?.into_iter();
            let mut answer = || answers.next().unwrap_or(Value::Nil).extract_error();
            Primary::read(answer()?, answer()?)
        };
        let answer = tokio::time::timeout(PATIENCE, ask).await;
        answer.unwrap_or_else(|_| Err(late("a sentinel does not answer"))).map_err(|error| {
            tracing::debug!(host, port, %error, "a sentinel cannot be asked");
            let wrong = |detail: String| {
                RedisError::from((ErrorKind::InvalidClientConfig, "sentinels", detail))
            };
            match (error.code(), error.detail()) {
                (_, Some(detail)) if detail.contains("No such master") => {
                    wrong(format!("the sentinels know no service {:?}", self.service))
                }
                (Some("NOAUTH" | "WRONGPASS" | "NOPERM"), _) => wrong(
                    "the sentinels want a user or password of their own: sentinel_user=U, \
                     sentinel_password=P"
                        .to_owned(),
                ),
                _ => error,
            }
        })
    }
}

impl Primary {
    /// Reads what a sentinel tells about the service, names and values; and what it tells clients, host
    /// and port, which is the first to change.
    fn read(about: Value, named: Value) -> RedisResult<Self> {
        let about: HashMap<String, String> = redis::from_redis_value(about)?;
        let named: Vec<String> = redis::from_redis_value(named)?;
        let known = |name: &str| about.get(name).map(String::as_str).unwrap_or_default();
        let nobody = || late("a sentinel names no primary");
        let [host, port] = <[String; 2]>::try_from(named).map_err(|_| nobody())?;
        let is_promoted = (known("ip"), known("port")) != (&host, &port);
        let port = port.parse().ok().filter(|port| *port > 0);
        match (host.as_str(), port) {
            ("", _) | (_, None) => Err(nobody()),
            (_, Some(port)) => {
                let epoch = known("config-epoch").parse().unwrap_or(0);
                Ok(Self { epoch, is_promoted, host, port })
            }
        }
    }

    /// Which of two was chosen later.
    fn order(&self) -> (u64, bool) {
        (self.epoch, self.is_promoted)
    }
}

/// The primary that a sentinel names, for the fuzzer.
#[cfg(feature = "fuzzing")]
pub(crate) fn named(about: Value, named: Value) -> RedisResult<(String, u16)> {
    Primary::read(about, named).map(|Primary { host, port, .. }| (host, port))
}

/// Fails on a server that is not a primary, or not yet.
async fn refuse_replica(client: &Client) -> RedisResult<()> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(Some(CONNECT_TIMEOUT));
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let role: RedisResult<Vec<Value>> = redis::cmd("ROLE").query_async(&mut connection).await;
    match role {
        Ok(role) => match role.into_iter().next() {
            Some(Value::BulkString(role)) if role != b"master" => {
                Err(late("the server that sentinels name is not a primary yet"))
            }
            _ => Ok(()),
        },
        // It may not be for us to ask. If it is a replica, the first write says so.
        Err(error) if error.code() == Some("NOPERM") => Ok(()),
        Err(error) => Err(error),
    }
}

/// An error that is worth another attempt.
fn late(what: &'static str) -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, what).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(words: &[&str]) -> Value {
        Value::Array(words.iter().map(|word| Value::BulkString((*word).into())).collect())
    }

    #[test]
    fn a_sentinel_names_the_primary_and_when_it_was_chosen() {
        let about =
            list(&["name", "s", "ip", "10.0.0.7", "port", "6380", "config-epoch", "4", "x", "y"]);
        let read = |host, port| Primary::read(about.clone(), list(&[host, port]));
        let settled = read("10.0.0.7", "6380").unwrap();
        let promoted = read("10.0.0.8", "6380").unwrap();
        assert_eq!((settled.epoch, &*settled.host, settled.port), (4, "10.0.0.7", 6380));
        assert!(promoted.order() > settled.order());
        for wrong in [list(&[]), list(&["h"]), list(&["", "1"]), list(&["h", "0"]), Value::Int(3)] {
            assert!(Primary::read(about.clone(), wrong.clone()).is_err(), "{wrong:?}");
        }
        assert!(read("h", "70000").is_err());
    }
}
