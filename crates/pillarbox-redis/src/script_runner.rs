//! Running the scripts of one partition, and releasing deliveries that no caller has received.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{Delivery, Nonce};
use redis::Cmd;
use tokio::time::Instant;

use crate::caller::Caller;
use crate::confirmations::Confirmation;
use crate::context::BackendContext;
use crate::failure::{Failure, Result};
use crate::format::{IdText, Keys};
use crate::options::Durability;
use crate::partition_layout::PartitionNumber;
use crate::queue_state::QueueState;
use crate::reply::{Reply, ReplyReader};
use crate::retrying_client::retry_delay;
use crate::script_call::{CommonArguments, ScriptCall};
use crate::scripts::{self, Script};
use crate::servers::Route;

/// Maximum number of receives without an answer that are remembered.
const MAX_LOST: usize = 64;

/// Runs the scripts of one partition.
pub(crate) struct ScriptRunner {
    pub(crate) queue: Arc<QueueState>,
    pub(crate) number: PartitionNumber,
    pub(crate) keys: Keys,
    lost: Mutex<LostReceives>,
}

/// A receive that got no answer: what it has delivered is in flight, and only the server knows what that is.
#[derive(Debug)]
pub(crate) struct LostReceive {
    pub(crate) caller: Caller,
    pub(crate) nonces: Vec<Nonce>,
    /// When the last of its leases has expired.
    pub(crate) until: Instant,
}

#[derive(Debug, Default)]
struct LostReceives {
    receives: Vec<LostReceive>,
    /// Whether a task releases them.
    is_releasing: bool,
}

impl ScriptRunner {
    pub(crate) fn new(queue: Arc<QueueState>, number: PartitionNumber) -> Self {
        Self { keys: Keys::new(&queue.name, number), queue, number, lost: Mutex::default() }
    }

    pub(crate) fn context(&self) -> &Arc<BackendContext> {
        &self.queue.context
    }

    /// Creates a caller that the server does not know yet.
    pub(crate) fn new_caller(&self) -> Caller {
        Caller::new(self.keys.call(&self.context().new_caller_name()))
    }

    /// Runs a script whose answer is not remembered: its caller has no name.
    pub(crate) async fn run_without_caller(
        &self,
        script: &Script,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<ReplyReader> {
        let caller = Caller::new(self.keys.call(""));
        self.run(script, &caller, arguments).await.map(Reply::into_reader)
    }

    /// Runs a script whose answer is remembered for the usual time.
    async fn run(
        &self,
        script: &Script,
        caller: &Caller,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Reply> {
        let record_ttl = self.context().client.settings.record_ttl();
        self.run_remembered(script, caller, record_ttl, arguments).await
    }

    /// Runs a script whose answer is remembered for `record_ttl`.
    pub(crate) async fn run_remembered(
        &self,
        script: &Script,
        caller: &Caller,
        record_ttl: Duration,
        arguments: impl Fn(&mut Cmd),
    ) -> Result<Reply> {
        let BackendContext { client, gate, .. } = &**self.context();
        let keys = self.keys.types().map(|(key, _)| key);
        let common = CommonArguments { caller, record_ttl, ttl: self.queue.ttl() };
        let call = ScriptCall::of_partition(script, &keys, common, arguments);
        match client.run(gate, Route::Slot(self.keys.slot), call).await {
            Err(failure) => {
                Err(self.context().explain(failure, self.keys.slot, &self.keys.types()).await)
            }
            reply => reply,
        }
    }

    /// Runs a script that changes something, and waits until enough replicas have the change.
    /// `has_effect` returns whether an answer stands for a change, and is remembered.
    pub(crate) async fn run_durably(
        &self,
        script: &Script,
        caller: &Caller,
        arguments: impl Fn(&mut Cmd),
        has_effect: impl Fn(&Reply) -> bool,
    ) -> Result<Reply> {
        let BackendContext { client, gate, confirmations, .. } = &**self.context();
        let Some(Durability { replicas: wanted, timeout: within }) = client.settings.durability
        else {
            return self.run(script, caller, arguments).await;
        };
        // A script records every answer to a caller that has an unanswered call.
        let caller = &Caller { has_unanswered: true, key: caller.key.clone(), ..*caller };
        let end = Instant::now() + client.settings.retry_for;
        let mut delay = retry_delay();
        loop {
            let reply = self.run(script, caller, &arguments).await?;
            if !has_effect(&reply) {
                return Ok(reply);
            }
            match confirmations.confirm(self.keys.slot, caller).await {
                Confirmation::By { replicas, .. } if replicas >= wanted => return Ok(reply),
                Confirmation::By { replicas: confirmed, endpoint } => {
                    return Err(Failure::Unconfirmed { endpoint, confirmed, wanted, within });
                }
                Confirmation::Unknown => {}
            }
            let delay = delay.next_delay();
            if Instant::now() + delay > end {
                let endpoint = client.endpoint().clone();
                return Err(Failure::Unconfirmed { endpoint, confirmed: 0, wanted, within });
            }
            tokio::select! {
                biased;
                () = gate.closed() => return Err(Failure::Closed),
                () = tokio::time::sleep(delay) => {}
            }
        }
    }

    /// Releases deliveries that no caller has received, in the background.
    pub(crate) fn release(self: Arc<Self>, deliveries: Vec<Delivery>) {
        let context = self.context().clone();
        context.spawn(async move {
            let tokens: Vec<_> = deliveries.iter().filter_map(|d| d.receipt.token()).collect();
            let released = self.run_without_caller(&scripts::RELEASE, |command| {
                for (id, nonce) in &tokens {
                    command.arg(IdText::new(*id).as_bytes()).arg(nonce.to_string());
                }
            });
            if let Err(failure) = released.await {
                // They become ready when their leases expire.
                let queue = &self.queue.name;
                tracing::debug!(%queue, %failure, "deliveries could not be released");
            }
        });
    }

    /// Releases what a receive without an answer has delivered, as soon as the server answers again.
    pub(crate) fn release_lost(self: &Arc<Self>, receive: LostReceive) {
        let is_first = {
            let mut lost = lock(&self.lost);
            if lost.receives.len() >= MAX_LOST {
                // What it has delivered becomes ready when its leases expire.
                tracing::debug!(queue = %self.queue.name, "too many receives without an answer");
                return;
            }
            lost.receives.push(receive);
            !std::mem::replace(&mut lost.is_releasing, true)
        };
        if is_first {
            self.context().spawn(self.clone().release_all_lost());
        }
    }

    /// Releases the last receive first, so that its messages end up behind those of the others.
    async fn release_all_lost(self: Arc<Self>) {
        let mut delay = retry_delay();
        while let Some(receive) = self.next_lost() {
            let released = self.run(&scripts::RELEASE, &receive.caller, |command| {
                for nonce in &receive.nonces {
                    command.arg(nonce.to_string());
                }
            });
            let Err(failure) = released.await else {
                delay.reset();
                continue;
            };
            let queue = &self.queue.name;
            tracing::debug!(%queue, %failure, "a receive without an answer could not be released");
            if matches!(failure, Failure::Closed) {
                lock(&self.lost).receives.clear();
            } else if failure.is_transient() && Instant::now() < receive.until {
                lock(&self.lost).receives.push(receive);
                tokio::select! {
                    biased;
                    () = self.context().gate.closed() => {}
                    () = tokio::time::sleep(delay.next_delay()) => {}
                }
            }
        }
    }

    fn next_lost(&self) -> Option<LostReceive> {
        let mut lost = lock(&self.lost);
        let receive = lost.receives.pop();
        lost.is_releasing = receive.is_some();
        receive
    }
}

impl fmt::Debug for ScriptRunner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queue, number, .. } = self;
        f.debug_struct("ScriptRunner").field("queue", &queue.name).field("number", number).finish()
    }
}
