//! 100 tasks on 4 workers. Some fail and are tried again, twice at most; what fails three times becomes a
//! dead letter.
//!
//!     cargo run --example mailbox
//!     cargo run --example mailbox -- --slow
//!
//! A task takes 30 to 60 ms; with `--slow` a hundred times as long, which leaves time for Ctrl+C: the first
//! lets what is running come to an end, the second cancels it. Which tasks fail is always the same.

use std::time::Instant;

use pillarbox::prelude::*;
use pillarbox::runtime::{Attempt, WorkerId};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

const TASKS: u64 = 100;
const SEED: u64 = 4;

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    number: u64,
}

/// What the workers share.
#[derive(Debug)]
struct Pace {
    /// 1, or 100 if it is to be slow.
    factor: u32,
}

#[derive(Debug)]
struct Unlucky;

impl std::fmt::Display for Unlucky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("no luck this time")
    }
}

impl std::error::Error for Unlucky {}

async fn work(
    Task { number }: Task,
    WorkerId(worker): WorkerId,
    Attempt(attempt): Attempt,
    Context(pace): Context<Pace>,
) -> Result<(), Unlucky> {
    let mut luck = StdRng::seed_from_u64(SEED << 32 ^ number << 8 ^ u64::from(attempt));
    let milliseconds = luck.random_range(30..60);
    tokio::time::sleep(Duration::from_millis(milliseconds) * pace.factor).await;
    let result = if luck.random_bool(0.3) { Err(Unlucky) } else { Ok(()) };
    let said = if result.is_ok() { "done" } else { "failed" };
    println!("worker {worker}  task {number:>3}  attempt {attempt}  {said}");
    result
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let factor = if std::env::args().any(|arg| arg == "--slow") { 100 } else { 1 };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("tasks.db");
    let backend = pillarbox::open(&format!("sqlite:{}", file.display())).await?;
    let tasks: Mailbox<Task> = backend.mailbox("tasks")?;
    let dead: Mailbox<DeadLetter<Task>> = backend.mailbox("tasks-dlq")?;
    let all: Vec<_> = (1..=TASKS).map(|number| Task { number }).collect();
    tasks.send_batch(&all).await?.all()?;

    let worker = Worker::new(tasks.clone())
        .context(Pace { factor })
        .handler(work)
        .workers(4)
        .retry(Backoff::constant(Duration::from_millis(100) * factor).jitter(0.5))
        .max_deliveries(3)
        .dead_letters(DlqPolicy::new());

    // Tells how it goes, and says stop when no task is left.
    let control = worker.control();
    let mut stats = control.stats();
    let start = Instant::now();
    tokio::spawn(async move {
        let mut told = 0;
        while stats.changed().await.is_ok() {
            let now = stats.borrow_and_update().clone();
            if now.processed >= told + 25 {
                told = now.processed;
                println!(
                    "          processed {}, succeeded {}, retried {}, dead-lettered {}; {:.0} a second",
                    now.processed, now.succeeded, now.retried, now.dead_lettered, now.rate
                );
            }
            if now.succeeded + now.dead_lettered == TASKS {
                control.stop();
            }
        }
    });
    let stats = worker.run().await?;

    println!("\nprocessed      {} times, for {TASKS} tasks", stats.processed);
    println!("succeeded      {}", stats.succeeded);
    println!("retried        {}", stats.retried);
    println!("dead-lettered  {}", stats.dead_lettered);
    for (id, one) in stats.workers.iter().enumerate() {
        println!("worker {id}       {} processed, {} failed", one.processed, one.failed);
    }
    println!("elapsed        {:.1} s", start.elapsed().as_secs_f64());

    for letter in dead.receive(Receive::up_to(10)).await? {
        let DeadLetter { body, info, .. } = letter.body();
        println!(
            "dead letter    task {} after {} deliveries: {} ({})",
            body.number, info.delivery_count, info.last_error, info.last_error_type,
        );
    }

    // Interrupted or not, every task is done, dead, or still in its mailbox.
    let left = tasks.counts().await?.total();
    assert_eq!(stats.succeeded + stats.dead_lettered + left, TASKS);
    assert_eq!(dead.counts().await?.total(), stats.dead_lettered);
    if left == 0 {
        assert!(stats.retried > 0 && stats.dead_lettered > 0, "the seed shows nothing");
    } else {
        println!("left           {left} for the next run");
    }
    backend.close().await;
    Ok(())
}
