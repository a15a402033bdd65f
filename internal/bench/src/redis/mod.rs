//! The Redis suite: queues on a server.
//!
//! | case | what it asks |
//! |---|---|
//! | cycle in batches | how many messages go all the way, in batches of 10 |
//! | AOF | the same when the server keeps nothing on disk, and when it syncs every call |
//! | server CPU | how much of the server each message takes, which is what all clients share |
//! | in flight, new queues | whether messages in flight make each message dearer, and what the first use of a queue costs |
//! | server memory | what a message takes while it waits |
//! | a receiver that waits | how soon it has a message |
//! | server commands | what waiting costs the server |
//!
//! The limit is plain commands (see `native`); the peers are BullMQ, a mailbox of Lua scripts (see
//! `peers`) and apalis-redis (see `apalis`). Each says in its module what it leaves out. Where ours is
//! compared with itself, the ratio is what the difference costs. Single messages of 1 to 256 callers, long
//! queues and many queues are on the curves. Servers keep a log that is synced every second, as there,
//! unless a case says otherwise.
//!
//! Every run starts a server of its own, the `redis-server` that is installed, on this machine; they
//! share its processors, so that all rates depend on how many there are.

pub(crate) mod apalis;
mod backlog;
mod cycle;
pub(crate) mod footprint;
pub(crate) mod native;
pub(crate) mod wake;

use std::time::Duration;

use pillarbox_testing::server::RedisServer;

pub(crate) use self::cycle::Kept;
use crate::measure::{Case, Plan, Result};
use crate::report::Report;
use crate::{peers, place};

const SUITE: &str = "redis";

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    peers::say_who_is_not_here(SUITE, &cycle::PEERS);
    let mut add_of_rounds = |case: Case, rounds: usize| -> Result<()> {
        if plan.wants(case.name()) {
            report.add(case.run(SUITE, rounds)?);
        }
        Ok(())
    };
    let mut add = |case: Case| add_of_rounds(case, plan.rounds());
    add(cycle::in_batches(plan))?;
    for kept in [Kept::No, Kept::Always] {
        add(cycle::kept(plan, kept))?;
    }
    for (callers, batch) in [(1, 1), (1, 10), (1, 100), (64, 10)] {
        add(cycle::server_cpu(plan, callers, batch))?;
    }
    add(backlog::in_flight(plan))?;
    add(backlog::new_queues(plan))?;
    add(footprint::case(plan))?;
    for waiters in [1, 16] {
        add(wake::latency(plan, waiters))?;
    }
    for queues in [1, 100] {
        // Takes long, and hardly varies.
        add_of_rounds(wake::idle(plan, queues), 1)?;
    }
    Ok(())
}

/// How long a run takes whose figure is a rate or a cost.
pub(crate) fn window(plan: &Plan) -> Duration {
    plan.pick(Duration::from_millis(1500), Duration::from_millis(40))
}

/// Waits until a server has rewritten its log, which it does in a child process when the log has grown.
pub(crate) fn wait_for_rewrites(server: &RedisServer) {
    while server.info("aof_rewrite_in_progress") != "0"
        || server.info("aof_rewrite_scheduled") != "0"
    {
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A server that holds nothing. Its files are where those of the other suites are.
pub(crate) fn fresh(kept: Kept) -> RedisServer {
    let server = RedisServer::builder().directory_in(place::root());
    match kept {
        Kept::No => server,
        Kept::EverySecond => server.appendonly("everysec"),
        Kept::Always => server.appendonly("always"),
    }
    .start()
}
