//! Samples, on their way to those who work on them.

use pillarbox_core::{Error, Mailbox};
use pillarbox_runtime::{MainLoopRequest, MainLoopResult};
use serde::Serialize;

use crate::dataset::{Dataset, Sample};
use crate::error::{EvalError, Result};
use crate::experiment::Experiment;
use crate::message::{EvalRequest, EvalRequests};
use crate::run::{EvalRun, ScoredBy};

/// How many samples are sent before it is noted that they were: what a killed process may send once more.
const BATCH: usize = 100;

/// What a submission has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Submitted {
    /// How many samples were sent, each counted once for each experiment.
    pub sent: usize,
    /// How many had been sent before, and were not again.
    pub before: usize,
    /// How many the queue will never take, such as one that is too large: they have failed, and the report says why.
    pub refused: usize,
    /// How many there are in all.
    pub total: usize,
}

/// Sends the samples of a dataset to [`EvalLoop`](crate::EvalLoop)s, for one experiment.
///
/// # Errors
///
/// Those of [`submit_experiments`].
pub async fn submit_dataset<I, E>(
    run: &mut EvalRun,
    requests: &EvalRequests<I, E>,
    dataset: &Dataset<I, E>,
    experiment: Experiment,
) -> Result<Submitted>
where
    I: Serialize + Clone + 'static,
    E: Serialize + Clone + 'static,
{
    submit_experiments(run, requests, dataset, &[experiment]).await
}

/// Sends the samples of a dataset to [`EvalLoop`](crate::EvalLoop)s, once for each experiment.
///
/// What was sent before is left out: called again, it goes on where it ended. A sample that was sent just before a
/// process was killed, and not noted, is sent again under the id that it had: if it is still there, that changes
/// nothing, and if it was worked on already, its second result does not count.
///
/// # Errors
///
/// Where the queue takes no more, by [`EvalError::Unsent`]; where the run was begun with another dataset, on another
/// queue, or has another experiment of that name.
pub async fn submit_experiments<I, E>(
    run: &mut EvalRun,
    requests: &EvalRequests<I, E>,
    dataset: &Dataset<I, E>,
    experiments: &[Experiment],
) -> Result<Submitted>
where
    I: Serialize + Clone + 'static,
    E: Serialize + Clone + 'static,
{
    run.begin(dataset, experiments, queue(requests), ScoredBy::Workers).await?;
    let run_id = run.id().to_owned();
    submit(run, requests, dataset, |sample, experiment| EvalRequest {
        run_id: run_id.clone(),
        experiment: experiment.name.clone(),
        sample: sample.clone(),
    })
    .await
}

/// Sends the inputs of a dataset to a main loop that knows of no eval, once for each experiment. Its outputs are
/// judged when they are collected, by [`collect_outputs`](crate::collect_outputs).
///
/// # Errors
///
/// Those of [`submit_experiments`].
pub async fn submit_inputs<I, O, E>(
    run: &mut EvalRun,
    requests: &Mailbox<MainLoopRequest<I>, MainLoopResult<O>>,
    dataset: &Dataset<I, E>,
    experiments: &[Experiment],
) -> Result<Submitted>
where
    I: Serialize + Clone + 'static,
    O: 'static,
    E: Serialize,
{
    run.begin(dataset, experiments, queue(requests), ScoredBy::Collector).await?;
    submit(run, requests, dataset, |sample, _| sample.input.clone()).await
}

/// The name of a queue, and what it is on.
fn queue<T: 'static, R: 'static>(mailbox: &Mailbox<T, R>) -> (&str, &str) {
    (mailbox.name().as_str(), mailbox.capabilities().backend)
}

async fn submit<I, E, U: 'static, O: 'static>(
    run: &mut EvalRun,
    requests: &Mailbox<MainLoopRequest<U>, MainLoopResult<O>>,
    dataset: &Dataset<I, E>,
    make: impl Fn(&Sample<I, E>, &Experiment) -> U,
) -> Result<Submitted> {
    let address = run.address();
    let to_send = run.slots.to_send();
    let total = run.slots.len();
    let before = total - to_send.len();
    let (mut sent, mut refused) = (0, 0);
    // Those of a batch are sent for the so-manieth time together.
    for batch in to_send.chunk_by(|one, other| one.1 == other.1).flat_map(|same| same.chunks(BATCH))
    {
        let round = batch[0].1;
        let made = batch.iter().map(|&(index, _)| {
            let sample = &dataset.samples()[index % run.sample_count()];
            let experiment = run.experiment(index);
            let mut request = MainLoopRequest::new(make(sample, experiment))
                .request_id(run.request_id(index, round))
                .budget(experiment.budget.clone());
            request.resources = experiment.resources.clone();
            request
        });
        let made: Vec<_> = made.collect();
        let entries = made.iter().map(|request| {
            let id = pillarbox_core::MessageId::from_uuid(request.request_id);
            (request, request.send_options().id(id).reply_to(&*address))
        });
        let done = sent + refused;
        let unsent = |more: usize, error| {
            let sent = sent + more;
            EvalError::Unsent { sent, left: to_send.len() - done - more, error }
        };
        let results = requests.send_batch_with(entries).await.map_err(|error| unsent(0, error))?;
        let mut stopped = None;
        let mut stored = Vec::with_capacity(batch.len());
        let mut failed = Vec::new();
        for (&(index, _), result) in batch.iter().zip(results) {
            match result {
                Ok(_) => stored.push(index),
                Err(error @ (Error::InvalidParameter { .. } | Error::Serialization { .. })) => {
                    let text = format!("it could not be sent: {error}");
                    failed.push((index, run.failed(index, round, text)));
                }
                Err(error) => stopped = stopped.or(Some(error)),
            }
        }
        run.note_sent(&stored, round).await?;
        if let Some(error) = stopped {
            return Err(unsent(stored.len(), error));
        }
        refused += failed.len();
        run.keep(failed, Vec::new()).await?;
        sent += stored.len();
    }
    Ok(Submitted { sent, before, refused, total })
}
