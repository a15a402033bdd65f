//! How many messages a queue holds.

use std::time::Duration;

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
}

impl Counts {
    /// Makes counts from the three states, with no age.
    pub const fn new(ready: u64, in_flight: u64, delayed: u64) -> Self {
        Self { ready, in_flight, delayed, oldest_age: None }
    }

    /// The same counts with the age of the next message to be delivered.
    pub const fn with_oldest_age(mut self, age: Option<Duration>) -> Self {
        self.oldest_age = age;
        self
    }

    /// All messages that the queue holds, whatever their state.
    pub const fn total(&self) -> u64 {
        self.ready + self.in_flight + self.delayed
    }
}
