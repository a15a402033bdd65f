//! Requests and replies with plain mailboxes: a client and three workers, with failures and slow workers.
//!
//! The client requests the squares of the numbers 1 to 24 and receives the replies in its own mailbox. On their first
//! delivery, every fifth number is nacked and retried, and every seventh is held too long by a slow worker: its lease
//! expires, another worker handles it, and the late acknowledgement of the slow worker is refused.
//!
//! The queues are in an SQLite file, which is removed at the end. Another backend can be given as a URL:
//! `cargo run -p pillarbox --example request_reply memory:`

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use pillarbox::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

const REQUESTS: u64 = 24;
const LEASE: Duration = Duration::from_millis(400);

#[derive(Debug, Serialize, Deserialize)]
struct Square {
    n: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    n: u64,
    square: u64,
    worker: u32,
}

#[derive(Debug)]
struct Tally {
    retried: AtomicU32,
    redelivered: AtomicU32,
    refused: AtomicU32,
    /// Has a permit for each late acknowledgement that was tried.
    late: Semaphore,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("squares.db");
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("sqlite:{}", file.display()));
    println!("backend   {url}");
    let backend = pillarbox::open(&url).await?;
    // Receivers reply only to allowed addresses, whatever address a message contains.
    let requests = backend.builder("squares").allow_reply_to("client-7");
    let requests: Mailbox<Square, Answer> = requests.open()?;
    let answers: Mailbox<Answer> = backend.mailbox("client-7")?;
    let tally = Arc::new(Tally {
        retried: AtomicU32::new(0),
        redelivered: AtomicU32::new(0),
        refused: AtomicU32::new(0),
        late: Semaphore::new(0),
    });

    let mut workers = JoinSet::new();
    for worker in 1..=3 {
        workers.spawn(work(worker, requests.clone(), tally.clone()));
    }

    let wanted: Vec<_> = (1..=REQUESTS).map(|n| Square { n }).collect();
    let to_me = || SendOptions::new().reply_to("client-7").attribute("tenant", "acme");
    for sent in requests.send_batch_with(wanted.iter().map(|body| (body, to_me()))).await? {
        sent?;
    }
    println!("client    requested {REQUESTS} squares, replies to 'client-7'");

    let mut answered = 0;
    let mut sum = 0;
    while answered < REQUESTS {
        for message in answers.receive(Receive::up_to(10).wait(Duration::from_secs(20))).await? {
            let Answer { n, square, worker } = message.body();
            println!("client    {n}² = {square}, by worker {worker}");
            answered += 1;
            sum += square;
            message.acknowledge().await?;
        }
    }

    // Waits for the late acknowledgements, then closes the backend, which ends the workers.
    let slow = REQUESTS / 7;
    let _late = tally.late.acquire_many(slow as u32).await;
    let left = requests.counts().await?.total();
    backend.close().await;
    workers.join_all().await.into_iter().collect::<pillarbox::Result<Vec<()>>>()?;

    println!();
    println!("requests              {REQUESTS}");
    println!("replies               {answered}, with a sum of {sum}");
    println!("nacked and retried    {}", tally.retried.load(Ordering::Relaxed));
    println!("expired leases        {}", tally.redelivered.load(Ordering::Relaxed));
    println!("late receipts refused {}", tally.refused.load(Ordering::Relaxed));
    println!("left in the queue     {left}");
    println!("elapsed               {:.1} s", start.elapsed().as_secs_f64());
    Ok(())
}

/// Handles requests until the mailbox is closed.
async fn work(
    worker: u32,
    requests: Mailbox<Square, Answer>,
    tally: Arc<Tally>,
) -> pillarbox::Result<()> {
    let mut late = JoinSet::new();
    loop {
        let request = Receive::one().visibility(LEASE).wait(Duration::from_secs(20));
        let batch = match requests.receive(request).await {
            Err(Error::Closed { .. }) => break,
            other => other?,
        };
        for message in batch {
            let n = message.body().n;
            tokio::time::sleep(Duration::from_millis(20)).await;
            match (n, message.delivery_count()) {
                (n, 1) if n.is_multiple_of(7) => {
                    println!("worker {worker}  {n}: is slow");
                    let tally = tally.clone();
                    late.spawn(async move {
                        tokio::time::sleep(LEASE * 2).await;
                        if let Err(Error::ReceiptHandleExpired { .. }) = message.acknowledge().await
                        {
                            println!("worker {worker}  {n}: too late, the receipt was refused");
                            tally.refused.fetch_add(1, Ordering::Relaxed);
                        }
                        tally.late.add_permits(1);
                    });
                }
                (n, 1) if n.is_multiple_of(5) => {
                    println!("worker {worker}  {n}: fails, retry in 100 ms");
                    tally.retried.fetch_add(1, Ordering::Relaxed);
                    message.nack(Duration::from_millis(100)).await?;
                }
                (n, count) => {
                    if n.is_multiple_of(7) {
                        println!("worker {worker}  {n}: its lease expired; delivery {count}");
                        tally.redelivered.fetch_add(1, Ordering::Relaxed);
                    }
                    let answer = Answer { n, square: n * n, worker };
                    message.reply_mailbox()?.send(&answer).await?;
                    message.acknowledge().await?;
                }
            }
        }
    }
    late.join_all().await;
    Ok(())
}
