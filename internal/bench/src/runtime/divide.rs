//! How two processes divide slow work.
//!
//! Two processes with four workers each serve one queue whose handlers take 100 ms. What one process holds
//! while it is busy, the other cannot do: a delivery is held from its receipt until its handler has ended.
//! The figures are the most deliveries that a process held at any time, the share of the process that did
//! more, each of the worst round, and the rate of both together.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use pillarbox_runtime::handler::Context;
use pillarbox_runtime::{Event, Runnable, Worker};
use serde::{Deserialize, Serialize};

use super::load::{Job, WORKERS, fill};
use super::store::{Address, Kind, Opened, Store};
use super::{CHILD, ours};
use crate::measure::{
    Case, Figure, Plan, Result, expect_eq, on_one_thread, on_two_threads, per_second,
};
use crate::process::{self, Companion};
use crate::report::Unit;

/// How long a handler takes.
const TAKES: Duration = Duration::from_millis(100);
const PROCESSES: usize = 2;
/// How long the parent waits for all jobs.
const PATIENCE: Duration = Duration::from_secs(60);

/// One of the processes.
#[derive(Debug, Args)]
pub(crate) struct Process {
    address: Address,
    /// A cap for the prefetch, instead of the default.
    prefetch: Option<usize>,
}

/// What a process has done.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    handled: u64,
    held: i64,
}

pub(super) fn case(plan: &Plan, kind: Kind) -> Case {
    let jobs = plan.pick(240, 32);
    let name =
        format!("handlers of 100 ms, {PROCESSES} processes of {WORKERS} workers, {}", kind.name());
    let figures = [
        Figure::worst(format!("{name}, held by one"), Unit::Deliveries),
        Figure::worst(format!("{name}, share of one"), Unit::Percent),
        Figure::median(name.clone(), Unit::MessagesPerSecond),
    ];
    Case::several(name, figures, move || run(kind, jobs, None))
        .against("Pillarbox, prefetch(0)", move || run(kind, jobs, Some(0)))
}

/// Says how many deliveries a process held at most, the share of the busier one, and the rate of both.
fn run(kind: Kind, jobs: u64, prefetch: Option<usize>) -> Result<[f64; 3]> {
    let store = Store::fresh(kind)?;
    let address = store.address();
    on_one_thread(async {
        let backend = address.backend().await?;
        fill(&backend.mailbox("jobs")?, jobs).await?;
        backend.close().await;
        Ok(())
    })?;
    let (argument, prefetch) = (address.argument()?, prefetch.map(|max| max.to_string()));
    let mut args = vec![CHILD, "divide", &argument[..]];
    args.extend(prefetch.as_deref());
    let mut companions = Vec::new();
    for _ in 0..PROCESSES {
        companions.push(Companion::start(&args)?);
    }
    companions.iter_mut().try_for_each(|companion| companion.expect("ready"))?;
    let start = Instant::now();
    companions.iter_mut().try_for_each(|companion| companion.say("go"))?;
    on_one_thread(async {
        let opened = address.open().await?;
        while opened.mailbox.approximate_count().await? > 0 {
            if start.elapsed() > PATIENCE {
                return Err("the jobs are not done in time".into());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Opened::close(opened).await
    })?;
    let rate = per_second(jobs, start.elapsed());
    let mut outcomes = Vec::new();
    for companion in &mut companions {
        companion.say("stop")?;
        outcomes.push(serde_json::from_str::<Outcome>(&companion.hear()?)?);
    }
    let handled: u64 = outcomes.iter().map(|outcome| outcome.handled).sum();
    expect_eq("jobs handled", handled, jobs)?;
    let held = outcomes.iter().map(|outcome| outcome.held).max().unwrap_or_default();
    let most = outcomes.iter().map(|outcome| outcome.handled).max().unwrap_or_default();
    Ok([held as f64, most as f64 * 100.0 / jobs as f64, rate])
}

/// Counts of one process.
#[derive(Debug, Default)]
struct Held {
    handled: AtomicU64,
    /// Received, and not yet handled.
    now: AtomicI64,
    most: AtomicI64,
}

impl Process {
    pub(super) fn run(self) -> Result<()> {
        on_two_threads(async {
            let opened = self.address.open().await?;
            let held = Arc::new(Held::default());
            let worker = Worker::new(opened.mailbox.clone()).context(held.clone()).handler(handle);
            let worker = ours::with_prefetch(worker.workers(WORKERS), self.prefetch);
            let mut events = worker.control().events();
            let counts = held.clone();
            let listener = tokio::spawn(async move {
                while let Some(event) = events.next().await {
                    match event {
                        Event::Received(_) => {
                            let now = counts.now.fetch_add(1, Ordering::AcqRel) + 1;
                            counts.most.fetch_max(now, Ordering::AcqRel);
                        }
                        Event::Returned(_) | Event::Released { .. } => {
                            counts.now.fetch_sub(1, Ordering::AcqRel);
                        }
                        Event::Drained => break,
                        _ => {}
                    }
                }
                events.missed()
            });
            process::say("ready")?;
            process::expect("go")?;
            let running = worker.start();
            tokio::task::spawn_blocking(|| process::expect("stop")).await??;
            running.stop().await?;
            expect_eq("events missed", listener.await?, 0)?;
            opened.close().await?;
            let handled = held.handled.load(Ordering::Acquire);
            let outcome = Outcome { handled, held: held.most.load(Ordering::Acquire) };
            process::say(&serde_json::to_string(&outcome)?)
        })
    }
}

async fn handle(job: Job, Context(held): Context<Arc<Held>>) -> Result<()> {
    tokio::time::sleep(TAKES).await;
    job.seq()?;
    held.handled.fetch_add(1, Ordering::AcqRel);
    held.now.fetch_sub(1, Ordering::AcqRel);
    Ok(())
}
