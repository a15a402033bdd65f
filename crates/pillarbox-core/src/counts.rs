//! Counts of the messages of a queue.

use std::time::Duration;

use crate::clock::Timestamp;

/// Number of messages of a queue, by state.
///
/// Exact or approximate, depending on [`Capabilities::exact_counts`](crate::Capabilities::exact_counts).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of messages that a receive would deliver now.
    pub ready: u64,
    /// Number of messages that are delivered and whose lease has not expired.
    pub in_flight: u64,
    /// Number of messages that were sent or nacked with a delay and are not ready yet.
    pub delayed: u64,
    /// Age, since it was sent, of the next message to be delivered. `None` if no message is ready, or if the
    /// backend cannot determine it.
    pub oldest_age: Option<Duration>,
    /// Number of messages ever stored. `None` if the backend does not count them.
    ///
    /// Never falls while the backend knows the queue. An empty queue may be forgotten when a program drops
    /// its last handle, and then starts again at 0.
    pub sent: Option<u64>,
    /// Time of the count, or slightly earlier, by the clock that stamps messages
    /// ([`enqueued_at`](crate::RawMessage::enqueued_at)): the reference for the age of a message, in place of
    /// the caller's clock. `None` if the backend cannot determine it.
    pub counted_at: Option<Timestamp>,
}

impl Counts {
    /// Creates counts of the three states. The other fields are `None`.
    pub const fn new(ready: u64, in_flight: u64, delayed: u64) -> Self {
        Self { ready, in_flight, delayed, oldest_age: None, sent: None, counted_at: None }
    }

    /// Sets the age of the next message to be delivered.
    pub const fn with_oldest_age(mut self, age: Option<Duration>) -> Self {
        self.oldest_age = age;
        self
    }

    /// Sets the number of messages ever stored.
    pub const fn with_sent(mut self, sent: Option<u64>) -> Self {
        self.sent = sent;
        self
    }

    /// Sets the time of the count, by the backend's clock.
    pub const fn with_counted_at(mut self, counted_at: Option<Timestamp>) -> Self {
        self.counted_at = counted_at;
        self
    }

    /// Returns the number of messages in any state.
    pub const fn total(&self) -> u64 {
        self.ready + self.in_flight + self.delayed
    }

    /// Returns the number of messages that were acknowledged or purged. `None` if the backend does not count
    /// the messages that were sent.
    pub const fn removed(&self) -> Option<u64> {
        match self.sent {
            Some(sent) => Some(sent.saturating_sub(self.total())),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_is_what_was_sent_and_is_not_stored() {
        let counts = Counts::new(1, 2, 3);
        assert_eq!(counts.removed(), None);
        assert_eq!(counts.with_sent(Some(10)).removed(), Some(4));
        // Approximate counts may have been taken at different times.
        assert_eq!(counts.with_sent(Some(5)).removed(), Some(0));
    }
}
