//! The Redis suite: queues on a server.
//!
//! | case | what it asks |
//! |---|---|
//! | cycle | how many messages go all the way, for one caller, for many, and in batches |
//! | AOF | the same when the server keeps them on disk |
//! | server CPU | how much of the server each message takes, which is what all clients share |
//! | pending, in flight, queues in turn | whether long queues, or many, make each message dearer |
//! | server memory | what a message takes while it waits |
//! | a receiver that waits | how soon it has a message |
//! | server commands | what waiting costs the server |
//!
//! The limit is plain commands (see `native`); the peers are BullMQ, the scripts that this project
//! began with (see `peers`) and apalis-redis (see `apalis`). Each says in its module what it leaves
//! out. Where ours is compared with itself, the ratio is what the difference costs.
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

use self::backlog::State;
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
    for (callers, batch) in [(1, 1), (64, 10), (256, 1)] {
        add(cycle::against_all(plan, callers, batch))?;
    }
    for kept in [Kept::No, Kept::EverySecond, Kept::Always] {
        add(cycle::kept(plan, kept))?;
    }
    for (callers, batch) in [(1, 1), (1, 10), (1, 100), (64, 10)] {
        add(cycle::server_cpu(plan, callers, batch))?;
    }
    for state in [State::Pending, State::InFlight] {
        add(backlog::long(plan, state))?;
    }
    add(backlog::many(plan))?;
    add(footprint::case(plan))?;
    for waiters in [1, 16] {
        add(wake::latency(plan, waiters))?;
    }
    for queues in [1, 16, 100] {
        // Takes minutes, and hardly varies.
        add_of_rounds(wake::idle(plan, queues), 1)?;
    }
    Ok(())
}

/// How long a run takes whose figure is a rate or a cost.
pub(crate) fn window(plan: &Plan) -> Duration {
    plan.pick(Duration::from_millis(1500), Duration::from_millis(40))
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
