//! Arguments of `pillarbox eval`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use pillarbox::QueueName;
use pillarbox::evals::{Experiment, Resubmit};
use serde_json::Value;

use super::{Permissions, duration};

#[derive(Debug, Args)]
pub(crate) struct Eval {
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// Send the samples of a dataset to workers; safe to kill and run again.
    Submit(EvalSubmit),
    /// Collect the results of a run, and report; safe to kill and run again.
    Collect(EvalCollect),
    /// Report on the collected results of a run.
    Report(EvalReport),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each line of a dataset is a sample: an object with `input` and `expected`, and optionally `id` and \
    other fields: {\"id\": \"q1\", \"input\": \"2 + 2?\", \"expected\": \"4\"}.\n\n\
    The run is stored in a directory, which is created if needed. Samples that were sent are not sent again. \
    The dataset and the experiments default to those of the run."
)]
pub(crate) struct EvalSubmit {
    /// Directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// File with the samples.
    #[arg(value_name = "DATASET.jsonl", value_hint = ValueHint::FilePath)]
    pub(crate) dataset: Option<PathBuf>,
    /// Queue of the workers; defaults to that of the run.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) requests: Option<QueueName>,
    /// Variant to evaluate, with its resources: small='{"model": "small"}'. Can be repeated; the first one is
    /// the baseline for comparisons [default: baseline].
    #[arg(long = "experiment", short = 'e', value_name = "NAME[=JSON]", value_parser = experiment)]
    pub(crate) experiments: Vec<Experiment>,
    /// The workers run a plain main loop: send only the inputs, and score the outputs while they are
    /// collected.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Send samples again that were sent before.
    #[arg(long, value_name = "WHICH")]
    pub(crate) again: Option<ResubmitArg>,
    /// Permissions of the files of a new run.
    #[arg(long, value_name = "WHO", default_value = "private")]
    pub(crate) permissions: Permissions,
}

/// Samples to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResubmitArg {
    /// Samples without a result; if their requests are not lost, the work is done twice.
    Missing,
    /// Samples that became dead letters.
    DeadLettered,
    /// Samples whose result has no score: failed or dead-lettered.
    Unscored,
    /// Samples with a result that did not pass, for any reason.
    NotPassed,
}

impl From<ResubmitArg> for Resubmit {
    fn from(which: ResubmitArg) -> Self {
        match which {
            ResubmitArg::Missing => Self::Missing,
            ResubmitArg::DeadLettered => Self::DeadLettered,
            ResubmitArg::Unscored => Self::Unscored,
            ResubmitArg::NotPassed => Self::NotPassed,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct EvalCollect {
    /// Directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// Maximum time to wait; defaults to no limit.
    #[arg(long, value_name = "DURATION", value_parser = duration, allow_hyphen_values = true)]
    pub(crate) timeout: Option<Duration>,
    /// Evaluator for a run that was submitted with --plain; can be repeated, and then all must pass.
    #[arg(long = "evaluator", value_name = "EVALUATOR", long_help = Evaluator::HELP)]
    pub(crate) evaluators: Vec<Evaluator>,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Args)]
pub(crate) struct EvalReport {
    /// Directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// Format; defaults to the extension of --output, or else table.
    #[arg(long, short)]
    pub(crate) format: Option<Format>,
    /// Write to this file instead of stdout.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Permissions of the file, if it is new.
    #[arg(long, value_name = "WHO", default_value = "private")]
    pub(crate) permissions: Permissions,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// Limits for CI.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Limits {
    /// Exit with code 1 if the pass rate of an experiment is below this: 0.9 or 90%.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) fail_under: Option<f64>,
    /// Exit with code 1 if an experiment is significantly worse than the first one.
    #[arg(long)]
    pub(crate) fail_if_worse: bool,
}

/// Format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// Text.
    Table,
    /// Complete report as JSON.
    Json,
    /// JUnit XML, for CI.
    Junit,
    /// Self-contained web page.
    Html,
}

/// A built-in evaluator.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Evaluator {
    ExactMatch,
    Contains,
    Regex,
    JsonSubset,
    NumericClose { relative: f64, absolute: f64 },
}

impl Evaluator {
    const HELP: &str = "\
Evaluator for a run that was submitted with --plain; can be repeated, and then all must pass:
  exact_match                   the output equals the expected value
  contains                      the output contains the expected text
  regex                         the expected regular expression matches the output
  json_subset                   the output contains the expected JSON
  numeric_close:RELATIVE[:ABSOLUTE]
                                the output is a number close to the expected one";
}

impl fmt::Display for Evaluator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ExactMatch => f.write_str("exact_match"),
            Self::Contains => f.write_str("contains"),
            Self::Regex => f.write_str("regex"),
            Self::JsonSubset => f.write_str("json_subset"),
            Self::NumericClose { relative, absolute } => {
                write!(f, "numeric_close:{relative}:{absolute}")
            }
        }
    }
}

impl FromStr for Evaluator {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, tolerances) = text.split_once(':').unwrap_or((text, ""));
        let tolerance = |text: &str| match text.parse::<f64>() {
            Ok(number) if number >= 0.0 => Ok(number),
            _ => Err(format!(
                "{text:?} is not a tolerance: write numeric_close:0.01 or numeric_close:0.01:0.5"
            )),
        };
        match (name, tolerances) {
            ("exact_match", "") => Ok(Self::ExactMatch),
            ("contains", "") => Ok(Self::Contains),
            ("regex", "") => Ok(Self::Regex),
            ("json_subset", "") => Ok(Self::JsonSubset),
            ("numeric_close", tolerances) => {
                let (relative, absolute) = tolerances.split_once(':').unwrap_or((tolerances, "0"));
                Ok(Self::NumericClose {
                    relative: tolerance(relative)?,
                    absolute: tolerance(absolute)?,
                })
            }
            _ => Err("expected exact_match, contains, regex, json_subset or numeric_close:0.01"
                .to_owned()),
        }
    }
}

/// Parses an experiment: its name, and optionally its resources.
fn experiment(text: &str) -> Result<Experiment, String> {
    let (name, resources) = text.split_once('=').unwrap_or((text, "{}"));
    if name.trim().is_empty() {
        return Err("the name is missing, as in small or small='{\"model\": \"small\"}'".to_owned());
    }
    let resources: Value = serde_json::from_str(resources)
        .map_err(|error| format!("the part after = is not valid JSON: {error}"))?;
    let Value::Object(resources) = resources else {
        return Err(
            "the part after = is not a JSON object, as in {\"model\": \"small\"}".to_owned()
        );
    };
    let experiment = Experiment::new(name.trim());
    Ok(resources
        .into_iter()
        .fold(experiment, |experiment, (name, value)| experiment.resource(name, value)))
}

/// Parses a share from 0 to 1, or from 0% to 100%.
fn rate(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match number {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err("expected a share from 0 to 1, or from 0% to 100%".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evaluators_are_named_and_numbers_have_tolerances() {
        assert_eq!("exact_match".parse(), Ok(Evaluator::ExactMatch));
        let close = |relative, absolute| Ok(Evaluator::NumericClose { relative, absolute });
        assert_eq!("numeric_close:0.01".parse(), close(0.01, 0.0));
        assert_eq!("numeric_close:0:2.5".parse(), close(0.0, 2.5));
        for text in
            ["", "exact", "contains:1", "numeric_close", "numeric_close:x", "numeric_close:-1"]
        {
            assert!(text.parse::<Evaluator>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_experiment_is_a_name_with_optional_resources() {
        assert_eq!(experiment("small"), Ok(Experiment::new("small")));
        let with = Experiment::new("small").resource("model", "s=1");
        assert_eq!(experiment("small={\"model\": \"s=1\"}"), Ok(with));
        for text in ["", "={}", "a=1", "a={"] {
            assert!(experiment(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_rate_is_a_share_or_a_percentage() {
        assert_eq!([rate("0.9"), rate("90%"), rate("1")], [Ok(0.9), Ok(0.9), Ok(1.0)]);
        for text in ["90", "-1%", "x", "NaN", ""] {
            assert!(rate(text).is_err(), "{text}");
        }
    }
}
