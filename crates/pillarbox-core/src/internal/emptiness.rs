//! The rule by which a queue is taken for empty.

use std::time::Duration;

use crate::Capabilities;

/// Decides whether a queue is empty, by the number of consecutive empty answers.
///
/// One is enough if counts are exact. A backend whose counts lag behind may return nothing while it holds messages, so
/// it is asked several times, each time with a wait.
#[derive(Debug)]
pub struct Emptiness {
    required: u32,
    seen: u32,
}

impl Emptiness {
    const REQUIRED_IF_COUNTS_LAG: u32 = 4;

    /// Creates the rule for a backend with these capabilities.
    pub const fn new(capabilities: &Capabilities) -> Self {
        let required = if capabilities.exact_counts { 1 } else { Self::REQUIRED_IF_COUNTS_LAG };
        Self { required, seen: 0 }
    }

    /// Returns the time that a receive waits before its empty answer counts.
    pub const fn wait(&self) -> Duration {
        if self.required == 1 { Duration::ZERO } else { Duration::from_secs(1) }
    }

    /// Records one answer of the queue, and returns whether the queue is empty.
    pub const fn record(&mut self, had_nothing: bool) -> bool {
        self.seen = if had_nothing { self.seen + 1 } else { 0 };
        self.seen >= self.required
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_counts_are_trusted_at_once_and_lagging_ones_after_several_answers() {
        let mut capabilities = Capabilities::full("test");
        let mut exact = Emptiness::new(&capabilities);
        assert_eq!((exact.wait(), exact.record(true)), (Duration::ZERO, true));
        capabilities.exact_counts = false;
        let mut lagging = Emptiness::new(&capabilities);
        assert!(lagging.wait() > Duration::ZERO);
        let seen = [true, true, true, false, true, true, true].map(|none| lagging.record(none));
        assert_eq!(seen, [false; 7]);
        assert!(lagging.record(true));
    }
}
