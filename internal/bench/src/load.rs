//! What is sent, and by how many at a time, where a suite talks to a disk or a server.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
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

/// Response times of one caller, taken in the same way for every contestant.
///
/// The time of an operation runs from the end of the caller's operation before it, or from the start of the
/// run, until its own end. So the time in which the caller waits for its turn is in it, whether it waits for the
/// queue, for the disk or for a thread. After each operation the caller lets the others go first: otherwise
/// a caller that never has to wait would keep its thread, and the waiting of the others would show in none of the
/// times.
#[derive(Debug)]
pub(crate) struct ResponseTimes {
    since: Instant,
    each: Vec<Duration>,
    is_alone: bool,
}

impl ResponseTimes {
    /// Starts the time of the first operation of one of `callers` callers.
    pub(crate) fn start(callers: u64) -> Self {
        Self { since: Instant::now(), each: Vec::new(), is_alone: callers == 1 }
    }

    /// Ends an operation, and starts the next when the other callers had their turn.
    pub(crate) async fn next(&mut self) {
        let now = Instant::now();
        self.each.push(now - self.since);
        self.since = now;
        if !self.is_alone {
            let_others_go().await;
        }
    }

    /// All times.
    pub(crate) fn all(self) -> Vec<Duration> {
        self.each
    }
}

/// Puts this task behind those that are ready. `yield_now` would also poll the driver of timers and sockets, which
/// takes longer than a cycle in memory.
async fn let_others_go() {
    let mut has_waited = false;
    poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
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

    #[tokio::test]
    async fn a_response_time_includes_the_turns_of_the_other_callers() {
        let turn = Duration::from_millis(5);
        let callers = (0..3).map(|_| {
            let mut times = ResponseTimes::start(3);
            async move {
                for _ in 0..2 {
                    std::thread::sleep(turn);
                    times.next().await;
                }
                Ok(times.all())
            }
        });
        let (all, _) = crowd(callers).await.unwrap();
        assert!(all.iter().all(|times| times[1] >= 3 * turn), "{all:?}");
    }

    #[test]
    fn no_number_is_taken_when_time_is_up() {
        let numbers = Numbers::within(Duration::ZERO);
        assert_eq!(numbers.take(), None);
        assert_eq!(numbers.taken(), 0);
    }
}
