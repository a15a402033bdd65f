//! One queue in memory: a ledger behind a mutex, and the line of those who wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use super::Shared;
use super::waiters::{Situation, Ticket, Waiters};
use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::gate::Gate;
use crate::lease::{Full, Ledger, Stale};
use crate::options::Receive;
use crate::queue::{BoxFuture, Cursor, Delivery, Outgoing, PeekPage, Queue, QueueOptions, Settle};
use crate::{Capabilities, Counts, Nonce, QueueName, Sent};

/// What all handles of one queue share.
///
/// The mutex is std's: it is held for the length of one batch and never across an await.
#[derive(Debug, Default)]
pub(super) struct Core {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    ledger: Ledger,
    waiters: Waiters,
}

impl Core {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic under this lock would be a bug of the ledger; what it left is still a queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().ledger.is_empty()
    }
}

impl State {
    fn receive(&mut self, now: Timestamp, request: &Receive) -> Vec<Delivery> {
        self.ledger.receive(now, request.max, request.visibility, Nonce::random)
    }

    /// Wakes whom the present state of the queue calls for.
    fn balance(&mut self, now: Timestamp) {
        self.waiters.balance(self.situation(now));
    }

    fn situation(&self, now: Timestamp) -> Situation {
        Situation { now, ready: self.ledger.ready_len(), next_due: self.ledger.next_due() }
    }
}

/// A handle of one queue.
#[derive(Debug)]
pub(super) struct MemoryQueue {
    name: QueueName,
    options: QueueOptions,
    core: Arc<Core>,
    shared: Arc<Shared>,
    gate: Gate,
}

impl MemoryQueue {
    pub(super) fn new(
        name: QueueName,
        options: QueueOptions,
        core: Arc<Core>,
        shared: Arc<Shared>,
        gate: Gate,
    ) -> Self {
        Self { name, options, core, shared, gate }
    }

    fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Applies the entries of a batch in turn, under one lock and at one moment.
    fn each<E, O>(
        &self,
        batch: Vec<E>,
        apply: impl Fn(&Self, &mut State, Timestamp, E) -> Result<O>,
    ) -> Result<Vec<Result<O>>> {
        self.gate.check(&self.name)?;
        self.capabilities().check_batch(&self.name, batch.len())?;
        let now = self.now();
        let mut results = Vec::with_capacity(batch.len());
        let mut state = self.core.lock();
        results.extend(batch.into_iter().map(|entry| apply(self, &mut state, now, entry)));
        state.balance(now);
        Ok(results)
    }

    fn send_one(&self, state: &mut State, now: Timestamp, message: Outgoing) -> Result<Sent> {
        self.capabilities().check_outgoing(&self.name, &message)?;
        let (id, max_size) = (message.id, self.options.max_size);
        state.ledger.send(now, message, max_size).map_err(|Full| Error::MailboxFull {
            queue: self.name.clone(),
            id: Some(id),
            max_size,
        })
    }

    fn settle_one(&self, state: &mut State, now: Timestamp, settle: Settle) -> Result<()> {
        self.capabilities().check_settle(&self.name, &settle)?;
        state.ledger.settle(now, &settle.receipt, settle.action).map_err(|Stale| {
            Error::ReceiptHandleExpired { queue: self.name.clone(), receipt: settle.receipt }
        })
    }

    /// Takes what is ready; where nothing is and the caller would wait, gets in line.
    fn take_or_join(&self, request: Receive) -> Result<Vec<Delivery>, (Place<'_>, Waiting)> {
        let now = self.now();
        let mut state = self.core.lock();
        let deliveries = state.receive(now, &request);
        if !deliveries.is_empty() || request.wait.is_zero() {
            state.balance(now);
            return Ok(deliveries);
        }
        let (place, due) = Place::join(self, &mut state, now, request);
        Err((place, Waiting { end: now + request.wait, due }))
    }

    /// Waits in line until there is something or time is up.
    ///
    /// Messages are claimed in the same poll that returns them, so a dropped future holds none.
    async fn wait(&self, mut place: Place<'_>, mut waiting: Waiting) -> Result<Vec<Delivery>> {
        loop {
            let wake_at = waiting.due.map_or(waiting.end, |due| due.min(waiting.end));
            tokio::select! {
                biased;
                () = self.gate.closed() => {
                    return Err(Error::Closed { queue: Some(self.name.clone()) });
                }
                () = place.signal.notified() => {}
                () = self.shared.clock.sleep_until(wake_at) => {}
            }
            let now = self.now();
            let last_chance = now >= waiting.end;
            match place.try_receive(now, last_chance) {
                Ok(deliveries) => return Ok(deliveries),
                Err(_) if last_chance => return Ok(Vec::new()),
                Err(due) => waiting.due = due,
            }
        }
    }
}

/// Until when a receiver waits.
struct Waiting {
    end: Timestamp,
    /// When it must look again, if it is the one that watches the clock.
    due: Option<Timestamp>,
}

/// A place in line, given up when dropped.
struct Place<'a> {
    queue: &'a MemoryQueue,
    request: Receive,
    signal: Arc<Notify>,
    /// `None` once the place is given up.
    ticket: Option<Ticket>,
}

impl<'a> Place<'a> {
    fn join(
        queue: &'a MemoryQueue,
        state: &mut State,
        now: Timestamp,
        request: Receive,
    ) -> (Self, Option<Timestamp>) {
        let signal = Arc::new(Notify::new());
        let ticket = state.waiters.ticket();
        let situation = state.situation(now);
        let due = state.waiters.join(ticket, request.max, &signal, situation);
        (Self { queue, request, signal, ticket: Some(ticket) }, due)
    }

    /// Takes what is ready and leaves the line; or, where nothing is, or what is there is promised
    /// to others, stays in line in the old place and says until when to sleep.
    fn try_receive(
        &mut self,
        now: Timestamp,
        last_chance: bool,
    ) -> Result<Vec<Delivery>, Option<Timestamp>> {
        let mut state = self.queue.core.lock();
        let Some(ticket) = self.ticket else {
            return Err(None);
        };
        state.ledger.advance(now);
        let situation = state.situation(now);
        let mut deliveries = Vec::new();
        if last_chance || state.waiters.may_take(ticket, situation) {
            state.waiters.leave(ticket, self.request.max);
            deliveries = state.receive(now, &self.request);
        }
        let result = if deliveries.is_empty() {
            let situation = state.situation(now);
            Err(state.waiters.join(ticket, self.request.max, &self.signal, situation))
        } else {
            self.ticket = None;
            Ok(deliveries)
        };
        state.balance(now);
        result
    }
}

impl Drop for Place<'_> {
    /// A wake-up that this waiter will not use goes to the next in line.
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let now = self.queue.now();
            let mut state = self.queue.core.lock();
            state.waiters.leave(ticket, self.request.max);
            state.balance(now);
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
        Box::pin(async move { self.each(batch, Self::send_one) })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_receive(&self.name, &request)?;
            match self.take_or_join(request) {
                Ok(deliveries) => Ok(deliveries),
                // In a box of its own: most receives do not wait, and need not carry the room.
                Err((place, waiting)) => Box::pin(self.wait(place, waiting)).await,
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move { self.each(batch, Self::settle_one) })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            self.capabilities().check_peek(&self.name, max)?;
            let skip = after.map_or(Ok(0), |cursor| {
                cursor.as_str().parse::<usize>().map_err(|_| {
                    let allowed = "a cursor that this queue gave";
                    Error::invalid(Some(&self.name), "cursor", cursor.as_str(), allowed)
                })
            })?;
            let messages = self.core.lock().ledger.peek(self.now(), skip, max);
            // A full page may have been the last; the next one is then empty.
            let next = (messages.len() == max).then(|| Cursor::new((skip + max).to_string()));
            Ok(PeekPage::new(messages, next))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(self.core.lock().ledger.counts(self.now()))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(self.core.lock().ledger.purge())
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
        self.shared.handle_dropped(&self.name);
    }
}

#[cfg(test)]
impl MemoryQueue {
    pub(super) fn nobody_waits(&self) -> bool {
        self.core.lock().waiters.is_idle()
    }
}
