//! Calls to the servers, each retried until it is answered, fails permanently or runs out of time.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::Gate;
use pillarbox_core::internal::{RetryDelay, lock};
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::failure::{Failure, Recovery, Result, classify};
use crate::options::Settings;
use crate::reply::{Reply, ReplyReader};
use crate::script_call::ScriptCall;
use crate::servers::{Node, Route, Servers, TryError};

/// Number of redirections that are followed without a delay. Two servers that redirect to each other have
/// not agreed yet.
const MAX_REDIRECTIONS: u32 = 5;

/// Time that a call must have failed for before a warning. A failover takes longer, a broken connection does
/// not.
const WARN_AFTER: Duration = Duration::from_secs(1);
/// Minimum interval between two warnings, however many calls fail.
const WARN_INTERVAL: Duration = Duration::from_secs(10);

/// Client of the servers, shared by everything that a backend does.
pub(crate) struct RetryingClient {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    last_warning: Mutex<Option<Instant>>,
}

/// The form of one try of a call.
#[derive(Debug, Clone, Copy)]
struct Try {
    /// Whether the text of the script is sent, because the server does not know its hash.
    with_script: bool,
    /// Whether an earlier try got no answer and may still be on its way to the server.
    again: bool,
}

/// The server to which another one has redirected a call, and whether for this call only, because the key is
/// being moved there.
type Redirection = (Arc<Node>, bool);

impl RetryingClient {
    pub(crate) fn new(servers: Servers, settings: Settings) -> Self {
        Self { servers, settings, last_warning: Mutex::new(None) }
    }

    /// Returns the URL of the servers, without secrets.
    pub(crate) fn endpoint(&self) -> &Arc<str> {
        self.servers.endpoint()
    }

    /// Runs a script, by its hash if the server knows it.
    pub(crate) async fn run(
        &self,
        gate: &Gate,
        route: Route<'_>,
        call: ScriptCall<'_, impl Fn(&mut Cmd)>,
    ) -> Result<Reply> {
        let command = |Try { with_script, again }| call.command(with_script, again);
        let value = self.retry(gate, route, call.follows_unanswered(), command).await?;
        Ok(Reply::new(value, self.endpoint()))
    }

    /// Runs a command, which must be idempotent.
    pub(crate) async fn query(
        &self,
        gate: &Gate,
        route: Route<'_>,
        command: &Cmd,
    ) -> Result<ReplyReader> {
        let value = self.retry(gate, route, false, |_| command.clone()).await?;
        Ok(Reply::new(value, self.endpoint()).into_flat_reader())
    }

    /// Runs a command at one server, without retries.
    pub(crate) async fn query_once(&self, node: &Arc<Node>, command: &Cmd) -> Result<ReplyReader> {
        let value = self.call_once(Route::To(node), None, command).await;
        let value = value.map_err(|(endpoint, failed)| Failure::server(&endpoint, failed.error))?;
        Ok(Reply::new(value, &node.endpoint).into_flat_reader())
    }

    /// Retries until a server answers; of a cluster, any.
    pub(crate) async fn reach(&self, gate: &Gate) -> Result<()> {
        let cluster = match &self.servers {
            Servers::One(node) => {
                return self.query(gate, Route::To(node), &redis::cmd("PING")).await.map(drop);
            }
            Servers::Cluster(cluster) => cluster,
        };
        let begin = Instant::now();
        let end = begin + self.settings.retry_for;
        let mut delay = retry_delay();
        loop {
            // A slot without a server does not make the others unusable.
            let Err(error) = cluster.refresh().await else { return Ok(()) };
            let delay = delay.next_delay();
            if classify(&error) == Recovery::GiveUp {
                return Err(Failure::server(self.endpoint(), error));
            }
            if Instant::now() + delay > end {
                return Err(Failure::server(self.endpoint(), error).after(self.settings.retry_for));
            }
            self.warn(begin, self.endpoint(), &error);
            tokio::time::sleep(delay).await;
        }
    }

    /// Returns all servers that have keys.
    pub(crate) async fn all_servers(&self) -> Result<Vec<Arc<Node>>> {
        self.servers.all().await.map_err(|error| Failure::server(self.endpoint(), error))
    }

    /// Retries until there is an answer, a permanent error, or no time left.
    ///
    /// A call whose answer was lost is made again: every script is idempotent.
    async fn retry(
        &self,
        gate: &Gate,
        route: Route<'_>,
        again: bool,
        command: impl Fn(Try) -> Cmd,
    ) -> Result<Value> {
        let begin = Instant::now();
        let end = begin + self.settings.retry_for;
        let mut delay = retry_delay();
        let mut current = Try { with_script: false, again };
        let (mut redirection, mut redirections) = (None, 0);
        let mut effect_unknown = false;
        let failure = |endpoint: &Arc<str>, error, effect_unknown| {
            Failure::server(endpoint, error).with_effect_unknown(effect_unknown)
        };
        loop {
            let called = self.call_once(route, redirection.take(), &command(current)).await;
            let (endpoint, TryError { error, is_sent, .. }) = match called {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            match classify(&error) {
                Recovery::SendScript if !current.with_script => {
                    current.with_script = true;
                    continue;
                }
                Recovery::Redirect { permanent } => {
                    match self.servers.redirected(&error, permanent) {
                        Some(node) => {
                            redirections += 1;
                            if redirections % MAX_REDIRECTIONS != 0 {
                                redirection = Some((node, !permanent));
                                continue;
                            }
                        }
                        // It names no server that can be called; another may.
                        None if matches!(self.servers, Servers::Cluster(_)) => {}
                        None => return Err(failure(&endpoint, error, effect_unknown)),
                    }
                }
                Recovery::SendScript | Recovery::Wait => {}
                Recovery::Reconnect => {
                    current.again = true;
                    effect_unknown |= is_sent;
                }
                Recovery::GiveUp => return Err(failure(&endpoint, error, effect_unknown)),
            }
            let delay = delay.next_delay();
            if Instant::now() + delay > end {
                let failure = failure(&endpoint, error, effect_unknown);
                return Err(failure.after(self.settings.retry_for));
            }
            tracing::debug!(%endpoint, %error, ?delay, "a call failed and is retried");
            self.warn(begin, &endpoint, &error);
            tokio::select! {
                biased;
                () = gate.closed() => return Err(Failure::Closed),
                () = async {
                    tokio::time::sleep(delay).await;
                    self.servers.refresh().await;
                } => {}
            }
        }
    }

    /// Warns of a call that has failed for some time, unless there was a warning recently.
    fn warn(&self, begin: Instant, endpoint: &str, error: &RedisError) {
        let now = Instant::now();
        if now < begin + WARN_AFTER {
            return;
        }
        let is_due = {
            let mut last = lock(&self.last_warning);
            let is_due = last.is_none_or(|last| now >= last + WARN_INTERVAL);
            if is_due {
                *last = Some(now);
            }
            is_due
        };
        if is_due {
            let retry_for = self.settings.retry_for;
            tracing::warn!(%endpoint, %error, "a call fails; it is retried for {retry_for:?} in all");
        }
    }

    /// Makes one try of a call. An error comes with the server at which it failed.
    async fn call_once(
        &self,
        route: Route<'_>,
        redirection: Option<Redirection>,
        command: &Cmd,
    ) -> Result<Value, (Arc<str>, TryError)> {
        let (node, asking) = match redirection {
            Some(redirection) => redirection,
            None => {
                let node = self.servers.node(route).await;
                (node.map_err(|error| (self.endpoint().clone(), TryError::unsent(error)))?, false)
            }
        };
        node.call(command, asking).await.map_err(|failed| {
            if classify(&failed.error) == Recovery::Reconnect {
                node.discard(&failed);
            }
            (node.endpoint.clone(), failed)
        })
    }
}

impl fmt::Debug for RetryingClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryingClient")
            .field("endpoint", self.endpoint())
            .field("settings", &self.settings)
            .finish()
    }
}

/// Returns the delays between the tries of a call.
pub(crate) const fn retry_delay() -> RetryDelay {
    RetryDelay::new(Duration::from_millis(5), Duration::from_secs(1)).with_jitter(0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_second() {
        let mut delay = retry_delay();
        let all: Vec<_> = (0..20).map(|_| delay.next_delay()).collect();
        assert!(all[0] <= Duration::from_millis(5) && all[19] >= Duration::from_millis(500));
        assert!(all.iter().all(|delay| *delay <= Duration::from_secs(1)), "{all:?}");
    }
}
