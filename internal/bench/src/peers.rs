//! Peers that are programs of their own, in `peers/`, and the servers of those that need another than Redis.
//!
//! The first lines of each program state the version of the peer, what the program does, how the peer
//! stores messages, and what it does more or less than ours. In general, each caller sends a batch and
//! waits until as many messages were handled. A worker in the same process handles them; if the peer is a
//! queue without workers, the callers receive and acknowledge them. The program counts the messages and
//! sums up their numbers, and a run fails unless every message was handled exactly once and none is left.
//!
//! BullMQ: a worker handles as many jobs at a time as there are callers, but no more than 100, beyond which
//! it is slower; jobs are removed when completed, as its documentation advises for production. ioredis, its
//! usual client, without automatic pipelining, which was slower. Not like for like: bodies are JSON; it does
//! more, for it keeps events in a stream, counts attempts, and looks for delayed and prioritized jobs; and a
//! worker asks for one job at a time, in the same script that completes the one before.
//!
//! The Lua mailbox is the Redis mailbox of the specification that Pillarbox implements (docs/seeds.md), as it is
//! specified: a Lua script per call and message.

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

pub(crate) use self::server::PeerServer;
use crate::cycles::{Done, Load};
use crate::measure::{Result, expect_eq};
use crate::process::Companion;
use crate::progress;
use crate::tally::Tally;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    BullMq,
    LuaMailbox,
    Rq,
    Dramatiq,
    Celery,
    Huey,
    Litequeue,
    Beanstalkd,
    Nats,
}

/// What a program did.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) done: Done,
    /// Version and settings, as the program tells them.
    pub(crate) settings: String,
}

/// What a program says when it is done.
#[derive(Debug, Deserialize)]
struct Outcome {
    count: u64,
    sum: u64,
    /// How many messages it has sent.
    sent: u64,
    /// How many are still there.
    left: u64,
    seconds: f64,
    /// How long cycles of callers took, or some of them.
    latencies_us: Vec<f64>,
    version: String,
    settings: String,
}

impl Peer {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BullMq => "BullMQ",
            Self::LuaMailbox => "Lua mailbox (Python)",
            Self::Rq => "RQ",
            Self::Dramatiq => "Dramatiq",
            Self::Celery => "Celery",
            Self::Huey => "Huey",
            Self::Litequeue => "litequeue",
            Self::Beanstalkd => "beanstalkd (Python client)",
            Self::Nats => "NATS JetStream (Python client)",
        }
    }

    /// The program in `peers/`, and what runs it.
    fn program(self) -> (&'static str, PathBuf) {
        let python = || target("venv-peers").join("bin/python");
        match self {
            Self::BullMq => ("bullmq.mjs", "node".into()),
            Self::LuaMailbox => ("lua_mailbox.py", python()),
            Self::Rq => ("rq_.py", python()),
            Self::Dramatiq => ("dramatiq_.py", python()),
            Self::Celery => ("celery_.py", python()),
            Self::Huey => ("huey_.py", python()),
            Self::Litequeue => ("litequeue_.py", python()),
            Self::Beanstalkd => ("beanstalkd_.py", python()),
            Self::Nats => ("nats_.py", python()),
        }
    }

    /// Whether what it needs is installed.
    pub(crate) fn is_here(self) -> bool {
        let imports = |module: &str| {
            let mut import = Command::new(self.program().1);
            let import = import.args(["-c", &format!("import {module}")]).output();
            import.is_ok_and(|output| output.status.success())
        };
        match self {
            Self::BullMq => ["bullmq", "ioredis"]
                .iter()
                .all(|module| node_modules().join("node_modules").join(module).is_dir()),
            Self::LuaMailbox => imports("redis"),
            Self::Rq => imports("rq"),
            Self::Dramatiq => imports("dramatiq"),
            Self::Celery => imports("celery"),
            Self::Huey => imports("huey"),
            Self::Litequeue => imports("litequeue"),
            Self::Beanstalkd => PeerServer::beanstalkd_is_here() && imports("greenstalk"),
            Self::Nats => PeerServer::nats_is_here() && imports("nats"),
        }
    }

    /// Full cycles at a place that holds nothing: the port of a server, or the path of a file.
    pub(crate) fn cycles(self, place: &str, load: Load) -> Result<Report> {
        let (program, interpreter) = self.program();
        let mut command = Command::new(interpreter);
        // Nothing is left beside the programs.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(program));
        if self == Self::BullMq {
            command.arg(node_modules());
        }
        let millis = load.window.as_millis() as u64;
        command.arg(place).args([load.callers, load.batch, millis].map(|n| n.to_string()));
        let mut companion = Companion::run(command)?;
        companion.expect("ready")?;
        companion.say("go")?;
        let outcome: Outcome = serde_json::from_str(&companion.hear()?)?;
        Tally::of(outcome.count, outcome.sum).expect_all(outcome.sent)?;
        expect_eq("messages left", outcome.left, 0)?;
        let each = outcome.latencies_us.iter().map(|us| Duration::from_secs_f64(us / 1e6));
        let elapsed = Duration::from_secs_f64(outcome.seconds);
        let done = Done { messages: outcome.sent, elapsed, each: each.collect() };
        let server = match self {
            Self::Beanstalkd => "; fsync every second",
            Self::Nats => "; fsync every two minutes",
            _ => "",
        };
        let settings = format!("{}; {}{server}", outcome.version, outcome.settings);
        Ok(Report { done, settings })
    }
}

/// Says which of these peers are left out.
pub(crate) fn say_who_is_not_here(suite: &str, peers: &[Peer]) {
    for peer in peers.iter().filter(|peer| !peer.is_here()) {
        let name = peer.name();
        progress::say(format_args!(
            "{suite}: {name} is not installed and is skipped; run `make setup-bench`"
        ));
    }
}

/// Where what is installed for benchmarks is.
fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name)
}

fn node_modules() -> PathBuf {
    target("peers-node")
}
