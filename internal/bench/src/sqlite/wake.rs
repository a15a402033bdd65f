//! How soon a receiver that waits has a message, and what waiting costs.
//!
//! A message carries the time at which its send was called. The receiver, in another process, looks
//! at the same clock when it has the message, so that the send with its sync is part of the time,
//! and so is the sync of the delivery. Compared with a receiver in the same process, which is
//! woken by a send instead of polling.
//!
//! Waiting is measured as in the memory suite, in a fresh process with the file open: the CPU time
//! of the runtime and of the thread that writes the file.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;

use super::load::{BODY, Durable, WAIT, body, seq_of};
use super::ours::Ours;
use super::{child, place};
use crate::measure::{
    Case, Figure, Plan, Result, expect_eq, millis, on_one_thread, on_two_threads, percentile,
};
use crate::process::{self, CpuClock};
use crate::report::Unit;

/// How many receivers wait.
const WAITERS: u64 = 100;

/// A process that waits for messages.
#[derive(Debug, Args)]
pub(crate) struct Receiver {
    path: PathBuf,
    messages: u64,
}

/// A process whose receivers wait in vain.
#[derive(Debug, Args)]
pub(crate) struct Idle {
    path: PathBuf,
    waiters: u64,
    millis: u64,
}

pub(super) fn latency(plan: &Plan) -> Case {
    let messages = plan.pick(100, 5);
    let name = "wake-up latency, waiter in another process";
    let figures =
        ["p50", "p99"].map(|place| Figure::median(format!("{name}, {place}"), Unit::Millis));
    Case::several(name, figures, move || to_another_process(messages))
        .against("Pillarbox, waiter in the same process", move || within_this_process(messages))
}

fn to_another_process(messages: u64) -> Result<[f64; 2]> {
    let directory = place::fresh()?;
    let path = directory.path().join("queue.db");
    let mut receiver = child::start("receiver", &path, &[messages.to_string()])?;
    receiver.expect("ready")?;
    on_one_thread(async {
        let queue = Ours::open(&path).await?;
        send_now_and_then(&queue, messages).await?;
        let latencies = serde_json::from_str(&receiver.hear()?)?;
        queue.close(0).await?;
        Ok(latencies)
    })
}

fn within_this_process(messages: u64) -> Result<[f64; 2]> {
    let directory = place::fresh()?;
    on_two_threads(async {
        let queue = Ours::open(&directory.path().join("queue.db")).await?;
        let receiver = tokio::spawn(receive(queue.clone(), messages));
        send_now_and_then(&queue, messages).await?;
        let latencies = receiver.await??;
        queue.close(0).await?;
        Ok(latencies)
    })
}

impl Receiver {
    pub(super) fn run(self) -> Result<()> {
        on_one_thread(async {
            let queue = Ours::open(&self.path).await?;
            process::say("ready")?;
            let latencies = receive(queue, self.messages).await?;
            process::say(&serde_json::to_string(&latencies)?)
        })
    }
}

/// Sends messages that say when they were sent, at intervals that suit nobody's clock.
async fn send_now_and_then(queue: &Ours, messages: u64) -> Result<()> {
    for _ in 0..messages {
        let pause = Duration::from_micros(rand::random_range(20_000..60_000));
        tokio::time::sleep(pause).await;
        queue.send(body(now()?, BODY)).await?;
    }
    Ok(())
}

/// Waits for messages one by one, and says in how many milliseconds half of them were here at most,
/// and 99 of 100.
async fn receive(queue: Ours, messages: u64) -> Result<[f64; 2]> {
    let mut latencies = Vec::new();
    for _ in 0..messages {
        let (body, receipt) = queue.receive().await?;
        let sent = seq_of(&body, BODY)?;
        latencies.push(Duration::from_nanos(now()?.saturating_sub(sent)));
        queue.acknowledge(receipt).await?;
    }
    Ok([millis(percentile(&mut latencies, 50)?), millis(percentile(&mut latencies, 99)?)])
}

/// Nanoseconds since 1970, by the clock that all processes share.
fn now() -> Result<u64> {
    Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64)
}

pub(super) fn idle(plan: &Plan) -> Case {
    let window = plan.pick(Duration::from_secs(2), Duration::from_millis(200));
    let run = move |waiters: u64| {
        let directory = place::fresh()?;
        let numbers = [waiters, window.as_millis() as u64].map(|number| number.to_string());
        let mut companion = child::start("idle", &directory.path().join("queue.db"), &numbers)?;
        Ok(companion.hear()?.parse::<f64>()?)
    };
    let name = format!("idle CPU, {WAITERS} waiters, empty queue");
    Case::new(name, Unit::CpuMicrosPerSecond, move || run(WAITERS))
        .against_limit("no waiters", move || run(0))
}

impl Idle {
    pub(super) fn run(self) -> Result<()> {
        let window = Duration::from_millis(self.millis);
        on_one_thread(async {
            let queue = Ours::open(&self.path).await?;
            expect_eq("messages", queue.count().await?, 0)?;
            let receivers: Vec<_> = (0..self.waiters)
                .map(|_| {
                    let queue = queue.clone();
                    tokio::spawn(async move { queue.receive_up_to(1, WAIT).await })
                })
                .collect();
            tokio::time::sleep(window / 10).await;

            // Only now, so that the thread that writes the file is among those it looks at.
            let clock = CpuClock::new()?;
            let before = clock.read()?;
            tokio::time::sleep(window).await;
            let used = clock.read()? - before;

            let ended = receivers.iter().filter(|receiver| receiver.is_finished()).count();
            expect_eq("receivers that ended early", ended, 0)?;
            process::say(&(used.as_secs_f64() * 1e6 / window.as_secs_f64()).to_string())
        })
    }
}
