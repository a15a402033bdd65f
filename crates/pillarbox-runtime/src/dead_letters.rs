//! Where messages go that are not to be tried again.

use std::fmt;
use std::sync::Arc;

use pillarbox_core::{Error, Mailbox, MessageId, Outgoing, Queue, QueueName, RawMessage, Result};

use crate::dispatcher::FailureNote;

/// Where messages go that are not to be tried again: a mailbox of their own, on whatever backend.
///
/// A dead letter has the body and the attributes of the message, and the attributes below beside them. Its
/// id comes from the message and its queue, so that there is one dead letter of each, even if it has to be
/// sent again because a process died in between.
///
/// | attribute | value |
/// |---|---|
/// | `pillarbox.dead.source` | the queue that it came from |
/// | `pillarbox.dead.id` | the id of the message |
/// | `pillarbox.dead.deliveries` | how often it was delivered |
/// | `pillarbox.dead.error` | why it failed at last |
/// | `pillarbox.dead.error_type` | the type of that error |
#[derive(Clone)]
pub struct DeadLetters {
    queue: Arc<dyn Queue>,
}

/// Longer texts are cut: a dead letter must not fail for its reason.
const LONGEST_ERROR: usize = 2_000;

impl DeadLetters {
    /// Sends dead letters to a mailbox.
    pub fn to<T: 'static, R: 'static>(mailbox: &Mailbox<T, R>) -> Self {
        Self { queue: mailbox.queue().clone() }
    }

    /// Refuses to send the dead letters of a queue to that very queue, where they would be received again.
    pub(crate) fn check_source(&self, source: &Arc<dyn Queue>) -> Result<()> {
        let is_same = Arc::ptr_eq(source, &self.queue)
            || (source.name() == self.queue.name()
                && source.capabilities().backend == self.queue.capabilities().backend);
        if is_same {
            let value = format!("'{}', where they come from", self.queue.name());
            let allowed = "a mailbox of another name";
            return Err(Error::invalid(Some(source.name()), "dead_letters", value, allowed));
        }
        Ok(())
    }

    pub(crate) const fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    pub(crate) fn letter(
        &self,
        source: &QueueName,
        message: &RawMessage,
        failure: &FailureNote,
    ) -> Outgoing {
        // The same at every delivery of this message, and of no other: an id may be in several queues, and
        // may be used again.
        let at = message.enqueued_at.as_nanos();
        let id = MessageId::from_key(&format!("dead letter of {} in {source} at {at}", message.id));
        let mut letter = Outgoing::with_id(id, message.body.clone());
        letter.attributes = message.attributes.clone();
        letter.reply_to = message.reply_to.clone();
        letter.enqueued_at = Some(message.enqueued_at);
        let error: String = failure.text.chars().take(LONGEST_ERROR).collect();
        for (name, value) in [
            ("source", source.as_str()),
            ("id", &message.id.to_string()),
            ("deliveries", &message.delivery_count.to_string()),
            ("error", &error),
            ("error_type", failure.type_name),
        ] {
            letter.attributes.insert(format!("pillarbox.dead.{name}"), value);
        }
        letter
    }
}

impl fmt::Debug for DeadLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DeadLetters").field(self.queue.name()).finish()
    }
}
