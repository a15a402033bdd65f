//! Peers that are programs in other languages: `peers/bullmq.mjs` and `peers/seed.py`.
//!
//! `make bench` installs what they need to `target/`; who is not installed is left out.
//!
//! BullMQ 6.7 on Node: `Queue.add`, or `addBulk` for a batch, and one `Worker` whose processor does
//! nothing; a caller goes on when as many jobs were completed as it has added. Both are in one
//! process, as its quick start has it. The worker handles as many jobs at a time as there are
//! callers, but no more than 100, beyond which it is slower; jobs are removed when completed, as its
//! documentation advises for production. ioredis, its usual client, without automatic pipelining,
//! which was slower. Not like for like: bodies are JSON; it does more, for it keeps events in a
//! stream, counts attempts, and looks for delayed and prioritized jobs; and a worker asks for one
//! job at a time, in the same script that completes the one before.
//!
//! The seed is the mailbox of the specification that this project began with, and its scripts: a
//! send is `HSET` and `LPUSH` in one transaction, a receive and an acknowledgement are a script for
//! each message. Those of a batch go in one pipeline, which the specification does not ask for. In
//! Python, with `hiredis`, as the specification is; a caller is a thread with a connection. It
//! leaves out what the reaper does, which is a thread of its own there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::Deserialize;

use super::load::{Done, Load};
use crate::measure::{Result, expect_eq};
use crate::process::Companion;
use crate::tally::Tally;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Script {
    BullMq,
    Seed,
}

/// What a script says when it is done.
#[derive(Debug, Deserialize)]
struct Outcome {
    count: u64,
    sum: u64,
    /// How many messages it has sent.
    sent: u64,
    /// How many are still there.
    left: u64,
    seconds: f64,
}

impl Script {
    pub(super) const ALL: [Self; 2] = [Self::BullMq, Self::Seed];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::BullMq => "BullMQ",
            Self::Seed => "the seed's scripts, in Python",
        }
    }

    /// Whether what it needs is installed.
    pub(super) fn is_here(self) -> bool {
        match self {
            Self::BullMq => ["bullmq", "ioredis"]
                .iter()
                .all(|module| modules().join("node_modules").join(module).is_dir()),
            Self::Seed => {
                let mut import = Command::new(python());
                let import = import.args(["-c", "import redis"]).output();
                import.is_ok_and(|output| output.status.success())
            }
        }
    }

    /// Full cycles on a fresh server.
    pub(super) fn cycles(self, port: u16, load: Load) -> Result<Done> {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/redis/peers");
        let mut command = match self {
            Self::BullMq => {
                let mut node = Command::new("node");
                node.arg(script.join("bullmq.mjs")).arg(modules());
                node
            }
            Self::Seed => {
                let mut python = Command::new(python());
                python.arg(script.join("seed.py"));
                python
            }
        };
        let millis = load.window.as_millis() as u64;
        command.args([u64::from(port), load.callers, load.batch, millis].map(|n| n.to_string()));
        let mut companion = Companion::run(command)?;
        companion.expect("ready")?;
        companion.say("go")?;
        let outcome: Outcome = serde_json::from_str(&companion.hear()?)?;
        Tally::of(outcome.count, outcome.sum).expect_all(outcome.sent)?;
        expect_eq("messages left", outcome.left, 0)?;
        Ok(Done { messages: outcome.sent, elapsed: Duration::from_secs_f64(outcome.seconds) })
    }
}

fn target(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target").join(name)
}

fn modules() -> PathBuf {
    target("peers-node")
}

fn python() -> PathBuf {
    target("venv-peers").join("bin/python")
}
