//! How contestants are compared.
//!
//! All contestants of a case run in the same process run: first once each unmeasured, then in
//! rounds. Each round starts with another contestant, so that nobody always comes first or after
//! the same neighbour. A contestant's figure is the median of its rounds.
//!
//! A run checks its own work and fails rather than give a figure for something else.

use std::error::Error;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::report::{Row, Unit, ratio};

/// Benchmarks stop at the first error and show it; nobody tells one kind from another.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How much is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    quick: bool,
    rounds: usize,
}

impl Plan {
    pub(crate) fn new(quick: bool, rounds: Option<u32>) -> Self {
        let default = if quick { 3 } else { 5 };
        Self { quick, rounds: rounds.unwrap_or(default) as usize }
    }

    /// How many rounds there are.
    pub(crate) fn rounds(&self) -> usize {
        self.rounds
    }

    /// The `full` value, or the `quick` one with `--quick`.
    pub(crate) fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// One comparison: what we do, and what others do for the same purpose.
pub(crate) struct Case {
    name: String,
    unit: Unit,
    warm_up: bool,
    /// The first is ours.
    contestants: Vec<Contestant>,
}

struct Contestant {
    name: String,
    run: Box<dyn FnMut() -> Result<f64>>,
}

impl Case {
    /// A case with our side of it. A run returns its figure in the unit of the case.
    pub(crate) fn new(
        name: impl Into<String>,
        unit: Unit,
        ours: impl FnMut() -> Result<f64> + 'static,
    ) -> Self {
        let case = Self { name: name.into(), unit, warm_up: true, contestants: Vec::new() };
        case.against("ours", ours)
    }

    /// Adds somebody to compare with.
    pub(crate) fn against(
        mut self,
        name: impl Into<String>,
        run: impl FnMut() -> Result<f64> + 'static,
    ) -> Self {
        self.contestants.push(Contestant { name: name.into(), run: Box::new(run) });
        self
    }

    /// Leaves out the unmeasured runs, for runs that start a process and so are always cold.
    pub(crate) fn cold(mut self) -> Self {
        self.warm_up = false;
        self
    }

    /// Runs all contestants and gives one row for each of the others.
    pub(crate) fn run(mut self, suite: &'static str, rounds: usize) -> Result<Vec<Row>> {
        eprintln!("{suite}: {} ...", self.name);
        if self.warm_up {
            for contestant in &mut self.contestants {
                contestant.run(&self.name)?;
            }
        }
        let count = self.contestants.len();
        let mut figures = vec![Vec::with_capacity(rounds); count];
        for round in 0..rounds {
            for turn in 0..count {
                let at = (round + turn) % count;
                figures[at].push(self.contestants[at].run(&self.name)?);
            }
        }
        let mut medians = figures.into_iter().map(median);
        let ours = medians.next().unwrap_or(f64::NAN);
        let others = self.contestants.into_iter().skip(1).zip(medians);
        Ok(others
            .map(|(contestant, other)| Row {
                suite,
                case: self.name.clone(),
                unit: self.unit,
                ours,
                other,
                other_name: contestant.name,
                ratio: ratio(self.unit, ours, other),
            })
            .collect())
    }
}

impl Contestant {
    fn run(&mut self, case: &str) -> Result<f64> {
        (self.run)().map_err(|error| format!("{case}: {}: {error}", self.name).into())
    }
}

/// Runs a future on a runtime of one thread.
pub(crate) fn on_one_thread<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_current_thread().enable_all().build()?.block_on(future)
}

/// Runs a future on a runtime of two threads. What should run on these threads must be spawned.
pub(crate) fn on_two_threads<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(future)
}

/// How many per second.
pub(crate) fn per_second(count: u64, elapsed: Duration) -> f64 {
    count as f64 / elapsed.as_secs_f64()
}

/// How many nanoseconds each.
pub(crate) fn nanos_each(count: u64, elapsed: Duration) -> f64 {
    elapsed.as_secs_f64() * 1e9 / count as f64
}

/// Fails, with what was expected, unless two values are equal.
pub(crate) fn expect_eq<T: PartialEq + std::fmt::Debug>(
    what: &str,
    actual: T,
    expected: T,
) -> Result<()> {
    if actual == expected {
        Ok(())
    } else {
        Err(format!("{what}: {actual:?}, expected {expected:?}").into())
    }
}

/// The middle value, or the mean of the two in the middle. NaN of nothing.
fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() {
        0 => f64::NAN,
        len if len % 2 == 1 => figures[middle],
        _ => f64::midpoint(figures[middle - 1], figures[middle]),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!(median(vec![9.0, 1.0, 5.0]), 5.0);
        assert_eq!(median(vec![9.0, 1.0, 5.0, 7.0]), 6.0);
        assert_eq!(median(vec![3.0]), 3.0);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn every_round_starts_with_another_contestant_after_one_unmeasured_run_of_each() {
        let log = Arc::new(Mutex::new(String::new()));
        let contestant = |letter: char| {
            let log = log.clone();
            move || {
                log.lock().unwrap().push(letter);
                Ok(1.0)
            }
        };
        let case = Case::new("case", Unit::MessagesPerSecond, contestant('a'))
            .against("b", contestant('b'))
            .against("c", contestant('c'));
        let rows = case.run("suite", 3).unwrap();
        assert_eq!(*log.lock().unwrap(), "abcabcbcacab");
        assert_eq!(rows.iter().map(|row| &row.other_name[..]).collect::<String>(), "bc");
    }

    #[test]
    fn an_error_says_which_case_and_whose_run_it_was() {
        let case = Case::new("cycle", Unit::MessagesPerSecond, || Ok(1.0))
            .against("peer", || Err("lost a message".into()));
        let error = case.run("suite", 1).unwrap_err();
        assert_eq!(error.to_string(), "cycle: peer: lost a message");
    }
}
