//! How many jobs that do nothing go through four workers in a second.
//!
//! The queue is filled before, and time runs from the start of the workers until every job is
//! settled. Each contestant gets about as many jobs as it handles in a second or two, so that starts
//! and ends weigh little with all of them, and the slow ones do not take all day. Jobs are JSON with
//! a number and 256 bytes of text; every handler checks the length and counts the number in.

use std::time::Duration;

use super::load::WORKERS;
use super::store::{Address, Kind, Store};
use super::{apalis, bare, capp, ours};
use crate::measure::{Case, Plan, Result, on_two_threads, per_second};
use crate::report::Unit;

/// The room in inboxes that peers are tuned after.
const LARGE_INBOX: usize = 64;

/// How many messages the workers hold at most.
fn places(inbox: usize) -> usize {
    WORKERS * (inbox + 1)
}

/// Workers with inboxes for so many, on one kind of backend.
pub(super) fn case(plan: &Plan, kind: Kind, inbox: usize) -> Case {
    let jobs = jobs(plan, kind);
    let name = format!("no-op jobs, {}, inbox {inbox}", kind.name());
    let mut case = Case::new(name, Unit::MessagesPerSecond, move || {
        on_store(kind, jobs, async |address| {
            let opened = address.open().await?;
            let elapsed = ours::drain(&opened.mailbox, inbox, jobs).await?;
            opened.close().await?;
            Ok(elapsed)
        })
    });
    for at_most in [inbox + 1, places(inbox)] {
        let other = format!("bare, {WORKERS} loops, up to {at_most} a call");
        case = case.against(other, move || {
            on_store(kind, jobs, async |address| {
                let opened = address.open().await?;
                let elapsed = bare::drain(&opened.mailbox, at_most, jobs).await?;
                opened.close().await?;
                Ok(elapsed)
            })
        });
    }
    match kind {
        Kind::Memory => against_capp(case, plan),
        Kind::Sqlite | Kind::Redis => against_apalis(case, plan, kind),
    }
}

/// How many jobs ours, and the loops without it, are given.
fn jobs(plan: &Plan, kind: Kind) -> u64 {
    match kind {
        Kind::Memory => plan.pick(400_000, 4_000),
        Kind::Sqlite => plan.pick(40_000, 1_000),
        Kind::Redis => plan.pick(100_000, 1_000),
    }
}

fn against_capp(case: Case, plan: &Plan) -> Case {
    let jobs = plan.pick(200_000, 2_000);
    let at_a_time = places(LARGE_INBOX);
    let run = move |tuned| Ok(per_second(jobs, on_two_threads(capp::drain(jobs, tuned))?));
    case.against("capp runtime", move || run(capp::Tuned::No))
        .against("capp runtime, tuned", move || run(capp::Tuned::Yes { at_a_time }))
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
    let (few, more) = (plan.pick(5_000, 200), plan.pick(20_000, 500));
    let batch = places(LARGE_INBOX);
    case.against(peer, move || run(few, apalis::Tuned::No))
        .against(format!("{peer}, tuned"), move || run(more, apalis::Tuned::Yes { batch }))
}

/// Runs on a fresh store, and says how many jobs were done per second.
fn on_store(
    kind: Kind,
    jobs: u64,
    run: impl AsyncFnOnce(Address) -> Result<Duration>,
) -> Result<f64> {
    let store = Store::fresh(kind)?;
    Ok(per_second(jobs, on_two_threads(run(store.address()))?))
}
