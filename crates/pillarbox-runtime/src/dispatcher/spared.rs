//! Deliveries that were no attempt at the work, where the backend does not count them.
//!
//! A queue counts deliveries, whatever became of them. What was released, refused by a limit or given back
//! before it was started has used up no attempt, and must not become a dead letter for it. Most backends
//! count such deliveries with the message ([`RawMessage::uncounted`](pillarbox_core::RawMessage)). For those
//! that do not, this process remembers what it gave back so; others do not know of it.

use super::memory::{Memory, Of};

#[derive(Debug, Default)]
pub(super) struct Spared(Memory);

impl Spared {
    /// One more delivery of a message was no attempt.
    pub(super) fn add(&mut self, message: Of) {
        self.0.set(message, self.of(message).saturating_add(1));
    }

    /// How many deliveries of a message were no attempts.
    pub(super) fn of(&self, message: Of) -> u32 {
        self.0.of(message)
    }
}
