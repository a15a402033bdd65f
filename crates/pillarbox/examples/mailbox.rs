//! 100 jobs on 4 workers. A failed job is retried up to two times; a job that fails three times becomes a dead letter.
//!
//!     cargo run --example mailbox
//!     cargo run --example mailbox -- --slow
//!
//! A job takes 30 to 60 ms; with `--slow` a hundred times as long, which leaves time for Ctrl+C: the first drains the
//! running jobs, the second cancels them. A fixed seed chooses the jobs that fail.

use std::time::Instant;

use pillarbox::handler::{Attempt, WorkerId};
use pillarbox::prelude::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

const JOBS: u64 = 100;
const SEED: u64 = 4;

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    number: u64,
}

/// Context of the handlers.
#[derive(Debug)]
struct Settings {
    /// Factor of all durations: 1, or 100 with `--slow`.
    factor: u32,
}

#[derive(Debug)]
struct Unlucky;

impl std::fmt::Display for Unlucky {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("bad luck")
    }
}

impl std::error::Error for Unlucky {}

async fn work(
    Job { number }: Job,
    WorkerId(worker): WorkerId,
    Attempt(attempt): Attempt,
    Context(settings): Context<Settings>,
) -> Result<(), Unlucky> {
    let mut random = StdRng::seed_from_u64(SEED << 32 ^ number << 8 ^ u64::from(attempt));
    let milliseconds = random.random_range(30..60);
    tokio::time::sleep(Duration::from_millis(milliseconds) * settings.factor).await;
    let result = if random.random_bool(0.3) { Err(Unlucky) } else { Ok(()) };
    let status = if result.is_ok() { "done" } else { "failed" };
    println!("worker {worker}  job {number:>3}  attempt {attempt}  {status}");
    result
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let factor = if std::env::args().any(|arg| arg == "--slow") { 100 } else { 1 };
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("jobs.db");
    let backend = pillarbox::open(&format!("sqlite:{}", file.display())).await?;
    let jobs: Mailbox<Job> = backend.mailbox("jobs")?;
    let dead: Mailbox<DeadLetter<Job>> = backend.mailbox("jobs-dlq")?;
    let all: Vec<_> = (1..=JOBS).map(|number| Job { number }).collect();
    jobs.send_batch(&all).await?.all()?;

    let worker = Worker::new(jobs.clone())
        .context(Settings { factor })
        .handler(work)
        .workers(4)
        .retry(Backoff::constant(Duration::from_millis(100) * factor).jitter(0.5))
        .max_deliveries(3)
        .dead_letters(DlqPolicy::new());

    // Prints the progress, and stops the workers when no job is left.
    let control = worker.control();
    let mut stats = control.stats();
    let start = Instant::now();
    tokio::spawn(async move {
        let mut printed = 0;
        while stats.changed().await.is_ok() {
            let now = stats.borrow_and_update().clone();
            if now.processed >= printed + 25 {
                printed = now.processed;
                println!(
                    "          processed {}, succeeded {}, retried {}, dead-lettered {}; {:.0} per second",
                    now.processed, now.succeeded, now.retried, now.dead_lettered, now.rate
                );
            }
            if now.succeeded + now.dead_lettered == JOBS {
                control.stop();
            }
        }
    });
    let stats = worker.run().await?;

    println!("\nprocessed      {} attempts for {JOBS} jobs", stats.processed);
    println!("succeeded      {}", stats.succeeded);
    println!("retried        {}", stats.retried);
    println!("dead-lettered  {}", stats.dead_lettered);
    for (id, worker) in stats.workers.iter().enumerate() {
        println!("worker {id}       {} processed, {} failed", worker.processed, worker.failed);
    }
    println!("elapsed        {:.1} s", start.elapsed().as_secs_f64());

    for dead_letter in dead.receive(Receive::up_to(10)).await? {
        let DeadLetter { body, info, .. } = dead_letter.body();
        println!(
            "dead letter    job {} after {} deliveries: {} ({})",
            body.number, info.delivery_count, info.last_error, info.last_error_type,
        );
    }

    // Interrupted or not, every job is done, a dead letter, or still in its mailbox.
    let left = jobs.counts().await?.total();
    assert_eq!(stats.succeeded + stats.dead_lettered + left, JOBS);
    assert_eq!(dead.counts().await?.total(), stats.dead_lettered);
    if left == 0 {
        assert!(
            stats.retried > 0 && stats.dead_lettered > 0,
            "the seed shows no retry or dead letter"
        );
    } else {
        println!("left           {left} for the next run");
    }
    backend.close().await;
    Ok(())
}
