//! Deliveries that were nobody's failure.
//!
//! A queue counts deliveries, whatever became of them. What was released, refused by a limit or given back
//! unbegun has used up no attempt, and must not become a dead letter for it. This process remembers what it
//! gave back so; others do not know of it.

use pillarbox_core::MessageId;

use super::memory::Memory;

#[derive(Debug, Default)]
pub(super) struct Spared(Memory);

impl Spared {
    /// One more delivery of a message was no attempt.
    pub(super) fn add(&mut self, id: MessageId) {
        self.0.set(id, self.of(id).saturating_add(1));
    }

    /// How many deliveries of a message were no attempts.
    pub(super) fn of(&self, id: MessageId) -> u32 {
        self.0.of(id)
    }
}
