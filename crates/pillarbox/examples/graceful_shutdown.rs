//! A graceful shutdown under load: running handlers finish, and a handler that does not finish in time is cancelled and
//! its message returned to the queue. Nothing is lost.
//!
//!     cargo run --example graceful_shutdown
//!
//! A service calls [`Worker::run`], which stops in this way on SIGTERM or Ctrl+C. This example stops itself.

use std::time::Instant;

use pillarbox::Event;
use pillarbox::handler::WorkerId;
use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};

const JOBS: u64 = 20;

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    number: u64,
    milliseconds: u64,
}

async fn work(Job { number, milliseconds }: Job, WorkerId(worker): WorkerId) {
    println!("worker {worker}  job {number} starts");
    let unfinished = Unfinished { number };
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    std::mem::forget(unfinished);
    println!("worker {worker}  job {number} is done");
}

/// Guard of a running job. A cancelled handler is dropped at its await with all that it owns, so `drop` can clean up.
struct Unfinished {
    number: u64,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        println!("          job {} is cancelled and cleans up", self.number);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<Job> = backend.mailbox("jobs")?;
    // The third job takes longer than the shutdown waits.
    let length = |number| if number == 3 { 60_000 } else { 150 + 50 * (number % 3) };
    let all: Vec<_> =
        (1..=JOBS).map(|number| Job { number, milliseconds: length(number) }).collect();
    jobs.send_batch(&all).await?.all()?;

    let running = Worker::new(jobs)
        .handler(work)
        .workers(3)
        .without_timeout()
        .drain_for(Duration::from_millis(800))
        .on_shutdown(|| async {
            println!("hook      the workers have ended: flush the metrics");
        })
        .on_shutdown(|| async { println!("hook      close the connection pool") })
        .start();

    // Stops after five jobs, while three are running.
    let mut events = running.control().events();
    for _ in 0..5 {
        events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await;
    }
    println!("main      stop");
    let stop = Instant::now();
    let stats = running.stop().await?;
    println!("main      stopped after {:.1?}", stop.elapsed());
    println!("finished  {} in total", stats.succeeded);
    println!("cancelled {} after 800 ms, and returned", stats.released);

    // Waits until a pending receive has returned the messages that it was about to deliver.
    backend.close().await;

    // The next process can receive the rest at once, without waiting for a lease to expire.
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<Job> = backend.mailbox("jobs")?;
    let counts = jobs.counts().await?;
    println!("left      {} ready, {} in flight", counts.ready, counts.in_flight);
    assert_eq!(stats.succeeded + counts.ready, JOBS);
    assert_eq!((counts.in_flight, counts.delayed), (0, 0));
    assert_eq!((stats.released, stats.in_flight), (1, 0));
    assert!(
        stop.elapsed() < Duration::from_secs(20),
        "the shutdown waited for a job that does not end"
    );
    backend.close().await;
    Ok(())
}
