//! Requests to the writer thread, and the bounded queue in which they wait.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pillarbox_core::internal::lock;
use pillarbox_core::ledger::{Full, Stale};
use pillarbox_core::{
    Counts, Delivery, Outgoing, PeekPage, QueueName, Receipt, Receive, Result, Settle,
};
use tokio::sync::{Semaphore, oneshot};

use crate::failure::Failure;
use crate::store::PeekFrom;

/// Number of requests that can wait; further callers wait to submit theirs.
const MAX_REQUESTS: usize = 4096;
/// Size of message bodies at which a batch is full.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// Number of messages of a request that a caller may execute itself.
const SHORT_MESSAGES: usize = 16;
/// Size of the message bodies of such a request.
const SHORT_BYTES: usize = 64 << 10;
/// Number of successive calls that must find the writer idle before a caller executes its request itself.
const LONE_CALLS: u32 = 4;
/// Time for which the writer waits, when closed, for callers that are about to take their deliveries.
const CLOSE_GRACE: Duration = Duration::from_millis(500);

/// One call on one queue.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) queue: QueueName,
    pub(crate) op: Op,
}

/// An operation of the writer, with its input and its reply channel.
#[derive(Debug)]
pub(crate) enum Op {
    /// Replies for each message whether it was stored.
    Send(Call<SendBatch, Vec<Result<bool, Full>>>),
    Receive(Call<Receive, Vec<Delivery>, ReceiveReply>),
    /// A receive that has waited. Created by the writer to reply; never submitted.
    Waiter(Waiter),
    Settle(Call<Vec<Settle>, Vec<Result<(), Stale>>>),
    Peek(Call<(usize, Option<PeekFrom>), PeekPage>),
    Counts(Call<(), Counts>),
    Purge(Call<(), u64>),
    /// Undoes deliveries that no caller has seen.
    Release(Vec<Receipt>),
    /// Deletes the queue if it is empty: this process has no handle of it any more.
    Forget,
    Queues(Call<(), Vec<String>>),
}

/// A receive that found nothing, and waits.
pub(crate) type Waiter = Call<Receive, Vec<Delivery>, DeliveryGuard>;

/// The first reply to a receive.
#[derive(Debug)]
pub(crate) enum ReceiveReply {
    Delivered(DeliveryGuard),
    /// Nothing was ready. The deliveries will come here.
    Waiting(oneshot::Receiver<Result<DeliveryGuard, Failure>>),
}

/// Messages to store.
#[derive(Debug)]
pub(crate) struct SendBatch {
    pub(crate) batch: Vec<Outgoing>,
    pub(crate) max_size: Option<u64>,
}

/// The input of an operation and, once it has run, its output. The reply is sent after the commit.
#[derive(Debug)]
pub(crate) struct Call<I, O, R = O> {
    pub(crate) input: I,
    pub(crate) output: Option<O>,
    pub(crate) reply: oneshot::Sender<Result<R, Failure>>,
}

impl<I, O, R> Call<I, O, R> {
    pub(crate) fn new(input: I) -> (Self, oneshot::Receiver<Result<R, Failure>>) {
        let (reply, receiver) = oneshot::channel();
        (Self { input, output: None, reply }, receiver)
    }

    fn fail(self, failure: &Failure) {
        let _ = self.reply.send(Err(failure.clone()));
    }
}

impl<I, O> Call<I, O> {
    /// Replies with the output. A caller that is gone does not need it.
    fn send_reply(self) {
        let _ = self.reply.send(self.output.ok_or(Failure::WriterStopped));
    }
}

impl Request {
    /// Returns whether this ends or extends leases.
    pub(crate) fn is_settle(&self) -> bool {
        matches!(self.op, Op::Settle(_) | Op::Release(_))
    }

    /// Returns whether this neither settles nor sends nor receives.
    pub(crate) fn is_other(&self) -> bool {
        !self.is_settle() && !matches!(self.op, Op::Send(_) | Op::Receive(_))
    }

    /// Returns whether the reply confirms a change, which must be on the disk before.
    pub(crate) fn must_sync(&self) -> bool {
        match &self.op {
            Op::Send(_) | Op::Settle(_) | Op::Purge(_) => true,
            // A power failure ends the receiver too, so nothing relies on the delivery.
            Op::Receive(_) | Op::Waiter(_) => false,
            Op::Peek(_) | Op::Counts(_) | Op::Queues(_) | Op::Release(_) | Op::Forget => false,
        }
    }

    /// Returns whether the reply has deliveries.
    pub(crate) fn has_deliveries(&self) -> bool {
        match &self.op {
            Op::Receive(Call { output, .. }) | Op::Waiter(Call { output, .. }) => {
                output.as_ref().is_some_and(|deliveries| !deliveries.is_empty())
            }
            _ => false,
        }
    }

    /// Returns whether this is short work: a few messages of moderate size.
    pub(crate) fn is_short(&self) -> bool {
        match &self.op {
            Op::Send(call) => {
                call.input.batch.len() <= SHORT_MESSAGES && self.op.bytes() <= SHORT_BYTES
            }
            Op::Receive(call) => call.input.max <= SHORT_MESSAGES,
            Op::Settle(call) => call.input.len() <= SHORT_MESSAGES,
            _ => false,
        }
    }

    pub(crate) fn send_reply(self, requests: &Arc<RequestQueue>) {
        match self.op {
            Op::Send(call) => call.send_reply(),
            Op::Receive(call) => {
                let deliveries = call.output.unwrap_or_default();
                let guard = DeliveryGuard::new(self.queue, deliveries, requests.clone());
                // If the caller is gone, the guard is dropped and undoes the deliveries.
                let _ = call.reply.send(Ok(ReceiveReply::Delivered(guard)));
            }
            Op::Waiter(call) => {
                let deliveries = call.output.unwrap_or_default();
                let guard = DeliveryGuard::new(self.queue, deliveries, requests.clone());
                let _ = call.reply.send(Ok(guard));
            }
            Op::Settle(call) => call.send_reply(),
            Op::Peek(call) => call.send_reply(),
            Op::Counts(call) => call.send_reply(),
            Op::Purge(call) => call.send_reply(),
            Op::Queues(call) => call.send_reply(),
            Op::Release(_) | Op::Forget => {}
        }
    }

    /// Replies that nothing was done, and why.
    pub(crate) fn fail(self, failure: &Failure) {
        match self.op {
            Op::Send(call) => call.fail(failure),
            Op::Receive(call) => call.fail(failure),
            Op::Waiter(call) => call.fail(failure),
            Op::Settle(call) => call.fail(failure),
            Op::Peek(call) => call.fail(failure),
            Op::Counts(call) => call.fail(failure),
            Op::Purge(call) => call.fail(failure),
            Op::Queues(call) => call.fail(failure),
            // Leases that could not be released expire.
            Op::Release(_) | Op::Forget => {}
        }
    }
}

impl Op {
    /// Returns whether it was submitted with a permit: a caller waits for its reply.
    fn has_permit(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::Forget)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Send(call) => call.input.batch.iter().map(|message| message.body.len()).sum(),
            _ => 0,
        }
    }
}

/// Deliveries on their way to the caller. Undoes them if it is dropped on the way.
#[derive(Debug)]
pub(crate) struct DeliveryGuard {
    queue: QueueName,
    deliveries: Vec<Delivery>,
    requests: Arc<RequestQueue>,
}

impl DeliveryGuard {
    fn new(queue: QueueName, deliveries: Vec<Delivery>, requests: Arc<RequestQueue>) -> Self {
        requests.add_outstanding();
        Self { queue, deliveries, requests }
    }

    /// Hands the deliveries over to the caller.
    pub(crate) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            let receipts = self.deliveries.drain(..).map(|delivery| delivery.receipt).collect();
            self.requests.push(Request { queue: self.queue.clone(), op: Op::Release(receipts) });
        }
        self.requests.remove_outstanding();
    }
}

/// Requests that wait for the writer.
///
/// The mutex is std's: it is held to push or pop and never across an await.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    state: Mutex<State>,
    wake: Condvar,
    permits: Semaphore,
    /// Number of batches that wait for the disk, and of delivery guards that were neither taken nor dropped: each
    /// may still push a release after the queue is closed.
    outstanding: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Request>,
    /// The writer sleeps, and must be woken.
    is_writer_asleep: bool,
    /// Number of the last successive calls that found the writer idle, at most [`LONE_CALLS`].
    lone_calls: u32,
    /// The writer is to look at the database although there is no request.
    must_look: bool,
    is_closed: bool,
    /// The writer has ended; no request is replied to any more.
    is_ended: bool,
}

impl RequestQueue {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            permits: Semaphore::new(MAX_REQUESTS),
            outstanding: AtomicUsize::new(0),
        }
    }

    /// Waits for a permit, then pushes a request.
    pub(crate) async fn submit(&self, request: Request) -> Result<(), Failure> {
        match self.permits.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_closed) => return Err(Failure::WriterStopped),
        }
        self.push(request);
        Ok(())
    }

    /// Pushes a request at once: for requests without a caller.
    pub(crate) fn push(&self, request: Request) {
        let mut state = self.state();
        if state.is_ended {
            return;
        }
        state.requests.push_back(request);
        let was_asleep = std::mem::take(&mut state.is_writer_asleep);
        drop(state);
        if was_asleep {
            self.wake.notify_one();
        }
    }

    /// Returns whether a caller may execute its request itself: the writer sleeps, nothing waits, and the last calls
    /// found it so too. With several callers it is better to share a transaction and a sync.
    pub(crate) fn is_idle_for_caller(&self) -> bool {
        let mut state = self.state();
        let is_idle = state.is_writer_asleep && state.requests.is_empty() && !state.is_closed;
        state.lone_calls = if is_idle { LONE_CALLS.min(state.lone_calls + 1) } else { 0 };
        state.lone_calls == LONE_CALLS
    }

    /// Makes the writer look at the database, once it has no requests.
    pub(crate) fn wake_writer(&self) {
        let mut state = self.state();
        state.must_look = true;
        let was_asleep = std::mem::take(&mut state.is_writer_asleep);
        drop(state);
        if was_asleep {
            self.wake.notify_one();
        }
    }

    /// Moves the waiting requests into `batch`; if there are none, waits for one until `timeout` or
    /// [`wake_writer`](Self::wake_writer). Returns `false` when the queue is closed and nothing is left to be done.
    pub(crate) fn take_batch(&self, batch: &mut Vec<Request>, timeout: Option<Duration>) -> bool {
        let start = Instant::now();
        let mut closed_since = None;
        let mut state = self.state();
        while state.requests.is_empty() {
            if state.is_closed
                && self.has_no_outstanding(*closed_since.get_or_insert_with(Instant::now))
            {
                state.is_ended = true;
                return false;
            }
            if std::mem::take(&mut state.must_look) && !state.is_closed {
                state.is_writer_asleep = false;
                return true;
            }
            let timeout = if state.is_closed { Some(Duration::from_millis(1)) } else { timeout };
            state.is_writer_asleep = true;
            match timeout.map(|timeout| timeout.saturating_sub(start.elapsed())) {
                Some(Duration::ZERO) if !state.is_closed => {
                    state.is_writer_asleep = false;
                    return true;
                }
                Some(left) => {
                    let left = left.max(Duration::from_micros(100));
                    let woken = self.wake.wait_timeout(state, left);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                None => state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        state.is_writer_asleep = false;
        self.move_requests(state, batch);
        true
    }

    /// Adds the requests that came since to a batch.
    pub(crate) fn extend_batch(&self, batch: &mut Vec<Request>) {
        self.move_requests(self.state(), batch);
    }

    /// Moves waiting requests into a batch until it is full.
    fn move_requests(&self, mut state: MutexGuard<'_, State>, batch: &mut Vec<Request>) {
        let mut bytes: usize = batch.iter().map(|request| request.op.bytes()).sum();
        let mut permits = 0;
        while bytes < MAX_BATCH_BYTES
            && batch.len() < MAX_REQUESTS
            && let Some(request) = state.requests.pop_front()
        {
            bytes += request.op.bytes();
            permits += usize::from(request.op.has_permit());
            batch.push(request);
        }
        drop(state);
        self.permits.add_permits(permits);
    }

    /// Refuses further requests, except for the releases of dropped deliveries.
    pub(crate) fn close(&self) {
        self.permits.close();
        self.state().is_closed = true;
        self.wake.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state().requests.is_empty()
    }

    /// Marks the writer as ended: drops the waiting requests, whose callers learn of it by that, and all later
    /// ones.
    pub(crate) fn abandon(&self) {
        self.permits.close();
        let mut state = self.state();
        state.is_closed = true;
        state.is_ended = true;
        // Dropped outside of the lock: a delivery guard among them pushes a request.
        let left = std::mem::take(&mut state.requests);
        drop(state);
        drop(left);
    }

    /// Returns whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Counts something that may still push a release.
    pub(crate) fn add_outstanding(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts that it was taken, or has pushed its release.
    pub(crate) fn remove_outstanding(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Returns whether no release can follow, or none is waited for any more.
    fn has_no_outstanding(&self, since: Instant) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0 || since.elapsed() > CLOSE_GRACE
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use pillarbox_core::Outgoing;

    use super::*;

    fn send(bytes: usize) -> Request {
        let batch = vec![Outgoing::new(vec![0; bytes])];
        let (call, _reply) = Call::new(SendBatch { batch, max_size: None });
        Request { queue: "q".parse().unwrap(), op: Op::Send(call) }
    }

    #[tokio::test]
    async fn requests_that_come_later_join_a_batch_until_it_is_full() {
        let requests = RequestQueue::new();
        requests.submit(send(MAX_BATCH_BYTES / 2)).await.unwrap();
        let mut batch = Vec::new();
        assert!(requests.take_batch(&mut batch, None));
        for _ in 0..3 {
            requests.submit(send(MAX_BATCH_BYTES / 4)).await.unwrap();
        }
        requests.extend_batch(&mut batch);
        assert_eq!(batch.len(), 3);
        assert_eq!(requests.permits.available_permits(), MAX_REQUESTS - 1, "one still waits");
        requests.extend_batch(&mut batch);
        assert_eq!(batch.len(), 3);

        let mut next = Vec::new();
        assert!(requests.take_batch(&mut next, None));
        assert_eq!((next.len(), requests.permits.available_permits()), (1, MAX_REQUESTS));
    }

    #[test]
    fn a_writer_that_has_slept_waits_for_releases_that_follow_the_close() {
        let requests = RequestQueue::new();
        requests.add_outstanding();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut batch = Vec::new();
                (requests.take_batch(&mut batch, None), batch.len())
            });
            thread::sleep(CLOSE_GRACE + Duration::from_millis(10));
            requests.close();
            requests.push(Request { queue: "q".parse().unwrap(), op: Op::Release(Vec::new()) });
            requests.remove_outstanding();
            assert_eq!(writer.join().unwrap(), (true, 1));
        });
    }
}
