//! Sending messages back to their source queues.
//!
//! A message is sent first, and its dead letter is acknowledged afterwards. If the process ends in between, the
//! message is sent again from the same dead letter and so under the same id: as long as the queue still holds
//! that id, nothing is stored.

use std::sync::Arc;

use pillarbox_core::{
    Error, Mailboxes, MessageId, Queue, QueueName, QueueOptions, Result, Timestamp,
};

use super::dead_letter::DeadLetter;
use crate::batch_results::per_entry;

/// Maximum number of replays of a message, by default.
pub(crate) const DEFAULT_MAX_REPLAYS: u32 = 3;

/// The queue that a replayed message is sent to.
#[derive(Clone)]
pub(crate) enum ReplayTarget {
    /// The source queue of each message, on this backend. Unless the caller named the backend
    /// (`is_explicit`), it is that of the dead letters, and messages of another one are refused.
    Sources { backend: Mailboxes, is_explicit: bool },
    /// One queue for all messages.
    Queue(Arc<dyn Queue>),
    /// No target: the dead-letter queue was not opened on a backend.
    Unknown,
}

impl ReplayTarget {
    /// The source queues on the backend of the dead letters.
    pub(super) fn same_backend(backend: &Mailboxes) -> Self {
        Self::Sources { backend: backend.clone(), is_explicit: false }
    }

    /// Refuses a message whose source queue is on another backend than this target.
    pub(crate) fn check(&self, letter: &DeadLetter, dlq: &QueueName) -> Result<()> {
        let (Self::Sources { is_explicit: false, .. }, Some(kind)) = (self, &letter.source_backend)
        else {
            return Ok(());
        };
        let value = format!(
            "message {}, whose queue '{}' is on another backend ({kind})",
            letter.message_id, letter.source_mailbox
        );
        let allowed = "with the backend of its queue: call sources_on(&backend) or replay_to(&mailbox), or \
             pass --to-url to the command";
        Err(Error::invalid(Some(dlq), "replay", value, allowed))
    }

    /// Returns the queue that a message of this source is sent to.
    pub(crate) fn queue(&self, source: &QueueName, dlq: &QueueName) -> Result<Arc<dyn Queue>> {
        match self {
            Self::Sources { backend, .. } => backend.queue(source, QueueOptions::new()),
            Self::Queue(queue) => Ok(queue.clone()),
            Self::Unknown => {
                let allowed = "a target: call replay_to(&mailbox) or sources_on(&backend), since this \
                     mailbox was not opened on a backend that has the source queues";
                Err(Error::invalid(Some(dlq), "replay", "no target", allowed))
            }
        }
    }
}

/// Sends the messages of some dead letters, each with the id of its dead letter, and returns for each whether
/// it was stored.
pub(crate) async fn send_back<'a>(
    target: &Arc<dyn Queue>,
    letters: impl IntoIterator<Item = (MessageId, &'a DeadLetter)>,
) -> Vec<Result<MessageId>> {
    let now = Timestamp::now();
    let messages: Vec<_> =
        letters.into_iter().map(|(own, letter)| letter.replay(own, now)).collect();
    let count = messages.len();
    let sent = per_entry(target.send(messages).await, count, Some(target.name()), "send");
    sent.into_iter().map(|sent| sent.map(|sent| sent.id)).collect()
}
