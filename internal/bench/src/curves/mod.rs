//! The curves suite: throughput, latency and cost as the load grows.
//!
//! | chart | what it measures |
//! |---|---|
//! | cycles | throughput of full cycles with 1 to 256 callers, on each backend, with its limit and its peers |
//! | latencies | response time of a cycle, from p1 to p99.9 |
//! | backlog | cost of a message by the number of ready messages |
//! | queues | cost of a message by the number of queues |
//! | workers | throughput by the number of workers |
//!
//! Peers are those of the other suites and the programs in `peers/`, each on a server or a file of its
//! own. Redis servers write an append-only file and sync it every second. Calls on files return after an
//! fsync, unless the settings of a line say otherwise.

mod backlog;
mod cycles;
mod memory;
mod queues;
mod workers;

use std::time::Duration;

use crate::chart::Contest;
use crate::measure::{Plan, Result};
use crate::report::Report;
use crate::store::Kind;
use crate::{peers, place};

const SUITE: &str = "curves";

/// Makes all charts.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    place::warn_if_in_memory();
    peers::say_who_is_not_here(SUITE, &cycles::PEERS);
    for kind in Kind::ALL {
        let contest = cycles::contest(plan, kind);
        if plan.wants_of(contest.title(), cycles::callers(plan).len()) {
            let measured = contest.run(SUITE, plan.rounds())?;
            report.add_chart(measured.chart.clone());
            for distribution in cycles::distributions(plan, kind, &measured) {
                report.add_chart(distribution);
            }
        }
    }
    let mut add = |contest: Contest, places: usize| -> Result<()> {
        if plan.wants_of(contest.title(), places) {
            report.add_chart(contest.run(SUITE, plan.rounds())?.chart);
        }
        Ok(())
    };
    add(backlog::contest(plan), backlog::levels(plan).len())?;
    add(queues::contest(plan), queues::numbers(plan).len())?;
    for handler in [workers::Handler::Waits, workers::Handler::Counts] {
        add(workers::contest(plan, handler), workers::numbers(plan).len())?;
    }
    Ok(())
}

/// How long a run takes.
fn window(plan: &Plan) -> Duration {
    plan.pick(Duration::from_millis(800), Duration::from_millis(150))
}
