//! A number that is remembered of each of the last so many messages.

use std::collections::{HashMap, VecDeque};

use pillarbox_core::MessageId;

/// How many messages are remembered.
const MOST: usize = 100_000;

#[derive(Debug, Default)]
pub(super) struct Memory {
    numbers: HashMap<MessageId, u32>,
    /// In the order in which they came, to forget the oldest.
    order: VecDeque<MessageId>,
}

impl Memory {
    /// The number of a message. 0 of one that is not remembered.
    pub(super) fn of(&self, id: MessageId) -> u32 {
        if self.numbers.is_empty() { 0 } else { self.numbers.get(&id).copied().unwrap_or(0) }
    }

    pub(super) fn set(&mut self, id: MessageId, number: u32) {
        if self.numbers.insert(id, number).is_some() {
            return;
        }
        self.order.push_back(id);
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
        let ids: Vec<_> = (0..=MOST).map(|_| MessageId::new()).collect();
        ids.iter().for_each(|id| memory.set(*id, 7));
        memory.set(ids[1], 8);
        assert_eq!([0, 1, MOST].map(|n| memory.of(ids[n])), [0, 8, 7]);
    }
}
