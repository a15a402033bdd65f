//! The cluster suite: what a message costs where a queue is spread over several servers.
//!
//! | case | what it asks |
//! |---|---|
//! | server CPU | whether a message costs a node more where there are more nodes or partitions |
//! | wire | the bytes to and from the servers for a message, and the client's own CPU time |
//! | server memory | whether a message that waits takes more in twelve partitions than in one |
//! | connections | how many a process has |
//! | a receiver that waits | how soon it has a message of a spread queue, and what that costs the servers |
//! | server commands | what waiting at all partitions costs the servers |
//! | replica | what a replica costs its primary, and what it costs to wait for it |
//!
//! The figures are inputs of `pillarbox-bench plan`, see `docs/capacity-planning.md`.
//!
//! Ours is always the queue of twelve partitions on three primaries, or the one that waits for its
//! replica; the others are the same backend on fewer servers. So a ratio is what the difference costs:
//! 0.87 is the same message for 1.15 times the price.
//!
//! All nodes share the processors of this machine with the client, so that rates do not rise with
//! their number here. What is compared is each node's own CPU time for each message that it has had.

mod costs;
mod footprint;
mod replica;
mod site;
mod waiting;

use self::costs::Calls;
pub(crate) use self::site::partitions_by_primary;
use crate::measure::{Case, Plan, Result};
use crate::report::Report;

const SUITE: &str = "cluster";

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut add_of_rounds = |case: Case, rounds: usize| -> Result<()> {
        if plan.wants(case.name()) {
            report.add(case.run(SUITE, rounds)?);
        }
        Ok(())
    };
    let separate = [1, 10, 100].map(|batch| Calls::Separate { batch });
    let coalesced = [1, 10].map(|batch| Calls::Coalesced { batch });
    let no_backlog = [Calls::OnEmptyQueue, Calls::OnEmptyQueueApart];
    for calls in separate.into_iter().chain(coalesced).chain(no_backlog) {
        add_of_rounds(costs::server_cpu(plan, calls), costs::rounds(plan))?;
    }
    add_of_rounds(costs::wire(plan), costs::rounds(plan))?;
    add_of_rounds(replica::server_cpu(plan), costs::rounds(plan))?;
    let mut add = |case: Case| add_of_rounds(case, plan.rounds());
    add(footprint::case(plan))?;
    add(waiting::wake_up(plan))?;
    for callers in [1, 64, 256] {
        add(replica::confirmed(plan, callers))?;
    }
    // These hardly vary.
    add_of_rounds(waiting::connections(), 1)?;
    add_of_rounds(waiting::idle(plan), 1)
}
