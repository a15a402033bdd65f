//! Waiting until replicas have what was done.
//!
//! `WAIT` covers what its own connection has written, and keeps that connection waiting. So it has one of
//! its own, on which something is written first: replicas that have this have all that came before it.
//! One wait serves all calls that have been answered when it begins, and while it lasts the next ones
//! gather.
//!
//! Between a call and its confirmation another server may have taken over that has not got the effect of
//! the call. Therefore what is written is the call's own record, and only if it is there; where it is not,
//! the call is made again.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::Value;
use tokio::sync::oneshot;

use crate::engine::Engine;
use crate::lane::Caller;
use crate::options::Durability;
use crate::scripts;
use crate::servers::{Node, Route};

/// Calls that wait for replicas, by the server that has made them. A server that is here is being asked.
#[derive(Default)]
pub(crate) struct Confirmations {
    waiting: Mutex<HashMap<Arc<str>, Vec<Waiting>>>,
}

/// A call that was answered.
struct Waiting {
    key: String,
    number: u64,
    confirmed: oneshot::Sender<Confirmed>,
}

/// What has become of a call.
#[derive(Debug, Clone)]
pub(crate) enum Confirmed {
    /// So many replicas of the server have it.
    By { replicas: u32, place: Arc<str> },
    /// The server that is asked does not have it, or was not reached.
    Unknown,
}

/// Has a call confirmed, together with whichever others wait for that.
pub(crate) async fn confirm(engine: &Arc<Engine>, slot: u16, caller: &Caller) -> Confirmed {
    let Ok(node) = engine.link.servers.node(Route::Slot(slot)).await else {
        return Confirmed::Unknown;
    };
    let (sender, confirmed) = oneshot::channel();
    let waiting = Waiting { key: caller.key.clone(), number: caller.number, confirmed: sender };
    let is_first = {
        let mut groups = engine.confirmations.lock();
        let is_first = !groups.contains_key(&node.place);
        groups.entry(node.place.clone()).or_default().push(waiting);
        is_first
    };
    if is_first {
        engine.spawn(confirm_all(engine.clone(), node));
    }
    confirmed.await.unwrap_or(Confirmed::Unknown)
}

/// Waits for replicas of a server until no call waits for them.
async fn confirm_all(engine: Arc<Engine>, node: Arc<Node>) {
    loop {
        let calls = {
            let mut groups = engine.confirmations.lock();
            match groups.get_mut(&node.place) {
                Some(calls) if !calls.is_empty() => std::mem::take(calls),
                _ => {
                    groups.remove(&node.place);
                    return;
                }
            }
        };
        let confirmed = confirm_group(&engine, &node, &calls).await;
        for (call, confirmed) in calls.into_iter().zip(confirmed) {
            // Whoever is gone does not want to know.
            let _ = call.confirmed.send(confirmed);
        }
    }
}

async fn confirm_group(engine: &Engine, node: &Node, calls: &[Waiting]) -> Vec<Confirmed> {
    let usage = &engine.link.usage;
    let durability = usage.durability.unwrap_or(Durability::replicas(0));
    let mut commands = redis::pipe();
    for Waiting { key, number, .. } in calls {
        let command = commands.cmd("EVAL").arg(&scripts::CONFIRM.code).arg(1).arg(key);
        command.arg(format!("{number:012}")).arg(usage.remembered().as_millis() as u64);
    }
    let millis = durability.timeout.as_millis().max(1) as u64;
    commands.cmd("WAIT").arg(durability.replicas).arg(millis);
    let mut answers = match node.wait_for(&commands, durability.timeout).await {
        Ok(answers) => answers,
        Err(failed) => {
            tracing::debug!(place = %node.place, error = %failed.error, "replicas are not waited for");
            Vec::new()
        }
    };
    let replicas = match answers.pop() {
        Some(Value::Int(replicas)) => u32::try_from(replicas).ok(),
        _ => None,
    };
    let confirmed = |place: usize| match (answers.get(place), replicas) {
        (Some(Value::Int(1)), Some(replicas)) => {
            Confirmed::By { replicas, place: node.place.clone() }
        }
        _ => Confirmed::Unknown,
    };
    let confirmed: Vec<_> = (0..calls.len()).map(confirmed).collect();
    if confirmed.iter().any(|confirmed| matches!(confirmed, Confirmed::Unknown)) {
        // Perhaps this connection is still to a server that has been replaced.
        node.stop_waiting();
    }
    confirmed
}

impl Confirmations {
    /// Held for moments, never across an await.
    fn lock(&self) -> MutexGuard<'_, HashMap<Arc<str>, Vec<Waiting>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Confirmations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Confirmations")
    }
}
