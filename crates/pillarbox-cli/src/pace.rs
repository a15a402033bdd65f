//! How many messages to take at a time.

/// Chooses the size of the next batch, so that one is neither slow by being small nor, with large
/// bodies, more than memory should hold.
#[derive(Debug)]
pub(crate) struct Pace {
    limit: usize,
    next: usize,
}

impl Pace {
    /// What the bodies of a batch should come to.
    const BYTES: usize = 4 << 20;

    /// At most `limit` messages at a time. The first batch is small, for nothing is known yet.
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, next: limit.min(16) }
    }

    /// The size of the next batch.
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// The size of the next batch, if no more than `max` are wanted.
    pub(crate) fn next_up_to(&self, max: usize) -> usize {
        self.next.min(max)
    }

    /// Learns from a batch.
    pub(crate) fn seen(&mut self, messages: usize, bytes: usize) {
        if let Some(average) = bytes.checked_div(messages) {
            let fits = Self::BYTES / average.max(1);
            // Bodies that were small so far may be large from now on.
            self.next = fits.clamp(1, self.limit.min(self.next * 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_small_messages_grow_to_the_limit() {
        let mut pace = Pace::new(1000);
        assert_eq!(pace.next(), 16);
        for _ in 0..4 {
            pace.seen(pace.next(), pace.next() * 100);
        }
        assert_eq!((pace.next(), pace.next_up_to(3)), (1000, 3));
        assert_eq!(Pace::new(10).next(), 10);
    }

    #[test]
    fn batches_of_large_messages_shrink_to_one() {
        let mut pace = Pace::new(1000);
        pace.seen(16, 16 << 20);
        assert_eq!(pace.next(), 4);
        pace.seen(4, 4 << 30);
        assert_eq!(pace.next(), 1);
        pace.seen(1, 0);
        assert_eq!(pace.next(), 4);
        pace.seen(0, 0);
        assert_eq!(pace.next(), 4);
    }
}
