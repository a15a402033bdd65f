//! Calls to the servers, each made again until it is answered or there is no hope.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pillarbox_core::Gate;
use rand::RngExt;
use redis::{Cmd, RedisError, Value};
use tokio::time::Instant;

use crate::failure::{Failure, Verdict, judge};
use crate::options::Usage;
use crate::reply::{Reply, Words};
use crate::scripts::Script;
use crate::servers::{Failed, Node, Route, Servers};

/// How often a call goes on at once to the server that another one names. Two that name each other have
/// not agreed yet.
const REDIRECTIONS: u32 = 5;

/// The room that a command begins with: a batch of ten small messages fits, and need not grow step by step.
const ARGUMENTS: usize = 48;
const BYTES: usize = 4096;

/// How long a call fails before that is worth a word. A failover takes longer, a connection that broke does not.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long nothing is said after that, however many calls fail.
const SAID_ONCE_IN: Duration = Duration::from_secs(10);

/// The way to the servers, shared by everything that a backend does.
pub(crate) struct Link {
    pub(crate) servers: Servers,
    pub(crate) usage: Usage,
    /// When it was last said that calls fail.
    said: Mutex<Option<Instant>>,
}

/// How a call is made.
#[derive(Debug, Clone, Copy)]
struct Attempt {
    /// With the text of the script, which the server does not know.
    whole: bool,
    /// After one that got no answer, and may still be on its way to the server.
    again: bool,
}

/// Where a server has sent us.
#[derive(Debug)]
struct Detour {
    node: Arc<Node>,
    /// Only for this call: the key is on its way there.
    asking: bool,
}

impl Link {
    pub(crate) fn new(servers: Servers, usage: Usage) -> Self {
        Self { servers, usage, said: Mutex::new(None) }
    }

    /// Where the servers are, for people.
    pub(crate) fn place(&self) -> &Arc<str> {
        self.servers.place()
    }

    /// Runs a script, by its hash if the server knows it. `arguments` adds keys and arguments, and is
    /// told whether the call may have been made before; `again` says so from the first time on.
    pub(crate) async fn run(
        &self,
        gate: &Gate,
        route: Route<'_>,
        script: &Script,
        again: bool,
        arguments: impl Fn(&mut Cmd, bool),
    ) -> Result<Reply, Failure> {
        let value = self.persist(gate, route, again, |Attempt { whole, again }| {
            let mut command = Cmd::with_capacity(ARGUMENTS, BYTES);
            command.arg(if whole { "EVAL" } else { "EVALSHA" });
            command.arg(if whole { &script.code } else { &script.hash });
            arguments(&mut command, again);
            command
        });
        Ok(Reply::new(value.await?, self.place()))
    }

    /// Runs a command and gives the words of its answer.
    pub(crate) async fn ask(
        &self,
        gate: &Gate,
        route: Route<'_>,
        command: &Cmd,
    ) -> Result<Words, Failure> {
        let value = self.persist(gate, route, false, |_| command.clone()).await?;
        Ok(Reply::new(value, self.place()).flat_words())
    }

    /// Asks one server for a command, once.
    pub(crate) async fn ask_once(&self, node: &Arc<Node>, command: &Cmd) -> Result<Words, Failure> {
        let value = self.call_once(Route::To(node), None, command).await;
        let value = value.map_err(|(place, failed)| Failure::server(&place, failed.error))?;
        Ok(Reply::new(value, &node.place).flat_words())
    }

    /// Tries until a server answers, of a cluster any one.
    pub(crate) async fn reach(&self, gate: &Gate) -> Result<(), Failure> {
        // A slot that nobody has keeps the cluster's others from nothing.
        let begin = Instant::now();
        let end = begin + self.usage.retry_for;
        let mut pauses = Pauses::new();
        loop {
            let reached = match &self.servers {
                Servers::One(node) => {
                    return self.ask(gate, Route::To(node), &redis::cmd("PING")).await.map(|_| ());
                }
                Servers::Cluster(cluster) => cluster.learn().await,
            };
            let Err(error) = reached else { return Ok(()) };
            let pause = pauses.next();
            if judge(&error) == Verdict::GiveUp {
                return Err(Failure::server(self.place(), error));
            }
            if Instant::now() + pause > end {
                return Err(Failure::server(self.place(), error).after(self.usage.retry_for));
            }
            self.say(begin, self.place(), &error);
            tokio::time::sleep(pause).await;
        }
    }

    /// All servers that have keys.
    pub(crate) async fn all_servers(&self) -> Result<Vec<Arc<Node>>, Failure> {
        self.servers.all().await.map_err(|error| Failure::server(self.place(), error))
    }

    /// Tries until there is an answer, an error that stays, or no time left.
    ///
    /// A call whose answer was lost is made again: every script may run twice.
    async fn persist(
        &self,
        gate: &Gate,
        route: Route<'_>,
        again: bool,
        command: impl Fn(Attempt) -> Cmd,
    ) -> Result<Value, Failure> {
        let begin = Instant::now();
        let end = begin + self.usage.retry_for;
        let mut pauses = Pauses::new();
        let mut attempt = Attempt { whole: false, again };
        let (mut detour, mut redirections) = (None, 0);
        let mut is_unsure = false;
        loop {
            let called = self.call_once(route, detour.take(), &command(attempt)).await;
            let (place, Failed { error, is_sent, .. }) = match called {
                Ok(value) => return Ok(value),
                Err(failed) => failed,
            };
            match judge(&error) {
                Verdict::SendScript if !attempt.whole => {
                    attempt.whole = true;
                    continue;
                }
                Verdict::GoTo { for_good } => match self.servers.redirected(&error, for_good) {
                    Some(node) => {
                        redirections += 1;
                        if redirections % REDIRECTIONS != 0 {
                            detour = Some(Detour { node, asking: !for_good });
                            continue;
                        }
                    }
                    // It names none that can be called: another may.
                    None if self.servers.is_cluster() => {}
                    None => return Err(Failure::server(&place, error).unsure(is_unsure)),
                },
                Verdict::SendScript | Verdict::Wait => {}
                Verdict::Reconnect => {
                    attempt.again = true;
                    is_unsure |= is_sent;
                }
                Verdict::GiveUp => return Err(Failure::server(&place, error).unsure(is_unsure)),
            }
            let pause = pauses.next();
            if Instant::now() + pause > end {
                let failure = Failure::server(&place, error).unsure(is_unsure);
                return Err(failure.after(self.usage.retry_for));
            }
            tracing::debug!(%place, %error, ?pause, "a call failed and is made again");
            self.say(begin, &place, &error);
            tokio::select! {
                biased;
                () = gate.closed() => return Err(Failure::Closed),
                () = async {
                    tokio::time::sleep(pause).await;
                    self.servers.look_around().await;
                } => {}
            }
        }
    }

    /// Warns of a call that has failed for some time and is made again, unless that was said lately.
    fn say(&self, begin: Instant, place: &str, error: &RedisError) {
        let now = Instant::now();
        if now < begin + PATIENCE {
            return;
        }
        let is_news = {
            let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
            let is_news = said.is_none_or(|said| now >= said + SAID_ONCE_IN);
            if is_news {
                *said = Some(now);
            }
            is_news
        };
        if is_news {
            let retry_for = self.usage.retry_for;
            tracing::warn!(%place, %error, "a call fails; it is made again for {retry_for:?} in all");
        }
    }

    /// Makes a call once. Where it fails, says at which server and why.
    async fn call_once(
        &self,
        route: Route<'_>,
        detour: Option<Detour>,
        command: &Cmd,
    ) -> Result<Value, (Arc<str>, Failed)> {
        let (node, asking) = match detour {
            Some(Detour { node, asking }) => (node, asking),
            None => {
                let node = self.servers.node(route).await;
                (node.map_err(|error| (self.place().clone(), Failed::unsent(error)))?, false)
            }
        };
        node.call(command, asking).await.map_err(|failed| {
            if judge(&failed.error) == Verdict::Reconnect {
                node.discard(&failed);
            }
            (node.place.clone(), failed)
        })
    }

    /// Lets go of all connections.
    pub(crate) fn disconnect(&self) {
        self.servers.disconnect();
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("place", self.place()).field("usage", &self.usage).finish()
    }
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
    fn pauses_grow_up_to_a_second() {
        let mut pauses = Pauses::new();
        let all: Vec<_> = (0..20).map(|_| pauses.next()).collect();
        assert!(all[0] <= Duration::from_millis(5) && all[19] >= Duration::from_millis(500));
        assert!(all.iter().all(|pause| *pause <= Duration::from_secs(1)), "{all:?}");
    }
}
