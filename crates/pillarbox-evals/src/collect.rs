//! Results, on their way back.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Batch, Error, Mailbox, RawMessage, Receive, Settle};
use pillarbox_runtime::{MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::error::{EvalError, Result};
use crate::evaluator::{BoxEvaluator, Case, IntoEvaluator, Session};
use crate::message::Scored;
use crate::report::EvalReport;
use crate::result::EvalResult;
use crate::run::slots::{Index, Light};
use crate::run::{EvalRun, Progress, ScoredBy, Stray};

/// How long the collector keeps results to itself: longer than it takes to write them down, and as long as the next
/// one waits for them if it is killed. If it ends too early, they come twice and count once.
const LEASE: Duration = Duration::from_secs(10);
/// The same where it judges them first.
const LONG_LEASE: Duration = Duration::from_secs(600);
/// The longest single wait for results.
const POLL: Duration = Duration::from_secs(10);
/// How long to wait after an error of the backend.
const PAUSE: Duration = Duration::from_millis(500);
/// After how long without any result that is worth a word.
const SILENCE: Duration = Duration::from_secs(30);

/// How results are collected: for how long, and who is told how far it is.
#[must_use]
#[derive(Default)]
pub struct Collect {
    timeout: Option<Duration>,
    told: Option<Box<dyn FnMut(&Progress) + Send>>,
    #[cfg(feature = "progress")]
    has_bar: bool,
}

impl Collect {
    /// Until all results are there, however long that takes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Until all results are there, but for so long at most. What is missing then is in the report as such, and can
    /// be collected later.
    pub fn within(timeout: Duration) -> Self {
        Self { timeout: Some(timeout), ..Self::default() }
    }

    /// Those that are there already.
    pub fn what_is_there() -> Self {
        Self::within(Duration::ZERO)
    }

    /// Shows a bar on stderr, if that is a terminal.
    #[cfg(feature = "progress")]
    pub fn progress_bar(mut self) -> Self {
        self.has_bar = true;
        self
    }

    /// Calls a function now and then with how far it is.
    pub fn on_progress(mut self, told: impl FnMut(&Progress) + Send + 'static) -> Self {
        self.told = Some(Box::new(told));
        self
    }
}

impl fmt::Debug for Collect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Collect").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// Collects the results of a run from [`EvalLoop`](crate::EvalLoop)s, and reports. Those of all samples that were
/// sent are waited for.
///
/// Each is written down before it is acknowledged: killed at any moment and called again, nothing is lost, and
/// nothing is counted twice. The same if its future is dropped.
///
/// # Errors
///
/// Where the backend does not answer until the time is over, or the results cannot be written down.
pub async fn collect_results<T: 'static>(
    run: &mut EvalRun,
    requests: &Mailbox<T, MainLoopResult<Scored>>,
    how: Collect,
) -> Result<EvalReport> {
    if run.scored_by() == ScoredBy::Collector && run.progress().sent > 0 {
        let text = "its outputs are to be judged when they are collected: collect them by `collect_outputs`";
        return Err(EvalError::Invalid(format!("run {}: {text}", run.id())));
    }
    let results = requests.resolve_reply(&run.address())?;
    let collecting = Collecting { run, results, how, lease: LEASE, most: 500 };
    collecting.all(Judged).await
}

/// Collects the outputs of a run from a main loop that knows of no eval, judges them, and reports.
///
/// They are judged one after the other, and written down before they are acknowledged. An evaluator that takes its
/// time, such as a judge that asks a model, is better off in an [`EvalLoop`](crate::EvalLoop).
///
/// # Errors
///
/// Those of [`collect_results`].
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
    if run.scored_by() == ScoredBy::Workers && run.progress().sent > 0 {
        let text =
            "its outputs are judged by the workers: collect its results by `collect_results`";
        return Err(EvalError::Invalid(format!("run {}: {text}", run.id())));
    }
    let evaluator = evaluator.into_evaluator();
    let results = requests.resolve_reply(&run.address())?;
    let collecting = Collecting { run, results, how, lease: LONG_LEASE, most: 16 };
    collecting.all(ToJudge(evaluator)).await
}

/// Makes a result of an answer.
trait Judging<O> {
    fn judge(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> impl Future<Output = Result<MainLoopResult<Scored>>> + Send;
}

/// A worker has judged it.
struct Judged;

impl Judging<Scored> for Judged {
    async fn judge(
        &self,
        _: &EvalRun,
        _: Index,
        answer: MainLoopResult<Scored>,
    ) -> Result<MainLoopResult<Scored>> {
        Ok(answer)
    }
}

/// It is judged here.
struct ToJudge<I, O, E>(BoxEvaluator<I, O, E>);

impl<I, O, E> Judging<O> for ToJudge<I, O, E>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: DeserializeOwned + Send + Sync + 'static,
{
    async fn judge(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> Result<MainLoopResult<Scored>> {
        judged(run, index, answer, &self.0).await
    }
}

/// Judges an output.
async fn judged<I, O, E>(
    run: &EvalRun,
    index: Index,
    answer: MainLoopResult<O>,
    evaluator: &BoxEvaluator<I, O, E>,
) -> Result<MainLoopResult<Scored>>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: DeserializeOwned + Send + Sync + 'static,
{
    let MainLoopResult { request_id, outcome, session_id, completed_at, .. } = answer;
    let outcome = match outcome {
        Ok(output) => {
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
            let written = serde_json::to_value(&output);
            let case = Arc::new(Case { sample: run.sample(index)?, output, session });
            let scored = match written {
                Ok(output) => evaluator.evaluate(&case).await.map(|score| (score, output)),
                Err(error) => Err(error.into()),
            };
            scored
                .map(|(score, output)| Scored {
                    score,
                    output,
                    latency_ms: None,
                    steps: Vec::new(),
                })
                .map_err(|error| {
                    let text = format!("the output cannot be judged: {error}");
                    RemoteError::new(RemoteErrorKind::Failed, text)
                })
        }
        Err(error) => Err(error),
    };
    let mut judged = MainLoopResult::new(request_id, outcome);
    (judged.session_id, judged.completed_at) = (session_id, completed_at);
    Ok(judged)
}

struct Collecting<'a, O> {
    run: &'a mut EvalRun,
    results: Mailbox<MainLoopResult<O>>,
    how: Collect,
    lease: Duration,
    /// How many are taken at a time.
    most: usize,
}

impl<O: 'static> Collecting<'_, O> {
    /// Collects until there is nothing left to come, or the time is over.
    async fn all(mut self, judge: impl Judging<O>) -> Result<EvalReport> {
        let begun = Instant::now();
        let deadline = self.how.timeout.map(|timeout| begun + timeout.min(FOREVER));
        let known = self.run.slots.requests(|index, attempt| self.run.request_id(index, attempt));
        let most = self.most.min(self.results.capabilities().max_receive);
        let poll = POLL.min(self.results.capabilities().max_wait.unwrap_or(POLL));
        let mut show = Show::new(&mut self.how, self.run);
        let mut has_come = false;
        let mut silence = SILENCE;
        loop {
            let awaited = self.run.slots.awaited();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // What is there is taken in any case: a dead letter may have been replayed.
            let is_last = awaited == 0 || left.is_some_and(|left| left.is_zero());
            let mut wait = if is_last { Duration::ZERO } else { poll.min(left.unwrap_or(poll)) };
            if !self.results.capabilities().sub_second {
                wait = Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0));
            }
            let receive = Receive::up_to(most).visibility(self.lease).wait(wait);
            match self.results.receive(receive).await {
                Ok(batch) => {
                    let come = batch.len() + batch.undecodable().len();
                    has_come |= come > 0;
                    if come > 0 {
                        take(self.run, &self.results, batch, &known, &judge).await?;
                        show.now(self.run);
                    } else if is_last {
                        break;
                    }
                }
                Err(error @ Error::Connection { .. }) => {
                    if is_last {
                        return Err(error.into());
                    }
                    tracing::warn!(%error, "results cannot be collected just now");
                    tokio::time::sleep(PAUSE.min(left.unwrap_or(PAUSE))).await;
                }
                Err(error) => return Err(error.into()),
            }
            if !has_come && begun.elapsed() >= silence {
                silence = Duration::MAX;
                let requests = self.run.requests().unwrap_or_default();
                tracing::warn!(
                    requests,
                    "no result has come yet: does a loop work on these requests?"
                );
            }
        }
        drop(show);
        self.run.report()
    }
}

/// As good as for ever, and still a time that can be added to another.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Writes down what came, and then acknowledges it.
async fn take<O: 'static>(
    run: &mut EvalRun,
    mailbox: &Mailbox<MainLoopResult<O>>,
    mut batch: Batch<MainLoopResult<O>, ()>,
    known: &HashMap<Uuid, (Index, u32)>,
    judge: &impl Judging<O>,
) -> Result<()> {
    let mut receipts = Vec::new();
    let mut strays = Vec::new();
    let mut results = Vec::new();
    // What is new in this batch.
    let mut taken: HashMap<Index, Light> = HashMap::new();
    for unread in batch.take_undecodable() {
        let reason = unread.error().to_string();
        strays.push(stray(&unread.message().delivery().message, reason));
        receipts.push(unread.message().receipt().clone());
    }
    for message in batch {
        receipts.push(message.receipt().clone());
        let (answer, delivery) = message.into_parts();
        let Some(&(index, attempt)) = known.get(&answer.request_id) else {
            let reason = format!("request {} is not of this run", answer.request_id);
            strays.push(stray(&delivery.message, reason));
            continue;
        };
        if run.slots.may_count(index, attempt) {
            let answer = judge.judge(run, index, answer).await?;
            let (experiment, sample) = (&run.experiment(index).name, run.sample_id(index));
            let result = EvalResult::new(experiment, sample, attempt, answer);
            let light = Light::of(&result, 0);
            if taken.get(&index).is_none_or(|other| light.replaces(other)) {
                taken.insert(index, light);
                results.push((index, result));
            }
        }
    }
    run.keep(results, strays).await?;
    let settles = receipts.into_iter().map(Settle::acknowledge).collect::<Vec<_>>();
    match mailbox.settle(settles).await {
        Ok(settled) => {
            let failed = settled.into_iter().filter_map(std::result::Result::err);
            failed.for_each(|error| tracing::debug!(%error, "a result may come once more"));
        }
        Err(error) => tracing::debug!(%error, "these results may come once more"),
    }
    Ok(())
}

fn stray(message: &RawMessage, reason: String) -> Stray {
    tracing::warn!(message_id = %message.id, reason, "a message is no result of this run, and is put aside");
    let body = String::from_utf8_lossy(&message.body).into_owned();
    Stray { message_id: message.id, reason, body }
}

/// Tells how far it is.
struct Show {
    told: Option<Box<dyn FnMut(&Progress) + Send>>,
    #[cfg(feature = "progress")]
    bar: indicatif::ProgressBar,
}

impl Show {
    fn new(how: &mut Collect, run: &EvalRun) -> Self {
        let mut show = Self {
            told: how.told.take(),
            #[cfg(feature = "progress")]
            bar: if how.has_bar {
                bar(run.progress().sent)
            } else {
                indicatif::ProgressBar::hidden()
            },
        };
        show.now(run);
        show
    }

    fn now(&mut self, run: &EvalRun) {
        #[cfg(feature = "progress")]
        let is_watched = !self.bar.is_hidden();
        #[cfg(not(feature = "progress"))]
        let is_watched = false;
        if self.told.is_none() && !is_watched {
            return;
        }
        let progress = run.progress();
        if let Some(told) = &mut self.told {
            told(&progress);
        }
        #[cfg(feature = "progress")]
        {
            self.bar.set_position((progress.sent - progress.awaited) as u64);
            self.bar.set_message(in_short(&progress));
        }
    }
}

#[cfg(feature = "progress")]
impl Drop for Show {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(feature = "progress")]
fn bar(total: usize) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::new(total as u64);
    // The template is ours and well formed; a plain bar would do as well.
    let style = "{bar:32} {pos} of {len} results  {per_sec}  {eta} left  {msg}";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// How it goes, in a few words.
#[cfg(feature = "progress")]
fn in_short(progress: &Progress) -> String {
    let mut text = format!("{} passed", progress.passed);
    let others =
        [("not passed", progress.not_passed), ("failed", progress.failed), ("died", progress.died)];
    for (word, number) in others.into_iter().filter(|(_, number)| *number > 0) {
        text.push_str(&format!(", {number} {word}"));
    }
    text
}
