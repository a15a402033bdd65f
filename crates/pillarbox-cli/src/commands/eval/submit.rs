//! `pillarbox eval submit`

use pillarbox::evals::{
    Dataset, EvalError, EvalRequests, EvalRun, Experiment, FilePermissions, ScoredBy, Submitted,
    submit_experiments, submit_inputs,
};
use serde::Serialize;
use serde_json::Value;

use super::{PlainRequests, failure};
use crate::args;
use crate::commands::with_backend;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::text;

#[derive(Serialize)]
struct EvalSubmitJson<'a> {
    run_id: &'a str,
    requests: &'a str,
    results: String,
    sent: usize,
    before: usize,
    refused: usize,
    total: usize,
}

pub(crate) async fn run(context: &mut Context, args: args::EvalSubmit) -> Result<()> {
    // Read before anything is created.
    let dataset = args.dataset.as_ref().map(Dataset::<Value, Value>::from_file).transpose();
    let dataset = dataset.map_err(|error| failure(error.into()))?;
    if dataset.is_some() && args.requests.is_none() && !args.run.join("run.json").exists() {
        let text = "add --requests QUEUE, the queue of the workers";
        return Err(Failure::Usage(text.to_owned()));
    }
    let mut run = match dataset {
        Some(_) => {
            let permissions = match args.permissions {
                args::Permissions::Private => FilePermissions::Private,
                args::Permissions::Umask => FilePermissions::Umask,
            };
            EvalRun::open_or_create_with(&args.run, permissions)
        }
        None => EvalRun::open(&args.run),
    }
    .map_err(failure)?;
    let dataset = match (dataset, run.requests()) {
        (Some(dataset), _) => dataset,
        (None, Some(_)) => Dataset::from_file(args.run.join("samples.jsonl"))
            .map_err(|error| failure(error.into()))?,
        (None, None) => {
            return Err(Failure::Usage("the run has no samples yet: add a dataset".to_owned()));
        }
    };
    let requests = match (&args.requests, run.requests()) {
        (Some(queue), _) => queue.to_string(),
        (None, Some(queue)) => queue.to_owned(),
        (None, None) => {
            return Err(Failure::Usage(
                "add --requests QUEUE, the queue of the workers".to_owned(),
            ));
        }
    };
    let experiments = match (&args.experiments[..], run.experiments()) {
        ([], []) => vec![Experiment::baseline()],
        ([], known) => known.to_vec(),
        (named, _) => named.to_vec(),
    };
    let is_plain = args.plain || run.requests().is_some() && run.scored_by() == ScoredBy::Collector;
    if let Some(which) = args.again {
        run.resubmit(which.into());
    }
    let interrupt = Interrupt::listen()?;
    let submitted = with_backend(context.open_to_send().await?, async |backend| {
        let submitting = async {
            if is_plain {
                let requests: PlainRequests = backend.mailbox(&*requests)?;
                submit_inputs(&mut run, &requests, &dataset, &experiments).await
            } else {
                let requests: EvalRequests<Value, Value> = backend.mailbox(&*requests)?;
                submit_experiments(&mut run, &requests, &dataset, &experiments).await
            }
        };
        let submitted: Result<_, EvalError> = interrupt.or(submitting).await?;
        submitted.map_err(failure)
    })
    .await;
    if matches!(submitted, Err(Failure::Interrupted)) {
        let progress = run.progress();
        context.out.note(&format!(
            "{} of {} samples were sent; submit again to continue",
            progress.sent, progress.total
        ));
    }
    let submitted = submitted?;
    let Submitted { sent, before, refused, total, .. } = submitted;
    let (run_id, requests, results) = (run.id(), &*requests, run.address());
    if context.out.is_json() {
        let line = EvalSubmitJson { run_id, requests, results, sent, before, refused, total };
        return context.out.json(&line);
    }
    let samples = text::count(sent as u64, "sample");
    let mut text = format!("run {run_id}: {samples} sent to {requests}");
    if before > 0 {
        text.push_str(&format!(", {before} sent before"));
    }
    if refused > 0 {
        text.push_str(&format!(", {refused} rejected by the queue: see the report"));
    }
    context.out.line(&text)
}
