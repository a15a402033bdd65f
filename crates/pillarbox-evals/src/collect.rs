//! Collection of results.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::clock::after;
use pillarbox_core::{Batch, Error, Mailbox, RawMessage, ReadableBody, Receive, Settle};
use pillarbox_runtime::BoxError;
use pillarbox_runtime::loops::{MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::error::{EvalError, Result};
use crate::evaluator::{BoxEvaluator, Case, IntoEvaluator, Session};
use crate::message::Scored;
use crate::report::EvalReport;
use crate::result::EvalResult;
use crate::run::sample_state::{Index, ResultSummary};
use crate::run::{EvalRun, Progress, ScoredBy, Stray};

/// Maximum wait of one receive.
const POLL: Duration = Duration::from_secs(10);
/// Delay after an error of the backend.
const ERROR_DELAY: Duration = Duration::from_millis(500);
/// Time without any result after which a warning is logged.
const WARN_AFTER: Duration = Duration::from_secs(30);

/// Callback for the progress.
type OnProgress = Box<dyn FnMut(&Progress) + Send>;

/// Options for collecting results: time limit and progress.
#[must_use]
#[derive(Default)]
pub struct Collect {
    timeout: Option<Duration>,
    on_progress: Option<OnProgress>,
    #[cfg(feature = "progress")]
    has_bar: bool,
}

impl Collect {
    /// Creates options to collect until all results have arrived.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates options to collect until all results have arrived or the time is over. Results that are available then
    /// are still taken; the others are reported as missing and can be collected later.
    pub fn within(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..Self::default() }
    }

    /// Creates options to collect the results that are available now.
    pub fn available() -> Self {
        Self::within(Duration::ZERO)
    }

    /// Shows a progress bar on stderr if that is a terminal.
    #[cfg(feature = "progress")]
    pub fn progress_bar(mut self) -> Self {
        self.has_bar = true;
        self
    }

    /// Sets a function that is called with the progress.
    pub fn on_progress(mut self, callback: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.on_progress = Some(Box::new(callback));
        self
    }
}

impl fmt::Debug for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collect").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Collects the results of a run from [`EvalLoop`](crate::EvalLoop)s, and returns a report. Waits for the results of all
/// samples that were sent.
///
/// A result is stored before it is acknowledged: if the process is killed or the future dropped at any point, calling
/// it again loses no result and counts none twice.
///
/// # Errors
///
/// If the backend is unreachable when the time is over, or a result cannot be stored.
pub async fn collect_results<T: 'static>(
    run: &mut EvalRun,
    requests: &Mailbox<T, MainLoopResult<Scored>>,
    how: Collect,
) -> Result<EvalReport> {
    if run.requests().is_some() && run.scored_by() == ScoredBy::Collector {
        let text = "its outputs are scored while they are collected: use `collect_outputs`";
        return Err(EvalError::Invalid(format!("run {}: {text}", run.id())));
    }
    let results = requests.resolve_reply(&run.address())?;
    collect(run, &results, how, ScoredByWorker).await
}

/// Collects the outputs of a run from a plain main loop, scores them, and returns a report.
///
/// Outputs are scored one after the other, and each score is stored at once. A slow evaluator, such as a judge that asks
/// a model, belongs into an [`EvalLoop`](crate::EvalLoop) instead. An evaluator that fails or panics fails the sample.
/// An evaluation is not cancelled when the time is over.
///
/// # Errors
///
/// The same as [`collect_results`].
pub async fn collect_outputs<T, I, O, E, Args>(
    run: &mut EvalRun,
    requests: &Mailbox<T, MainLoopResult<O>>,
    evaluator: impl IntoEvaluator<I, O, E, Args>,
    how: Collect,
) -> Result<EvalReport>
where
    T: 'static,
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: DeserializeOwned + Send + Sync + 'static,
{
    if run.requests().is_some() && run.scored_by() == ScoredBy::Workers {
        let text = "its outputs are scored by the workers: use `collect_results`";
        return Err(EvalError::Invalid(format!("run {}: {text}", run.id())));
    }
    let results = requests.resolve_reply(&run.address())?;
    collect(run, &results, how, ScoredHere(evaluator.into_evaluator())).await
}

/// Turns an answer into a scored one.
trait Scorer<O> {
    /// Lease of the results that are received.
    const LEASE: Duration;
    /// Maximum number of results per receive.
    const MAX_BATCH: usize;
    /// Whether each result is stored at once, because scoring is expensive.
    const IS_EXPENSIVE: bool;

    fn score(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> impl Future<Output = MainLoopResult<Scored>> + Send;
}

/// For answers that a worker has scored.
struct ScoredByWorker;

impl Scorer<Scored> for ScoredByWorker {
    /// Longer than it takes to store them. If it expires too early they are delivered again, and count once.
    const LEASE: Duration = Duration::from_secs(10);
    const MAX_BATCH: usize = 500;
    const IS_EXPENSIVE: bool = false;

    async fn score(
        &self,
        _: &EvalRun,
        _: Index,
        mut answer: MainLoopResult<Scored>,
    ) -> MainLoopResult<Scored> {
        // The worker may not be an `EvalLoop`.
        if let Some(Err(text)) = answer.output().map(|scored| scored.score.check()) {
            answer.outcome = Err(RemoteError::new(RemoteErrorKind::Failed, text));
        }
        answer
    }
}

/// For outputs that the collector scores.
struct ScoredHere<I, O, E>(BoxEvaluator<I, O, E>);

impl<I, O, E> Scorer<O> for ScoredHere<I, O, E>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: DeserializeOwned + Send + Sync + 'static,
{
    /// They are scored one after the other. An output that is delivered again is not scored again.
    const LEASE: Duration = Duration::from_secs(60);
    const MAX_BATCH: usize = 16;
    const IS_EXPENSIVE: bool = true;

    async fn score(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> MainLoopResult<Scored> {
        let MainLoopResult { request_id, outcome, session_id, completed_at, .. } = answer;
        let outcome = match outcome {
            Ok(output) => {
                let scoring = async {
                    let experiment = run.experiment(index);
                    let session = Session {
                        run_id: run.id().to_owned(),
                        experiment: experiment.name.clone(),
                        session_id,
                        latency: None,
                        steps: Vec::new(),
                        resources: experiment.resources.clone(),
                        budget: experiment.budget.clone(),
                    };
                    let written = serde_json::to_value(&output)?;
                    let case = Arc::new(Case { sample: run.sample(index)?, output, session });
                    let score = self.0.evaluate(&case).await?;
                    let (latency_ms, steps) = (None, Vec::new());
                    Ok::<_, BoxError>(Scored { score, output: written, latency_ms, steps })
                };
                // The future is dropped after a panic; state that evaluators share is their own responsibility.
                let scored = AssertUnwindSafe(scoring).catch_unwind().await;
                let scored = scored.unwrap_or_else(|_| Err("the evaluator panicked".into()));
                scored.map_err(|error| {
                    let text = format!("the output cannot be scored: {error}");
                    RemoteError::new(RemoteErrorKind::Failed, text)
                })
            }
            Err(error) => Err(error),
        };
        let mut scored = MainLoopResult::new(request_id, outcome);
        (scored.session_id, scored.completed_at) = (session_id, completed_at);
        scored
    }
}

/// Collects until no result is missing or the time is over.
async fn collect<O: 'static, S: Scorer<O>>(
    run: &mut EvalRun,
    results: &Mailbox<MainLoopResult<O>>,
    mut how: Collect,
    scorer: S,
) -> Result<EvalReport> {
    let started = Instant::now();
    let deadline = how.timeout.map(after);
    let known = run.states.requests(|index, round| run.request_id(index, round));
    let max_batch = S::MAX_BATCH.min(results.capabilities().max_receive);
    let poll = POLL.min(results.capabilities().max_wait.unwrap_or(POLL));
    let mut reporter = ProgressReporter::new(&mut how, run);
    let (mut last, mut warn_after) = (started, WARN_AFTER);
    // Number of results still to take, once the time is over.
    let mut remaining: Option<u64> = None;
    loop {
        let awaited = run.states.awaited();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        // Available results are taken even if none is missing: a dead letter may have been replayed.
        let is_last = awaited == 0 || left.is_some_and(|left| left.is_zero());
        if is_last && remaining.is_none() {
            remaining = Some(results.counts().await?.ready);
        }
        let wait = if is_last { Duration::ZERO } else { poll.min(left.unwrap_or(poll)) };
        let wait = results.capabilities().round_up(wait);
        let receive = Receive::up_to(max_batch).visibility(S::LEASE).wait(wait);
        match results.receive(receive).await {
            Ok(batch) => {
                let received = batch.len() + batch.undecodable().len();
                remaining = remaining.map(|left| left.saturating_sub(received as u64));
                if received > 0 {
                    store_batch(run, results, batch, &known, &scorer).await?;
                    reporter.update(run);
                    (last, warn_after) = (Instant::now(), WARN_AFTER);
                }
                if is_last && (received == 0 || remaining == Some(0)) {
                    break;
                }
            }
            Err(error @ Error::Connection { .. }) => {
                if is_last {
                    return Err(error.into());
                }
                tracing::warn!(%error, "cannot receive results, trying again");
                tokio::time::sleep(ERROR_DELAY.min(left.unwrap_or(ERROR_DELAY))).await;
            }
            Err(error) => return Err(error.into()),
        }
        if last.elapsed() >= warn_after {
            let requests = run.requests().unwrap_or_default();
            tracing::warn!(
                requests,
                awaited,
                "no result for {}s: is a loop running for these requests?",
                last.elapsed().as_secs()
            );
            warn_after *= 2;
        }
    }
    drop(reporter);
    run.report()
}

/// Stores a batch and then acknowledges it, or releases it if it cannot be stored.
async fn store_batch<O: 'static>(
    run: &mut EvalRun,
    mailbox: &Mailbox<MainLoopResult<O>>,
    batch: Batch<MainLoopResult<O>, ()>,
    known: &HashMap<Uuid, (Index, u32)>,
    scorer: &impl Scorer<O>,
) -> Result<()> {
    let undecodable = batch.undecodable().iter().map(|one| one.message().receipt());
    let decoded = batch.messages().iter().map(|message| message.receipt());
    let receipts: Vec<_> = decoded.chain(undecodable).cloned().collect();
    let stored = record_batch(run, batch, known, scorer).await;
    let settle = |receipt| match stored {
        Ok(()) => Settle::acknowledge(receipt),
        Err(_) => Settle::release(receipt, Duration::ZERO),
    };
    match mailbox.settle(receipts.into_iter().map(settle).collect::<Vec<_>>()).await {
        Ok(settled) => {
            let failed = settled.into_iter().filter_map(std::result::Result::err);
            failed.for_each(|error| tracing::debug!(%error, "a result may be delivered again"));
        }
        Err(error) => tracing::debug!(%error, "these results may be delivered again"),
    }
    stored
}

/// Scores and stores a batch.
async fn record_batch<O: 'static, S: Scorer<O>>(
    run: &mut EvalRun,
    mut batch: Batch<MainLoopResult<O>, ()>,
    known: &HashMap<Uuid, (Index, u32)>,
    scorer: &S,
) -> Result<()> {
    let mut strays = Vec::new();
    let mut results = Vec::new();
    // New results of this batch.
    let mut taken: HashMap<Index, ResultSummary> = HashMap::new();
    for undecodable in batch.take_undecodable() {
        let message = &undecodable.message().delivery().message;
        let error = undecodable.error();
        match answered_request(&message.body).and_then(|request| known.get(&request)) {
            Some(&(index, round)) => {
                results.push((index, unreadable(run, index, round, message, error)?));
            }
            None => strays.push(stray(message, error.to_string())),
        }
    }
    for message in batch {
        let (answer, delivery) = message.into_parts();
        let Some(&(index, round)) = known.get(&answer.request_id) else {
            let reason = format!("request {} does not belong to this run", answer.request_id);
            strays.push(stray(&delivery.message, reason));
            continue;
        };
        // A result that cannot count is not scored.
        let may_count = |other: &ResultSummary| other.may_be_replaced_in(round);
        if !run.states.may_count(index, round) || !taken.get(&index).is_none_or(may_count) {
            continue;
        }
        let answer = scorer.score(run, index, answer).await;
        let (experiment, sample) = (&run.experiment(index).name, run.sample_id(index));
        let result = EvalResult::new(experiment, sample, round, answer);
        let summary = ResultSummary::of(&result, 0);
        if taken.get(&index).is_none_or(|other| summary.replaces(other)) {
            taken.insert(index, summary);
            results.push((index, result));
        }
        if S::IS_EXPENSIVE {
            run.store(std::mem::take(&mut results), Vec::new()).await?;
        }
    }
    run.store(results, strays).await
}

/// Returns the request that a body answers, if it is an answer.
fn answered_request(body: &[u8]) -> Option<Uuid> {
    #[derive(serde::Deserialize)]
    struct Answer {
        request_id: Uuid,
    }
    serde_json::from_slice::<Answer>(body).ok().map(|answer| answer.request_id)
}

/// Handles an answer to one of our requests that cannot be decoded. If it is JSON, the collector expects the wrong type
/// and the answer stays in the queue; otherwise the sample has failed.
fn unreadable(
    run: &EvalRun,
    index: Index,
    round: u32,
    message: &RawMessage,
    error: &Error,
) -> Result<EvalResult> {
    if serde_json::from_slice::<serde_json::Value>(&message.body).is_ok() {
        return Err(EvalError::Invalid(format!(
            "the answer to sample {:?} does not have the expected type, and stays in the queue: {error}",
            run.sample_id(index)
        )));
    }
    Ok(run.failed(index, round, format!("its answer cannot be decoded: {error}")))
}

fn stray(message: &RawMessage, reason: String) -> Stray {
    tracing::warn!(message_id = %message.id, reason, "a message is not a result of this run, it goes to strays.jsonl");
    let ReadableBody { encoding, value } = ReadableBody::convenient(&message.body);
    Stray { message_id: message.id, reason, body_encoding: encoding, body: value }
}

/// Reports the progress to the callback and the progress bar.
struct ProgressReporter {
    on_progress: Option<OnProgress>,
    #[cfg(feature = "progress")]
    bar: indicatif::ProgressBar,
}

impl ProgressReporter {
    fn new(how: &mut Collect, run: &EvalRun) -> Self {
        let mut reporter = Self {
            on_progress: how.on_progress.take(),
            #[cfg(feature = "progress")]
            bar: if how.has_bar {
                bar(run.progress().sent)
            } else {
                indicatif::ProgressBar::hidden()
            },
        };
        reporter.update(run);
        reporter
    }

    fn update(&mut self, run: &EvalRun) {
        #[cfg(feature = "progress")]
        let is_bar_visible = !self.bar.is_hidden();
        #[cfg(not(feature = "progress"))]
        let is_bar_visible = false;
        if self.on_progress.is_none() && !is_bar_visible {
            return;
        }
        let progress = run.progress();
        if let Some(callback) = &mut self.on_progress {
            callback(&progress);
        }
        #[cfg(feature = "progress")]
        {
            self.bar.set_position((progress.sent - progress.awaited) as u64);
            self.bar.set_message(summary(&progress));
        }
    }
}

#[cfg(feature = "progress")]
impl Drop for ProgressReporter {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(feature = "progress")]
fn bar(total: usize) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(total as u64);
    // The template is a constant and valid.
    let style = "{bar:32} {pos} of {len} results  {per_sec}  {eta} left  {msg}";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Returns the progress in a few words.
#[cfg(feature = "progress")]
fn summary(progress: &Progress) -> String {
    let mut text = format!("{} passed", progress.passed);
    let others = [
        ("not passed", progress.not_passed),
        ("failed", progress.failed),
        ("dead-lettered", progress.dead_lettered),
    ];
    for (word, number) in others.into_iter().filter(|(_, number)| *number > 0) {
        text.push_str(&format!(", {number} {word}"));
    }
    text
}
