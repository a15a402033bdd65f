//! What came out of a run.
//!
//! | to find | look at |
//! |---|---|
//! | what is counted, and what counts as what | here |
//! | quantiles and intervals | `statistics.rs` |
//! | for a terminal | `table.rs` |
//! | for CI | `junit.rs` |
//! | for a browser | `html/` |

mod html;
mod junit;
mod statistics;
mod table;

use pillarbox_core::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use statistics::{Difference, Latency};

use self::statistics::{Pairs, mean, paired_mean, paired_shares, wilson};
use crate::dataset::Sample;
use crate::error::Result;
use crate::result::Status;
use crate::run::slots::Light;
use crate::run::{EvalRun, ScoredBy};
use crate::steps::Step;

/// The most samples that are reported with all that is known of them.
const MAX_FAILURES: usize = 1000;
/// And the most bytes of JSON that they have, more or less.
const MAX_BYTES: usize = 32 << 20;

/// What came out of a run, as far as it is known. It can be shown as a table (by `Display`), as JSON (by
/// `Serialize`), as [JUnit XML](Self::to_junit) and as a [web page](Self::to_html).
///
/// A sample that failed or died has no score: it is left out of the mean score, and counts as one that did not pass
/// in the pass rate. One that has no result yet counts in neither.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvalReport {
    /// The run.
    pub run_id: String,
    /// When it was begun.
    pub created_at: Timestamp,
    /// Who judged the outputs.
    pub scored_by: ScoredBy,
    /// How many samples there are, each counted once for each experiment.
    pub total: usize,
    /// How many of them passed.
    pub passed: usize,
    /// The share of those with a result that passed.
    pub pass_rate: Option<f64>,
    /// The mean of all scores.
    pub mean_score: Option<f64>,
    /// How long adapters took.
    pub latency: Option<Latency>,
    /// Whether there is a result of every sample.
    pub is_complete: bool,
    /// How many messages came that are no results of the run.
    pub strays: usize,
    /// By experiment, in the order in which they came.
    pub experiments: Vec<ExperimentReport>,
    /// Each experiment against the first.
    pub comparisons: Vec<Comparison>,
    /// The samples that did not pass, whatever the reason, with what is known of them: the first thousand, or 32 MiB
    /// of them.
    pub failures: Vec<FailedSample>,
    /// How many further ones there are.
    pub failures_left_out: usize,
    /// Every sample, in short.
    pub samples: Vec<SampleReport>,
}

/// How many samples came to which end.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// How many there are.
    pub total: usize,
    /// Whose output is good enough.
    pub passed: usize,
    /// Whose output is not.
    pub not_passed: usize,
    /// Without a score, since something failed.
    pub failed: usize,
    /// Dead letters.
    pub died: usize,
    /// Without a result.
    pub missing: usize,
    /// The share of those with a result that passed.
    pub pass_rate: Option<f64>,
    /// Where the true share is, with 95 % confidence.
    pub pass_rate_low: Option<f64>,
    /// And no more than this.
    pub pass_rate_high: Option<f64>,
    /// The mean of all scores.
    pub mean_score: Option<f64>,
    /// How long the adapter took.
    pub latency: Option<Latency>,
}

impl Tally {
    /// How many came to this end.
    pub const fn of(&self, status: Status) -> usize {
        match status {
            Status::Passed => self.passed,
            Status::NotPassed => self.not_passed,
            Status::Failed => self.failed,
            Status::Died => self.died,
            Status::Missing => self.missing,
        }
    }
}

/// What came out of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExperimentReport {
    /// What it is called.
    pub name: String,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// How many came to which end.
    #[serde(flatten)]
    pub tally: Tally,
}

/// An experiment against another, by the samples that both have results of.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// The one that it is compared with.
    pub baseline: String,
    /// The one that is compared.
    pub candidate: String,
    /// How many samples both have results of.
    pub pairs: usize,
    /// By how much the pass rate is higher, of those.
    pub pass_rate: Option<Difference>,
    /// How many samples both have scores of.
    pub scored_pairs: usize,
    /// By how much the mean score is higher, of those.
    pub mean_score: Option<Difference>,
    /// How many samples passed only in the candidate.
    pub gained: usize,
    /// How many samples passed only in the baseline.
    pub lost: usize,
}

/// A sample that did not pass, with all that is known of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailedSample {
    /// The experiment.
    pub experiment: String,
    /// The sample.
    pub sample_id: String,
    /// What it counts as.
    pub status: Status,
    /// Its score, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Why: in the words of the evaluator, or the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What went in.
    pub input: Value,
    /// What should have come out.
    pub expected: Value,
    /// What came out, if something did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// How long the adapter took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// What the adapter said that it did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// A sample, in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SampleReport {
    /// The experiment.
    pub experiment: String,
    /// The sample.
    pub sample_id: String,
    /// What it counts as.
    pub status: Status,
    /// Its score, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// How long the adapter took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
}

impl EvalReport {
    /// What a run has come to.
    pub(crate) fn of(run: &EvalRun) -> Result<Self> {
        let ends: Vec<_> = run.slots.iter().map(|slot| slot.result).collect();
        let by_experiment: Vec<_> = match run.sample_count() {
            0 => Vec::new(),
            samples => ends.chunks(samples).collect(),
        };
        let experiments = run.experiments().iter().zip(&by_experiment);
        let experiments = experiments.map(|(experiment, ends)| ExperimentReport {
            name: experiment.name.clone(),
            description: experiment.description.clone(),
            tally: tally(ends),
        });
        let experiments: Vec<_> = experiments.collect();
        let comparisons = (1..experiments.len()).map(|place| Comparison {
            baseline: experiments[0].name.clone(),
            candidate: experiments[place].name.clone(),
            ..compare(by_experiment[0], by_experiment[place])
        });
        let whole = tally(&ends);
        let mut failures = Vec::new();
        let mut failures_left_out = 0;
        let mut bytes = 0;
        for (index, end) in ends.iter().enumerate().filter(|(_, end)| status(end) != Status::Passed)
        {
            if failures.len() == MAX_FAILURES || bytes > MAX_BYTES {
                failures_left_out += 1;
                continue;
            }
            let failed = failed(run, index, *end)?;
            bytes += failed.bytes();
            failures.push(failed);
        }
        let samples = ends.iter().enumerate().map(|(index, end)| SampleReport {
            experiment: run.experiment(index).name.clone(),
            sample_id: run.sample_id(index).to_owned(),
            status: status(end),
            score: score(end),
            latency_ms: end.and_then(|end| end.latency_ms),
        });
        Ok(Self {
            run_id: run.id().to_owned(),
            created_at: run.created_at(),
            scored_by: run.scored_by(),
            total: whole.total,
            passed: whole.passed,
            pass_rate: whole.pass_rate,
            mean_score: whole.mean_score,
            latency: whole.latency,
            is_complete: run.is_complete(),
            strays: run.progress().strays,
            comparisons: comparisons.collect(),
            experiments,
            failures,
            failures_left_out,
            samples: samples.collect(),
        })
    }

    /// How many samples came to this end.
    pub fn count(&self, status: Status) -> usize {
        self.experiments.iter().map(|one| one.tally.of(status)).sum()
    }

    /// The experiment of this name.
    pub fn experiment(&self, name: &str) -> Option<&ExperimentReport> {
        self.experiments.iter().find(|one| one.name == name)
    }

    /// The samples of an experiment, in short.
    fn samples_of(&self, experiment: &str) -> impl Iterator<Item = &SampleReport> {
        self.samples.iter().filter(move |sample| sample.experiment == experiment)
    }

    /// Any experiment against any other: by how much the second is better.
    pub fn compare(&self, baseline: &str, candidate: &str) -> Option<Comparison> {
        let of = |name: &str| {
            self.experiment(name)?;
            let samples = self.samples_of(name).map(SampleReport::light);
            Some(samples.collect::<Vec<_>>())
        };
        let (first, second) = (of(baseline)?, of(candidate)?);
        let (baseline, candidate) = (baseline.to_owned(), candidate.to_owned());
        Some(Comparison { baseline, candidate, ..compare(&first, &second) })
    }
}

impl FailedSample {
    /// How much there is of it, more or less.
    fn bytes(&self) -> usize {
        serde_json::to_string(self).map_or(0, |text| text.len())
    }
}

impl SampleReport {
    fn light(&self) -> Option<Light> {
        let value = self.score.unwrap_or_default();
        let Self { status, latency_ms, .. } = *self;
        (status != Status::Missing).then_some(Light {
            round: 1,
            status,
            value,
            latency_ms,
            place: 0,
        })
    }
}

fn status(end: &Option<Light>) -> Status {
    end.map_or(Status::Missing, |end| end.status)
}

fn score(end: &Option<Light>) -> Option<f64> {
    end.filter(|end| end.status.is_scored()).map(|end| end.value)
}

fn tally(ends: &[Option<Light>]) -> Tally {
    let mut tally = Tally { total: ends.len(), ..Tally::default() };
    for end in ends {
        match status(end) {
            Status::Passed => tally.passed += 1,
            Status::NotPassed => tally.not_passed += 1,
            Status::Failed => tally.failed += 1,
            Status::Died => tally.died += 1,
            Status::Missing => tally.missing += 1,
        }
    }
    let ended = tally.total - tally.missing;
    tally.pass_rate = (ended > 0).then(|| tally.passed as f64 / ended as f64);
    let interval = wilson(tally.passed, ended);
    (tally.pass_rate_low, tally.pass_rate_high) = interval.unzip();
    tally.mean_score = mean(&ends.iter().filter_map(score).collect::<Vec<_>>());
    let mut latencies: Vec<_> = ends.iter().flatten().filter_map(|end| end.latency_ms).collect();
    latencies.sort_unstable_by(f64::total_cmp);
    tally.latency = Latency::of(&latencies);
    tally
}

/// By how much the second does better than the first, without their names.
fn compare(first: &[Option<Light>], second: &[Option<Light>]) -> Comparison {
    let mut pairs = Pairs::default();
    let mut differences = Vec::new();
    for (first, second) in first.iter().zip(second) {
        if first.is_none() || second.is_none() {
            continue;
        }
        match (status(first) == Status::Passed, status(second) == Status::Passed) {
            (true, true) => pairs.both += 1,
            (true, false) => pairs.first += 1,
            (false, true) => pairs.second += 1,
            (false, false) => pairs.neither += 1,
        }
        differences.extend(score(first).zip(score(second)).map(|(first, second)| second - first));
    }
    Comparison {
        baseline: String::new(),
        candidate: String::new(),
        pairs: pairs.both + pairs.first + pairs.second + pairs.neither,
        pass_rate: paired_shares(pairs),
        scored_pairs: differences.len(),
        mean_score: paired_mean(&differences),
        gained: pairs.second,
        lost: pairs.first,
    }
}

fn failed(run: &EvalRun, index: usize, end: Option<Light>) -> Result<FailedSample> {
    let Sample::<Value, Value> { id, input, expected, .. } = run.sample(index)?;
    let mut failed = FailedSample {
        experiment: run.experiment(index).name.clone(),
        sample_id: id,
        status: status(&end),
        score: score(&end),
        reason: None,
        input,
        expected,
        output: None,
        latency_ms: end.and_then(|end| end.latency_ms),
        steps: Vec::new(),
    };
    match end.map(|end| run.result(end)).transpose()?.map(|result| result.outcome) {
        Some(Ok(scored)) => {
            failed.reason = scored.score.reason;
            failed.output = Some(scored.output);
            failed.steps = scored.steps;
        }
        Some(Err(error)) => failed.reason = Some(error.text),
        None => failed.reason = Some("no result has come yet".to_owned()),
    }
    Ok(failed)
}
