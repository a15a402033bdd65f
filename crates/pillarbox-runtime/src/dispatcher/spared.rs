//! Deliveries that were nobody's failure.
//!
//! A queue counts deliveries, whatever became of them. What was released, refused by a limit or given back
//! unbegun has used up no attempt, and must not become a dead letter for it. This process remembers what it
//! gave back so; others do not know of it.

use std::collections::{HashMap, VecDeque};

use pillarbox_core::MessageId;

/// How many messages are remembered.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Spared {
    deliveries: HashMap<MessageId, u32>,
    /// In the order in which they came, to forget the oldest.
    order: VecDeque<MessageId>,
}

impl Spared {
    /// One more delivery of a message was no attempt.
    pub(super) fn add(&mut self, id: MessageId) {
        let deliveries = self.deliveries.entry(id).or_insert(0);
        *deliveries += 1;
        if *deliveries > 1 {
            return;
        }
        self.order.push_back(id);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.deliveries.remove(&oldest);
        }
    }

    /// How many deliveries of a message were no attempts.
    pub(super) fn of(&self, id: MessageId) -> u32 {
        if self.deliveries.is_empty() { 0 } else { self.deliveries.get(&id).copied().unwrap_or(0) }
    }
}
