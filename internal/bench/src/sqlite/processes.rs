//! Several processes on one file.
//!
//! Each process has 16 callers that send, receive and acknowledge until time is up. Their rates are
//! added up, and compared with one process that has as many callers as all of them. The same runs
//! say how long the slowest send of any process took, over all rounds: whether one process can keep
//! another from writing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::load::{BODY, Durable, Numbers, body, crowd, seq_of};
use super::ours::Ours;
use super::{child, place, window};
use crate::measure::{
    Case, Figure, Plan, Result, expect_eq, millis, on_one_thread, on_two_threads, per_second,
};
use crate::process;
use crate::report::Unit;
use crate::tally::Tally;

/// Callers in each process, where there are several.
const CALLERS: u64 = 16;

/// One of several processes.
#[derive(Debug, Args)]
pub(crate) struct Process {
    path: PathBuf,
    /// Which of them it is: no two send the same numbers.
    index: u64,
    callers: u64,
    millis: u64,
}

/// What a process has done.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    cycles_per_second: f64,
    worst_send_millis: f64,
    sent: Tally,
    received: Tally,
}

pub(super) fn case(plan: &Plan, processes: u64) -> Case {
    let window = window(plan);
    let all = processes * CALLERS;
    let name = format!("{processes} processes, {CALLERS} callers each");
    let figures = [
        Figure::median(format!("cycle, {name}"), Unit::MessagesPerSecond),
        Figure::worst(format!("slowest send, {name}"), Unit::Millis),
    ];
    Case::several(name, figures, move || run(processes, CALLERS, window))
        .against(format!("Pillarbox, 1 process, {all} callers"), move || run(1, all, window))
}

/// Says how many cycles per second there were in all, and how many milliseconds the slowest send
/// took.
fn run(processes: u64, callers: u64, window: Duration) -> Result<[f64; 2]> {
    let directory = place::fresh()?;
    let path = directory.path().join("queue.db");
    let mut companions = Vec::new();
    for index in 0..processes {
        let numbers = [index, callers, window.as_millis() as u64].map(|number| number.to_string());
        companions.push(child::start("process", &path, &numbers)?);
    }
    companions.iter_mut().try_for_each(|companion| companion.expect("ready"))?;
    companions.iter_mut().try_for_each(|companion| companion.say("go"))?;

    let (mut rate, mut worst) = (0.0, 0.0_f64);
    let (mut sent, mut received) = (Tally::default(), Tally::default());
    for companion in &mut companions {
        let outcome: Outcome = serde_json::from_str(&companion.hear()?)?;
        rate += outcome.cycles_per_second;
        worst = worst.max(outcome.worst_send_millis);
        sent.merge(outcome.sent);
        received.merge(outcome.received);
    }
    expect_eq("messages received", received, sent)?;
    on_one_thread(check_empty(&path))?;
    Ok([rate, worst])
}

async fn check_empty(path: &Path) -> Result<()> {
    Ours::open(path).await?.close(0).await
}

impl Process {
    pub(super) fn run(self) -> Result<()> {
        on_two_threads(async {
            let queue = Ours::open(&self.path).await?;
            process::say("ready")?;
            process::expect("go")?;
            let numbers = Numbers::within(Duration::from_millis(self.millis));
            let callers =
                (0..self.callers).map(|_| cycle(queue.clone(), numbers.clone(), self.index << 32));
            let (outcomes, elapsed) = crowd(callers).await?;
            let mut all = Outcome {
                cycles_per_second: per_second(numbers.taken(), elapsed),
                worst_send_millis: 0.0,
                sent: Tally::default(),
                received: Tally::default(),
            };
            for (worst_send, sent, received) in outcomes {
                all.worst_send_millis = all.worst_send_millis.max(millis(worst_send));
                all.sent.merge(sent);
                all.received.merge(received);
            }
            process::say(&serde_json::to_string(&all)?)
        })
    }
}

/// Cycles until time is up. Says how long the slowest send took, and what was sent and received.
async fn cycle(queue: Ours, numbers: Numbers, first: u64) -> Result<(Duration, Tally, Tally)> {
    let mut worst = Duration::ZERO;
    let (mut sent, mut received) = (Tally::default(), Tally::default());
    while let Some(number) = numbers.take() {
        let seq = first + number;
        let body = body(seq, BODY);
        let start = Instant::now();
        queue.send(body).await?;
        worst = worst.max(start.elapsed());
        sent.add(seq);
        let (body, receipt) = queue.receive().await?;
        received.add(seq_of(&body, BODY)?);
        queue.acknowledge(receipt).await?;
    }
    Ok((worst, sent, received))
}
