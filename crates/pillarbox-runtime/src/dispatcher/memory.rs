//! Bounded map from a message to a counter; evicts the oldest.

use std::collections::{HashMap, VecDeque};

use pillarbox_core::MessageId;

/// A message of one of the sources: ids are per queue.
pub(super) type Of = (usize, MessageId);

/// How many messages are remembered.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Memory {
    numbers: HashMap<Of, u32>,
    /// In the order in which they came, to forget the oldest.
    order: VecDeque<Of>,
}

impl Memory {
    /// The number of a message. 0 of one that is not remembered.
    pub(super) fn of(&self, message: Of) -> u32 {
        if self.numbers.is_empty() { 0 } else { self.numbers.get(&message).copied().unwrap_or(0) }
    }

    pub(super) fn set(&mut self, message: Of, number: u32) {
        if self.numbers.insert(message, number).is_some() {
            return;
        }
        self.order.push_back(message);
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.numbers.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten() {
        let mut memory = Memory::default();
        let ids: Vec<_> = (0..=MOST).map(|_| (0, MessageId::new())).collect();
        ids.iter().for_each(|id| memory.set(*id, 7));
        memory.set(ids[1], 8);
        assert_eq!([0, 1, MOST].map(|n| memory.of(ids[n])), [0, 8, 7]);
    }

    #[test]
    fn a_message_of_another_queue_is_another_one() {
        let mut memory = Memory::default();
        let id = MessageId::new();
        memory.set((0, id), 7);
        assert_eq!([0, 1].map(|source| memory.of((source, id))), [7, 0]);
    }
}
