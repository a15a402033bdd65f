//! Callers that send, receive and acknowledge: how many messages go all the way in a second, and
//! how much of the server's time each of them takes.
//!
//! Every run has a server of its own, which shares the processors with its clients. A rate is
//! therefore that of both together, and the server's own time is the limit for many clients.

use pillarbox_testing::server::RedisServer;

use super::apalis::Tuned;
use super::native::Native;
use super::{apalis, fresh, window};
use crate::cycles::{Contestant, Done, Load, cycle, cycles};
use crate::measure::{Case, Plan, Result, on_two_threads};
use crate::ours::Ours;
use crate::peers::Peer;
use crate::report::Unit;

/// The peers that are programs of their own. The others are on the curves.
pub(super) const PEERS: [Peer; 2] = [Peer::BullMq, Peer::LuaMailbox];

/// Who does the cycles.
#[derive(Debug, Clone, Copy)]
enum Who {
    Ours,
    Native,
    Apalis(Tuned),
    Peer(Peer),
}

/// How a server keeps its data on disk.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kept {
    /// Not at all.
    No,
    /// In a log that is synced every second.
    EverySecond,
    /// In a log that is synced before anything is answered.
    Always,
}

/// Full cycles in batches, against all contestants.
pub(super) fn in_batches(plan: &Plan) -> Case {
    let (load, kept) = (batches(plan), Kept::EverySecond);
    let mut case = rate(format!("cycle, {}", load.name()), load, kept);
    case = against_rate(case, Who::Native, load, kept);
    let peers = PEERS.into_iter().filter(|peer| peer.is_here()).map(Who::Peer);
    for peer in [Tuned::No, Tuned::Yes].map(Who::Apalis).into_iter().chain(peers) {
        case = against_rate(case, peer, load, kept);
    }
    case
}

/// The same with a server that keeps its data in another way.
pub(super) fn kept(plan: &Plan, kept: Kept) -> Case {
    let load = batches(plan);
    let case = rate(format!("cycle, {}, {}", load.name(), kept.name()), load, kept);
    against_rate(case, Who::Native, load, kept)
}

fn batches(plan: &Plan) -> Load {
    Load { callers: 64, batch: 10, window: window(plan) }
}

impl Kept {
    fn name(self) -> &'static str {
        match self {
            Self::No => "AOF off",
            Self::EverySecond => "AOF everysec",
            Self::Always => "AOF always",
        }
    }
}

/// How much of the server's time a message takes. Without a log: these figures are the inputs of plans, which
/// have none.
pub(super) fn server_cpu(plan: &Plan, callers: u64, batch: u64) -> Case {
    let load = Load { callers, batch, window: window(plan) };
    let name = format!("server CPU per message, {}, {}", load.name(), Kept::No.name());
    Case::new(name, Unit::CpuMicrosPerMessage, move || {
        let server = fresh(Kept::No);
        on_two_threads(async { cpu(&server, Ours::open(&server.url()).await?, load).await })
    })
    .against_limit(Who::Native.name(), move || {
        let server = fresh(Kept::No);
        on_two_threads(async { cpu(&server, Native::open(&server.url()).await?, load).await })
    })
}

/// Says how many microseconds of the server's time each message took.
async fn cpu(server: &RedisServer, queue: impl Contestant, load: Load) -> Result<f64> {
    // By now it is connected, and the server knows the scripts.
    cycle(&queue, 0, load.batch).await?;
    let before = server.cpu_micros();
    let done = cycles(&queue, load).await?;
    let used = server.cpu_micros() - before;
    queue.close(0).await?;
    Ok(used as f64 / done.messages as f64)
}

fn rate(name: String, load: Load, kept: Kept) -> Case {
    Case::new(name, Unit::MessagesPerSecond, move || Who::Ours.rate(load, kept))
}

fn against_rate(case: Case, who: Who, load: Load, kept: Kept) -> Case {
    let run = move || who.rate(load, kept);
    match who {
        Who::Apalis(_) | Who::Peer(_) => case.against_peer(who.name(), run),
        Who::Ours => case.against(who.name(), run),
        Who::Native => case.against_limit(who.name(), run),
    }
}

impl Who {
    fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Native => "plain Redis commands",
            Self::Apalis(Tuned::No) => "apalis-redis",
            Self::Apalis(Tuned::Yes) => "apalis-redis (tuned)",
            Self::Peer(peer) => peer.name(),
        }
    }

    /// Messages per second on a server of its own.
    fn rate(self, load: Load, kept: Kept) -> Result<f64> {
        Ok(self.cycles(&fresh(kept), load)?.rate())
    }

    fn cycles(self, server: &RedisServer, load: Load) -> Result<Done> {
        let url = server.url();
        match self {
            Self::Ours => on_two_threads(async { run(Ours::open(&url).await?, load).await }),
            Self::Native => on_two_threads(async { run(Native::open(&url).await?, load).await }),
            Self::Apalis(tuned) => on_two_threads(apalis::cycles(&url, load, tuned)),
            Self::Peer(peer) => Ok(peer.cycles(&server.port().to_string(), load)?.done),
        }
    }
}

async fn run(queue: impl Contestant, load: Load) -> Result<Done> {
    let done = cycles(&queue, load).await?;
    queue.close(0).await?;
    Ok(done)
}
