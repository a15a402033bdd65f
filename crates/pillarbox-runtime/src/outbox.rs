//! Messages on their way out: one call at a time to each queue, with all that came together meanwhile.

use std::sync::Arc;

use pillarbox_core::{MessageId, Outgoing, Queue, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::dispatcher::Key;
use crate::producer::ProducerMsg;

/// Who wants to know whether a message was stored.
#[derive(Debug)]
pub(crate) enum Sender {
    Producer(oneshot::Sender<Result<MessageId>>),
    /// It is the dead letter of a delivery.
    Grave(Key),
    /// It tells the sender of a message that it has become a dead letter.
    ErrorReply(Key),
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    lanes: Vec<Lane>,
}

#[derive(Debug)]
struct Lane {
    queue: Arc<dyn Queue>,
    pending: Vec<Pending>,
    is_busy: bool,
}

/// A message that waits to be sent.
#[derive(Debug)]
struct Pending {
    message: Outgoing,
    sender: Sender,
    /// The place of a producer's message, which is free once a call takes the message. Dead letters have none:
    /// there are no more of them than deliveries that are held.
    _place: Option<OwnedSemaphorePermit>,
}

/// A call that stores messages.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) messages: Vec<Outgoing>,
    pub(crate) senders: Vec<Sender>,
}

impl Outbox {
    pub(crate) fn push(&mut self, queue: Arc<dyn Queue>, message: Outgoing, sender: Sender) {
        self.add(queue, Pending { message, sender, _place: None });
    }

    /// What a producer asks for.
    pub(crate) fn take_over(&mut self, asked: ProducerMsg) {
        let ProducerMsg { queue, message, answer, place } = asked;
        let sender = Sender::Producer(answer);
        self.add(queue, Pending { message, sender, _place: Some(place) });
    }

    fn add(&mut self, queue: Arc<dyn Queue>, pending: Pending) {
        let known = self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.queue, &queue));
        let lane = known.unwrap_or_else(|| {
            self.lanes.push(Lane { queue, pending: Vec::new(), is_busy: false });
            self.lanes.len() - 1
        });
        self.lanes[lane].pending.push(pending);
    }

    /// A call that can be made now.
    pub(crate) fn next(&mut self) -> Option<Send> {
        let lane = self.lanes.iter_mut().find(|lane| !lane.is_busy && !lane.pending.is_empty())?;
        lane.is_busy = true;
        let most = lane.pending.len().min(lane.queue.capabilities().max_batch);
        let taken = lane.pending.drain(..most);
        let (messages, senders) =
            taken.map(|Pending { message, sender, .. }| (message, sender)).unzip();
        Some(Send { queue: lane.queue.clone(), messages, senders })
    }

    /// A call was answered. A queue that nobody sends to is not kept.
    pub(crate) fn answered(&mut self, queue: &Arc<dyn Queue>) {
        if let Some(place) = self.lanes.iter().position(|lane| Arc::ptr_eq(&lane.queue, queue)) {
            self.lanes[place].is_busy = false;
            if self.lanes[place].pending.is_empty() {
                self.lanes.swap_remove(place);
            }
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}
