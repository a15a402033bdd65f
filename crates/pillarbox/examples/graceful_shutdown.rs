//! A stop while much is to be done: what is running is finished, what has not been begun goes back, and what
//! does not come to an end in time is cancelled and goes back as well. Nothing is lost.
//!
//!     cargo run --example graceful_shutdown
//!
//! A service calls [`Worker::run`], which stops in this way at SIGTERM or Ctrl+C. This example stops itself.

use std::time::Instant;

use pillarbox::prelude::*;
use pillarbox::runtime::{Event, WorkerId};
use serde::{Deserialize, Serialize};

const JOBS: u64 = 20;

#[derive(Debug, Serialize, Deserialize)]
struct Job {
    number: u64,
    milliseconds: u64,
}

async fn work(Job { number, milliseconds }: Job, WorkerId(worker): WorkerId) {
    println!("worker {worker}  job {number} begins");
    let unfinished = Unfinished { number };
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
    std::mem::forget(unfinished);
    println!("worker {worker}  job {number} is done");
}

/// A handler that is cancelled is dropped at its await, and so is what it holds: the place to clean up.
struct Unfinished {
    number: u64,
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        println!("          job {} is cancelled, and cleans up", self.number);
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let directory = tempfile::tempdir()?;
    let url = format!("sqlite:{}", directory.path().join("jobs.db").display());
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<Job> = backend.mailbox("jobs")?;
    // The third takes longer than anybody will wait.
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
            println!("hook      the workers have ended: write the last metrics");
        })
        .on_shutdown(|| async { println!("hook      close the pool of connections") })
        .start();

    // Five jobs are done: stop, while three are running and the next three wait in inboxes.
    let mut events = running.control().events();
    for _ in 0..5 {
        events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await;
    }
    println!("main      stop");
    let stop = Instant::now();
    let stats = running.stop().await?;
    println!("main      stopped after {:.1?}", stop.elapsed());
    println!("finished  {} in all", stats.succeeded);
    println!("returned  {} that had not been begun", stats.returned);
    println!("cancelled {} after 800 ms, and given back", stats.released);

    // A receive that was under way gives back what it was about to deliver, and this waits for it.
    backend.close().await;

    // Whoever comes next finds the rest at once; no lease has to end before.
    let backend = pillarbox::open(&url).await?;
    let jobs: Mailbox<Job> = backend.mailbox("jobs")?;
    let counts = jobs.counts().await?;
    println!("left      {} ready, {} in flight", counts.ready, counts.in_flight);
    assert_eq!(stats.succeeded + counts.ready, JOBS);
    assert_eq!((counts.in_flight, counts.delayed), (0, 0));
    assert_eq!((stats.released, stats.in_flight), (1, 0));
    assert!(stats.returned > 0, "the inboxes were empty");
    assert!(stop.elapsed() < Duration::from_secs(20), "it waited for what does not end");
    backend.close().await;
    Ok(())
}
