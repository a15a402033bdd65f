//! How many messages a queue holds, and how many it was ever given.

use std::time::Duration;

use crate::Timestamp;

/// How many messages a queue holds, by state.
///
/// Exact or approximate as the backend's [`Capabilities`](crate::Capabilities) say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Messages that a receive would deliver now.
    pub ready: u64,
    /// Messages delivered and not yet settled, whose lease runs.
    pub in_flight: u64,
    /// Messages that wait for their time, sent or nacked with a delay.
    pub delayed: u64,
    /// How long ago the next message to be delivered was sent. `None` when none is ready, or
    /// when the backend cannot tell.
    pub oldest_age: Option<Duration>,
    /// How many messages were ever stored here. `None` where the backend does not count them. What
    /// left the queue, by acknowledgement or purge, is this less [`total`](Self::total).
    ///
    /// Never falls while the backend knows the queue. One that holds nothing may be forgotten when
    /// a program lets go of it, and begins again at 0.
    pub sent: Option<u64>,
    /// When this was counted, by the clock that stamps messages
    /// ([`enqueued_at`](crate::RawMessage::enqueued_at)), or a little earlier: how old a message is by the
    /// backend's own time, and not by that of whoever asks. `None` where the backend cannot tell.
    pub counted_at: Option<Timestamp>,
}

impl Counts {
    /// Makes counts from the three states, with no age, without what was sent, and of no known time.
    pub const fn new(ready: u64, in_flight: u64, delayed: u64) -> Self {
        Self { ready, in_flight, delayed, oldest_age: None, sent: None, counted_at: None }
    }

    /// The same counts with the age of the next message to be delivered.
    pub const fn with_oldest_age(mut self, age: Option<Duration>) -> Self {
        self.oldest_age = age;
        self
    }

    /// The same counts with how many messages were ever stored.
    pub const fn with_sent(mut self, sent: Option<u64>) -> Self {
        self.sent = sent;
        self
    }

    /// The same counts with when they were counted, by the backend's clock.
    pub const fn with_counted_at(mut self, counted_at: Option<Timestamp>) -> Self {
        self.counted_at = counted_at;
        self
    }

    /// All messages that the queue holds, whatever their state.
    pub const fn total(&self) -> u64 {
        self.ready + self.in_flight + self.delayed
    }

    /// How many messages have left the queue, by acknowledgement or purge. `None` where the
    /// backend does not count what was sent.
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
    fn what_was_sent_and_is_not_here_was_removed() {
        let counts = Counts::new(1, 2, 3);
        assert_eq!(counts.removed(), None);
        assert_eq!(counts.with_sent(Some(10)).removed(), Some(4));
        // Approximate counts may be of different moments.
        assert_eq!(counts.with_sent(Some(5)).removed(), Some(0));
    }
}
