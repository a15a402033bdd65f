//! `pillarbox eval collect`

use pillarbox::evals::{
    BoxEvaluator, Collect, EvalRequests, EvalRun, IntoEvaluator, ScoredBy, Status, all_of,
    collect_outputs, collect_results, contains, exact_match, json_subset, numeric_close, regex,
};
use serde_json::Value;

use super::{Plain, failure, open, report};
use crate::args::{self, Scorer};
use crate::commands::using;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;

pub(crate) async fn run(context: &mut Context, args: args::EvalCollect) -> Result<()> {
    let mut run = open(&args.run)?;
    let evaluator = match (run.scored_by(), &args.evaluators[..]) {
        (ScoredBy::Workers, []) => None,
        (ScoredBy::Workers, _) => {
            let text = "the workers judge the outputs of this run: leave --evaluator out";
            return Err(Failure::Usage(text.to_owned()));
        }
        (ScoredBy::Collector, []) => {
            let text = "the outputs of this run are judged when they are collected: say how by --evaluator";
            return Err(Failure::Usage(text.to_owned()));
        }
        (ScoredBy::Collector, [one]) => Some(evaluator(one)),
        (ScoredBy::Collector, several) => {
            Some(all_of(several.iter().map(evaluator).collect::<Vec<_>>()))
        }
    };
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
        interrupt.or(collecting).await?.map_err(failure)
    })
    .await;
    let found = match collected {
        Err(Failure::Interrupted) => {
            context.out.note(&so_far(&run));
            return Err(Failure::Interrupted);
        }
        other => other?,
    };
    report::write(context, &found, args::Format::Table, None)?;
    if !found.is_complete {
        let mut text = so_far(&run);
        match run.progress() {
            progress if progress.sent < progress.total => text.push_str(&format!(
                "; {} were never sent: `pillarbox eval submit {}` sends them",
                progress.total - progress.sent,
                args.run.display()
            )),
            _ if found.count(Status::Missing) == found.total => text.push_str(&format!(
                "; is there a worker on queue '{requests}'? `pillarbox stats {requests}` shows what waits"
            )),
            _ => {}
        }
        return Err(Failure::Other(text));
    }
    report::check(context, &found, &args.limits)
}

fn so_far(run: &EvalRun) -> String {
    let progress = run.progress();
    format!(
        "{} of {} results are collected; collect again to go on",
        progress.collected, progress.total
    )
}

fn evaluator(scorer: &Scorer) -> BoxEvaluator<Value, Value, Value> {
    match *scorer {
        Scorer::ExactMatch => exact_match.into_evaluator(),
        Scorer::Contains => contains.into_evaluator(),
        Scorer::Regex => regex.into_evaluator(),
        Scorer::JsonSubset => json_subset.into_evaluator(),
        Scorer::NumericClose { relative, absolute } => {
            numeric_close(relative, absolute).into_evaluator()
        }
    }
}
