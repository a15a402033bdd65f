//! A bare tokio channel: the limit, not a peer.
//!
//! A body moves from sender to receiver. There is no id, no lease, no receipt, no acknowledgement,
//! no second delivery, and nothing left of a message whose receiver fails. What a queue costs on
//! top of this is the price of those.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::{Mutex, mpsc::error::TryRecvError};

use super::load::{CONSUMERS, PRODUCERS, Pace, Tally, bytes, crowd, seq_of, share};
use crate::measure::{Result, expect_eq};

/// Room in a bounded channel.
const BOUND: usize = 1024;

/// Sends `batch` messages with room reserved at once, and receives them by one `recv_many`.
pub(super) async fn batch_cycles(n: u64, batch: usize) -> Result<Duration> {
    let (sender, mut receiver) = mpsc::channel(BOUND);
    let (mut sent, mut received) = (0, 0);
    let mut bodies = Vec::with_capacity(batch);
    let start = Instant::now();
    for _ in 0..n / batch as u64 {
        for permit in sender.reserve_many(batch).await? {
            permit.send(bytes(sent));
            sent += 1;
        }
        let count = receiver.recv_many(&mut bodies, batch).await;
        expect_eq("messages received", count, batch)?;
        for body in bodies.drain(..) {
            expect_eq("next in line", seq_of(&body)?, received)?;
            received += 1;
        }
    }
    let elapsed = start.elapsed();
    expect_eq("messages left", receiver.len(), 0)?;
    Ok(elapsed)
}

/// Producers that send one by one, and consumers that take turns at the one receiver, by a tokio
/// mutex, for up to `batch` messages each.
pub(super) async fn many(n: u64, batch: usize) -> Result<Duration> {
    let (sender, receiver) = mpsc::channel(BOUND);
    let receiver = Arc::new(Mutex::new(receiver));
    let producers: Vec<_> =
        (0..PRODUCERS).map(|producer| produce(sender.clone(), producer, n)).collect();
    drop(sender);
    let consumers = (0..CONSUMERS).map(|_| consume(receiver.clone(), batch));
    crowd(n, producers, consumers).await
}

/// Sends `n` messages into a channel without bound, asks `measure` for a figure, and checks that
/// all `n` are there.
pub(super) fn hold<T>(n: u64, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    for seq in 0..n {
        sender.send(bytes(seq))?;
    }
    let figure = measure()?;
    for seq in 0..n {
        expect_eq("next in line", seq_of(&receiver.try_recv()?)?, seq)?;
    }
    expect_eq("after the last", receiver.try_recv(), Err(TryRecvError::Empty))?;
    Ok(figure)
}

async fn produce(sender: Sender<Vec<u8>>, producer: u64, n: u64) -> Result<()> {
    let mut pace = Pace::default();
    for seq in share(producer, n) {
        sender.send(bytes(seq)).await?;
        pace.step(1).await;
    }
    Ok(())
}

/// Receives until all producers are gone.
async fn consume(receiver: Arc<Mutex<Receiver<Vec<u8>>>>, batch: usize) -> Result<Tally> {
    let (mut tally, mut pace) = (Tally::default(), Pace::default());
    let mut bodies = Vec::with_capacity(batch);
    loop {
        let count = receiver.lock().await.recv_many(&mut bodies, batch).await;
        if count == 0 {
            return Ok(tally);
        }
        for body in bodies.drain(..) {
            tally.add(seq_of(&body)?);
        }
        pace.step(count as u64).await;
    }
}
