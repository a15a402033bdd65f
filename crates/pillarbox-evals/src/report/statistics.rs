//! Statistics: means, quantiles and confidence intervals. Pure.

use serde::{Deserialize, Serialize};

/// Two-sided quantile of the normal distribution at 95 %.
const NORMAL_95: f64 = 1.959_963_984_540_054;

/// Minimum number of pairs for an interval of a mean.
const MIN_PAIRS: usize = 10;

/// A difference with its 95 % confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Difference {
    /// Estimate.
    pub value: f64,
    /// Lower end of the interval, if there are enough samples.
    pub low: Option<f64>,
    /// Upper end of the interval.
    pub high: Option<f64>,
}

impl Difference {
    /// Returns whether the interval excludes zero.
    pub fn is_significant(&self) -> bool {
        let (low, high) = (self.low.unwrap_or(0.0), self.high.unwrap_or(0.0));
        low > 0.0 || high < 0.0
    }
}

/// Run times of adapters, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Latency {
    /// Mean.
    pub mean_ms: f64,
    /// Minimum.
    pub min_ms: f64,
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 95th percentile.
    pub p95_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// Maximum.
    pub max_ms: f64,
}

impl Latency {
    /// Summarizes sorted run times.
    pub(super) fn of(sorted: &[f64]) -> Option<Self> {
        let (min_ms, max_ms) = (*sorted.first()?, *sorted.last()?);
        Some(Self {
            mean_ms: mean(sorted)?,
            min_ms,
            p50_ms: quantile(sorted, 0.5),
            p90_ms: quantile(sorted, 0.9),
            p95_ms: quantile(sorted, 0.95),
            p99_ms: quantile(sorted, 0.99),
            max_ms,
        })
    }
}

/// Returns the smallest value that at least this share of the values does not exceed.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

pub(super) fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns Wilson's 95 % confidence interval of a proportion, which also holds for small numbers and extreme shares.
pub(super) fn wilson(hits: usize, of: usize) -> Option<(f64, f64)> {
    if of == 0 {
        return None;
    }
    let (n, share) = (of as f64, hits as f64 / of as f64);
    let z2 = NORMAL_95 * NORMAL_95;
    let centre = (share + z2 / (2.0 * n)) / (1.0 + z2 / n);
    let half = NORMAL_95 / (1.0 + z2 / n) * (share * (1.0 - share) / n + z2 / (4.0 * n * n)).sqrt();
    // Exact at the ends, despite rounding.
    let low = if hits == 0 { 0.0 } else { (centre - half).max(0.0) };
    let high = if hits == of { 1.0 } else { (centre + half).min(1.0) };
    Some((low, high))
}

/// Returns the mean of paired differences, with Student's interval.
pub(super) fn paired_mean(differences: &[f64]) -> Option<Difference> {
    let value = mean(differences)?;
    let n = differences.len();
    if n < MIN_PAIRS {
        return Some(Difference { value, low: None, high: None });
    }
    let squares: f64 = differences.iter().map(|one| (one - value).powi(2)).sum();
    let error = (squares / (n - 1) as f64 / n as f64).sqrt();
    let half = student_95(n - 1) * error;
    Some(Difference { value, low: Some(value - half), high: Some(value + half) })
}

/// Numbers of samples that passed in both, only the first, only the second, or neither of two experiments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Pairs {
    pub(super) both: usize,
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) neither: usize,
}

/// Returns the difference of two paired proportions, second minus first, with Newcombe's interval: a hybrid of two Wilson
/// intervals, corrected for their correlation (Statistics in Medicine 17, 1998, 2635, method 10).
pub(super) fn paired_shares(pairs: Pairs) -> Option<Difference> {
    let Pairs { both, first, second, neither } = pairs;
    let of = both + first + second + neither;
    let (low1, high1) = wilson(both + first, of)?;
    let (low2, high2) = wilson(both + second, of)?;
    let n = of as f64;
    let (share1, share2) = ((both + first) as f64 / n, (both + second) as f64 / n);
    let margins = [both + first, second + neither, both + second, first + neither];
    let spread: f64 = margins.iter().map(|&margin| margin as f64).product();
    let agreement = if spread == 0.0 {
        0.0
    } else {
        let excess = both as f64 * neither as f64 - first as f64 * second as f64;
        let corrected = if excess > n / 2.0 { excess - n / 2.0 } else { excess.min(0.0) };
        corrected / spread.sqrt()
    };
    let away = |one: f64, other: f64| {
        (one * one - 2.0 * agreement * one * other + other * other).max(0.0).sqrt()
    };
    let value = share2 - share1;
    Some(Difference {
        value,
        low: Some((value - away(share2 - low2, high1 - share1)).max(-1.0)),
        high: Some((value + away(high2 - share2, share1 - low1)).min(1.0)),
    })
}

/// Returns Student's two-sided quantile at 95 %, by G. W. Hill's expansion (Communications of the ACM 13, 1970, 619).
fn student_95(freedom: usize) -> f64 {
    let p: f64 = 0.05;
    match freedom {
        1 => return (std::f64::consts::FRAC_PI_2 * (1.0 - p)).tan(),
        2 => return (2.0 / (p * (2.0 - p)) - 2.0).sqrt(),
        _ => {}
    }
    let n = freedom as f64;
    let a = 1.0 / (n - 0.5);
    let b = 48.0 / (a * a);
    let mut c = ((20_700.0 * a / b - 98.0) * a - 16.0) * a + 96.36;
    let d = ((94.5 / (b + c) - 3.0) / b + 1.0) * (a * std::f64::consts::FRAC_PI_2).sqrt() * n;
    let mut y = (d * p).powf(2.0 / n);
    if y > 0.05 + a {
        // Close to the normal distribution.
        let x = -NORMAL_95;
        y = x * x;
        if freedom < 5 {
            c += 0.3 * (n - 4.5) * (x + 0.6);
        }
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b;
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x;
        y = (a * y * y).exp_m1();
    } else {
        let e = 1.0 / (((n + 6.0) / (n * y) - 0.089 * d - 0.822) * (n + 2.0) * 3.0);
        y = ((e + 0.5 / (n + 4.0)) * y - 1.0) * (n + 1.0) / (n + 2.0) + 1.0 / y;
    }
    (n * y).sqrt()
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    use super::*;

    fn near(one: f64, other: f64, by: f64) {
        assert!((one - other).abs() <= by, "{one} is not {other}");
    }

    #[test]
    fn quantiles_are_observed_values() {
        let values: Vec<_> = (1..=100).map(f64::from).collect();
        assert_eq!(
            [0.5, 0.9, 0.95, 0.99, 1.0].map(|share| quantile(&values, share)),
            [50.0, 90.0, 95.0, 99.0, 100.0]
        );
        assert_eq!(quantile(&[7.0], 0.5), 7.0);
        assert_eq!(Latency::of(&[]), None);
        assert_eq!(Latency::of(&[1.0, 3.0]).unwrap().mean_ms, 2.0);
    }

    #[test]
    fn quantiles_of_student_match_the_tables() {
        for (freedom, value) in [
            (1, 12.7062),
            (2, 4.3027),
            (3, 3.1824),
            (4, 2.7764),
            (5, 2.5706),
            (9, 2.2622),
            (10, 2.2281),
            (29, 2.0452),
            (100, 1.9840),
            (1000, 1.9623),
            (1_000_000, 1.96),
        ] {
            near(student_95(freedom), value, 2e-4);
        }
    }

    #[test]
    fn the_interval_of_a_proportion_matches_the_literature() {
        // Newcombe, Statistics in Medicine 17, 1998, 857, table I, method 3.
        for (hits, of, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let (found_low, found_high) = wilson(hits, of).unwrap();
            near(found_low, low, 1e-4);
            near(found_high, high, 1e-4);
        }
        assert_eq!(wilson(0, 0), None);
        assert_eq!(wilson(5, 5).unwrap().1, 1.0);
    }

    #[test]
    fn the_interval_of_paired_proportions_matches_the_literature() {
        // Newcombe, Statistics in Medicine 17, 1998, 2635, table II, method 10; there, first minus second.
        for (pairs, low, high) in [
            ((36, 12, 2, 0), 0.0569, 0.3404),
            ((53, 1, 0, 0), -0.0511, 0.0979),
            ((20, 12, 2, 16), 0.0562, 0.3290),
        ] {
            let (both, second, first, neither) = pairs;
            let found = paired_shares(Pairs { both, first, second, neither }).unwrap();
            near(found.low.unwrap(), low, 2e-3);
            near(found.high.unwrap(), high, 2e-3);
        }
    }

    #[test]
    fn equal_experiments_do_not_differ() {
        let same = paired_mean(&[0.0; 50]).unwrap();
        assert_eq!((same.value, same.low, same.high), (0.0, Some(0.0), Some(0.0)));
        assert!(!same.is_significant());
        let same = paired_shares(Pairs { both: 30, neither: 20, ..Pairs::default() }).unwrap();
        assert!(same.value == 0.0 && !same.is_significant(), "{same:?}");
        let few = paired_mean(&[-0.5; 9]).unwrap();
        assert!(few.low.is_none() && !few.is_significant());
        assert!(paired_mean(&[-0.5; 10]).unwrap().is_significant());
        assert_eq!(paired_mean(&[]), None);
        assert_eq!(paired_shares(Pairs::default()), None);
    }

    /// Of a thousand draws, about 95 % of the intervals contain the true value.
    #[test]
    fn intervals_have_the_stated_coverage() {
        let mut random = StdRng::seed_from_u64(7);
        let (mut means, mut shares) = (0, 0);
        const DRAWS: usize = 1000;
        for _ in 0..DRAWS {
            // A sample is equally hard for both; the second experiment passes a little more often.
            let (mut pairs, mut differences) = (Pairs::default(), Vec::new());
            for _ in 0..60 {
                let hardness: f64 = random.random();
                let first = random.random::<f64>() > hardness;
                let second = random.random::<f64>() > hardness - 0.1;
                match (first, second) {
                    (true, true) => pairs.both += 1,
                    (true, false) => pairs.first += 1,
                    (false, true) => pairs.second += 1,
                    (false, false) => pairs.neither += 1,
                }
                differences.push(random.random_range(-1.0..1.2));
            }
            // Below a hardness of 0.1 the second always passes: the mean of min(1, 1 - h + 0.1) minus that of 1 - h.
            let truth = 0.1 - 0.005;
            let holds = |found: Difference, truth: f64| {
                found.low.unwrap() <= truth && truth <= found.high.unwrap()
            };
            shares += usize::from(holds(paired_shares(pairs).unwrap(), truth));
            means += usize::from(holds(paired_mean(&differences).unwrap(), 0.1));
        }
        assert!((920..=980).contains(&means), "{means} of {DRAWS}");
        assert!((920..=980).contains(&shares), "{shares} of {DRAWS}");
    }
}
