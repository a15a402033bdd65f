//! Outgoing messages: one call at a time to each queue, with everything that arrived during the call before it.

use std::sync::Arc;

use pillarbox_core::{MessageId, Outgoing, Queue, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::dispatcher::Key;
use crate::producer::SendRequest;

/// The messages that wait to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    batchers: Vec<SendBatcher>,
}

/// Who waits for the result of a send.
#[derive(Debug)]
pub(super) enum SendOrigin {
    Producer(oneshot::Sender<Result<MessageId>>),
    /// The message is the dead letter of this delivery.
    DeadLetter(Key),
    /// The message is the error reply of this delivery.
    ErrorReply(Key),
}

/// A call that sends messages to one queue.
#[derive(Debug)]
pub(super) struct SendCall {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) messages: Vec<Outgoing>,
    pub(super) origins: Vec<SendOrigin>,
}

#[derive(Debug)]
struct SendBatcher {
    queue: Arc<dyn Queue>,
    pending: Vec<PendingSend>,
    is_busy: bool,
}

#[derive(Debug)]
struct PendingSend {
    message: Outgoing,
    origin: SendOrigin,
    /// The permit of a producer's message, returned when a call takes the message. Dead letters have none: there
    /// are no more of them than deliveries in flight.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Outbox {
    pub(super) fn push(&mut self, queue: Arc<dyn Queue>, message: Outgoing, origin: SendOrigin) {
        self.add(queue, PendingSend { message, origin, _permit: None });
    }

    /// Adds the message of a producer.
    pub(super) fn push_request(&mut self, request: SendRequest) {
        let SendRequest { queue, message, reply, permit } = request;
        let origin = SendOrigin::Producer(reply);
        self.add(queue, PendingSend { message, origin, _permit: Some(permit) });
    }

    fn add(&mut self, queue: Arc<dyn Queue>, pending: PendingSend) {
        let batcher = self.batcher(&queue).unwrap_or_else(|| {
            self.batchers.push(SendBatcher { queue, pending: Vec::new(), is_busy: false });
            self.batchers.len() - 1
        });
        self.batchers[batcher].pending.push(pending);
    }

    fn batcher(&self, queue: &Arc<dyn Queue>) -> Option<usize> {
        self.batchers.iter().position(|batcher| Arc::ptr_eq(&batcher.queue, queue))
    }

    /// Returns the next call that can be made now.
    pub(super) fn next_call(&mut self) -> Option<SendCall> {
        let can_send = |batcher: &&mut SendBatcher| !batcher.is_busy && !batcher.pending.is_empty();
        let batcher = self.batchers.iter_mut().find(can_send)?;
        batcher.is_busy = true;
        let count = batcher.pending.len().min(batcher.queue.capabilities().max_batch);
        let taken = batcher.pending.drain(..count);
        let (messages, origins) =
            taken.map(|PendingSend { message, origin, .. }| (message, origin)).unzip();
        Some(SendCall { queue: batcher.queue.clone(), messages, origins })
    }

    /// Takes in that a call has ended. A queue without pending messages is dropped.
    pub(super) fn call_ended(&mut self, queue: &Arc<dyn Queue>) {
        if let Some(index) = self.batcher(queue) {
            self.batchers[index].is_busy = false;
            if self.batchers[index].pending.is_empty() {
                self.batchers.swap_remove(index);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batchers.is_empty()
    }
}
