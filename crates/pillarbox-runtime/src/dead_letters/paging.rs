//! How many dead letters are taken in a call: as many as their bodies allow.

use pillarbox_core::RawMessage;

/// The most in a call.
const MOST: usize = 500;
/// What their bodies should come to.
const BYTES: usize = 4 << 20;

/// How many to ask for, by what came before.
#[derive(Debug)]
pub(super) struct Paging {
    most: usize,
    next: usize,
}

impl Paging {
    /// No more than so many at a time.
    pub(super) fn new(most: usize) -> Self {
        let most = most.min(MOST);
        Self { most, next: most.min(16) }
    }

    pub(super) const fn next(&self) -> usize {
        self.next
    }

    /// Takes note of what came.
    pub(super) fn saw<'a>(&mut self, messages: impl ExactSizeIterator<Item = &'a RawMessage>) {
        let count = messages.len();
        let bytes: usize = messages.map(|message| message.body.len()).sum();
        if let Some(average) = bytes.checked_div(count) {
            self.next = (BYTES / average.max(1)).clamp(1, self.most.min(self.next * 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{MessageId, Timestamp};

    use super::*;

    #[test]
    fn small_ones_come_in_larger_pages_and_large_ones_in_smaller_ones() {
        let of = |bytes| RawMessage::new(MessageId::new(), vec![0; bytes], Timestamp::now());
        let mut paging = Paging::new(1_000);
        let mut pages = vec![paging.next()];
        for body in [10, 10, 10, 1 << 20, 8 << 20, 10] {
            paging.saw([&of(body)].into_iter());
            pages.push(paging.next());
        }
        assert_eq!(pages, [16, 64, 256, 500, 4, 1, 4]);
        paging.saw([].into_iter());
        assert_eq!((paging.next(), Paging::new(3).next()), (4, 3));
    }
}
