//! How long calls took, in little room.

use std::time::Duration;

/// How many calls took how long: counted in steps of a sixteenth of each power of two, so that it
/// stays small however long it is measured.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// By step, in nanoseconds.
    steps: Vec<usize>,
    number: usize,
    longest: Duration,
}

impl Histogram {
    /// Steps within a power of two.
    const FINE: u32 = 4;

    pub(crate) fn record(&mut self, took: Duration) {
        let step = Self::step(took);
        if self.steps.len() <= step {
            self.steps.resize(step + 1, 0);
        }
        self.steps[step] += 1;
        self.number += 1;
        self.longest = self.longest.max(took);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.steps.len() < other.steps.len() {
            self.steps.resize(other.steps.len(), 0);
        }
        for (mine, others) in self.steps.iter_mut().zip(&other.steps) {
            *mine += others;
        }
        self.number += other.number;
        self.longest = self.longest.max(other.longest);
    }

    /// The time that this share of the calls did not exceed, to a sixteenth.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.number as f64 * share).ceil() as usize;
        let mut seen = 0;
        for (step, number) in self.steps.iter().enumerate() {
            seen += number;
            if seen >= wanted.max(1) {
                return Self::end_of(step).min(self.longest);
            }
        }
        self.longest
    }

    pub(crate) fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    fn step(took: Duration) -> usize {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1 << Self::FINE);
        let power = nanos.ilog2();
        let fraction = nanos >> (power - Self::FINE) & ((1 << Self::FINE) - 1);
        ((power - Self::FINE) << Self::FINE) as usize + fraction as usize
    }

    fn end_of(step: usize) -> Duration {
        let shift = (step >> Self::FINE) as u32;
        let fraction = (step & ((1 << Self::FINE) - 1)) as u128 + (1 << Self::FINE) + 1;
        Duration::from_nanos(u64::try_from(fraction << shift).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_sixteenth() {
        let mut histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (0.01, 10.0)] {
            let found = histogram.quantile(share).as_secs_f64() * 1e6;
            assert!(found >= micros && found <= micros * 1.0626, "{share}: {found}");
        }
        assert_eq!(histogram.quantile(1.0), Duration::from_micros(1000));
        assert_eq!((histogram.number, histogram.longest), (1000, Duration::from_micros(1000)));
    }

    #[test]
    fn extremes_are_counted() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile(0.5), Duration::ZERO);
        for took in [Duration::ZERO, Duration::MAX] {
            histogram.record(took);
        }
        assert_eq!(histogram.quantile(1.0), Duration::from_nanos(u64::MAX));
        let mut sum = Histogram::default();
        sum.add(&histogram);
        assert_eq!(sum.number, 2);
    }
}
