//! What is sent, by whom, and how it is known to have arrived.
//!
//! Every message has a body of 256 bytes, allocated afresh by its sender, and a sequence number.
//! Where the contestant carries bytes, the number is the first 8 of the 256; where it carries a
//! type, the number is a field beside the body.

use std::fmt::Debug;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::measure::{Result, expect_eq};
pub(super) use crate::tally::Tally;

/// Bytes in a body.
pub(super) const BODY: usize = 256;
/// Tasks that send, in the case with many.
pub(super) const PRODUCERS: u64 = 4;
/// Tasks that receive, in the case with many.
pub(super) const CONSUMERS: u64 = 4;

const TEXT: &str = match std::str::from_utf8(&[b'x'; BODY]) {
    Ok(text) => text,
    Err(_) => panic!("x is UTF-8"),
};

/// A body of bytes that begins with its sequence number.
pub(super) fn bytes(seq: u64) -> Vec<u8> {
    let mut body = TEXT.as_bytes().to_vec();
    body[..8].copy_from_slice(&seq.to_le_bytes());
    body
}

/// The sequence number of a body made by [`bytes()`].
pub(super) fn seq_of(body: &[u8]) -> Result<u64> {
    expect_eq("bytes in a body", body.len(), BODY)?;
    let (seq, _) = body.split_first_chunk().ok_or("a body is too short")?;
    Ok(u64::from_le_bytes(*seq))
}

/// A typed message.
pub(super) trait Job:
    Clone + Debug + Serialize + DeserializeOwned + Send + Sync + Unpin + 'static
{
    /// Makes one, with a new body.
    fn new(seq: u64) -> Self;
    /// Its sequence number, if its body is whole.
    fn seq(&self) -> Result<u64>;
}

/// A job whose body is text, which JSON holds as it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct TextJob {
    seq: u64,
    body: String,
}

impl Job for TextJob {
    fn new(seq: u64) -> Self {
        Self { seq, body: TEXT.to_owned() }
    }

    fn seq(&self) -> Result<u64> {
        expect_eq("bytes in a body", self.body.len(), BODY)?;
        Ok(self.seq)
    }
}

/// The sequence numbers that one of several producers sends.
pub(super) fn share(producer: u64, n: u64) -> impl Iterator<Item = u64> + Send {
    (producer..n).step_by(PRODUCERS as usize)
}

/// Lets other tasks have the thread now and then.
///
/// Sending to most of these queues never waits, so without this a producer would run to its end
/// before any consumer got a thread. Producers and consumers of every contestant use it.
#[derive(Debug, Default)]
pub(super) struct Pace {
    since: u64,
}

impl Pace {
    const MESSAGES: u64 = 32;

    /// Counts messages, and yields once there are enough.
    pub(super) async fn step(&mut self, messages: u64) {
        self.since += messages;
        if self.since >= Self::MESSAGES {
            self.since = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Spawns producers and consumers, waits for all of them, checks that `n` messages arrived, and
/// says how long it took.
pub(super) async fn crowd<P, C>(
    n: u64,
    producers: impl IntoIterator<Item = P>,
    consumers: impl IntoIterator<Item = C>,
) -> Result<Duration>
where
    P: Future<Output = Result<()>> + Send + 'static,
    C: Future<Output = Result<Tally>> + Send + 'static,
{
    let producers: Vec<_> = producers.into_iter().collect();
    let consumers: Vec<_> = consumers.into_iter().collect();
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for producer in producers {
        tasks.spawn(async { producer.await.map(|()| Tally::default()) });
    }
    for consumer in consumers {
        tasks.spawn(consumer);
    }
    let mut tally = Tally::default();
    // In order of completion: if one fails, the others may never end.
    while let Some(result) = tasks.join_next().await {
        tally.merge(result??);
    }
    let elapsed = start.elapsed();
    tally.expect_all(n)?;
    Ok(elapsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_keeps_its_number_and_its_length() {
        assert_eq!(seq_of(&bytes(70_000)).unwrap(), 70_000);
        assert!(seq_of(&bytes(7)[1..]).is_err());
    }

    #[test]
    fn the_shares_of_all_producers_are_all_messages() {
        let mut tally = Tally::default();
        (0..PRODUCERS).flat_map(|producer| share(producer, 10)).for_each(|seq| tally.add(seq));
        assert!(tally.expect_all(10).is_ok());
        tally.add(10);
        assert!(tally.expect_all(10).is_err());
    }
}
