//! Submission of samples.

use pillarbox_core::{Error, Mailbox};
use pillarbox_runtime::loops::{MainLoopRequest, MainLoopResult};
use serde::Serialize;

use crate::dataset::{Dataset, Sample};
use crate::error::{EvalError, Result};
use crate::experiment::Experiment;
use crate::message::{EvalRequest, EvalRequests};
use crate::run::{EvalRun, ScoredBy};

/// Number of samples that are sent before that is recorded: a killed process may send this many again.
const BATCH: usize = 100;

/// Outcome of a submission, in numbers of samples. A sample counts once per experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Submitted {
    /// Samples that were sent.
    pub sent: usize,
    /// Samples that had been sent before and were skipped.
    pub before: usize,
    /// Samples that the queue rejects for good, such as one that is too large. They count as failed, and the report
    /// has the reason.
    pub refused: usize,
    /// All samples.
    pub total: usize,
}

/// Sends the samples of a dataset to [`EvalLoop`](crate::EvalLoop)s, for one experiment.
///
/// # Errors
///
/// The same as [`submit_experiments`].
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

/// Sends the samples of a dataset to [`EvalLoop`](crate::EvalLoop)s, once per experiment.
///
/// Samples that were sent before are skipped, so calling it again continues an interrupted submission. A sample that was
/// sent just before its process was killed is sent again under the same id: that has no effect while the queue still
/// holds it, and a second result of it does not count.
///
/// # Errors
///
/// [`EvalError::Unsent`] if the queue does not take all samples; [`EvalError::Invalid`] if the run was started with a
/// different dataset or queue, or has a different experiment of the same name.
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

/// Sends the inputs of a dataset to a plain main loop, once per experiment. Its outputs are scored by
/// [`collect_outputs`](crate::collect_outputs).
///
/// # Errors
///
/// The same as [`submit_experiments`].
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

/// Returns the name of a queue and of its backend.
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
    let to_send = run.states.to_send();
    let total = run.states.len();
    let before = total - to_send.len();
    let (mut sent, mut refused) = (0, 0);
    // All samples of a batch are in the same round.
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
        let stopped_after = |more: usize, error| {
            let (sent, unsent) = (sent + more, to_send.len() - done - more);
            EvalError::Unsent { sent, unsent, error }
        };
        let results =
            requests.send_batch_with(entries).await.map_err(|error| stopped_after(0, error))?;
        let mut stopped = None;
        let mut stored = Vec::with_capacity(batch.len());
        let mut failed = Vec::new();
        for (&(index, _), result) in batch.iter().zip(results) {
            match result {
                Ok(_) => stored.push(index),
                Err(error @ (Error::InvalidParameter { .. } | Error::Serialization { .. })) => {
                    let text = format!("the sample could not be sent: {error}");
                    failed.push((index, run.failed(index, round, text)));
                }
                Err(error) => stopped = stopped.or(Some(error)),
            }
        }
        run.record_sent(&stored, round).await?;
        if let Some(error) = stopped {
            return Err(stopped_after(stored.len(), error));
        }
        refused += failed.len();
        run.store(failed, Vec::new()).await?;
        sent += stored.len();
    }
    Ok(Submitted { sent, before, refused, total })
}
