//! The waiters of a client, by request.

use std::collections::{HashMap, hash_map};
use std::sync::{Arc, Mutex, MutexGuard};

use pillarbox_core::internal::lock;
use pillarbox_core::{Error, QueueName, Result};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::super::message::MainLoopResult;

/// An answer, or the reason why there is none.
pub(super) type Answer<O> = Result<MainLoopResult<O>>;

/// A call or submission that waits for an answer.
pub(super) enum Waiter<O> {
    Call(oneshot::Sender<Answer<O>>),
    /// One request of a submission. The channel has capacity for all of its answers.
    Batch(mpsc::Sender<(Uuid, Answer<O>)>),
}

impl<O> Waiter<O> {
    /// Passes the answer on. `false` if the receiver is gone.
    fn notify(self, id: Uuid, answer: Answer<O>) -> bool {
        match self {
            Self::Call(sender) => sender.send(answer).is_ok(),
            Self::Batch(sender) => sender.try_send((id, answer)).is_ok(),
        }
    }
}

/// The waiters of a client by request id. The lock is never held across an await.
pub(super) struct Waiters<O>(Mutex<WaitersState<O>>);

struct WaitersState<O> {
    waiters: HashMap<Uuid, Entry<O>>,
    /// Number of registrations so far.
    registrations: u64,
    /// Why answers cannot be received at the moment.
    outage: Option<Error>,
    /// Why no further answers will be received.
    end: Option<Error>,
}

/// A waiter and the number of its registration: the same id may be registered again later.
struct Entry<O> {
    waiter: Waiter<O>,
    registration: u64,
}

impl<O> Waiters<O> {
    pub(super) fn new() -> Self {
        let waiters = HashMap::new();
        Self(Mutex::new(WaitersState { waiters, registrations: 0, outage: None, end: None }))
    }

    /// Registers waiters, all or none, until the returned registration is dropped.
    pub(super) fn register(
        this: &Arc<Self>,
        queue: &QueueName,
        waiters: impl IntoIterator<Item = (Uuid, Waiter<O>)>,
    ) -> Result<Registration<O>> {
        let mut registration = Registration { waiters: this.clone(), ids: Vec::new(), number: 0 };
        // Dropped before the registration, whose drop takes the lock.
        let mut state = this.state();
        if let Some(error) = &state.end {
            return Err(error.clone());
        }
        state.registrations += 1;
        let number = state.registrations;
        registration.number = number;
        for (id, waiter) in waiters {
            match state.waiters.entry(id) {
                hash_map::Entry::Vacant(vacant) => {
                    vacant.insert(Entry { waiter, registration: number });
                }
                hash_map::Entry::Occupied(_) => {
                    let allowed = "one that is not already in progress";
                    return Err(Error::invalid(Some(queue), "request id", id.to_string(), allowed));
                }
            }
            registration.ids.push(id);
        }
        Ok(registration)
    }

    /// Passes an answer to its waiter. `false` if there is none.
    pub(super) fn answer(&self, id: Uuid, answer: Answer<O>) -> bool {
        let entry = self.state().waiters.remove(&id);
        entry.is_some_and(|entry| entry.waiter.notify(id, answer))
    }

    /// Sets why answers cannot be received at the moment.
    pub(super) fn set_outage(&self, outage: Option<Error>) {
        self.state().outage = outage;
    }

    pub(super) fn outage(&self) -> Option<Error> {
        self.state().outage.clone()
    }

    /// Fails all waiters, and all that are registered later.
    pub(super) fn end(&self, error: &Error) {
        let waiters = {
            let mut state = self.state();
            state.end.get_or_insert_with(|| error.clone());
            std::mem::take(&mut state.waiters)
        };
        for (id, entry) in waiters {
            entry.waiter.notify(id, Err(error.clone()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state().waiters.len()
    }

    fn state(&self) -> MutexGuard<'_, WaitersState<O>> {
        lock(&self.0)
    }
}

/// A registration of one or more waiters, which are removed when it is dropped.
pub(super) struct Registration<O> {
    waiters: Arc<Waiters<O>>,
    ids: Vec<Uuid>,
    number: u64,
}

impl<O> Drop for Registration<O> {
    fn drop(&mut self) {
        let mut state = self.waiters.state();
        for id in &self.ids {
            // The same id may have been registered again by another call.
            if state.waiters.get(id).is_some_and(|entry| entry.registration == self.number) {
                state.waiters.remove(id);
            }
        }
    }
}
