//! How contestants are compared.
//!
//! All contestants of a case run in the same process run, in rounds. Each round starts with another
//! contestant, so that nobody always comes first or after the same neighbour. A contestant's figure is
//! the median of its rounds, which leaves out a first run that is slower than the others, or the largest
//! where the worst is asked for. One run may give several figures, such as a rate and a latency.
//!
//! A run checks its own work and fails rather than give a figure for something else.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;

use crate::chart::Role;
use crate::progress;
use crate::report::{Row, Unit, ratio};

/// Benchmarks stop at the first error and show it; nobody tells one kind from another.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How much is run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    quick: bool,
    rounds: usize,
    only: Option<String>,
    /// Counts the cases, and runs none.
    counted: Option<Arc<AtomicUsize>>,
}

impl Plan {
    pub(crate) fn new(quick: bool, rounds: Option<u32>, only: Option<String>) -> Self {
        let default = if quick { 3 } else { 5 };
        Self { quick, rounds: rounds.unwrap_or(default) as usize, only, counted: None }
    }

    /// Whether the case of this name is to be run.
    pub(crate) fn wants(&self, case: &str) -> bool {
        self.wants_of(case, 1)
    }

    /// Whether the case of this name is to be run, which counts as several.
    pub(crate) fn wants_of(&self, case: &str, as_many: usize) -> bool {
        let is_wanted = self.only.as_ref().is_none_or(|only| case.contains(only.as_str()));
        match &self.counted {
            Some(counted) if is_wanted => {
                counted.fetch_add(as_many, Ordering::Relaxed);
                false
            }
            Some(_) => false,
            None => is_wanted,
        }
    }

    /// How many cases a suite has, as far as it knows before it runs.
    pub(crate) fn count(&self, run: impl FnOnce(&Self) -> Result<()>) -> Result<usize> {
        let counted = Arc::new(AtomicUsize::new(0));
        let plan = Self { counted: Some(counted.clone()), ..self.clone() };
        progress::quietly(|| run(&plan))?;
        Ok(counted.load(Ordering::Relaxed))
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
    figures: Vec<Figure>,
    /// The first is ours.
    contestants: Vec<Contestant>,
}

/// One of the figures that a run gives.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    /// What it is called in the rows.
    name: String,
    unit: Unit,
    of_rounds: OfRounds,
}

/// Which figure of several rounds counts.
#[derive(Debug, Clone, Copy)]
enum OfRounds {
    Median,
    Largest,
}

/// The figures of a contestant's rounds, or why it has none.
type Runs = std::result::Result<Vec<Vec<f64>>, String>;

struct Contestant {
    name: String,
    role: Role,
    run: Box<dyn FnMut() -> Result<Vec<f64>>>,
}

/// What a run gives: one figure, or as many as its case has.
pub(crate) trait Figures {
    fn into_vec(self) -> Vec<f64>;
}

impl Figures for f64 {
    fn into_vec(self) -> Vec<f64> {
        vec![self]
    }
}

impl<const N: usize> Figures for [f64; N] {
    fn into_vec(self) -> Vec<f64> {
        self.into()
    }
}

impl Figure {
    /// A figure of which the median of the rounds counts.
    pub(crate) fn median(name: impl Into<String>, unit: Unit) -> Self {
        Self { name: name.into(), unit, of_rounds: OfRounds::Median }
    }

    /// A cost of which the largest of the rounds counts.
    pub(crate) fn worst(name: impl Into<String>, unit: Unit) -> Self {
        Self { name: name.into(), unit, of_rounds: OfRounds::Largest }
    }
}

impl Case {
    /// A case with our side of it. A run returns its figure in the unit of the case.
    pub(crate) fn new(
        name: impl Into<String>,
        unit: Unit,
        ours: impl FnMut() -> Result<f64> + 'static,
    ) -> Self {
        let name = name.into();
        Self::several(name.clone(), [Figure::median(name, unit)], ours)
    }

    /// A case whose runs return several figures. Its name is for messages; the rows have those of
    /// the figures.
    pub(crate) fn several<const N: usize, F: Figures>(
        name: impl Into<String>,
        figures: [Figure; N],
        ours: impl FnMut() -> Result<F> + 'static,
    ) -> Self {
        let figures = figures.into();
        let case = Self { name: name.into(), figures, contestants: Vec::new() };
        case.enter("ours".to_owned(), Role::Ours, ours)
    }

    /// Adds Pillarbox with other settings or under other conditions, whose runs return as many figures.
    pub(crate) fn against<F: Figures>(
        self,
        name: impl Into<String>,
        run: impl FnMut() -> Result<F> + 'static,
    ) -> Self {
        self.enter(name.into(), Role::Variant, run)
    }

    /// Adds a limit: the same work without the guarantees of a queue.
    pub(crate) fn against_limit<F: Figures>(
        self,
        name: impl Into<String>,
        run: impl FnMut() -> Result<F> + 'static,
    ) -> Self {
        self.enter(name.into(), Role::Limit, run)
    }

    /// Adds a peer: a queue of another project. If it fails, its rows say so.
    pub(crate) fn against_peer<F: Figures>(
        self,
        name: impl Into<String>,
        run: impl FnMut() -> Result<F> + 'static,
    ) -> Self {
        self.enter(name.into(), Role::Peer, run)
    }

    fn enter<F: Figures>(
        mut self,
        name: String,
        role: Role,
        mut run: impl FnMut() -> Result<F> + 'static,
    ) -> Self {
        let run = Box::new(move || run().map(Figures::into_vec));
        self.contestants.push(Contestant { name, role, run });
        self
    }

    /// Its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Runs all contestants and gives, for each figure, one row for each of the others. Where a peer fails, its rows
    /// say so; where anybody else fails, so does the case.
    pub(crate) fn run(mut self, suite: &'static str, rounds: usize) -> Result<Vec<Row>> {
        progress::case(suite, &self.name);
        let count = self.contestants.len();
        let mut runs = vec![Ok(Vec::with_capacity(rounds)); count];
        for round in 0..rounds {
            for turn in 0..count {
                let who = (round + turn) % count;
                self.turn(who, &mut runs[who])?;
            }
        }
        let rows = self.rows(suite, &runs);
        progress::step();
        Ok(rows)
    }

    /// One run of a contestant, unless it has failed before.
    fn turn(&mut self, who: usize, runs: &mut Runs) -> Result<()> {
        let Ok(figures) = runs else { return Ok(()) };
        match self.contestants[who].run(&self.name) {
            Ok(run) => {
                expect_eq("figures of a run", run.len(), self.figures.len())?;
                figures.push(run);
            }
            Err(error) if self.contestants[who].role == Role::Peer => {
                progress::say(format_args!("  failed: {error}"));
                *runs = Err(error.to_string());
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// What came of all runs.
    fn rows(&self, suite: &'static str, runs: &[Runs]) -> Vec<Row> {
        let mut rows = Vec::new();
        for (place, figure) in self.figures.iter().enumerate() {
            let of = |runs: &Runs| -> Option<Vec<f64>> {
                Some(runs.as_ref().ok()?.iter().map(|figures| figures[place]).collect())
            };
            let ours_by_round = of(&runs[0]).unwrap_or_default();
            let ours = figure.of_rounds.of(ours_by_round.clone());
            for (contestant, runs) in self.contestants.iter().zip(runs).skip(1) {
                let by_round = of(runs);
                if let Some(by_round) = &by_round {
                    let ratios = ours_by_round.iter().zip(by_round);
                    let range =
                        range(ratios.map(|(ours, other)| ratio(figure.unit, *ours, *other)));
                    let (figure, other) = (&figure.name, &contestant.name);
                    progress::say(format_args!("  {figure}, {other}: {range}"));
                }
                let other = by_round.map(|figures| figure.of_rounds.of(figures));
                rows.push(Row {
                    suite: suite.to_owned(),
                    case: figure.name.clone(),
                    unit: figure.unit,
                    ours,
                    other,
                    other_name: contestant.name.clone(),
                    role: contestant.role,
                    ratio: other.map(|other| ratio(figure.unit, ours, other)),
                    failure: runs.as_ref().err().cloned(),
                });
            }
        }
        rows
    }
}

impl OfRounds {
    fn of(self, figures: Vec<f64>) -> f64 {
        match self {
            Self::Median => median(figures),
            Self::Largest => figures.into_iter().fold(f64::NAN, f64::max),
        }
    }
}

impl Contestant {
    fn run(&mut self, case: &str) -> Result<Vec<f64>> {
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

/// How many microseconds each.
pub(crate) fn micros_each(count: u64, elapsed: Duration) -> f64 {
    nanos_each(count, elapsed) / 1e3
}

/// How many microseconds.
pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// How many milliseconds.
pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns a percentile of the times, by nearest rank. Sorts `times`.
pub(crate) fn percentile(times: &mut [Duration], percent: usize) -> Result<Duration> {
    times.sort_unstable();
    at_percent(times, percent as f64).ok_or_else(|| "no times were taken".into())
}

/// Returns a percentile of sorted times, by nearest rank.
pub(crate) fn at_percent(sorted: &[Duration], percent: f64) -> Option<Duration> {
    // Rounded first: 99 percent of 100 shall not be a little more than 99.
    let rank = (sorted.len() as f64 * percent / 100.0 - 1e-9).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
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

/// Between which ratios the rounds lie. Where they are far apart, something else was at work.
fn range(ratios: impl Iterator<Item = f64>) -> String {
    let (least, most) = ratios.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), ratio| {
        (least.min(ratio), most.max(ratio))
    });
    format!("{least:.2}x to {most:.2}x by round")
}

/// The middle value, or the mean of the two in the middle. NaN of nothing.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
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
    fn a_range_is_from_the_least_to_the_most() {
        assert_eq!(range([0.5, 2.0, 0.25].into_iter()), "0.25x to 2.00x by round");
    }

    #[test]
    fn every_round_starts_with_another_contestant() {
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
        assert_eq!(*log.lock().unwrap(), "abcbcacab");
        assert_eq!(rows.iter().map(|row| &row.other_name[..]).collect::<String>(), "bc");
    }

    #[test]
    fn several_figures_are_rows_of_their_own_and_the_worst_is_the_largest_of_the_rounds() {
        let rising = |step: f64| {
            let mut round = 0.0;
            move || {
                round += step;
                Ok([round, round])
            }
        };
        let figures = [
            Figure::median("rate", Unit::MessagesPerSecond),
            Figure::worst("worst send", Unit::Millis),
        ];
        let case = Case::several("case", figures, rising(1.0)).against("peer", rising(10.0));
        let rows = case.run("suite", 3).unwrap();
        let figures: Vec<_> = rows.iter().map(|row| (&row.case[..], row.ours, row.other)).collect();
        assert_eq!(figures, [("rate", 2.0, Some(20.0)), ("worst send", 3.0, Some(30.0))]);
    }

    #[test]
    fn a_percentile_is_one_of_the_times() {
        let mut times: Vec<_> = (1..=200).rev().map(Duration::from_micros).collect();
        assert_eq!(percentile(&mut times, 50).unwrap(), Duration::from_micros(100));
        assert_eq!(percentile(&mut times, 99).unwrap(), Duration::from_micros(198));
        assert_eq!(percentile(&mut times[..1], 99).unwrap(), Duration::from_micros(1));
        assert!(percentile(&mut [], 50).is_err());
    }

    #[test]
    fn a_peer_that_fails_has_a_row_that_says_so_and_anybody_else_ends_the_case() {
        let mut left = 2;
        let fails = move || {
            left -= 1;
            if left == 0 { Err::<f64, _>("lost a message".into()) } else { Ok(1.0) }
        };
        let case = || Case::new("cycle", Unit::MessagesPerSecond, || Ok(1.0));
        let rows = case().against_peer("peer", fails).against_limit("limit", || Ok(2.0));
        let rows = rows.run("suite", 3).unwrap();
        assert_eq!(rows[0].failure.as_deref(), Some("cycle: peer: lost a message"));
        assert_eq!((rows[0].other, rows[0].ratio), (None, None));
        assert_eq!((rows[1].other, rows[1].failure.as_deref()), (Some(2.0), None));
        let error = case().against_limit("limit", fails).run("suite", 3).unwrap_err();
        assert_eq!(error.to_string(), "cycle: limit: lost a message");
    }
}
