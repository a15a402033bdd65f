//! `pillarbox eval report`

use std::io::Write;
use std::path::Path;

use pillarbox::evals::{EvalReport, EvalRun};

use super::{failure, open_submitted};
use crate::args::{self, Format};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::file;

pub(crate) fn run(context: &mut Context, args: &args::EvalReport) -> Result<()> {
    let format = match (args.format, &args.output) {
        (Some(format), _) => format,
        (None, None) => Format::Table,
        (None, Some(path)) => by_extension(path)?,
    };
    let report = open_submitted(&args.run, |path| EvalRun::open_read_only(path))?
        .report()
        .map_err(failure)?;
    write(context, &report, format, args.output.as_deref(), args.permissions)?;
    check(context, &report, &args.limits)
}

fn by_extension(path: &Path) -> Result<Format> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("html" | "htm") => Ok(Format::Html),
        Some("xml") => Ok(Format::Junit),
        Some("json") => Ok(Format::Json),
        Some("txt") => Ok(Format::Table),
        _ => {
            let path = path.display();
            let text =
                format!("the format of {path} is unknown: add --format html, junit, json or table");
            Err(Failure::Usage(text))
        }
    }
}

/// Writes a report to stdout, or to a file.
pub(super) fn write(
    context: &mut Context,
    report: &EvalReport,
    format: Format,
    path: Option<&Path>,
    permissions: args::Permissions,
) -> Result<()> {
    let Some(path) = path else {
        return match format {
            _ if context.out.is_json() => context.out.json(report),
            Format::Json => context.out.json(report),
            Format::Table => context.out.text(&report.to_string()),
            Format::Junit => context.out.bytes(report.to_junit().as_bytes()),
            Format::Html => context.out.bytes(report.to_html().as_bytes()),
        };
    };
    let text = match format {
        Format::Table => report.to_string(),
        Format::Json => serde_json::to_string(report).map(|text| text + "\n").map_err(|error| {
            Failure::Other(format!("the report cannot be serialized to JSON: {error}"))
        })?,
        Format::Junit => report.to_junit(),
        Format::Html => report.to_html(),
    };
    let file = file::options(permissions).create(true).truncate(true).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| Failure::Other(format!("cannot write {}: {error}", path.display())))
}

/// Fails if the report exceeds a limit.
pub(super) fn check(context: &Context, report: &EvalReport, limits: &args::Limits) -> Result<()> {
    let mut reasons = Vec::new();
    if !report.is_complete && (limits.fail_under.is_some() || limits.fail_if_worse) {
        reasons.push("the run is not complete: collect the rest of its results".to_owned());
    }
    if let Some(min) = limits.fail_under {
        for experiment in &report.experiments {
            // Without any result, nothing has passed.
            let rate = experiment.tally.pass_rate.unwrap_or(0.0);
            if rate < min {
                let (name, rate, min) = (&experiment.name, rate * 100.0, min * 100.0);
                reasons.push(format!("the pass rate of {name} is {rate:.1}%, below {min:.1}%"));
            }
        }
    }
    if limits.fail_if_worse {
        for comparison in &report.comparisons {
            let differences =
                [("pass rate", comparison.pass_rate), ("mean score", comparison.mean_score)];
            for (metric, difference) in differences {
                if difference
                    .is_some_and(|difference| difference.is_significant() && difference.value < 0.0)
                {
                    let (candidate, baseline) = (&comparison.candidate, &comparison.baseline);
                    reasons.push(format!(
                        "the {metric} of {candidate} is lower than that of {baseline}"
                    ));
                }
            }
        }
    }
    reasons.iter().for_each(|reason| context.out.error(reason));
    if reasons.is_empty() { Ok(()) } else { Err(Failure::Reported) }
}
