//! `pillarbox eval collect`

use pillarbox::QueueOptions;
use pillarbox::evals::{
    BoxEvaluator, Collect, EvalRequests, EvalRun, IntoEvaluator, ScoredBy, all_of, collect_outputs,
    collect_results, contains, exact_match, json_subset, numeric_close, regex,
};
use serde_json::Value;

use super::{Plain, failure, opened, report};
use crate::args::{self, Evaluator};
use crate::commands::using;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(crate) async fn run(context: &mut Context, args: args::EvalCollect) -> Result<()> {
    let mut run = opened(&args.run, |path| EvalRun::open(path))?;
    let evaluator = match (run.scored_by() == ScoredBy::Collector, &args.evaluators[..]) {
        (false, []) => None,
        (false, _) => {
            let text = "the workers judge the outputs of this run: leave --evaluator out";
            return Err(Failure::Usage(text.to_owned()));
        }
        (true, []) => {
            let text = "the outputs of this run are judged when they are collected: say how by --evaluator";
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
    let collected = using(context.open_existing().await?, async |backend| {
        let collecting = async {
            match evaluator {
                Some(evaluator) => {
                    let requests: Plain = backend.mailbox(&*requests)?;
                    collect_outputs(&mut run, &requests, evaluator, how).await
                }
                None => {
                    let requests: EvalRequests<Value, Value> = backend.mailbox(&*requests)?;
                    collect_results(&mut run, &requests, how).await
                }
            }
        };
        let found = interrupt.or(collecting).await?.map_err(failure)?;
        let left = match found.is_complete {
            true => 0,
            false => backend.queue(&*requests, QueueOptions::new())?.counts().await?.total(),
        };
        Ok((found, left))
    })
    .await;
    let (found, left) = match collected {
        Err(Failure::Interrupted) => {
            context.out.note(&so_far(&run));
            return Err(Failure::Interrupted);
        }
        other => other?,
    };
    let permissions = args::Permissions::Private;
    report::write(context, &found, args::Format::Table, None, permissions)?;
    if !found.is_complete {
        return Err(Failure::Other(format!("{}{}", so_far(&run), what_now(&run, &args, left))));
    }
    report::check(context, &found, &args.limits)
}

fn so_far(run: &EvalRun) -> String {
    let progress = run.progress();
    format!(
        "{} of {} results are still to come; collect again to go on",
        progress.awaited, progress.total
    )
}

/// What may be done about results that do not come, with so many requests in their queue.
fn what_now(run: &EvalRun, args: &args::EvalCollect, left: u64) -> String {
    let progress = run.progress();
    let (directory, requests) = (args.run.display(), run.requests().unwrap_or_default());
    if progress.sent < progress.total {
        let unsent = progress.total - progress.sent;
        format!("; {unsent} were never sent: `pillarbox eval submit {directory}` sends them")
    } else if left == 0 {
        format!(
            "; no request is left in queue '{requests}': `pillarbox eval submit {directory} --again missing` sends \
                 those once more whose results do not come"
        )
    } else {
        format!(
            "; {left} messages are in queue '{requests}': `pillarbox stats {requests}` shows whether somebody works \
                 on them"
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
