//! Waiting until replicas have the effect of a call.
//!
//! `WAIT` covers what its own connection has written, and blocks that connection. So it has one of its own,
//! on which something is written first: replicas that have this have everything before it. One wait serves
//! all calls that were answered before it began; later ones are collected for the next.
//!
//! Between a call and its confirmation, a server may have taken over that does not have the effect of the
//! call. Therefore what is written is the call's own record, and only if it exists; otherwise the call is
//! made again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use pillarbox_core::internal::lock;
use redis::Value;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

use crate::caller::Caller;
use crate::options::Durability;
use crate::retrying_client::RetryingClient;
use crate::scripts;
use crate::servers::{Node, Route};

/// Confirms calls by replicas.
#[derive(Clone)]
pub(crate) struct Confirmations {
    client: Arc<RetryingClient>,
    tasks: TaskTracker,
    runtime: Handle,
    /// Calls to be confirmed, by the server that has made them. A task waits for each server listed.
    pending: Arc<Mutex<HashMap<Arc<str>, Vec<PendingCall>>>>,
}

/// A call that was answered and is not confirmed yet.
struct PendingCall {
    key: String,
    number: u64,
    confirmed: oneshot::Sender<Confirmation>,
}

/// Outcome of a confirmation.
#[derive(Debug, Clone)]
pub(crate) enum Confirmation {
    /// Number of replicas of the server that have the effect.
    By { replicas: u32, endpoint: Arc<str> },
    /// The server does not have the effect, or was not reached.
    Unknown,
}

impl Confirmations {
    pub(crate) fn new(client: Arc<RetryingClient>, tasks: TaskTracker, runtime: Handle) -> Self {
        Self { client, tasks, runtime, pending: Arc::default() }
    }

    /// Confirms the last call of a caller, together with others that wait for the same server.
    pub(crate) async fn confirm(&self, slot: u16, caller: &Caller) -> Confirmation {
        let Ok(node) = self.client.servers.node(Route::Slot(slot)).await else {
            return Confirmation::Unknown;
        };
        let (sender, confirmed) = oneshot::channel();
        let call =
            PendingCall { key: caller.key.clone(), number: caller.number, confirmed: sender };
        let is_first = {
            let mut pending = lock(&self.pending);
            let is_first = !pending.contains_key(&node.endpoint);
            pending.entry(node.endpoint.clone()).or_default().push(call);
            is_first
        };
        if is_first {
            self.tasks.spawn_on(self.clone().confirm_all(node), &self.runtime);
        }
        confirmed.await.unwrap_or(Confirmation::Unknown)
    }

    /// Confirms calls of a server until none is pending.
    async fn confirm_all(self, node: Arc<Node>) {
        loop {
            let calls = {
                let mut pending = lock(&self.pending);
                match pending.get_mut(&node.endpoint) {
                    Some(calls) if !calls.is_empty() => std::mem::take(calls),
                    _ => {
                        pending.remove(&node.endpoint);
                        return;
                    }
                }
            };
            let confirmations = self.confirm_batch(&node, &calls).await;
            for (call, confirmation) in calls.into_iter().zip(confirmations) {
                let _ = call.confirmed.send(confirmation);
            }
        }
    }

    async fn confirm_batch(&self, node: &Node, calls: &[PendingCall]) -> Vec<Confirmation> {
        let settings = &self.client.settings;
        let durability = settings.durability.unwrap_or(Durability::replicas(0));
        let mut commands = redis::pipe();
        for PendingCall { key, number, .. } in calls {
            let command = commands.cmd("EVAL").arg(&scripts::CONFIRM.code).arg(1).arg(key);
            command.arg(format!("{number:012}")).arg(settings.record_ttl().as_millis() as u64);
        }
        let millis = durability.timeout.as_millis().max(1) as u64;
        commands.cmd("WAIT").arg(durability.replicas).arg(millis);
        let mut answers = match node.call_blocking(&commands, durability.timeout).await {
            Ok(answers) => answers,
            Err(failed) => {
                let (endpoint, error) = (&node.endpoint, failed.error);
                tracing::debug!(%endpoint, %error, "replicas could not be waited for");
                Vec::new()
            }
        };
        let replicas = match answers.pop() {
            Some(Value::Int(replicas)) => u32::try_from(replicas).ok(),
            _ => None,
        };
        let confirmation = |index: usize| match (answers.get(index), replicas) {
            (Some(Value::Int(1)), Some(replicas)) => {
                Confirmation::By { replicas, endpoint: node.endpoint.clone() }
            }
            _ => Confirmation::Unknown,
        };
        let confirmations: Vec<_> = (0..calls.len()).map(confirmation).collect();
        if confirmations.iter().any(|one| matches!(one, Confirmation::Unknown)) {
            // This connection may still be to a server that has been replaced.
            node.discard_blocking();
        }
        confirmations
    }
}
