//! What waiting costs: how soon a receiver has a message, and what the servers do for it meanwhile.

use std::time::{Duration, Instant};

use super::site::{Layout, PARTITIONS, Site, fill};
use crate::cycles::{Contestant, WAIT};
use crate::measure::{Case, Figure, Plan, Result, expect_eq, on_two_threads};
use crate::ours::Ours;
use crate::progress;
use crate::redis::wake::pick_up;
use crate::report::Unit;
use pillarbox_redis::Durability;

/// From a send to a receiver that waits, and the servers' CPU time for each such message.
///
/// A message takes four calls at least: to send, receive and acknowledge it, and to see that there is no
/// other. What the servers use while nothing happens, which is more of a cluster than of one server, is
/// measured before and taken off.
pub(super) fn wake_up(plan: &Plan) -> Case {
    let messages = plan.pick(500, 10);
    let quiet = plan.pick(Duration::from_secs(1), Duration::from_millis(20));
    let figures = [
        Figure::median("wake-up latency, 1 waiter, p50", Unit::Micros),
        Figure::median("wake-up latency, 1 waiter, p99", Unit::Micros),
        Figure::median("server CPU per wake-up", Unit::CpuMicrosPerMessage),
        Figure::median("calls per wake-up", Unit::CallsPerMessage),
        Figure::median("server CPU while idle", Unit::CpuMicrosPerSecond),
    ];
    let side = |layout: Layout| {
        let mut site = None;
        move || {
            let site = site.get_or_insert_with(|| Site::start(layout));
            on_two_threads(measure_wake_up(site, messages, quiet))
        }
    };
    Case::several("wake-up", figures, side(Layout::SPREAD))
        .against(Layout::WHOLE.to_string(), side(Layout::WHOLE))
}

async fn measure_wake_up(site: &Site, messages: u64, quiet: Duration) -> Result<[f64; 5]> {
    let used = || site.primaries().iter().map(|node| node.cpu_micros()).sum::<u64>() as f64;
    let timed = |before: f64, start: Instant| (used() - before, start.elapsed().as_secs_f64());
    let (before, start) = (used(), Instant::now());
    tokio::time::sleep(quiet).await;
    let (idle, time) = timed(before, start);
    let idle = (idle / time).max(1.0);
    let (sender, receiver) = (site.open().await?, site.open().await?);
    let calls = || -> Result<u64> { Ok(site.read()?.iter().map(|node| node.calls).sum()) };
    let calls_before = calls()?;
    let (before, start) = (used(), Instant::now());
    let [half, most] = pick_up(sender, vec![receiver], messages).await?;
    let (busy, time) = timed(before, start);
    let each = (busy - idle * time) / messages as f64;
    let called = (calls()? - calls_before) as f64 / messages as f64;
    Ok([half, most, each.max(1.0), called, idle])
}

/// How many connections a process has that sends and receives.
pub(super) fn connections() -> Case {
    let figures = [
        Figure::median("connections per process", Unit::Connections),
        Figure::median("connections per process, node with most", Unit::Connections),
    ];
    let side = |layout: Layout, replicas: u32| move || count_connections(layout, replicas);
    let replicated = Layout::replicated(3, 1, PARTITIONS);
    Case::several("connections", figures, side(Layout::SPREAD, 0))
        .against(Layout::WHOLE.to_string(), side(Layout::WHOLE, 0))
        .against(format!("{replicated}, replicas=1"), side(replicated, 1))
}

fn count_connections(layout: Layout, replicas: u32) -> Result<[f64; 2]> {
    let site = Site::start(layout);
    on_two_threads(async {
        let options = site.options()?.durability(Durability::replicas(replicas));
        let queue = site.open_with(options).await?;
        // To and from every partition, until all are listened for.
        fill(&queue, PARTITIONS.into()).await?;
        while queue.count().await? > 0 {
            let receipts = queue.receive(64).await?.into_iter().map(|(_, receipt)| receipt);
            queue.acknowledge(receipts.collect()).await?;
        }
        expect_eq("what is left", queue.receive_up_to(1, A_MOMENT).await?.len(), 0)?;
        let of_process = |line: &&str| line.contains(" addr=127.0.0.1:") && !is_replica(line);
        let counts = site.nodes().iter().map(|node| {
            node.command(&["CLIENT", "LIST"]).lines().filter(of_process).count() as f64
        });
        let counts: Vec<_> = counts.collect();
        progress::say(format_args!(
            "  {layout}, replicas={replicas}: connections by node {counts:?}"
        ));
        queue.close(0).await?;
        Ok([counts.iter().sum(), counts.iter().copied().fold(0.0, f64::max)])
    })
}

/// Longer than it takes to listen everywhere.
const A_MOMENT: Duration = Duration::from_millis(500);

/// Whether a line of `CLIENT LIST` is of a replica, or of the primary of one.
fn is_replica(line: &str) -> bool {
    line.contains(" flags=S") || line.contains(" flags=M")
}

/// What a process that waits asks of all servers together.
pub(super) fn idle(plan: &Plan) -> Case {
    let window = plan.pick(Duration::from_secs(84), Duration::from_millis(200));
    let side = move |layout: Layout| move || on_two_threads(count_commands(layout, window));
    Case::new("server commands while idle, 1 waiter", Unit::CommandsPerSecond, {
        side(Layout::SPREAD)
    })
    .against(Layout::WHOLE.to_string(), side(Layout::WHOLE))
}

async fn count_commands(layout: Layout, window: Duration) -> Result<f64> {
    let site = Site::start(layout);
    let queue: Ours = site.open().await?;
    let waiter = queue.clone();
    let waiting = tokio::spawn(async move { waiter.receive_up_to(1, WAIT * 100).await.map(drop) });
    // Until it has begun to wait everywhere, and no longer looks whether there is something at once.
    tokio::time::sleep(window.min(Duration::from_secs(1))).await;
    let done = || -> Result<u64> {
        let done = site.nodes().iter().map(|node| node.info("total_commands_processed"));
        Ok(done.map(|count| count.parse::<u64>()).sum::<std::result::Result<_, _>>()?)
    };
    let (before, start) = (done()?, Instant::now());
    tokio::time::sleep(window).await;
    let elapsed = start.elapsed();
    // Of the two questions to each node, the first is among those counted.
    let count = done()? - before - site.nodes().len() as u64;
    expect_eq("a receive that ended early", waiting.is_finished(), false)?;
    waiting.abort();
    queue.close(0).await?;
    Ok(count.max(1) as f64 / elapsed.as_secs_f64())
}
