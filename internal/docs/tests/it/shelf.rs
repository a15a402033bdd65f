//! A complete backend in memory: the program of `docs/writing-a-backend.md`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pillarbox_core::ledger::{Full, Ledger, Stale};
use pillarbox_core::{
    Backend, BoxFuture, Capabilities, Clock, Counts, Cursor, Delivery, Diagnosis, Error, Gate,
    Mailboxes, Nonce, Outgoing, PeekPage, Queue, QueueName, QueueOptions, Receive, Result, Sent,
    Settle, SystemClock,
};
use pillarbox_testing::Subject;
use tokio::sync::Notify;

/// Declares every capability, because this backend keeps every rule of the contract. The conformance
/// suite skips a rule that the capabilities exclude.
static CAPABILITIES: Capabilities = Capabilities::full("shelf");

/// The backend: all queues by name, and the clock of all leases and delays.
#[derive(Debug, Default)]
struct Shelf {
    queues: Mutex<BTreeMap<QueueName, Arc<QueueState>>>,
    clock: Arc<SystemClock>,
    gate: Arc<Gate>,
}

/// State that all handles of a queue share: its messages, and a signal for waiting receives.
#[derive(Debug, Default)]
struct QueueState {
    ledger: Mutex<Ledger>,
    changed: Notify,
}

/// A handle to a queue.
#[derive(Debug)]
struct ShelfQueue {
    name: QueueName,
    options: QueueOptions,
    shared: Arc<QueueState>,
    clock: Arc<SystemClock>,
    /// Closes with the gate of the backend.
    gate: Gate,
}

/// Locks a mutex, even if a thread has panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ShelfQueue {
    /// Stores a message, unless the queue is full.
    fn store(&self, message: Outgoing) -> Result<Sent> {
        let (id, max_size) = (message.id, self.options.max_size);
        let stored = lock(&self.shared.ledger).send(self.clock.now(), message, max_size);
        stored.map_err(|Full| Error::MailboxFull {
            queue: self.name.clone(),
            id: Some(id),
            max_size,
        })
    }

    /// Settles a delivery, unless its receipt is stale or its lease has expired.
    fn settle_delivery(&self, settle: Settle) -> Result<()> {
        let now = self.clock.now();
        let settled = lock(&self.shared.ledger).settle(now, &settle.receipt, settle.action);
        settled.map_err(|Stale| {
            let (queue, receipt) = (self.name.clone(), settle.receipt);
            Error::ReceiptHandleExpired { queue, receipt }
        })
    }
}

impl Queue for ShelfQueue {
    fn name(&self) -> &QueueName {
        &self.name
    }

    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            // Refuses entries outside the limits, one by one; `store` gets the others.
            let check = Capabilities::check_outgoing;
            let store = async |batch: Vec<Outgoing>| {
                Ok(batch.into_iter().map(|message| self.store(message)).collect())
            };
            let results = CAPABILITIES.check_each(&self.name, batch, check, store).await;
            self.shared.changed.notify_waiters();
            results
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            CAPABILITIES.check_receive(&self.name, &request)?;
            let end = self.clock.now() + request.wait;
            loop {
                // Subscribes before it checks the ledger, so that it misses no change.
                let changed = self.shared.changed.notified();
                let (now, next_due) = {
                    let mut ledger = lock(&self.shared.ledger);
                    let now = self.clock.now();
                    let taken = ledger.receive(now, request.max, request.visibility, Nonce::random);
                    // Returns in the poll that starts the leases: a dropped receive holds no lease.
                    if !taken.is_empty() || now >= end {
                        return Ok(taken);
                    }
                    (now, ledger.next_due().filter(|due| *due > now))
                };
                let until = next_due.map_or(end, |due| due.min(end)).max(now);
                tokio::select! {
                    () = self.gate.closed() => self.gate.check(&self.name)?,
                    () = changed => {}
                    () = self.clock.sleep_until(until) => {}
                }
            }
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            let check = Capabilities::check_settle;
            let settle = async |batch: Vec<Settle>| {
                Ok(batch.into_iter().map(|entry| self.settle_delivery(entry)).collect())
            };
            let results = CAPABILITIES.check_each(&self.name, batch, check, settle).await;
            self.shared.changed.notify_waiters();
            results
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            CAPABILITIES.check_peek(&self.name, max)?;
            let from = after.as_ref().map_or("0", |cursor| cursor.as_str());
            let skip: usize = from.parse().map_err(|_| {
                Error::invalid(Some(&self.name), "cursor", from, "a cursor of this queue")
            })?;
            let messages = lock(&self.shared.ledger).peek(self.clock.now(), skip, max);
            let next = (messages.len() == max).then(|| Cursor::new((skip + max).to_string()));
            Ok(PeekPage::new(messages, next))
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(lock(&self.shared.ledger).counts(self.clock.now()))
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.gate.check(&self.name)?;
            Ok(lock(&self.shared.ledger).purge())
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }

    fn is_closed(&self) -> bool {
        self.gate.is_closed()
    }
}

impl Backend for Shelf {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.gate.check(name)?;
        CAPABILITIES.check_name(name)?;
        let shared = lock(&self.queues).entry(name.clone()).or_default().clone();
        let (name, clock, gate) = (name.clone(), self.clock.clone(), Gate::child(&self.gate));
        Ok(Arc::new(ShelfQueue { name, options, shared, clock, gate }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async move {
            self.gate.check_backend()?;
            let queues = lock(&self.queues);
            let used = queues.iter().filter(|(_, shared)| !lock(&shared.ledger).is_empty());
            Ok(used.map(|(name, _)| name.clone()).collect())
        })
    }

    fn diagnose(&self, _repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async move {
            self.gate.check_backend()?;
            Ok(Diagnosis::of(&CAPABILITIES))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move { self.gate.close() })
    }
}

// Defines one test for each rule of the contract.
pillarbox_testing::conformance!(Subject::with_paused_time(Mailboxes::new(Shelf::default())));

#[test]
fn it_agrees_with_the_ledger_over_random_commands() {
    pillarbox_testing::property::check(100, 40, || async {
        Subject::with_paused_time(Mailboxes::new(Shelf::default()))
    });
}
