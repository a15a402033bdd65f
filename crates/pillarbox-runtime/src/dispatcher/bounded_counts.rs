//! Bounded map from a message to a counter; evicts the oldest.

use std::collections::{HashMap, VecDeque};

use pillarbox_core::MessageId;

/// A message of one of the sources. Ids are unique within a queue only.
pub(super) type SourceMessage = (usize, MessageId);

const CAPACITY: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct BoundedCounts {
    counts: HashMap<SourceMessage, u32>,
    /// In order of insertion, to evict the oldest.
    order: VecDeque<SourceMessage>,
}

impl BoundedCounts {
    /// Returns the count of a message, which is 0 for one that is not in the map.
    pub(super) fn get(&self, message: SourceMessage) -> u32 {
        if self.counts.is_empty() { 0 } else { self.counts.get(&message).copied().unwrap_or(0) }
    }

    pub(super) fn increment(&mut self, message: SourceMessage) {
        self.set(message, self.get(message).saturating_add(1));
    }

    pub(super) fn set(&mut self, message: SourceMessage, count: u32) {
        if self.counts.insert(message, count).is_some() {
            return;
        }
        self.order.push_back(message);
        if self.order.len() > CAPACITY
            && let Some(oldest) = self.order.pop_front()
        {
            self.counts.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_evicted() {
        let mut counts = BoundedCounts::default();
        let ids: Vec<_> = (0..=CAPACITY).map(|_| (0, MessageId::new())).collect();
        ids.iter().for_each(|id| counts.set(*id, 7));
        counts.set(ids[1], 8);
        assert_eq!([0, 1, CAPACITY].map(|n| counts.get(ids[n])), [0, 8, 7]);
    }

    #[test]
    fn the_same_id_in_another_queue_is_another_message() {
        let mut counts = BoundedCounts::default();
        let id = MessageId::new();
        counts.set((0, id), 7);
        assert_eq!([0, 1].map(|source| counts.get((source, id))), [7, 0]);
    }
}
