//! A queue that fails at random, by a seed.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{
    BoxFuture, Counts, Cursor, Delivery, Error, Outgoing, PeekPage, Queue, Receive, Result, Sent,
    Settle,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::forward_queue;

/// A failure of one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails and has no effect: the request was lost.
    FailBefore,
    /// The call has its effect and fails: the reply was lost, and the connection with it.
    FailAfter,
    /// The call takes longer, and has its effect after that.
    Delay(Duration),
    /// The call has its effect and never returns: only a timeout of the caller ends it.
    DropReply,
}

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "named after the methods of Queue")]
pub enum Operation {
    Send,
    Receive,
    Settle,
    Peek,
    Counts,
    Purge,
}

/// Probability of each fault per call. Their sum is at most 1.
#[derive(Debug, Clone, PartialEq)]
#[must_use]
pub struct Faults {
    fail_before: f64,
    fail_after: f64,
    drop_reply: f64,
    delay: f64,
    longest_delay: Duration,
    only: Option<Vec<Operation>>,
}

impl Faults {
    /// Creates a set of faults that is empty.
    pub const fn none() -> Self {
        Self {
            fail_before: 0.0,
            fail_after: 0.0,
            drop_reply: 0.0,
            delay: 0.0,
            longest_delay: Duration::ZERO,
            only: None,
        }
    }

    /// Sets the probability that a call fails without effect.
    pub const fn fail_before(mut self, probability: f64) -> Self {
        self.fail_before = probability;
        self
    }

    /// Sets the probability that a call fails after its effect.
    pub const fn fail_after(mut self, probability: f64) -> Self {
        self.fail_after = probability;
        self
    }

    /// Sets the probability that a call has its effect and never returns.
    pub const fn drop_reply(mut self, probability: f64) -> Self {
        self.drop_reply = probability;
        self
    }

    /// Sets the probability that a call is delayed, by up to `longest`.
    pub const fn delay(mut self, probability: f64, longest: Duration) -> Self {
        self.delay = probability;
        self.longest_delay = longest;
        self
    }

    /// Restricts faults to these operations.
    pub fn only(mut self, operations: &[Operation]) -> Self {
        self.only = Some(operations.to_vec());
        self
    }

    fn draw(&self, operation: Operation, random: &mut StdRng) -> Option<Fault> {
        if self.only.as_ref().is_some_and(|only| !only.contains(&operation)) {
            return None;
        }
        let mut point: f64 = random.random();
        let mut hit = |probability: f64| {
            let hit = (0.0..probability).contains(&point);
            point -= probability;
            hit
        };
        if hit(self.fail_before) {
            Some(Fault::FailBefore)
        } else if hit(self.fail_after) {
            Some(Fault::FailAfter)
        } else if hit(self.drop_reply) {
            Some(Fault::DropReply)
        } else if hit(self.delay) {
            Some(Fault::Delay(self.longest_delay.mul_f64(random.random())))
        } else {
            None
        }
    }
}

/// A queue that fails at random.
///
/// Faults come from a seed, so that a run can be repeated, or are set by hand for the next call
/// of a kind.
///
/// ```
/// use pillarbox_core::{Codec, Json, Mailbox, Mailboxes, MemoryBackend, NoReplies, QueueOptions};
/// use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};
///
/// # pillarbox_testing::block_on(async {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let queue = FaultQueue::new(backend.queue("jobs", QueueOptions::new())?, Faults::none(), 1);
/// let jobs: Mailbox<u32> = Mailbox::new(queue.clone(), Json, NoReplies);
///
/// queue.next(Operation::Send, Fault::FailAfter);
/// assert!(jobs.send(&7).await.is_err());
/// assert_eq!(jobs.approximate_count().await?, 1);
/// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct FaultQueue {
    inner: Arc<dyn Queue>,
    faults: Faults,
    state: Mutex<FaultState>,
}

#[derive(Debug)]
struct FaultState {
    random: StdRng,
    scripted: VecDeque<(Operation, Fault)>,
    injected: u64,
}

impl FaultQueue {
    /// Creates a wrapper of a queue. The same seed and the same calls give the same faults.
    ///
    /// # Panics
    ///
    /// If the probabilities are not numbers from 0 to 1 with a sum of at most 1.
    pub fn new(inner: Arc<dyn Queue>, faults: Faults, seed: u64) -> Arc<Self> {
        let each = [faults.fail_before, faults.fail_after, faults.drop_reply, faults.delay];
        let sum: f64 = each.iter().sum();
        assert!(each.iter().all(|p| (0.0..=1.0).contains(p)) && sum <= 1.0, "{faults:?}");
        let random = StdRng::seed_from_u64(seed);
        let state = Mutex::new(FaultState { random, scripted: VecDeque::new(), injected: 0 });
        Arc::new(Self { inner, faults, state })
    }

    /// Schedules a fault for the next call of `operation`, after those scheduled earlier.
    pub fn next(&self, operation: Operation, fault: Fault) {
        lock(&self.state).scripted.push_back((operation, fault));
    }

    /// Returns the number of faults injected so far.
    pub fn injected(&self) -> u64 {
        lock(&self.state).injected
    }

    fn draw(&self, operation: Operation) -> Option<Fault> {
        let state = &mut *lock(&self.state);
        let scripted = state.scripted.iter().position(|(of, _)| *of == operation);
        let fault = match scripted.and_then(|index| state.scripted.remove(index)) {
            Some((_, fault)) => Some(fault),
            None => self.faults.draw(operation, &mut state.random),
        };
        state.injected += u64::from(fault.is_some());
        fault
    }

    /// Makes a call or injects a fault. With [`Fault::FailBefore`] the queue is not called at all: it
    /// may act when it is called rather than when the future is polled.
    async fn call<'a, T>(
        &'a self,
        operation: Operation,
        action: &'static str,
        call: impl FnOnce(&'a dyn Queue) -> BoxFuture<'a, Result<T>>,
    ) -> Result<T> {
        let failed = |cause: &str| Error::connection(Some(self.inner.name()), action, cause);
        match self.draw(operation) {
            None => call(&*self.inner).await,
            Some(Fault::FailBefore) => Err(failed("injected fault before the effect")),
            Some(Fault::FailAfter) => {
                call(&*self.inner).await?;
                Err(failed("injected fault after the effect"))
            }
            Some(Fault::Delay(delay)) => {
                tokio::time::sleep(delay).await;
                call(&*self.inner).await
            }
            Some(Fault::DropReply) => {
                call(&*self.inner).await?;
                std::future::pending().await
            }
        }
    }
}

impl Queue for FaultQueue {
    forward_queue!(inner: name capabilities close is_closed);

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(self.call(Operation::Send, "send", move |queue| queue.send(batch)))
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.call(Operation::Receive, "receive", move |queue| queue.receive(request)))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(self.call(Operation::Settle, "settle", move |queue| queue.settle(batch)))
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(self.call(Operation::Peek, "peek", move |queue| queue.peek(max, after)))
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(self.call(Operation::Counts, "count", move |queue| queue.counts()))
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(self.call(Operation::Purge, "purge", move |queue| queue.purge()))
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Mailboxes, MemoryBackend, QueueOptions};

    use super::*;

    fn queue(faults: Faults, seed: u64) -> Arc<FaultQueue> {
        let backend = Mailboxes::new(MemoryBackend::new());
        FaultQueue::new(backend.queue("q", QueueOptions::new()).unwrap(), faults, seed)
    }

    async fn send(queue: &FaultQueue) -> Result<()> {
        queue.send(vec![Outgoing::new("x")]).await.map(|_| ())
    }

    #[tokio::test(start_paused = true)]
    async fn each_fault_does_what_it_says() {
        let queue = queue(Faults::none(), 0);
        let count = async || queue.counts().await.unwrap().total();

        queue.next(Operation::Send, Fault::FailBefore);
        assert!(matches!(send(&queue).await, Err(Error::Connection { .. })));
        assert_eq!(count().await, 0);

        queue.next(Operation::Send, Fault::FailAfter);
        assert!(matches!(send(&queue).await, Err(Error::Connection { .. })));
        assert_eq!(count().await, 1);

        queue.next(Operation::Send, Fault::DropReply);
        assert!(tokio::time::timeout(Duration::from_secs(9), send(&queue)).await.is_err());
        assert_eq!(count().await, 2);

        let start = tokio::time::Instant::now();
        queue.next(Operation::Send, Fault::Delay(Duration::from_secs(5)));
        send(&queue).await.unwrap();
        assert_eq!((start.elapsed().as_secs(), count().await), (5, 3));
        assert_eq!(queue.injected(), 4);
    }

    #[tokio::test]
    async fn the_same_seed_gives_the_same_faults() {
        let run = async |seed| {
            let queue = queue(Faults::none().fail_before(0.3).fail_after(0.2), seed);
            let mut outcomes = Vec::new();
            for _ in 0..200 {
                outcomes.push(send(&queue).await.is_ok());
            }
            outcomes
        };
        let (one, again, other) = (run(1).await, run(1).await, run(2).await);
        assert_eq!(one, again);
        assert_ne!(one, other);
        let failed = one.iter().filter(|ok| !**ok).count();
        assert!((60..140).contains(&failed), "{failed} of 200 at a probability of a half");
    }

    #[tokio::test]
    async fn other_operations_are_left_alone() {
        let queue = queue(Faults::none().fail_before(1.0).only(&[Operation::Counts]), 0);
        assert!(send(&queue).await.is_ok() && queue.counts().await.is_err());
    }
}
