//! Reports of runs.
//!
//! | to find | look at |
//! |---|---|
//! | contents of a report | here |
//! | quantiles and intervals | `statistics.rs` |
//! | text | `table.rs` |
//! | JUnit XML | `junit.rs` |
//! | HTML | `html/` |

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
use crate::run::sample_state::Index;
use crate::run::{EvalRun, ScoredBy};
use crate::steps::Step;

/// Maximum number of samples that are reported in full.
const MAX_FAILURES: usize = 1000;
/// Approximate maximum size of their JSON, in bytes.
const MAX_BYTES: usize = 32 << 20;

/// Report of a run, with the results so far: as a table (`Display`), JSON (`Serialize`), [JUnit XML](Self::to_junit) or a
/// [web page](Self::to_html).
///
/// A sample that failed or became a dead letter has no score: it is not part of the mean score, and counts as not passed
/// in the pass rate. A sample without a result counts in neither.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EvalReport {
    /// Id of the run.
    pub run_id: String,
    /// Time at which the run was created.
    pub created_at: Timestamp,
    /// Where the outputs were scored.
    pub scored_by: ScoredBy,
    /// Number of samples. A sample counts once per experiment.
    pub total: usize,
    /// Number of samples that passed.
    pub passed: usize,
    /// Share of samples with a result that passed.
    pub pass_rate: Option<f64>,
    /// Mean of all scores.
    pub mean_score: Option<f64>,
    /// Run times of the adapter.
    pub latency: Option<Latency>,
    /// Whether every sample has a result.
    pub is_complete: bool,
    /// Number of messages that are not results of the run.
    pub strays: usize,
    /// Experiments, in order of submission.
    pub experiments: Vec<ExperimentReport>,
    /// Comparison of each experiment with the first one.
    pub comparisons: Vec<Comparison>,
    /// Samples that did not pass, for any reason, in full: the first 1000, up to about 32 MiB.
    pub failures: Vec<FailedSample>,
    /// Number of other samples that did not pass.
    pub failures_omitted: usize,
    /// All samples, without their contents.
    pub samples: Vec<SampleReport>,
}

/// Numbers of samples by status, with statistics.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tally {
    /// All samples.
    pub total: usize,
    /// Samples that passed.
    pub passed: usize,
    /// Samples that were scored and did not pass.
    pub not_passed: usize,
    /// Samples without a score because the adapter or the evaluator failed.
    pub failed: usize,
    /// Samples that became dead letters.
    pub dead_lettered: usize,
    /// Samples without a result.
    pub missing: usize,
    /// Share of samples with a result that passed.
    pub pass_rate: Option<f64>,
    /// Lower end of the 95 % confidence interval of the pass rate.
    pub pass_rate_low: Option<f64>,
    /// Upper end of that interval.
    pub pass_rate_high: Option<f64>,
    /// Mean of all scores.
    pub mean_score: Option<f64>,
    /// Run times of the adapter.
    pub latency: Option<Latency>,
}

impl Tally {
    /// Returns the number of samples with this status.
    pub const fn of(&self, status: Status) -> usize {
        match status {
            Status::Passed => self.passed,
            Status::NotPassed => self.not_passed,
            Status::Failed => self.failed,
            Status::DeadLettered => self.dead_lettered,
            Status::Missing => self.missing,
        }
    }
}

/// Report of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ExperimentReport {
    /// Name of the experiment.
    pub name: String,
    /// Description of the experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Numbers of samples and statistics.
    #[serde(flatten)]
    pub tally: Tally,
}

/// Comparison of two experiments, by the samples that have a result in both.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Comparison {
    /// Name of the experiment that is compared with.
    pub baseline: String,
    /// Name of the experiment that is compared.
    pub candidate: String,
    /// Number of samples that have a result in both.
    pub pairs: usize,
    /// Pass rate of the candidate minus that of the baseline.
    pub pass_rate: Option<Difference>,
    /// Number of samples that have a score in both.
    pub scored_pairs: usize,
    /// Mean score of the candidate minus that of the baseline.
    pub mean_score: Option<Difference>,
    /// Number of samples that passed in the candidate only.
    pub gained: usize,
    /// Number of samples that passed in the baseline only.
    pub lost: usize,
}

/// A sample that did not pass, in full.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FailedSample {
    /// Name of the experiment.
    pub experiment: String,
    /// Id of the sample.
    pub sample_id: String,
    /// Status of the sample.
    pub status: Status,
    /// Score, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Reason of the evaluator, or the error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Input.
    pub input: Value,
    /// Expected output.
    pub expected: Value,
    /// Output, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Run time of the adapter, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
    /// Steps of the adapter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
}

/// A sample, without its contents.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SampleReport {
    /// Name of the experiment.
    pub experiment: String,
    /// Id of the sample.
    pub sample_id: String,
    /// Status of the sample.
    pub status: Status,
    /// Score, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Run time of the adapter, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ms: Option<f64>,
}

impl EvalRun {
    /// Returns a report with the results so far.
    ///
    /// # Errors
    ///
    /// If the files of the run cannot be read.
    pub fn report(&self) -> Result<EvalReport> {
        let samples = self.states.iter().enumerate().map(|(index, state)| SampleReport {
            experiment: self.experiment(index).name.clone(),
            sample_id: self.sample_id(index).to_owned(),
            status: state.result.map_or(Status::Missing, |result| result.status),
            score: state.result.and_then(|result| result.score),
            latency_ms: state.result.and_then(|result| result.latency_ms),
        });
        let samples: Vec<_> = samples.collect();
        // Without samples there are no chunks, whatever their size.
        let by_experiment: Vec<_> = samples.chunks(self.sample_count().max(1)).collect();
        let experiments = self.experiments().iter().zip(&by_experiment);
        let experiments = experiments.map(|(experiment, samples)| ExperimentReport {
            name: experiment.name.clone(),
            description: experiment.description.clone(),
            tally: tally(samples),
        });
        let experiments: Vec<_> = experiments.collect();
        let comparisons = (1..experiments.len()).map(|index| Comparison {
            baseline: experiments[0].name.clone(),
            candidate: experiments[index].name.clone(),
            ..compare(by_experiment[0], by_experiment[index])
        });
        let whole = tally(&samples);
        let mut failures = Vec::new();
        let mut failures_omitted = 0;
        let mut bytes = 0;
        for (index, sample) in samples.iter().enumerate() {
            if sample.status == Status::Passed {
                continue;
            }
            if failures.len() == MAX_FAILURES || bytes > MAX_BYTES {
                failures_omitted += 1;
                continue;
            }
            let failed = failed(self, index, sample)?;
            bytes += serde_json::to_string(&failed).map_or(0, |text| text.len());
            failures.push(failed);
        }
        Ok(EvalReport {
            run_id: self.id().to_owned(),
            created_at: self.created_at(),
            scored_by: self.scored_by(),
            total: whole.total,
            passed: whole.passed,
            pass_rate: whole.pass_rate,
            mean_score: whole.mean_score,
            latency: whole.latency,
            is_complete: self.is_complete(),
            strays: self.progress().strays,
            comparisons: comparisons.collect(),
            experiments,
            failures,
            failures_omitted,
            samples,
        })
    }
}

impl EvalReport {
    /// Returns the number of samples with this status.
    pub fn count(&self, status: Status) -> usize {
        self.experiments.iter().map(|one| one.tally.of(status)).sum()
    }

    /// Returns the experiment with this name.
    pub fn experiment(&self, name: &str) -> Option<&ExperimentReport> {
        self.experiments.iter().find(|one| one.name == name)
    }

    /// Iterates over the samples of an experiment.
    fn samples_of(&self, experiment: &str) -> impl Iterator<Item = &SampleReport> {
        self.samples.iter().filter(move |sample| sample.experiment == experiment)
    }

    /// Compares two experiments.
    pub fn compare(&self, baseline: &str, candidate: &str) -> Option<Comparison> {
        let of = |name: &str| self.experiment(name).map(|one| self.samples_of(&one.name));
        let (first, second) = (of(baseline)?, of(candidate)?);
        let (baseline, candidate) = (baseline.to_owned(), candidate.to_owned());
        Some(Comparison { baseline, candidate, ..compare(first, second) })
    }
}

fn tally(samples: &[SampleReport]) -> Tally {
    let mut tally = Tally { total: samples.len(), ..Tally::default() };
    for sample in samples {
        match sample.status {
            Status::Passed => tally.passed += 1,
            Status::NotPassed => tally.not_passed += 1,
            Status::Failed => tally.failed += 1,
            Status::DeadLettered => tally.dead_lettered += 1,
            Status::Missing => tally.missing += 1,
        }
    }
    let with_result = tally.total - tally.missing;
    tally.pass_rate = (with_result > 0).then(|| tally.passed as f64 / with_result as f64);
    let interval = wilson(tally.passed, with_result);
    (tally.pass_rate_low, tally.pass_rate_high) = interval.unzip();
    tally.mean_score = mean(&samples.iter().filter_map(|sample| sample.score).collect::<Vec<_>>());
    let mut latencies: Vec<_> = samples.iter().filter_map(|sample| sample.latency_ms).collect();
    latencies.sort_unstable_by(f64::total_cmp);
    tally.latency = Latency::of(&latencies);
    tally
}

/// Compares the second experiment with the first, without their names.
fn compare<'a>(
    first: impl IntoIterator<Item = &'a SampleReport>,
    second: impl IntoIterator<Item = &'a SampleReport>,
) -> Comparison {
    let mut pairs = Pairs::default();
    let mut differences = Vec::new();
    for (first, second) in first.into_iter().zip(second) {
        if first.status == Status::Missing || second.status == Status::Missing {
            continue;
        }
        match (first.status == Status::Passed, second.status == Status::Passed) {
            (true, true) => pairs.both += 1,
            (true, false) => pairs.first += 1,
            (false, true) => pairs.second += 1,
            (false, false) => pairs.neither += 1,
        }
        differences.extend(first.score.zip(second.score).map(|(first, second)| second - first));
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

fn failed(run: &EvalRun, index: Index, sample: &SampleReport) -> Result<FailedSample> {
    let Sample::<Value, Value> { id, input, expected, .. } = run.sample(index)?;
    let mut failed = FailedSample {
        experiment: sample.experiment.clone(),
        sample_id: id,
        status: sample.status,
        score: sample.score,
        reason: None,
        input,
        expected,
        output: None,
        latency_ms: sample.latency_ms,
        steps: Vec::new(),
    };
    let result = run.states[index].result.map(|summary| run.result(summary)).transpose()?;
    match result.map(|result| result.outcome) {
        Some(Ok(scored)) => {
            failed.reason = scored.score.reason;
            failed.output = Some(scored.output);
            failed.steps = scored.steps;
        }
        Some(Err(error)) => failed.reason = Some(error.text),
        None => failed.reason = Some("there is no result yet".to_owned()),
    }
    Ok(failed)
}
