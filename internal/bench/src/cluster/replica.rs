//! What a replica costs its primary, and what it costs callers to wait until the replica has what they
//! send and acknowledge.

use std::time::{Duration, Instant};

use pillarbox_redis::Durability;

use super::costs;
use super::site::{Layout, Reading, Site, fill};
use crate::cycles::{BODY, Contestant, Load, Numbers, body, crowd, cycle, cycles_on_backlog};
use crate::measure::{Case, Figure, Plan, Result, micros, on_two_threads, per_second, percentile};
use crate::ours::Ours;
use crate::redis::window;
use crate::report::Unit;

/// A queue with one partition on one primary with `replicas` replicas.
const fn primary(replicas: usize) -> Layout {
    Layout::replicated(1, replicas, 1)
}

/// What a replica costs its primary, though nobody waits for it; and what it takes itself.
pub(super) fn server_cpu(plan: &Plan) -> Case {
    let figures = [
        Figure::median("CPU of the primary, batch 10", Unit::CpuMicrosPerMessage),
        Figure::median("CPU of primary and replica, batch 10", Unit::CpuMicrosPerMessage),
        Figure::median("bytes from the primary, batch 10", Unit::Bytes),
    ];
    let load = Load { callers: plan.pick(64, 4), batch: 10, window: costs::window(plan) };
    let batches = plan.pick(64, 2);
    let side = |replicas: usize| {
        let mut site = None;
        move || {
            let is_new = site.is_none();
            let site = site.get_or_insert_with(|| Site::start(primary(replicas)));
            on_two_threads(async {
                let queue = site.open_with(site.options()?.coalesce(false)).await?;
                fill(&queue, if is_new { batches } else { 0 }).await?;
                cycle(&queue, 0, load.batch).await?;
                let all = || site.nodes().iter().map(|node| node.cpu_micros()).sum::<u64>();
                let (before, all_before) = (site.read()?, all());
                let (done, _) = cycles_on_backlog(&queue, load).await?;
                let used: Vec<Reading> = site.read()?;
                let used = used[0].since(before[0]);
                let all_used = all() - all_before;
                let count = queue.count().await?;
                queue.close(count).await?;
                let figures = [used.cpu_micros, all_used, used.bytes_out];
                Ok(figures.map(|figure| figure as f64 / done.messages as f64))
            })
        }
    };
    Case::several("replica", figures, side(1)).against("no replica", side(0))
}

/// What it costs to wait for the replica.
pub(super) fn confirmed(plan: &Plan, callers: u64) -> Case {
    let load = Load { callers, batch: 1, window: window(plan) };
    let name = format!("replicas=1, {}", load.name());
    let figures = [
        Figure::median(name.clone(), Unit::MessagesPerSecond),
        Figure::median(format!("{name}, one send, p50"), Unit::Micros),
        Figure::median(format!("{name}, one send, p99"), Unit::Micros),
    ];
    let side = |replicas: usize, awaited: u32| {
        let mut site = None;
        move || {
            let site = site.get_or_insert_with(|| Site::start(primary(replicas)));
            on_two_threads(async {
                let options = site.options()?.durability(Durability::replicas(awaited));
                let queue = site.open_with(options).await?;
                cycle(&queue, 0, load.batch).await?;
                measure(queue, load).await
            })
        }
    };
    Case::several(name, figures, side(1, 1))
        .against("1 replica, not awaited", side(1, 0))
        .against("no replica", side(0, 0))
}

/// Says how many messages go all the way in a second, and how long half of the sends take at most,
/// and 99 of 100.
async fn measure(queue: Ours, load: Load) -> Result<[f64; 3]> {
    let numbers = Numbers::within(load.window);
    let callers = (0..load.callers).map(|_| {
        let (queue, numbers) = (queue.clone(), numbers.clone());
        async move {
            let mut times = Vec::new();
            while let Some(number) = numbers.take() {
                let start = Instant::now();
                queue.send(vec![body(number, BODY)]).await?;
                times.push(start.elapsed());
                let receipts = queue.receive(1).await?.into_iter().map(|(_, receipt)| receipt);
                queue.acknowledge(receipts.collect()).await?;
            }
            Ok(times)
        }
    });
    let (times, elapsed) = crowd(callers).await?;
    let mut times: Vec<Duration> = times.into_iter().flatten().collect();
    queue.close(0).await?;
    let rate = per_second(times.len() as u64, elapsed);
    Ok([rate, micros(percentile(&mut times, 50)?), micros(percentile(&mut times, 99)?)])
}
