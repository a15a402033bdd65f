//! Deliveries that do not count as attempts, for backends that do not count them.
//!
//! A queue counts every delivery. One that was released, shed or returned before its handler started uses up
//! no attempt, and must not turn its message into a dead letter. Most backends count such deliveries with the
//! message ([`RawMessage::uncounted`](pillarbox_core::RawMessage)). For the others, this process remembers what
//! it gave back; other processes do not know of it.

use super::bounded_counts::{BoundedCounts, SourceMessage};

#[derive(Debug, Default)]
pub(super) struct UncountedDeliveries(BoundedCounts);

impl UncountedDeliveries {
    /// Records one more uncounted delivery of a message.
    pub(super) fn add(&mut self, message: SourceMessage) {
        self.0.set(message, self.get(message).saturating_add(1));
    }

    /// Returns the number of uncounted deliveries of a message.
    pub(super) fn get(&self, message: SourceMessage) -> u32 {
        self.0.get(message)
    }
}
