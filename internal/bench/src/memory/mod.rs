//! The memory suite: queues in the memory of one process.
//!
//! | case | what it asks |
//! |---|---|
//! | one thread, batch 1 and 10 | what the calls for one message cost from end to end, with neither other tasks nor other threads |
//! | typed | the same with a struct as JSON, which both sides encode and decode |
//! | 4 producers, 4 consumers | what is left of it when tasks on two threads contend for one queue |
//! | backlog | whether a long queue makes each message dearer |
//! | memory per message | how long a queue can get |
//! | idle receivers | what it costs to wait |
//!
//! None of the others does what ours does, so no single ratio says who is faster; each module says
//! what its contestant leaves out. Two to bear in mind: ours carries bytes in the first two cases
//! while capp-queue always encodes JSON; and apalis and tokio's channel have no acknowledgement, so their
//! cycle ends where the message is taken. Callers that are tasks on two threads are on the curves.

mod apalis;
mod capp;
mod footprint;
mod idle;
mod load;
mod mpsc;
mod ours;

use std::time::Duration;

use clap::Subcommand;

use self::load::TextJob;
use crate::measure::{Case, Plan, Result, nanos_each, on_one_thread, on_two_threads, per_second};
use crate::report::{Report, Unit, grouped};

const SUITE: &str = "memory";
/// The hidden subcommand that runs a [`Child`].
const CHILD: &str = "memory-child";

/// A measurement that needs a process of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// Memory for one queued message.
    Footprint { holder: footprint::Holder, messages: u64 },
    /// CPU time of receivers that wait.
    Idle { waiters: idle::Waiters, millis: u64 },
}

impl Child {
    pub(crate) fn measure(self) -> Result<f64> {
        match self {
            Self::Footprint { holder, messages } => footprint::measure(holder, messages),
            Self::Idle { waiters, millis } => idle::measure(waiters, Duration::from_millis(millis)),
        }
    }
}

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    let mut add = |case: Case, rounds| -> Result<()> {
        if plan.wants(case.name()) {
            report.add(case.run(SUITE, rounds)?);
        }
        Ok(())
    };
    let n = plan.pick(300_000, 12_000);
    for batch in [1, 10] {
        add(cycles(n, batch), plan.rounds())?;
    }
    add(typed(n), plan.rounds())?;
    for batch in [1, 10] {
        add(many(n, batch), plan.rounds())?;
    }
    if plan.wants("backlog") {
        // Short rounds, and more of them: two queues are compared that differ by little. Batches are on the curves.
        let backlog = plan.pick(1_000_000, 100_000);
        add(with_backlog(n / 3, 1, backlog)?, 4 * plan.rounds())?;
    }
    add(footprint::case(plan.pick(1_000_000, 100_000)), plan.rounds())?;
    for case in idle::cases(plan.pick(Duration::from_secs(2), Duration::from_millis(200))) {
        add(case, plan.rounds())?;
    }
    Ok(())
}

/// Full cycles on one thread. A peer without batches sends and receives as many messages one by one.
fn cycles(n: u64, batch: u64) -> Case {
    let single = if batch == 1 { "" } else { ", one at a time" };
    let case = Case::new(format!("one thread, batch {batch}"), RATE, move || {
        alone(n, ours::cycles(n, batch))
    })
    .against_peer(format!("apalis Worker (no-op ack){single}"), move || {
        alone(n, apalis::worker_cycles::<TextJob>(n, batch))
    })
    .against_peer(format!("apalis push+poll (no ack){single}"), move || {
        alone(n, apalis::poll_cycles::<TextJob>(n, batch))
    });
    if batch == 1 {
        // The channel and capp-queue are on the curves.
        return case;
    }
    case.against_peer(format!("capp-queue{single}"), move || {
        alone(n, capp::cycles::<TextJob>(n, batch))
    })
    .against_limit(format!("Tokio mpsc, reserve_many+recv_many of {batch} (no ack)"), move || {
        alone(n, mpsc::batch_cycles(n, batch as usize))
    })
}

/// Full cycles with JSON on both sides.
fn typed(n: u64) -> Case {
    Case::new("one thread, typed JSON, batch 1", RATE, move || alone(n, ours::typed_cycles(n)))
        .against_peer("capp-queue", move || alone(n, capp::cycles::<TextJob>(n, 1)))
}

/// Many senders and receivers on two threads. Everybody sends one by one.
fn many(n: u64, batch: usize) -> Case {
    let single = if batch == 1 { "" } else { ", one at a time" };
    let name = format!(
        "{} producers, {} consumers, receive batch {batch}",
        load::PRODUCERS,
        load::CONSUMERS
    );
    Case::new(name, RATE, move || together(n, ours::many(n, batch)))
        .against_peer(format!("capp-queue, consumers poll{single}"), move || {
            together(n, capp::many::<TextJob>(n))
        })
        .against_peer(format!("apalis Worker, concurrency 4 (no-op ack){single}"), move || {
            together(n, apalis::many::<TextJob>(n))
        })
        .against_limit(
            format!("Tokio mpsc, receiver in a Mutex, recv_many of {batch} (no ack)"),
            move || together(n, mpsc::many(n, batch)),
        )
}

/// Full cycles on a long queue against those on an empty one. Both live through all rounds.
fn with_backlog(n: u64, batch: u64, backlog: u64) -> Result<Case> {
    let mut empty = ours::Line::new()?;
    let mut long = ours::Line::new()?;
    on_one_thread(long.fill(backlog))?;
    let name = format!("backlog of {}, batch {batch}", grouped(backlog));
    Ok(Case::new(name, Unit::NanosPerCycle, move || {
        Ok(nanos_each(n, on_one_thread(long.cycles(n, batch))?))
    })
    .against("Pillarbox, the same queue, empty", move || {
        Ok(nanos_each(n, on_one_thread(empty.cycles(n, batch))?))
    }))
}

const RATE: Unit = Unit::MessagesPerSecond;

/// The rate of a run on one thread.
fn alone(n: u64, run: impl Future<Output = Result<Duration>>) -> Result<f64> {
    Ok(per_second(n, on_one_thread(run)?))
}

/// The rate of a run on two threads.
fn together(n: u64, run: impl Future<Output = Result<Duration>>) -> Result<f64> {
    Ok(per_second(n, on_two_threads(run)?))
}
