//! How many jobs that do nothing go through four workers in a second.
//!
//! The queue is filled before, and time runs from the start of the workers until every job is
//! settled. Each contestant gets about as many jobs as it handles in a second or two, so that starts
//! and ends weigh little with all of them, and the slow ones do not take all day; where that makes a
//! difference, a shorter queue is to the advantage of the peer. Jobs are JSON with
//! a number and 256 bytes of text; every handler checks the length and counts the number in.
//!
//! The same runs say how much CPU time of this process a job took, with that of the threads which a
//! backend has; a server's is not in it. In memory that is the figure to compare by where the machine
//! has others to serve: rates fall with what they leave over, the CPU time does not fall or rise much.

use super::load::{Took, WORKERS};
use super::store::{Address, Kind, Store};
use super::{apalis, bare, capp, ours};
use crate::measure::{Case, Figure, Plan, Result, on_two_threads};
use crate::report::Unit;

/// The room in inboxes that peers are tuned after.
const LARGE_INBOX: usize = 64;

/// How many messages the workers hold at most.
fn places(inbox: usize) -> usize {
    WORKERS * (inbox + 1)
}

/// Workers that prefetch `inbox` messages each, on one kind of backend.
pub(super) fn case(plan: &Plan, kind: Kind, inbox: usize) -> Case {
    let jobs = jobs(plan, kind, inbox);
    let name = format!("no-op handlers, {}, prefetch {inbox}", kind.name());
    let mut case = Case::several(name.clone(), figures(&name), move || {
        on_store(kind, jobs, async |address| {
            let opened = address.open().await?;
            let took = ours::drain(&opened.mailbox, inbox, jobs).await?;
            opened.close().await?;
            Ok(took)
        })
    });
    for at_most in [inbox + 1, places(inbox)] {
        let other = format!("{WORKERS} plain receive loops, up to {at_most} per call");
        case = case.against(other, move || {
            on_store(kind, jobs, async |address| {
                let opened = address.open().await?;
                let took = bare::drain(&opened.mailbox, at_most, jobs).await?;
                opened.close().await?;
                Ok(took)
            })
        });
    }
    match kind {
        Kind::Memory => against_capp(case, plan),
        Kind::Sqlite | Kind::Redis => against_apalis(case, plan, kind),
    }
}

/// The rate, and the CPU time, which tells more of the code where a machine has others to serve.
pub(super) fn figures(name: &str) -> [Figure; 2] {
    [
        Figure::median(name, Unit::MessagesPerSecond),
        Figure::median(format!("{name}, CPU per message"), Unit::CpuMicrosPerMessage),
    ]
}

/// How many jobs ours, and the loops without it, are given.
fn jobs(plan: &Plan, kind: Kind, inbox: usize) -> u64 {
    match kind {
        Kind::Memory => plan.pick(400_000, 4_000),
        // Few in a call are few in a sync.
        Kind::Sqlite if inbox < LARGE_INBOX => plan.pick(4_000, 500),
        Kind::Sqlite => plan.pick(60_000, 1_000),
        Kind::Redis => plan.pick(80_000, 1_000),
    }
}

fn against_capp(case: Case, plan: &Plan) -> Case {
    let jobs = plan.pick(200_000, 2_000);
    let at_a_time = places(LARGE_INBOX);
    let run = move |tuned| Ok(on_two_threads(capp::drain(jobs, tuned))?.figures(jobs));
    case.against_peer("capp runtime", move || run(capp::Tuned::No))
        .against_peer("capp runtime (tuned)", move || run(capp::Tuned::Yes { at_a_time }))
}

fn against_apalis(case: Case, plan: &Plan, kind: Kind) -> Case {
    let peer = match kind {
        Kind::Sqlite => "apalis-sqlite Worker",
        Kind::Memory | Kind::Redis => "apalis-redis Worker",
    };
    let run = move |jobs, tuned| {
        on_store(kind, jobs, async |address| match address {
            Address::Memory => Err("apalis is measured elsewhere in memory".into()),
            Address::Sqlite(path) => apalis::drain_sqlite(&path, jobs, tuned).await,
            Address::Redis(url) => apalis::drain_redis(&url, jobs, tuned).await,
        })
    };
    let jobs = match kind {
        // More than these it does not bear, or not without growing slower: see `apalis`.
        Kind::Memory | Kind::Sqlite => plan.pick(1_000, 300),
        Kind::Redis => plan.pick(5_000, 500),
    };
    let batch = places(LARGE_INBOX);
    case.against_peer(peer, move || run(jobs, apalis::Tuned::No))
        .against_peer(format!("{peer} (tuned)"), move || run(jobs, apalis::Tuned::Yes { batch }))
}

/// Runs on a fresh store, and says how many jobs were done per second, and how much CPU time each took.
fn on_store(
    kind: Kind,
    jobs: u64,
    run: impl AsyncFnOnce(Address) -> Result<Took>,
) -> Result<[f64; 2]> {
    let store = Store::fresh(kind)?;
    Ok(on_two_threads(run(store.address()))?.figures(jobs))
}
