//! The number of messages in the next batch.

/// Chooses the size of the next batch by the size of the bodies seen so far, so that a batch of small
/// messages is large and a batch of large messages fits into memory.
#[derive(Debug, Clone)]
pub struct BatchSizer {
    max: usize,
    next: usize,
}

impl BatchSizer {
    /// Target for the total size of the bodies of a batch.
    const TARGET_BYTES: usize = 4 << 20;
    /// The first batch is small, since nothing is known yet.
    const FIRST: usize = 16;

    /// Creates a sizer for batches of at most `max` messages.
    pub fn new(max: usize) -> Self {
        Self { max, next: max.min(Self::FIRST) }
    }

    /// Returns the size of the next batch.
    pub const fn next_size(&self) -> usize {
        self.next
    }

    /// Records a batch: its number of messages and the total bytes of their bodies.
    pub fn record(&mut self, messages: usize, bytes: usize) {
        if let Some(average) = bytes.checked_div(messages) {
            let fits = Self::TARGET_BYTES / average.max(1);
            // Bodies that were small so far may be large from now on, so the size grows in steps.
            self.next = fits.clamp(1, self.max.min(self.next * 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_small_messages_grow_to_the_maximum() {
        let mut sizer = BatchSizer::new(1000);
        let mut sizes = vec![sizer.next_size()];
        for _ in 0..4 {
            sizer.record(sizer.next_size(), sizer.next_size() * 100);
            sizes.push(sizer.next_size());
        }
        assert_eq!(sizes, [16, 64, 256, 1000, 1000]);
        assert_eq!(BatchSizer::new(10).next_size(), 10);
    }

    #[test]
    fn batches_of_large_messages_shrink_to_one() {
        let mut sizer = BatchSizer::new(1000);
        for (messages, bytes, next) in [(16, 16 << 20, 4), (4, 4 << 30, 1), (1, 0, 4), (0, 0, 4)] {
            sizer.record(messages, bytes);
            assert_eq!(sizer.next_size(), next);
        }
    }
}
