//! Runs one of the hot paths a number of times, for `tests/costs.rs` to count instructions:
//!
//!     pillarbox-costs PATH BATCHES URL
//!
//! Uses a single thread where possible and no timers, so that the same run takes the same instructions.

use std::error::Error;

use pillarbox::prelude::*;
use pillarbox::{Outgoing, QueueOptions, Settle};

/// Number of messages in a batch.
const BATCH: usize = 10;
const BODY: [u8; 200] = [b'x'; 200];

type Result<T, E = Box<dyn Error>> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let [path, batches, url] = &args[..] else {
        return Err("usage: pillarbox-costs PATH BATCHES URL".into());
    };
    let batches = batches.parse()?;
    let backend = pillarbox::open(url).await?;
    match path.as_str() {
        "cycle" => cycle(&backend, batches).await?,
        "typed" => typed(&backend, batches).await?,
        "worker" => worker(&backend, batches).await?,
        other => return Err(format!("there is no path '{other}': cycle, typed or worker").into()),
    }
    backend.close().await;
    Ok(())
}

/// Sends, receives and acknowledges raw messages in batches.
async fn cycle(backend: &Mailboxes, batches: usize) -> Result<()> {
    let queue = backend.queue("costs", QueueOptions::new())?;
    for _ in 0..batches {
        let batch = (0..BATCH).map(|_| Outgoing::new(BODY.to_vec())).collect();
        for sent in queue.send(batch).await? {
            sent?;
        }
        let received = queue.receive(Receive::up_to(BATCH)).await?;
        assert_eq!(received.len(), BATCH);
        let settles = received.into_iter().map(|delivery| Settle::acknowledge(delivery.receipt));
        for settled in queue.settle(settles.collect()).await? {
            settled?;
        }
    }
    Ok(())
}

/// Sends and receives typed messages one by one, like a simple program.
async fn typed(backend: &Mailboxes, batches: usize) -> Result<()> {
    let mailbox: Mailbox<(u64, String)> = backend.mailbox("costs")?;
    for n in 0..batches * BATCH {
        mailbox.send(&(n as u64, "x".repeat(BODY.len()))).await?;
        let received = mailbox.receive(Receive::one()).await?;
        let message = received.into_iter().next().ok_or("no message")?;
        assert_eq!(message.body().0, n as u64);
        message.acknowledge().await?;
    }
    Ok(())
}

/// Runs a worker with an empty handler.
async fn worker(backend: &Mailboxes, batches: usize) -> Result<()> {
    let mailbox: Mailbox<u64> = backend.mailbox("costs")?;
    for n in 0..batches {
        let batch: Vec<_> = (0..BATCH).map(|m| (n * BATCH + m) as u64).collect();
        mailbox.send_batch(&batch).await?.all()?;
    }
    let worker = Worker::new(mailbox).handler(async |_: u64| Ok::<_, String>(())).start();
    let mut stats = worker.control().stats();
    stats.wait_for(|stats| stats.succeeded as usize == batches * BATCH).await?;
    worker.stop().await?;
    Ok(())
}
