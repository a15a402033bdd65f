//! What is sent, and by how many at a time, where a suite talks to a disk or a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::measure::{Result, expect_eq};

/// Bytes in a body, unless a case is about larger ones.
pub(crate) const BODY: usize = 256;
/// The longest wait for a message that is certain to be sent. A receive that returns nothing means that
/// a message was lost.
pub(crate) const WAIT: Duration = Duration::from_secs(20);

/// A body, allocated afresh, that begins with its sequence number.
pub(crate) fn body(seq: u64, length: usize) -> Bytes {
    let mut body = vec![b'x'; length];
    body[..8].copy_from_slice(&seq.to_le_bytes());
    body.into()
}

/// The sequence number of a body made by [`body`].
pub(crate) fn seq_of(body: &[u8], length: usize) -> Result<u64> {
    expect_eq("bytes in a body", body.len(), length)?;
    let (seq, _) = body.split_first_chunk().ok_or("a body is too short")?;
    Ok(u64::from_le_bytes(*seq))
}

/// A typed message: a number and a body of text, which all encode as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    seq: u64,
    body: String,
}

impl Job {
    /// Makes one, with a new body.
    pub(crate) fn new(seq: u64) -> Self {
        Self { seq, body: "x".repeat(BODY) }
    }

    /// Its number, if its body is whole.
    pub(crate) fn seq(&self) -> Result<u64> {
        expect_eq("bytes in a body", self.body.len(), BODY)?;
        Ok(self.seq)
    }
}

/// Numbers from 0 on that several callers take until there are no more, or time is up.
#[derive(Debug, Clone)]
pub(crate) struct Numbers {
    next: Arc<AtomicU64>,
    end: u64,
    until: Option<Instant>,
}

impl Numbers {
    /// The numbers up to `end`.
    pub(crate) fn up_to(end: u64) -> Self {
        Self { next: Arc::default(), end, until: None }
    }

    /// As many as are taken from now on within `window`.
    pub(crate) fn within(window: Duration) -> Self {
        Self { next: Arc::default(), end: u64::MAX, until: Some(Instant::now() + window) }
    }

    /// The next number.
    pub(crate) fn take(&self) -> Option<u64> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end).then_some(number)
    }

    /// How many were taken.
    pub(crate) fn taken(&self) -> u64 {
        self.next.load(Ordering::Relaxed).min(self.end)
    }
}

/// Spawns callers, waits for all of them, and says what each has returned and how long it took.
pub(crate) async fn crowd<C, T>(callers: impl IntoIterator<Item = C>) -> Result<(Vec<T>, Duration)>
where
    C: Future<Output = Result<T>> + Send + 'static,
    T: Send + 'static,
{
    let callers: Vec<_> = callers.into_iter().collect();
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for caller in callers {
        tasks.spawn(caller);
    }
    let mut outcomes = Vec::new();
    // In order of completion: if one fails, the others may never end.
    while let Some(outcome) = tasks.join_next().await {
        outcomes.push(outcome??);
    }
    Ok((outcomes, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_keeps_its_number_and_its_length() {
        assert_eq!(seq_of(&body(70_000, BODY), BODY).unwrap(), 70_000);
        assert!(seq_of(&body(7, BODY)[1..], BODY).is_err());
    }

    #[test]
    fn every_number_is_taken_once() {
        let numbers = Numbers::up_to(3);
        let taken: Vec<_> = std::iter::from_fn(|| numbers.clone().take()).collect();
        assert_eq!(taken, [0, 1, 2]);
        assert_eq!(numbers.take(), None);
        assert_eq!(numbers.taken(), 3);
    }

    #[test]
    fn no_number_is_taken_when_time_is_up() {
        let numbers = Numbers::within(Duration::ZERO);
        assert_eq!(numbers.take(), None);
        assert_eq!(numbers.taken(), 0);
    }
}
