//! The queue that dead letters are sent to.

use std::sync::Arc;

use pillarbox_core::{Error, Mailbox, Mailboxes, Queue, Result};

use super::dead_letter::DeadLetter;

/// A dead-letter queue, and the backend that it was opened on, if that is known.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) backend: Option<Mailboxes>,
}

impl Destination {
    pub(super) fn of<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        Self { queue: mailbox.queue().clone(), backend: mailbox.backend().cloned() }
    }

    /// Returns whether the source is on another backend. Of a mailbox that was made of a queue alone, only the
    /// kind of its backend is known.
    pub(super) fn is_on_other_backend(
        &self,
        source: &dyn Queue,
        backend: Option<&Mailboxes>,
    ) -> bool {
        match self.backend.as_ref().zip(backend) {
            Some((own, source)) => !own.is_same(source),
            None => !self.is_same_kind(source),
        }
    }

    /// Refuses the source itself, where dead letters would be received again. A backend that was opened twice
    /// looks like two, so a queue of the same name on another backend of the same kind is refused as well.
    pub(super) fn check(&self, source: &dyn Queue) -> Result<()> {
        if source.name() != self.queue.name() || !self.is_same_kind(source) {
            return Ok(());
        }
        let value = format!("'{}', the source of the messages", source.name());
        let allowed = "a mailbox of another name";
        Err(Error::invalid(Some(source.name()), "dead_letters", value, allowed))
    }

    fn is_same_kind(&self, source: &dyn Queue) -> bool {
        self.queue.capabilities().backend == source.capabilities().backend
    }
}
