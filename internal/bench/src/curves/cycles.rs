//! Throughput and latency of full cycles with 1 to 256 callers, one message at a time.

use std::path::Path;

use pillarbox_core::{Mailboxes, MemoryBackend};

use super::memory::{Capp, Channel};
use super::window;
use crate::chart::{Chart, Contest, MeasuredChart, Role, Sample};
use crate::cycles::{Contestant, Done, Load, cycles};
use crate::measure::{Plan, Result, on_two_threads};
use crate::ours::Ours;
use crate::peers::{Peer, PeerServer};
use crate::redis::apalis::Tuned;
use crate::redis::native::Native;
use crate::redis::{self, Kept};
use crate::report::Unit;
use crate::sqlite::{apalis as apalis_sqlite, log::Log, one_by_one::OneByOne};
use crate::store::{Kind, Store};
use crate::{place, sqlite};

/// The programs that are peers somewhere.
pub(super) const PEERS: [Peer; 9] = [
    Peer::BullMq,
    Peer::LuaMailbox,
    Peer::Rq,
    Peer::Dramatiq,
    Peer::Celery,
    Peer::Huey,
    Peer::Litequeue,
    Peer::Beanstalkd,
    Peer::Nats,
];

/// How many callers there are, at each place.
pub(super) fn callers(plan: &Plan) -> &'static [u64] {
    plan.pick(&[1, 4, 16, 64, 256], &[1, 16, 256])
}

/// One kind of backend, its limit and its peers.
pub(super) fn contest(plan: &Plan, kind: Kind) -> Contest {
    let (id, about) = match kind {
        Kind::Memory => (
            "cycles-memory",
            "A cycle sends, receives and acknowledges one 256-byte message. All callers share one queue, and each lets the others go first after a cycle. Nothing is persistent.",
        ),
        Kind::Sqlite => (
            "cycles-sqlite",
            "Every send, receive and acknowledgement returns after an fsync, unless the row says otherwise. All callers share one queue in one process. The Python peers use little more than one core.",
        ),
        Kind::Redis => (
            "cycles-redis",
            "Redis writes an append-only file and syncs it every second. The other servers store messages as their rows say. Clients and server share the cores of one machine. The Python and Node peers run callers and workers in one process, which uses little more than one core. *Lua mailbox (Python)* is the Redis mailbox of the specification that Pillarbox implements, as specified: a Lua script per call and message, called by redis-py.",
        ),
    };
    let title = format!("Throughput, {}", kind.name());
    let at = callers(plan).iter().map(u64::to_string);
    let contest = Contest::new(id, title, about, Unit::MessagesPerSecond).along("callers", at);
    let (callers, window) = (callers(plan), window(plan));
    let load = move |place: usize| Load { callers: callers[place], batch: 1, window };
    match kind {
        Kind::Memory => memory(contest, load),
        Kind::Sqlite => sqlite(contest, load),
        Kind::Redis => redis(contest, load),
    }
}

/// Latency of a cycle, with one caller and with many.
pub(super) fn distributions(plan: &Plan, kind: Kind, measured: &MeasuredChart) -> Vec<Chart> {
    let callers = callers(plan);
    // The least, and 64 or what there is instead.
    let many = callers.iter().position(|callers| *callers == 64).unwrap_or(1);
    let chart = |place: usize| {
        let callers = match callers[place] {
            1 => "1 caller".to_owned(),
            many => format!("{many} callers"),
        };
        let name = kind.name();
        let id = format!("latency-{}-{}", name.to_lowercase(), callers.replace(' ', "-"));
        let title = format!("Latency of a cycle, {name}, {callers}");
        let about = "Response time, taken in the same way for all: from the end of the caller's cycle before it until the acknowledgement returns, so the time in which a caller waits for its turn is in it. For peers with their own workers, until as many messages as the caller sent were handled. From the runs of the throughput chart above.";
        measured.distribution(place, &id, &title, about)
    };
    vec![chart(0), chart(many)]
}

fn memory(contest: Contest, load: impl Fn(usize) -> Load + Copy + 'static) -> Contest {
    contest
        .enter(Role::Ours, "Pillarbox", "byte bodies; leases and receipts", move |place| {
            let ours = || async { Ours::of(Mailboxes::new(MemoryBackend::new())) };
            here(ours, load(place))
        })
        .enter(
            Role::Limit,
            "Tokio channel",
            "no acknowledgements, leases or ids; receiver in a mutex",
            move |place| here(|| async { Ok(Channel::new()) }, load(place)),
        )
        .enter(
            Role::Peer,
            "capp-queue",
            "0.7.2; JSON bodies; no leases; callers poll",
            move |place| here(|| async { Ok(Capp::new()) }, load(place)),
        )
}

fn sqlite(contest: Contest, load: impl Fn(usize) -> Load + Copy + 'static) -> Contest {
    let mut contest = contest
        .enter(Role::Ours, "Pillarbox", "WAL, synchronous=FULL; group commit", move |place| {
            on_store(Kind::Sqlite, load(place))
        })
        .enter(
            Role::Limit,
            "append-only log",
            "group commit; receives are synced too; no redelivery, space is never reclaimed",
            move |place| {
                let directory = place::fresh()?;
                let log = sqlite::cycle::room_for_small_bodies(load(place).window);
                let log = Log::create(&directory.path().join("log"), log)?;
                here(|| async { Ok(OneByOne(log)) }, load(place))
            },
        );
    for (tuned, name, settings) in [
        (
            Tuned::No,
            "apalis-sqlite",
            "1.0.0; WAL, synchronous=FULL, one connection; in-process wake-ups; completed jobs are kept",
        ),
        (Tuned::Yes, "apalis-sqlite (tuned)", "as above; large batches, no locks"),
    ] {
        contest = contest.enter(Role::Peer, name, settings, move |place| {
            let directory = place::fresh()?;
            let cycles = apalis_sqlite::cycles(directory.path(), load(place), tuned);
            Ok(sample(on_two_threads(cycles)?))
        });
    }
    [Peer::Huey, Peer::Litequeue].into_iter().fold(contest, |contest, peer| {
        enter_peer(contest, peer, move |place| {
            let directory = place::fresh()?;
            let path = directory.path().join("peer.db");
            program(peer, path_text(&path)?, load(place))
        })
    })
}

fn redis(contest: Contest, load: impl Fn(usize) -> Load + Copy + 'static) -> Contest {
    let mut contest = contest
        .enter(
            Role::Ours,
            "Pillarbox",
            "AOF everysec; concurrent calls are coalesced",
            move |place| on_store(Kind::Redis, load(place)),
        )
        .enter(
            Role::Limit,
            "plain Redis commands",
            "AOF everysec; not atomic; receipts not checked; no ids; leases do not expire",
            move |place| {
                let server = redis::fresh(Kept::EverySecond);
                let url = server.url();
                here(|| async move { Native::open(&url).await }, load(place))
            },
        )
        .enter(
            Role::Variant,
            "Pillarbox, calls not coalesced",
            "AOF everysec; `coalesce=false`",
            move |place| {
                let server = redis::fresh(Kept::EverySecond);
                let url = server.url();
                here(|| async move { Ours::open_uncoalesced(&url).await }, load(place))
            },
        );
    for (tuned, name, settings) in [
        (
            Tuned::No,
            "apalis-redis",
            "1.0.0; AOF everysec; in-process wake-ups; completed jobs are kept",
        ),
        (Tuned::Yes, "apalis-redis (tuned)", "as above; large batches, no locks, no events"),
    ] {
        contest = contest.enter(Role::Peer, name, settings, move |place| {
            let server = redis::fresh(Kept::EverySecond);
            let url = server.url();
            Ok(sample(on_two_threads(redis::apalis::cycles(&url, load(place), tuned))?))
        });
    }
    for peer in [Peer::BullMq, Peer::LuaMailbox, Peer::Rq, Peer::Dramatiq, Peer::Celery] {
        contest = enter_peer(contest, peer, move |place| {
            let server = redis::fresh(Kept::EverySecond);
            program(peer, &server.port().to_string(), load(place))
        });
    }
    let contest = enter_peer(contest, Peer::Beanstalkd, move |place| {
        let server = PeerServer::beanstalkd()?;
        program(Peer::Beanstalkd, &server.port().to_string(), load(place))
    });
    enter_peer(contest, Peer::Nats, move |place| {
        let server = PeerServer::nats()?;
        program(Peer::Nats, &server.port().to_string(), load(place))
    })
}

/// Adds a program, if it is installed.
fn enter_peer(
    contest: Contest,
    peer: Peer,
    run: impl FnMut(usize) -> Result<Sample> + 'static,
) -> Contest {
    if !peer.is_here() {
        return contest;
    }
    contest.enter(Role::Peer, peer.name(), "", run)
}

/// Cycles on a queue of ours at a fresh place.
fn on_store(kind: Kind, load: Load) -> Result<Sample> {
    let store = Store::fresh(kind)?;
    let address = store.address();
    here(|| async move { Ours::of(address.backend().await?) }, load)
}

/// Cycles on a queue within this process.
fn here<C, F>(open: impl FnOnce() -> F, load: Load) -> Result<Sample>
where
    C: Contestant,
    F: Future<Output = Result<C>>,
{
    on_two_threads(async {
        let queue = open().await?;
        let done = cycles(&queue, load).await?;
        queue.close(0).await?;
        Ok(sample(done))
    })
}

fn program(peer: Peer, place: &str, load: Load) -> Result<Sample> {
    let report = peer.cycles(place, load)?;
    Ok(sample(report.done).settings(report.settings))
}

fn sample(done: Done) -> Sample {
    Sample::with_times(done.rate(), done.each)
}

fn path_text(path: &Path) -> Result<&str> {
    path.to_str().ok_or_else(|| "the path of the file is not text".into())
}
