//! Compact histogram of durations.

use std::time::Duration;

/// Histogram of durations with 16 buckets per power of two, so that its size does not depend on the number of calls.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    /// Number of durations per bucket.
    buckets: Vec<usize>,
    pub(crate) count: usize,
    pub(crate) max: Duration,
}

impl Histogram {
    /// Binary logarithm of the number of buckets per power of two.
    const BITS: u32 = 4;

    pub(crate) fn record(&mut self, took: Duration) {
        let bucket = Self::bucket(took);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max = self.max.max(took);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        if self.buckets.len() < other.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0);
        }
        for (mine, others) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += others;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    /// Returns the duration that this share of the calls did not exceed, to a sixteenth.
    pub(crate) fn quantile(&self, share: f64) -> Duration {
        let wanted = (self.count as f64 * share).ceil() as usize;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= wanted.max(1) {
                return Self::end_of(bucket).min(self.max);
            }
        }
        self.max
    }

    fn bucket(took: Duration) -> usize {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX).max(1 << Self::BITS);
        let power = nanos.ilog2();
        let fraction = nanos >> (power - Self::BITS) & ((1 << Self::BITS) - 1);
        ((power - Self::BITS) << Self::BITS) as usize + fraction as usize
    }

    fn end_of(bucket: usize) -> Duration {
        let shift = (bucket >> Self::BITS) as u32;
        let fraction = (bucket & ((1 << Self::BITS) - 1)) as u128 + (1 << Self::BITS) + 1;
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
        assert_eq!((histogram.count, histogram.max), (1000, Duration::from_micros(1000)));
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
        assert_eq!(sum.count, 2);
    }
}
