//! One queue in memory: a ledger behind a mutex, and its waiters.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::Storage;
use super::waiters::{QueueStatus, WaiterId, Waiters};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::future::{BoxFuture, OperationFuture};
use crate::gate::Gate;
use crate::internal::lock;
use crate::ledger::{Full, Ledger, Stale};
use crate::message::{Cursor, Delivery, Outgoing, PeekPage, Sent};
use crate::options::{QueueOptions, Receive};
use crate::queue::Queue;
use crate::settle::Settle;
use crate::{Capabilities, Counts, Nonce, QueueName};

/// State of a queue, shared by its handles. Locked for one batch at a time, and never across an await.
#[derive(Debug, Default)]
pub(super) struct QueueState {
    pub(super) ledger: Ledger,
    pub(super) waiters: Waiters,
}

impl QueueState {
    fn receive(&mut self, now: Timestamp, request: &Receive) -> Vec<Delivery> {
        self.ledger.receive(now, request.max, request.visibility, Nonce::random)
    }

    /// Wakes the waiters that the current state of the queue calls for.
    fn wake_waiters(&mut self, now: Timestamp) {
        self.waiters.wake(self.status(now));
    }

    fn status(&self, now: Timestamp) -> QueueStatus {
        QueueStatus { now, ready: self.ledger.ready_len(), next_due: self.ledger.next_due() }
    }
}

/// A handle of one queue.
#[derive(Debug)]
pub(super) struct MemoryQueue {
    pub(super) name: QueueName,
    pub(super) options: QueueOptions,
    pub(super) state: Arc<Mutex<QueueState>>,
    pub(super) storage: Arc<Storage>,
    pub(super) gate: Gate,
}

impl MemoryQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.state)
    }

    fn now(&self) -> Timestamp {
        self.storage.clock.now()
    }

    /// Applies one operation.
    fn one<E, O>(
        &self,
        entry: E,
        apply: impl Fn(&Self, &mut QueueState, Timestamp, E) -> Result<O>,
    ) -> Result<O> {
        self.gate.check(&self.name)?;
        let now = self.now();
        let mut state = self.lock();
        let result = apply(self, &mut state, now, entry);
        state.wake_waiters(now);
        result
    }

    /// Applies the entries of a batch in turn, under one lock and at one time.
    fn each<E, O>(
        &self,
        batch: Vec<E>,
        apply: impl Fn(&Self, &mut QueueState, Timestamp, E) -> Result<O>,
    ) -> Result<Vec<Result<O>>> {
        self.gate.check(&self.name)?;
        self.capabilities().check_batch(&self.name, batch.len())?;
        let now = self.now();
        let mut results = Vec::with_capacity(batch.len());
        let mut state = self.lock();
        results.extend(batch.into_iter().map(|entry| apply(self, &mut state, now, entry)));
        state.wake_waiters(now);
        Ok(results)
    }

    fn store(&self, state: &mut QueueState, now: Timestamp, message: Outgoing) -> Result<Sent> {
        self.capabilities().check_outgoing(&self.name, &message)?;
        let (id, max_size) = (message.id, self.options.max_size);
        state.ledger.send(now, message, max_size).map_err(|Full| Error::MailboxFull {
            queue: self.name.clone(),
            id: Some(id),
            max_size,
        })
    }

    fn apply(&self, state: &mut QueueState, now: Timestamp, settle: Settle) -> Result<()> {
        self.capabilities().check_settle(&self.name, &settle)?;
        state.ledger.settle(now, &settle.receipt, settle.action).map_err(|Stale| {
            Error::ReceiptHandleExpired { queue: self.name.clone(), receipt: settle.receipt }
        })
    }

    /// Delivers what is ready, or starts to wait if nothing is and the request allows it.
    fn receive_or_wait(&self, request: Receive) -> Result<Vec<Delivery>, WaitingReceive<'_>> {
        let now = self.now();
        let mut state = self.lock();
        let deliveries = state.receive(now, &request);
        if !deliveries.is_empty() || request.wait.is_zero() {
            state.wake_waiters(now);
            return Ok(deliveries);
        }
        let signal = Arc::new(Notify::new());
        let (waiter, status) = (state.waiters.next_id(), state.status(now));
        let check_at = state.waiters.join(waiter, request.max, &signal, status);
        let end = now + request.wait;
        let waiter = Some(waiter);
        Err(WaitingReceive { queue: self, request, signal, end, check_at, waiter })
    }
}

/// A receive that waits. Dropping it gives up its position and its reservation.
struct WaitingReceive<'a> {
    queue: &'a MemoryQueue,
    request: Receive,
    signal: Arc<Notify>,
    /// Time at which the wait ends.
    end: Timestamp,
    /// Time at which it must check again, if it is the waiter that holds the timer.
    check_at: Option<Timestamp>,
    /// `None` once the receive has ended.
    waiter: Option<WaiterId>,
}

impl WaitingReceive<'_> {
    /// Waits until a message is ready or the time is up.
    ///
    /// Messages are claimed in the same poll that returns them, so a dropped future holds none.
    async fn wait(mut self) -> Result<Vec<Delivery>> {
        let queue = self.queue;
        loop {
            let wake_at = self.check_at.map_or(self.end, |check_at| check_at.min(self.end));
            tokio::select! {
                biased;
                () = queue.gate.closed() => {
                    return Err(Error::Closed { queue: Some(queue.name.clone()) });
                }
                () = self.signal.notified() => {}
                () = queue.storage.clock.sleep_until(wake_at) => {}
            }
            let now = queue.now();
            match self.try_receive(now) {
                Ok(deliveries) => return Ok(deliveries),
                Err(_) if now >= self.end => return Ok(Vec::new()),
                Err(check_at) => self.check_at = check_at,
            }
        }
    }

    /// Takes ready messages and stops waiting. If there are none, or they are reserved for other waiters, waits on at
    /// the same position and returns the time at which to check again.
    fn try_receive(&mut self, now: Timestamp) -> Result<Vec<Delivery>, Option<Timestamp>> {
        let mut state = self.queue.lock();
        let Some(waiter) = self.waiter else { return Err(None) };
        state.ledger.advance(now);
        let status = state.status(now);
        let mut deliveries = Vec::new();
        let is_last_try = now >= self.end;
        if is_last_try || state.waiters.may_receive(waiter, status) {
            state.waiters.leave(waiter, self.request.max);
            deliveries = state.receive(now, &self.request);
        }
        let result = if deliveries.is_empty() {
            let status = state.status(now);
            Err(state.waiters.join(waiter, self.request.max, &self.signal, status))
        } else {
            self.waiter = None;
            Ok(deliveries)
        };
        state.wake_waiters(now);
        result
    }
}

impl Drop for WaitingReceive<'_> {
    /// Passes an unused wake-up to the next waiter.
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter {
            let now = self.queue.now();
            let mut state = self.queue.lock();
            state.waiters.leave(waiter, self.request.max);
            state.wake_waiters(now);
        }
    }
}

impl Queue for MemoryQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &super::CAPABILITIES
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move { self.each(batch, Self::store) })
    }

    fn send_one(&self, message: Outgoing) -> OperationFuture<'_, Result<Sent>> {
        OperationFuture::ready(self.one(message, Self::store))
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_receive(&self.name, &request)?;
            match self.receive_or_wait(request) {
                Ok(deliveries) => Ok(deliveries),
                // Boxed, to keep the future small: most receives do not wait.
                Err(waiting) => Box::pin(waiting.wait()).await,
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move { self.each(batch, Self::apply) })
    }

    fn settle_one(&self, settle: Settle) -> OperationFuture<'_, Result<()>> {
        OperationFuture::ready(self.one(settle, Self::apply))
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_peek(&self.name, max)?;
            let skip = after.map_or(Ok(0), |cursor| {
                cursor.as_str().parse::<usize>().map_err(|_| {
                    let allowed = "a cursor that this queue returned";
                    Error::invalid(Some(&self.name), "cursor", cursor.as_str(), allowed)
                })
            })?;
            let messages = self.lock().ledger.peek(self.now(), skip, max);
            // A full page may be the last one; the next page is empty then.
            let next = (messages.len() == max).then(|| Cursor::new((skip + max).to_string()));
            Ok(PeekPage::new(messages, next))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(self.lock().ledger.counts(self.now()))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(self.lock().ledger.purge())
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

impl Drop for MemoryQueue {
    fn drop(&mut self) {
        self.storage.handle_dropped(&self.name);
    }
}
