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

/// All who wait, by the request that they wait for.
///
/// The lock is a plain one: it is held for a look into the table, and never while anything is waited for.
pub(super) struct Waiting<O>(Mutex<State<O>>);

struct State<O> {
    waiters: HashMap<Uuid, Waiter<O>>,
    /// Why answers cannot be received at the moment.
    outage: Option<Error>,
    /// Why none will be received any more.
    end: Option<Error>,
}

impl<O> Waiting<O> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(State { waiters: HashMap::new(), outage: None, end: None }))
    }

    /// Puts them on the list, all or none, for as long as what is returned lives.
    pub(super) fn enlist(
        this: &Arc<Self>,
        queue: &QueueName,
        waiters: impl IntoIterator<Item = (Uuid, Waiter<O>)>,
    ) -> Result<Enlisted<O>> {
        let mut enlisted = Enlisted { waiting: this.clone(), ids: Vec::new() };
        // Dropped before what is enlisted, which takes the lock.
        let mut state = this.state();
        if let Some(error) = &state.end {
            return Err(error.clone());
        }
        for (id, waiter) in waiters {
            match state.waiters.entry(id) {
                Entry::Vacant(place) => drop(place.insert(waiter)),
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
        let waiter = self.state().waiters.remove(&id);
        match waiter {
            Some(Waiter::Call(sender)) => sender.send(answer).is_ok(),
            Some(Waiter::Batch(sender)) => sender.try_send((id, answer)).is_ok(),
            None => false,
        }
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
        for (id, waiter) in waiters {
            match waiter {
                Waiter::Call(sender) => drop(sender.send(Err(error.clone()))),
                Waiter::Batch(sender) => drop(sender.try_send((id, Err(error.clone())))),
            }
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
}

impl<O> Drop for Enlisted<O> {
    fn drop(&mut self) {
        let mut state = self.waiting.state();
        for id in &self.ids {
            state.waiters.remove(id);
        }
    }
}
