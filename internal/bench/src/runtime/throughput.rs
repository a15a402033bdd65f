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

/// Caps of the prefetch that are compared with the default.
const CAPS: [usize; 5] = [0, 8, 64, 256, 1024];
/// How many messages default workers hold at most: one for each, and what is prefetched. Peers are tuned
/// after it.
const PLACES: usize = WORKERS + 256;

/// Default workers on one kind of backend, against fixed caps, loops without a runtime, and peers.
pub(super) fn case(plan: &Plan, kind: Kind) -> Case {
    let name = format!("no-op handlers, {WORKERS} workers, {}", kind.name());
    let side = |prefetch: Option<usize>| {
        let jobs = jobs(plan, kind, prefetch);
        move || {
            on_store(kind, jobs, async |address| {
                let opened = address.open().await?;
                let took = ours::drain(&opened.mailbox, prefetch, jobs).await?;
                opened.close().await?;
                Ok(took)
            })
        }
    };
    let mut case = Case::several(name.clone(), figures(&name), side(None));
    for max in CAPS {
        case = case.against(format!("Pillarbox, prefetch({max})"), side(Some(max)));
    }
    let jobs = jobs(plan, kind, None);
    for at_most in [PLACES / WORKERS, PLACES] {
        let other = format!("{WORKERS} plain receive loops, up to {at_most} per call");
        case = case.against_limit(other, move || {
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

/// How many jobs ours, and the loops without it, are given. Few in a call are few in a sync.
fn jobs(plan: &Plan, kind: Kind, prefetch: Option<usize>) -> u64 {
    let full = match (kind, prefetch) {
        (Kind::Memory, Some(0)) => 200_000,
        (Kind::Memory, _) => 400_000,
        (Kind::Sqlite, Some(0)) => 4_000,
        (Kind::Redis, Some(0)) => 8_000,
        (_, Some(1..=8)) => 20_000,
        (_, _) => 80_000,
    };
    plan.pick(full, full / 100)
}

fn against_capp(case: Case, plan: &Plan) -> Case {
    let jobs = plan.pick(200_000, 2_000);
    let at_a_time = PLACES;
    let run = move |tuned| Ok(on_two_threads(capp::drain(jobs, tuned))?.figures(jobs));
    case.against_peer("capp runtime", move || run(capp::Tuned::No))
        .against_peer("capp runtime (tuned)", move || run(capp::Tuned::Yes { at_a_time }))
}

fn against_apalis(case: Case, plan: &Plan, kind: Kind) -> Case {
    let peer = match kind {
        Kind::Sqlite => "apalis-sqlite",
        Kind::Memory | Kind::Redis => "apalis-redis",
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
    let batch = PLACES;
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
