//! What can be said to `pillarbox eval`.

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
    /// Send the samples of a dataset to workers; may be killed and run again.
    Submit(EvalSubmit),
    /// Collect the results of a run, and report; may be killed and run again.
    Collect(EvalCollect),
    /// Report on a run, as far as it is collected.
    Report(EvalReport),
}

#[derive(Debug, Args)]
#[command(
    after_help = "A dataset has a sample in each line, an object with `input` and `expected`, and perhaps `id` and \
    whatever else: {\"id\": \"q1\", \"input\": \"2 + 2?\", \"expected\": \"4\"}.\n\n\
    The run is kept in a directory, which is made if it is not there. What was sent is not sent again. Without a \
    dataset, and without experiments, those of the run are used."
)]
pub(crate) struct EvalSubmit {
    /// The directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// The samples.
    #[arg(value_name = "DATASET.jsonl", value_hint = ValueHint::FilePath)]
    pub(crate) dataset: Option<PathBuf>,
    /// The queue of the workers; that of the run if it has one.
    #[arg(long, value_name = "QUEUE")]
    pub(crate) requests: Option<QueueName>,
    /// A variant to evaluate, with the resources that make it one: small='{"model": "small"}'. May be given several
    /// times; the first is what the others are compared with [default: baseline].
    #[arg(long = "experiment", short = 'e', value_name = "NAME[=JSON]", value_parser = experiment)]
    pub(crate) experiments: Vec<Experiment>,
    /// The workers run a main loop that knows of no eval: send them the inputs alone, and judge their outputs when
    /// they are collected.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Send samples once more that were sent before.
    #[arg(long, value_name = "WHICH")]
    pub(crate) again: Option<ResubmitArg>,
    /// Who may read the files of a new run.
    #[arg(long, value_name = "WHOM", default_value = "private")]
    pub(crate) permissions: Permissions,
}

/// Which samples are sent once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResubmitArg {
    /// Those whose result has not come; if they are not lost, they are paid for twice.
    Missing,
    /// Those that are dead letters.
    Died,
    /// Those whose result has no score: failed or dead.
    Unscored,
    /// Those with a result that did not pass, whatever the reason.
    NotPassed,
}

impl From<ResubmitArg> for Resubmit {
    fn from(which: ResubmitArg) -> Self {
        match which {
            ResubmitArg::Missing => Self::Missing,
            ResubmitArg::Died => Self::Died,
            ResubmitArg::Unscored => Self::Unscored,
            ResubmitArg::NotPassed => Self::NotPassed,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct EvalCollect {
    /// The directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// Wait for so long at most; as long as it takes if not given.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) timeout: Option<Duration>,
    /// How outputs are judged, of a run that was submitted with --plain; may be given several times, and then all
    /// must pass.
    #[arg(long = "evaluator", value_name = "EVALUATOR", long_help = Evaluator::HELP)]
    pub(crate) evaluators: Vec<Evaluator>,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

#[derive(Debug, Args)]
pub(crate) struct EvalReport {
    /// The directory of the run.
    #[arg(value_name = "RUN", value_hint = ValueHint::DirPath)]
    pub(crate) run: PathBuf,
    /// In which form; by the ending of --output if not given, or else a table.
    #[arg(long, short)]
    pub(crate) format: Option<Format>,
    /// Write it to this file, rather than to stdout.
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Who may read the file, if it is new.
    #[arg(long, value_name = "WHOM", default_value = "private")]
    pub(crate) permissions: Permissions,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// When a report is a failure, for CI.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Limits {
    /// End with exit code 1 if the pass rate of an experiment is below this: 0.9 or 90%.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) fail_under: Option<f64>,
    /// End with exit code 1 if an experiment is worse than the first, and more so than by chance.
    #[arg(long)]
    pub(crate) fail_if_worse: bool,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// All of it.
    Json,
    /// XML, for CI.
    Junit,
    /// A web page in one file.
    Html,
}

/// A ready-made evaluator, by its name.
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
How outputs are judged, of a run that was submitted with --plain; may be given several times, and then all must pass:
  exact_match                   the output is what is expected
  contains                      what is expected is in the output
  regex                         the output matches what is expected
  json_subset                   the output has all that is expected
  numeric_close:RELATIVE[:ABSOLUTE]
                                the output is a number that near to what is expected";
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
                "{text:?} is no tolerance: write numeric_close:0.01 or numeric_close:0.01:0.5"
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
            _ => {
                Err("write exact_match, contains, regex, json_subset or numeric_close:0.01"
                    .to_owned())
            }
        }
    }
}

/// A variant: its name, and perhaps what makes it one.
fn experiment(text: &str) -> Result<Experiment, String> {
    let (name, resources) = text.split_once('=').unwrap_or((text, "{}"));
    if name.trim().is_empty() {
        return Err("it needs a name, as in small or small='{\"model\": \"small\"}'".to_owned());
    }
    let resources: Value = serde_json::from_str(resources)
        .map_err(|error| format!("what is after the = is no JSON: {error}"))?;
    let Value::Object(resources) = resources else {
        return Err(
            "what is after the = is no JSON object, as in {\"model\": \"small\"}".to_owned()
        );
    };
    let experiment = Experiment::new(name.trim());
    Ok(resources
        .into_iter()
        .fold(experiment, |experiment, (name, value)| experiment.resource(name, value)))
}

/// A share from 0 to 1, or from 0% to 100%.
fn rate(text: &str) -> Result<f64, String> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    match number {
        Ok(rate) if (0.0..=1.0).contains(&rate) => Ok(rate),
        _ => Err("write a share from 0 to 1, or from 0% to 100%".to_owned()),
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
    fn an_experiment_is_a_name_and_perhaps_resources() {
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
