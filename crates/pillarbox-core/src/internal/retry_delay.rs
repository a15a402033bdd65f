//! The delay between tries of an internal call.

use std::time::Duration;

use rand::RngExt;

/// Delay before the next try of a call that failed: doubles from `first` to `max`.
///
/// It is for calls that the library makes by itself. When a *message* is retried is up to the user's
/// `Backoff`.
#[derive(Debug, Clone)]
pub struct RetryDelay {
    first: Duration,
    max: Duration,
    next: Duration,
    jitter: f64,
}

impl RetryDelay {
    /// Creates a delay that starts at `first` and doubles up to `max`.
    pub const fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, next: first, jitter: 0.0 }
    }

    /// Shortens each delay by a random part of up to `part` (0 to 1), so that clients that failed together
    /// do not retry together.
    #[must_use]
    pub const fn with_jitter(mut self, part: f64) -> Self {
        self.jitter = part;
        self
    }

    /// Returns the delay before the next try, and doubles the one after it.
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.next;
        self.next = delay.saturating_mul(2).min(self.max);
        if self.jitter == 0.0 {
            return delay;
        }
        delay.mul_f64(1.0 - self.jitter * rand::rng().random::<f64>())
    }

    /// Starts again at the first delay, after a success.
    pub const fn reset(&mut self) {
        self.next = self.first;
    }

    /// Returns the delay after that many failures in a row, without state.
    pub fn after(first: Duration, max: Duration, failures: u32) -> Duration {
        first.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1))).min(max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(50);
    const MAX: Duration = Duration::from_secs(1);

    #[test]
    fn the_delay_doubles_up_to_its_maximum_and_starts_again_when_reset() {
        let mut delay = RetryDelay::new(FIRST, MAX);
        let millis: Vec<_> = (0..6).map(|_| delay.next_delay().as_millis()).collect();
        assert_eq!(millis, [50, 100, 200, 400, 800, 1000]);
        delay.reset();
        assert_eq!(delay.next_delay(), FIRST);
        assert_eq!(
            [1, 2, 5, 6, u32::MAX].map(|failures| RetryDelay::after(FIRST, MAX, failures)),
            [50, 100, 800, 1000, 1000].map(Duration::from_millis)
        );
    }

    #[test]
    fn jitter_only_shortens_the_delay() {
        let mut delay = RetryDelay::new(MAX, MAX).with_jitter(0.5);
        let delays: Vec<_> = (0..200).map(|_| delay.next_delay()).collect();
        assert!(delays.iter().all(|delay| *delay <= MAX && *delay >= MAX / 2));
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }
}
