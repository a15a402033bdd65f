//! What callers ask of the writer thread, and the bounded line in which they ask it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pillarbox_core::lease::{Full, Stale};
use pillarbox_core::{
    Counts, Delivery, Outgoing, PeekPage, QueueName, Receipt, Receive, Result, Settle,
};
use tokio::sync::{Semaphore, oneshot};

use crate::failure::Failure;
use crate::store::PeekFrom;

/// How many requests wait at most; further callers wait to ask.
const MAX_REQUESTS: usize = 4096;
/// After so many bytes of bodies a batch is long enough.
const MAX_BATCH_BYTES: usize = 8 << 20;
/// How long the writer waits, when closed, for callers that are about to take their deliveries.
const CLAIM_GRACE: Duration = Duration::from_millis(500);

/// One call on one queue.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) queue: QueueName,
    pub(crate) op: Op,
}

/// What is asked.
#[derive(Debug)]
pub(crate) enum Op {
    /// Answers of each message whether it was stored.
    Send(Call<Sending, Vec<Result<bool, Full>>>),
    Receive(Call<Receive, Vec<Delivery>, Received>),
    /// A receive that has waited. Not asked, but answered.
    Waiter(Waiter),
    Settle(Call<Vec<Settle>, Vec<Result<(), Stale>>>),
    Peek(Call<(usize, Option<PeekFrom>), PeekPage>),
    Counts(Call<(), Counts>),
    Purge(Call<(), u64>),
    /// Undoes deliveries that nobody has seen.
    Release(Vec<Receipt>),
    /// Forgets the queue if it holds nothing: nobody here has it open any more.
    Forget,
    Queues(Call<(), Vec<String>>),
}

/// A receive that found nothing, and waits.
pub(crate) type Waiter = Call<Receive, Vec<Delivery>, Claim>;

/// What a receive comes to at first.
#[derive(Debug)]
pub(crate) enum Received {
    /// What there was.
    Now(Claim),
    /// There was nothing. Here the answer will be.
    Later(oneshot::Receiver<Result<Claim, Failure>>),
}

/// Messages to store.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) batch: Vec<Outgoing>,
    pub(crate) max_size: Option<u64>,
}

/// What is asked, and the answer once there is one. It is given when the transaction has ended.
#[derive(Debug)]
pub(crate) struct Call<Q, A, R = A> {
    pub(crate) ask: Q,
    pub(crate) answer: Option<A>,
    pub(crate) reply: oneshot::Sender<Result<R, Failure>>,
}

impl<Q, A, R> Call<Q, A, R> {
    pub(crate) fn new(ask: Q) -> (Self, oneshot::Receiver<Result<R, Failure>>) {
        let (reply, answer) = oneshot::channel();
        (Self { ask, answer: None, reply }, answer)
    }
}

impl<Q, A> Call<Q, A> {
    /// Gives the answer. Whoever does not listen any more has no need of it.
    fn answer(self) {
        let _ = self.reply.send(self.answer.ok_or(Failure::WriterGone));
    }
}

impl<Q, A, R> Call<Q, A, R> {
    fn fail(self, failure: &Failure) {
        let _ = self.reply.send(Err(failure.clone()));
    }
}

impl Request {
    /// Whether this ends or extends leases.
    pub(crate) fn is_settle(&self) -> bool {
        matches!(self.op, Op::Settle(_) | Op::Release(_))
    }

    /// Whether this neither settles nor sends nor receives.
    pub(crate) fn is_other(&self) -> bool {
        !self.is_settle() && !matches!(self.op, Op::Send(_) | Op::Receive(_))
    }

    /// Whether the answer promises something that must be on the disk.
    pub(crate) fn must_keep(&self) -> bool {
        match &self.op {
            Op::Send(_) | Op::Settle(_) | Op::Purge(_) => true,
            Op::Receive(Call { answer, .. }) | Op::Waiter(Call { answer, .. }) => {
                answer.as_ref().is_some_and(|given| !given.is_empty())
            }
            Op::Peek(_) | Op::Counts(_) | Op::Queues(_) | Op::Release(_) | Op::Forget => false,
        }
    }

    /// Gives the answer.
    pub(crate) fn answer(self, inbox: &Arc<Inbox>) {
        match self.op {
            Op::Send(call) => call.answer(),
            Op::Receive(call) => {
                let deliveries = call.answer.unwrap_or_default();
                let claim = Claim::new(self.queue, deliveries, inbox.clone());
                // Where nobody listens any more, the claim is dropped and gives back what it holds.
                let _ = call.reply.send(Ok(Received::Now(claim)));
            }
            Op::Waiter(call) => {
                let deliveries = call.answer.unwrap_or_default();
                let _ = call.reply.send(Ok(Claim::new(self.queue, deliveries, inbox.clone())));
            }
            Op::Settle(call) => call.answer(),
            Op::Peek(call) => call.answer(),
            Op::Counts(call) => call.answer(),
            Op::Purge(call) => call.answer(),
            Op::Queues(call) => call.answer(),
            Op::Release(_) | Op::Forget => {}
        }
    }

    /// Says that nothing was done, and why.
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
            // Leases that could not be released end by themselves.
            Op::Release(_) | Op::Forget => {}
        }
    }
}

impl Op {
    /// Whether it waited for room in line: somebody waits for its answer.
    fn took_room(&self) -> bool {
        !matches!(self, Self::Release(_) | Self::Forget)
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Send(call) => call.ask.batch.iter().map(|message| message.body.len()).sum(),
            _ => 0,
        }
    }
}

/// Deliveries on their way to the caller. What is dropped on the way goes back.
#[derive(Debug)]
pub(crate) struct Claim {
    queue: QueueName,
    deliveries: Vec<Delivery>,
    inbox: Arc<Inbox>,
}

impl Claim {
    pub(crate) fn new(queue: QueueName, deliveries: Vec<Delivery>, inbox: Arc<Inbox>) -> Self {
        inbox.expect_release();
        Self { queue, deliveries, inbox }
    }

    /// The deliveries, which are the caller's now.
    pub(crate) fn take(mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.deliveries)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.deliveries.is_empty() {
            let receipts = self.deliveries.drain(..).map(|delivery| delivery.receipt).collect();
            self.inbox.put(Request { queue: self.queue.clone(), op: Op::Release(receipts) });
        }
        self.inbox.expect_no_release();
    }
}

/// The line of requests.
///
/// The mutex is std's: it is held to push or pop and never across an await.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
    room: Semaphore,
    /// What may still come back when the inbox is closed: batches that wait for the disk, and claims
    /// that were given and neither taken nor dropped yet.
    outstanding: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Request>,
    /// The writer sleeps, and must be woken.
    asleep: bool,
    closed: bool,
    /// The writer has ended; nothing is answered any more.
    ended: bool,
}

impl Inbox {
    pub(crate) fn new() -> Self {
        Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            room: Semaphore::new(MAX_REQUESTS),
            outstanding: AtomicUsize::new(0),
        }
    }

    /// Puts a request in line, once there is room for it.
    pub(crate) async fn send(&self, request: Request) -> Result<(), Failure> {
        match self.room.acquire().await {
            Ok(permit) => permit.forget(),
            Err(_closed) => return Err(Failure::WriterGone),
        }
        self.put(request);
        Ok(())
    }

    /// Puts a request in line at once: for the few that nobody waits for.
    pub(crate) fn put(&self, request: Request) {
        let mut state = self.lock();
        if state.ended {
            return;
        }
        state.requests.push_back(request);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.wake.notify_one();
        }
    }

    /// Moves the requests that are there into `batch`; waits for one no longer than `patience`.
    /// Says `false` when the inbox is closed and nothing is left to be done.
    pub(crate) fn take(&self, batch: &mut Vec<Request>, patience: Option<Duration>) -> bool {
        let start = Instant::now();
        let mut state = self.lock();
        while state.requests.is_empty() {
            if state.closed && self.is_settled(start) {
                state.ended = true;
                return false;
            }
            let patience = if state.closed { Some(Duration::from_millis(1)) } else { patience };
            state.asleep = true;
            match patience.map(|patience| patience.saturating_sub(start.elapsed())) {
                Some(Duration::ZERO) if !state.closed => {
                    state.asleep = false;
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
        state.asleep = false;
        let mut bytes = 0;
        while bytes < MAX_BATCH_BYTES
            && batch.len() < MAX_REQUESTS
            && let Some(request) = state.requests.pop_front()
        {
            bytes += request.op.bytes();
            batch.push(request);
        }
        drop(state);
        self.room.add_permits(batch.iter().filter(|request| request.op.took_room()).count());
        true
    }

    /// No more requests than are in line, and those of claims that are dropped.
    pub(crate) fn close(&self) {
        self.room.close();
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// Whether nobody is in line.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().requests.is_empty()
    }

    /// The writer has ended: who waits is told so, and nothing more is taken.
    pub(crate) fn abandon(&self) {
        self.room.close();
        let mut state = self.lock();
        state.closed = true;
        state.ended = true;
        // Dropped outside of the lock: a claim among them comes back here.
        let left = std::mem::take(&mut state.requests);
        drop(state);
        drop(left);
    }

    /// Whether [`close`](Self::close) was called.
    pub(crate) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Notes something that may be dropped, and then asks for a release.
    pub(crate) fn expect_release(&self) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that it was taken, or that it has asked.
    pub(crate) fn expect_no_release(&self) {
        self.outstanding.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether no claim may still come back.
    fn is_settled(&self, since: Instant) -> bool {
        self.outstanding.load(Ordering::Acquire) == 0 || since.elapsed() > CLAIM_GRACE
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
