//! How soon a receiver that waits has a message, and what waiting costs the server.
//!
//! A message carries the time at which its send was called; its receiver reads the same
//! clock. Sender and receivers have connections of their own and share nothing but a runtime. The
//! limit is `BLPOP`, which needs one connection per waiter, and removes the message at once.
//!
//! Waiting is measured by what the server has carried out meanwhile (`total_commands_processed`,
//! which counts the commands within scripts too). Who waits may still look at each queue now and
//! then, and one command a second is what a process may ask for; so the window is long enough for
//! all queues to have had their turn at that pace, up to 40 seconds. Compared with `BLPOP` for a second at a time on
//! each queue, which is how one waits if one also has to look for leases that have ended. Where
//! there was no command at all, it counts as one.

use std::time::{Duration, Instant};

use pillarbox_testing::server::RedisServer;
use redis::cmd;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::cycle::Kept;
use super::fresh;
use super::native::{Blocking, connect};
use crate::cycles::{BODY, Contestant, body, seq_of};
use crate::measure::{Case, Figure, Plan, Result, expect_eq, micros, on_two_threads, percentile};
use crate::ours::Ours;
use crate::report::Unit;

/// The time from a send until one of `waiters` waiting receivers has the message.
pub(super) fn latency(plan: &Plan, waiters: usize) -> Case {
    let messages = plan.pick(500, 10);
    let who = if waiters == 1 { "1 waiter".into() } else { format!("{waiters} waiters") };
    let name = format!("wake-up latency, {who}");
    let figures =
        ["p50", "p99"].map(|place| Figure::median(format!("{name}, {place}"), Unit::Micros));
    Case::several(name, figures, move || {
        let server = fresh(Kept::EverySecond);
        on_two_threads(async {
            let (sender, receiver) =
                (Ours::open(&server.url()).await?, Ours::open(&server.url()).await?);
            pick_up(sender, vec![receiver; waiters], messages).await
        })
    })
    .against_limit("BLPOP", move || {
        let server = fresh(Kept::EverySecond);
        on_two_threads(async {
            let sender = Blocking::open(&server.url()).await?;
            let mut receivers = Vec::new();
            for _ in 0..waiters {
                receivers.push(Blocking::open(&server.url()).await?);
            }
            pick_up(sender, receivers, messages).await
        })
    })
}

/// Says how many microseconds it took until half of the messages were received at most, and 99 of
/// 100.
pub(crate) async fn pick_up<C: Contestant>(
    sender: C,
    receivers: Vec<C>,
    messages: u64,
) -> Result<[f64; 2]> {
    let start = Instant::now();
    let now = move || start.elapsed().as_nanos() as u64;
    let (results, mut received) = mpsc::unbounded_channel();
    let mut tasks = JoinSet::new();
    for receiver in receivers {
        let results = results.clone();
        tasks.spawn(async move {
            loop {
                for (body, receipt) in receiver.receive(1).await? {
                    let latency = now().saturating_sub(seq_of(&body, BODY)?);
                    receiver.acknowledge(vec![receipt]).await?;
                    results.send(Duration::from_nanos(latency))?;
                }
            }
        });
    }
    let sends = tokio::spawn(async move {
        for _ in 0..messages {
            // At intervals that suit nobody's clock, and long enough for all to wait again.
            tokio::time::sleep(Duration::from_micros(rand::random_range(3_000..6_000))).await;
            sender.send(vec![body(now(), BODY)]).await?;
        }
        Result::Ok(sender)
    });
    let mut latencies = Vec::new();
    while latencies.len() < messages as usize {
        tokio::select! {
            latency = received.recv() => latencies.extend(latency),
            Some(ended) = tasks.join_next() => {
                let ended: Result<()> = ended?;
                ended?;
            }
        }
    }
    tasks.shutdown().await;
    sends.await??.close(0).await?;
    let percentiles = [percentile(&mut latencies, 50)?, percentile(&mut latencies, 99)?];
    Ok(percentiles.map(micros))
}

/// One process that waits for a message in each of `queues` queues.
pub(super) fn idle(plan: &Plan, queues: u32) -> Case {
    let in_turn = Duration::from_millis(1300) * queues;
    let in_turn = in_turn.clamp(Duration::from_secs(10), Duration::from_secs(40));
    let window = plan.pick(in_turn, Duration::from_millis(200));
    // It asks all the time.
    let window_of_other = window.min(Duration::from_secs(5));
    let name = format!(
        "server commands while idle, 1 waiter in {}",
        if queues == 1 { "1 queue".to_owned() } else { format!("each of {queues} queues") }
    );
    Case::new(name, Unit::CommandsPerSecond, move || on_two_threads(ours_waits(queues, window)))
        .against_limit("one BLPOP per queue, 1 s timeout", move || {
            on_two_threads(blpop_waits(queues, window_of_other))
        })
}

async fn ours_waits(queues: u32, window: Duration) -> Result<f64> {
    let server = fresh(Kept::EverySecond);
    let ours = Ours::open(&server.url()).await?;
    let mut waiters = JoinSet::new();
    for number in 0..queues {
        let queue = ours.another(&format!("bench-{number}"))?;
        // Longer than the window, so that no receive has to be repeated within it.
        waiters.spawn(async move { queue.receive_up_to(1, window * 10).await.map(drop) });
    }
    let figure = commands(&server, window).await?;
    expect_eq("receives that ended early", waiters.try_join_next().is_some(), false)?;
    waiters.shutdown().await;
    ours.close(0).await?;
    Ok(figure)
}

async fn blpop_waits(queues: u32, window: Duration) -> Result<f64> {
    let server = fresh(Kept::EverySecond);
    let mut waiters = JoinSet::new();
    for number in 0..queues {
        let mut connection = connect(&server.url()).await?;
        waiters.spawn(async move {
            let mut pop = cmd("BLPOP");
            pop.arg(format!("bench-{number}")).arg(1);
            while pop.query_async::<Option<(String, String)>>(&mut connection).await.is_ok() {}
        });
    }
    let figure = commands(&server, window).await?;
    expect_eq("those who ended early", waiters.try_join_next().is_some(), false)?;
    Ok(figure)
}

/// How many commands a server carries out per second.
async fn commands(server: &RedisServer, window: Duration) -> Result<f64> {
    let processed = || server.info("total_commands_processed").parse::<u64>();
    // Until all have begun to wait, and no longer look whether there is something at once.
    tokio::time::sleep(window.min(Duration::from_secs(1))).await;
    let (before, start) = (processed()?, Instant::now());
    tokio::time::sleep(window).await;
    let elapsed = start.elapsed();
    // Of the two questions, the first is among those counted.
    let count = processed()? - before - 1;
    Ok(count.max(1) as f64 / elapsed.as_secs_f64())
}
