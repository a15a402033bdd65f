//! `pillarbox eval collect`

use pillarbox::QueueOptions;
use pillarbox::evals::{
    BoxEvaluator, Collect, EvalRequests, EvalRun, IntoEvaluator, ScoredBy, all_of, collect_outputs,
    collect_results, contains, exact_match, json_subset, numeric_close, regex,
};
use serde_json::Value;

use super::{PlainRequests, failure, open_submitted, report};
use crate::args::{self, Evaluator};
use crate::commands::with_backend;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(crate) async fn run(context: &mut Context, args: args::EvalCollect) -> Result<()> {
    let mut run = open_submitted(&args.run, |path| EvalRun::open(path))?;
    let evaluator = match (run.scored_by() == ScoredBy::Collector, &args.evaluators[..]) {
        (false, []) => None,
        (false, _) => {
            let text = "the outputs of this run are scored by the workers: remove --evaluator";
            return Err(Failure::Usage(text.to_owned()));
        }
        (true, []) => {
            let text =
                "the outputs of this run are scored while they are collected: add --evaluator";
            return Err(Failure::Usage(text.to_owned()));
        }
        (true, [one]) => Some(evaluator(one)),
        (true, several) => Some(all_of(several.iter().map(evaluator).collect::<Vec<_>>())),
    };
    if evaluator.is_some() {
        let names: Vec<_> = args.evaluators.iter().map(ToString::to_string).collect();
        run.record_evaluator(&names.join(" and ")).map_err(failure)?;
    }
    let requests = run.requests().unwrap_or_default().to_owned();
    let how = args.timeout.map_or_else(Collect::new, Collect::within).progress_bar();
    let interrupt = Interrupt::listen()?;
    let collected = with_backend(context.open_existing().await?, async |backend| {
        let collecting = async {
            match evaluator {
                Some(evaluator) => {
                    let requests: PlainRequests = backend.mailbox(&*requests)?;
                    collect_outputs(&mut run, &requests, evaluator, how).await
                }
                None => {
                    let requests: EvalRequests<Value, Value> = backend.mailbox(&*requests)?;
                    collect_results(&mut run, &requests, how).await
                }
            }
        };
        let report = interrupt.or(collecting).await?.map_err(failure)?;
        let left = match report.is_complete {
            true => 0,
            false => backend.queue(&*requests, QueueOptions::new())?.counts().await?.total(),
        };
        Ok((report, left))
    })
    .await;
    let (report, left) = match collected {
        Err(Failure::Interrupted) => {
            context.out.note(&so_far(&run));
            return Err(Failure::Interrupted);
        }
        other => other?,
    };
    let permissions = args::Permissions::Private;
    report::write(context, &report, args::Format::Table, None, permissions)?;
    if !report.is_complete {
        return Err(Failure::Other(format!("{}{}", so_far(&run), advice(&run, &args, left))));
    }
    report::check(context, &report, &args.limits)
}

fn so_far(run: &EvalRun) -> String {
    let progress = run.progress();
    format!(
        "{} of {} results are missing; collect again to continue",
        progress.awaited, progress.total
    )
}

/// Returns what to do about missing results. `left` is the number of messages in the queue of requests.
fn advice(run: &EvalRun, args: &args::EvalCollect, left: u64) -> String {
    let progress = run.progress();
    let (directory, requests) = (args.run.display(), run.requests().unwrap_or_default());
    if progress.sent < progress.total {
        let unsent = progress.total - progress.sent;
        format!("; {unsent} samples were not sent: `pillarbox eval submit {directory}` sends them")
    } else if left == 0 {
        format!(
            "; queue '{requests}' is empty: `pillarbox eval submit {directory} --again missing` sends the samples \
                 without a result again"
        )
    } else {
        format!(
            "; queue '{requests}' has {left} messages: `pillarbox stats {requests}` shows whether workers process \
                 them"
        )
    }
}

fn evaluator(named: &Evaluator) -> BoxEvaluator<Value, Value, Value> {
    match *named {
        Evaluator::ExactMatch => exact_match.into_evaluator(),
        Evaluator::Contains => contains.into_evaluator(),
        Evaluator::Regex => regex.into_evaluator(),
        Evaluator::JsonSubset => json_subset.into_evaluator(),
        Evaluator::NumericClose { relative, absolute } => {
            numeric_close(relative, absolute).into_evaluator()
        }
    }
}
