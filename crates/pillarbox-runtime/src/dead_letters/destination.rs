//! The queue that dead letters are sent to.

use std::sync::Arc;

use pillarbox_core::{Error, Mailbox, Mailboxes, Queue, Result};

use super::dead_letter::DeadLetter;

/// A queue for dead letters, and the backend that it was opened on, if that is known.
#[derive(Clone)]
pub(super) struct Destination {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) backend: Option<Mailboxes>,
}

impl Destination {
    pub(super) fn of<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        Self { queue: mailbox.queue().clone(), backend: mailbox.backend().cloned() }
    }

    /// Whether the source is on another backend. A mailbox that was made of a queue alone is on an unknown
    /// backend, which is taken for the same.
    pub(super) fn is_on_other_backend(&self, source: Option<&Mailboxes>) -> bool {
        self.backend.as_ref().zip(source).is_some_and(|(own, source)| !own.is_same(source))
    }

    /// Refuses the source itself, where dead letters would be received again.
    pub(super) fn check(&self, source: &dyn Queue, backend: Option<&Mailboxes>) -> Result<()> {
        if source.name() != self.queue.name() || self.is_on_other_backend(backend) {
            return Ok(());
        }
        let value = format!("'{}', the source of the messages", source.name());
        let allowed = "a mailbox of another name";
        Err(Error::invalid(Some(source.name()), "dead_letters", value, allowed))
    }
}
