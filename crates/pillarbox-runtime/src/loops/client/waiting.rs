//! Who waits for which answer.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pillarbox_core::{Error, QueueName, Result};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::super::message::MainLoopResult;

/// An answer, or why there will be none.
pub(super) type Answer<O> = Result<MainLoopResult<O>>;

/// Somebody who waits for an answer.
pub(super) enum Waiter<O> {
    Call(oneshot::Sender<Answer<O>>),
    /// One of many. The channel has a place for each of them.
    Batch(mpsc::Sender<(Uuid, Answer<O>)>),
}

impl<O> Waiter<O> {
    /// `false` if it does not wait any more.
    fn tell(self, id: Uuid, answer: Answer<O>) -> bool {
        match self {
            Self::Call(sender) => sender.send(answer).is_ok(),
            Self::Batch(sender) => sender.try_send((id, answer)).is_ok(),
        }
    }
}

/// All who wait, by the request that they wait for.
///
/// The lock is a plain one: it is held for a look into the table, and never while anything is waited for.
pub(super) struct Waiting<O>(Mutex<State<O>>);

struct State<O> {
    waiters: HashMap<Uuid, Place<O>>,
    /// How many were put on the list at a time, until now.
    enlisted: u64,
    /// Why answers cannot be received at the moment.
    outage: Option<Error>,
    /// Why none will be received any more.
    end: Option<Error>,
}

/// A waiter, and with which others it was put on the list: an id may be there again later.
struct Place<O> {
    waiter: Waiter<O>,
    since: u64,
}

impl<O> Waiting<O> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { waiters: HashMap::new(), enlisted: 0, outage: None, end: None }))
    }

    /// Puts them on the list, all or none, for as long as what is returned lives.
    pub(super) fn enlist(
        this: &Arc<Self>,
        queue: &QueueName,
        waiters: impl IntoIterator<Item = (Uuid, Waiter<O>)>,
    ) -> Result<Enlisted<O>> {
        let mut enlisted = Enlisted { waiting: this.clone(), ids: Vec::new(), since: 0 };
        // Dropped before what is enlisted, which takes the lock.
        let mut state = this.state();
        if let Some(error) = &state.end {
            return Err(error.clone());
        }
        state.enlisted += 1;
        let since = state.enlisted;
        enlisted.since = since;
        for (id, waiter) in waiters {
            match state.waiters.entry(id) {
                Entry::Vacant(place) => drop(place.insert(Place { waiter, since })),
                Entry::Occupied(_) => {
                    let allowed = "one that is not under way already";
                    return Err(Error::invalid(Some(queue), "request id", id.to_string(), allowed));
                }
            }
            enlisted.ids.push(id);
        }
        Ok(enlisted)
    }

    /// Gives an answer to whoever waits for it. `false` if nobody does.
    pub(super) fn answer(&self, id: Uuid, answer: Answer<O>) -> bool {
        let place = self.state().waiters.remove(&id);
        place.is_some_and(|place| place.waiter.tell(id, answer))
    }

    /// Whether answers can be received at the moment, and why not.
    pub(super) fn set_outage(&self, outage: Option<Error>) {
        self.state().outage = outage;
    }

    pub(super) fn outage(&self) -> Option<Error> {
        self.state().outage.clone()
    }

    /// Tells all who wait that there will be no answer, and whoever comes later.
    pub(super) fn end(&self, error: &Error) {
        let waiters = {
            let mut state = self.state();
            state.end.get_or_insert_with(|| error.clone());
            std::mem::take(&mut state.waiters)
        };
        for (id, place) in waiters {
            place.waiter.tell(id, Err(error.clone()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.state().waiters.len()
    }

    fn state(&self) -> MutexGuard<'_, State<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place on the list, for one or many. Gone when dropped.
pub(super) struct Enlisted<O> {
    waiting: Arc<Waiting<O>>,
    ids: Vec<Uuid>,
    since: u64,
}

impl<O> Drop for Enlisted<O> {
    fn drop(&mut self) {
        let mut state = self.waiting.state();
        for id in &self.ids {
            // Somebody else may wait for the same request by now.
            if state.waiters.get(id).is_some_and(|place| place.since == self.since) {
                state.waiters.remove(id);
            }
        }
    }
}
