//! Producers and consumers on plain threads, without async. One message is not acknowledged, and is delivered again
//! when its lease expires.
//!
//!     cargo run --example blocking --features blocking

use std::sync::mpsc;
use std::thread;

use pillarbox::blocking::{self, Mailbox};
use pillarbox::prelude::{Duration, Error, Receive};

const PRODUCERS: u32 = 2;
const CONSUMERS: u32 = 3;
const EACH: u32 = 10;

fn produce(jobs: &Mailbox<u32>, producer: u32) -> pillarbox::Result<()> {
    for n in 0..EACH {
        jobs.send(&(producer * EACH + n))?;
    }
    Ok(())
}

/// Handles jobs until the mailbox is closed.
fn consume(jobs: &Mailbox<u32>, consumer: u32, done: &mpsc::Sender<u32>) -> pillarbox::Result<()> {
    let request = Receive::one().visibility(Duration::from_secs(1)).wait(Duration::from_secs(20));
    loop {
        let batch = match jobs.receive(request) {
            Err(Error::Closed { .. }) => return Ok(()),
            batch => batch?,
        };
        for message in batch {
            let (job, delivery) = (*message.body(), message.delivery_count());
            if job == 13 && delivery == 1 {
                println!("consumer {consumer}: job {job} is not acknowledged");
                continue;
            }
            println!("consumer {consumer}: job {job}, delivery {delivery}");
            message.acknowledge()?;
            if done.send(job).is_err() {
                return Ok(());
            }
        }
    }
}

fn main() -> pillarbox::Result<()> {
    let backend = blocking::open("sqlite::memory:")?;
    let jobs: Mailbox<u32> = backend.mailbox("jobs")?;
    let (done, all_done) = mpsc::channel();

    thread::scope(|threads| {
        let jobs = &jobs;
        let producers = (0..PRODUCERS).map(|n| threads.spawn(move || produce(jobs, n)));
        let producers: Vec<_> = producers.collect();
        let consumers = (0..CONSUMERS).map(|n| {
            let done = done.clone();
            threads.spawn(move || consume(jobs, n, &done))
        });
        let consumers: Vec<_> = consumers.collect();

        let mut joined = producers.into_iter().map(|thread| thread.join().expect("no panic"));
        let sent = joined.try_for_each(|sent| sent);
        if sent.is_ok() {
            let total = (PRODUCERS * EACH) as usize;
            println!("{} jobs done", all_done.iter().take(total).count());
        }
        jobs.close()?; // ends the waiting receives
        let mut joined = consumers.into_iter().map(|thread| thread.join().expect("no panic"));
        sent.and(joined.try_for_each(|consumed| consumed))
    })
}
