//! The delay before a message is retried.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rand::RngExt;

/// The delay before a message is retried, by the number of the attempt that failed.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::Backoff;
///
/// let minutes = Backoff::default();
/// assert_eq!(minutes.delay(1), Duration::from_secs(60));
/// assert_eq!(minutes.delay(100), Duration::from_secs(900));
///
/// let doubling = Backoff::exponential(Duration::from_millis(100), Duration::from_secs(10));
/// assert_eq!(doubling.delay(3), Duration::from_millis(400));
/// let own = Backoff::custom(|deliveries| Duration::from_secs(u64::from(deliveries)));
/// assert_eq!(own.delay(7), Duration::from_secs(7));
/// ```
#[derive(Clone)]
#[must_use]
pub struct Backoff {
    curve: Curve,
    jitter: f64,
}

#[derive(Clone)]
enum Curve {
    Linear { step: Duration, most: Duration },
    Exponential { first: Duration, most: Duration },
    Custom(Arc<dyn Fn(u32) -> Duration + Send + Sync>),
}

impl Backoff {
    /// Creates a backoff that starts at `step` and grows by it with each attempt, up to `most`.
    pub const fn linear(step: Duration, most: Duration) -> Self {
        Self { curve: Curve::Linear { step, most }, jitter: 0.0 }
    }

    /// Creates a backoff that starts at `first` and doubles with each attempt, up to `most`.
    pub const fn exponential(first: Duration, most: Duration) -> Self {
        Self { curve: Curve::Exponential { first, most }, jitter: 0.0 }
    }

    /// Creates a backoff with the same delay after each attempt.
    pub const fn constant(delay: Duration) -> Self {
        Self::linear(delay, delay)
    }

    /// Creates a backoff without a delay.
    pub const fn none() -> Self {
        Self::constant(Duration::ZERO)
    }

    /// Creates a backoff whose delay the function returns for the number of the attempt, which starts at 1.
    pub fn custom(delay: impl Fn(u32) -> Duration + Send + Sync + 'static) -> Self {
        Self { curve: Curve::Custom(Arc::new(delay)), jitter: 0.0 }
    }

    /// Shortens each delay by a random part of up to `part` (0 to 1), so that messages that failed together do not
    /// come back together. 1 is known as full jitter.
    pub const fn jitter(mut self, part: f64) -> Self {
        self.jitter = part.clamp(0.0, 1.0);
        self
    }

    /// Returns the delay after this attempt.
    pub fn delay(&self, attempt: u32) -> Duration {
        let delay = match &self.curve {
            Curve::Linear { step, most } => step.saturating_mul(attempt).min(*most),
            Curve::Exponential { first, most } => {
                let doubled = 2_u32.saturating_pow(attempt.saturating_sub(1));
                first.saturating_mul(doubled).min(*most)
            }
            Curve::Custom(delay) => delay(attempt),
        };
        if self.jitter > 0.0 {
            delay.mul_f64(1.0 - self.jitter * rand::rng().random::<f64>())
        } else {
            delay
        }
    }
}

impl Default for Backoff {
    /// `min(60 × attempt, 900)` seconds.
    fn default() -> Self {
        Self::linear(Duration::from_secs(60), Duration::from_secs(900))
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Backoff");
        match &self.curve {
            Curve::Linear { step, most } => shown.field("step", step).field("most", most),
            Curve::Exponential { first, most } => shown.field("first", first).field("most", most),
            Curve::Custom(_) => shown.field("curve", &"custom"),
        };
        shown.field("jitter", &self.jitter).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_up_to_a_limit() {
        let seconds =
            |backoff: &Backoff| [1, 2, 14, 15, 16, u32::MAX].map(|n| backoff.delay(n).as_secs());
        assert_eq!(seconds(&Backoff::default()), [60, 120, 840, 900, 900, 900]);
        let doubling = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(3600));
        assert_eq!(seconds(&doubling), [1, 2, 3600, 3600, 3600, 3600]);
        assert_eq!(Backoff::none().delay(9), Duration::ZERO);
        let endless = Backoff::exponential(Duration::MAX, Duration::MAX);
        assert_eq!(endless.delay(u32::MAX), Duration::MAX);
    }

    #[test]
    fn jitter_only_shortens() {
        let whole = Duration::from_secs(100);
        let jittered = Backoff::constant(whole).jitter(0.25);
        let delays: Vec<_> = (0..200).map(|_| jittered.delay(1)).collect();
        assert!(delays.iter().all(|delay| *delay <= whole && *delay >= whole.mul_f64(0.75)));
        assert!(delays.iter().any(|delay| *delay != delays[0]));
    }
}
