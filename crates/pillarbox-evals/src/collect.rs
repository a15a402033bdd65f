//! Results, on their way back.

use std::collections::HashMap;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::clock::after;
use pillarbox_core::{Batch, Error, Mailbox, RawMessage, ReadableBody, Receive, Settle};
use pillarbox_runtime::{BoxError, MainLoopResult, RemoteError, RemoteErrorKind, Uuid};
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
/// The same where it judges them first, one after the other. What comes again because that took too long is known by
/// then.
const LONG_LEASE: Duration = Duration::from_secs(60);
/// The longest single wait for results.
const POLL: Duration = Duration::from_secs(10);
/// How long to wait after an error of the backend.
const PAUSE: Duration = Duration::from_millis(500);
/// After how long without any result that is worth a word.
const SILENCE: Duration = Duration::from_secs(30);

/// Somebody who is told how far it is.
type Told = Box<dyn FnMut(&Progress) + Send>;

/// How results are collected: for how long, and who is told how far it is.
#[must_use]
#[derive(Default)]
pub struct Collect {
    timeout: Option<Duration>,
    told: Option<Told>,
    #[cfg(feature = "progress")]
    has_bar: bool,
}

impl Collect {
    /// Until all results are there, however long that takes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Until all results are there, but for so long at most; then it takes what is there by then. What is missing is in
    /// the report as such, and can be collected later.
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
    if run.requests().is_some() && run.scored_by() == ScoredBy::Collector {
        let text = "its outputs are to be judged when they are collected: collect them by `collect_outputs`";
        return Err(EvalError::Invalid(format!("run {}: {text}", run.id())));
    }
    let results = requests.resolve_reply(&run.address())?;
    let collecting = Collecting { run, results, how, lease: LEASE, most: 500 };
    collecting.all(Judged).await
}

/// Collects the outputs of a run from a main loop that knows of no eval, judges them, and reports.
///
/// They are judged one after the other, and each is written down at once. An evaluator that takes its time, such as a
/// judge that asks a model, is better off in an [`EvalLoop`](crate::EvalLoop). One that fails or panics fails the
/// sample. Judging is not cut short when the time is over.
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
    if run.requests().is_some() && run.scored_by() == ScoredBy::Workers {
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
    /// It costs something: each is written down at once.
    const IS_COSTLY: bool;

    fn judge(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> impl Future<Output = MainLoopResult<Scored>> + Send;
}

/// A worker has judged it.
struct Judged;

impl Judging<Scored> for Judged {
    const IS_COSTLY: bool = false;

    async fn judge(
        &self,
        _: &EvalRun,
        _: Index,
        mut answer: MainLoopResult<Scored>,
    ) -> MainLoopResult<Scored> {
        // A worker may be no loop of ours.
        if let Some(Err(text)) = answer.output().map(|scored| scored.score.check()) {
            answer.outcome = Err(RemoteError::new(RemoteErrorKind::Failed, text));
        }
        answer
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
    const IS_COSTLY: bool = true;

    async fn judge(
        &self,
        run: &EvalRun,
        index: Index,
        answer: MainLoopResult<O>,
    ) -> MainLoopResult<Scored> {
        let MainLoopResult { request_id, outcome, session_id, completed_at, .. } = answer;
        let outcome = match outcome {
            // The evaluator is gone with a panic; what evaluators share is theirs to keep sound.
            Ok(output) => {
                let judging = AssertUnwindSafe(self.score(run, index, output, session_id));
                let judged = judging.catch_unwind().await;
                let judged = judged.unwrap_or_else(|_| Err("the evaluator panicked".into()));
                judged.map_err(|error| {
                    let text = format!("the output cannot be judged: {error}");
                    RemoteError::new(RemoteErrorKind::Failed, text)
                })
            }
            Err(error) => Err(error),
        };
        let mut judged = MainLoopResult::new(request_id, outcome);
        (judged.session_id, judged.completed_at) = (session_id, completed_at);
        judged
    }
}

impl<I, O, E> ToJudge<I, O, E>
where
    I: DeserializeOwned + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: DeserializeOwned + Send + Sync + 'static,
{
    async fn score(
        &self,
        run: &EvalRun,
        index: Index,
        output: O,
        session_id: Option<Uuid>,
    ) -> std::result::Result<Scored, BoxError> {
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
        Ok(Scored { score, output: written, latency_ms: None, steps: Vec::new() })
    }
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
        let deadline = self.how.timeout.map(after);
        let known = self.run.slots.requests(|index, round| self.run.request_id(index, round));
        let most = self.most.min(self.results.capabilities().max_receive);
        let poll = POLL.min(self.results.capabilities().max_wait.unwrap_or(POLL));
        let mut show = Show::new(&mut self.how, self.run);
        let (mut last, mut silence) = (begun, SILENCE);
        // When the time is over: how many were there then, and are still taken.
        let mut there: Option<u64> = None;
        loop {
            let awaited = self.run.slots.awaited();
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // What is there is taken in any case: a dead letter may have been replayed.
            let is_last = awaited == 0 || left.is_some_and(|left| left.is_zero());
            if is_last && there.is_none() {
                there = Some(self.results.counts().await?.ready);
            }
            let wait = if is_last { Duration::ZERO } else { poll.min(left.unwrap_or(poll)) };
            let wait = self.results.capabilities().round_up(wait);
            let receive = Receive::up_to(most).visibility(self.lease).wait(wait);
            match self.results.receive(receive).await {
                Ok(batch) => {
                    let come = batch.len() + batch.undecodable().len();
                    there = there.map(|there| there.saturating_sub(come as u64));
                    if come > 0 {
                        take(self.run, &self.results, batch, &known, &judge).await?;
                        show.now(self.run);
                        (last, silence) = (Instant::now(), SILENCE);
                    }
                    if is_last && (come == 0 || there == Some(0)) {
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
            if last.elapsed() >= silence {
                let requests = self.run.requests().unwrap_or_default();
                tracing::warn!(
                    requests,
                    awaited,
                    "no result has come for {}s: does a loop work on these requests?",
                    last.elapsed().as_secs()
                );
                silence *= 2;
            }
        }
        drop(show);
        self.run.report()
    }
}

/// Writes down what came, and then acknowledges it. If that cannot be done, gives back what came.
async fn take<O: 'static>(
    run: &mut EvalRun,
    mailbox: &Mailbox<MainLoopResult<O>>,
    batch: Batch<MainLoopResult<O>, ()>,
    known: &HashMap<Uuid, (Index, u32)>,
    judge: &impl Judging<O>,
) -> Result<()> {
    let unread = batch.undecodable().iter().map(|unread| unread.message().receipt());
    let read = batch.messages().iter().map(|message| message.receipt());
    let receipts: Vec<_> = read.chain(unread).cloned().collect();
    let kept = keep(run, batch, known, judge).await;
    let settle = |receipt| match kept {
        Ok(()) => Settle::acknowledge(receipt),
        Err(_) => Settle::release(receipt, Duration::ZERO),
    };
    match mailbox.settle(receipts.into_iter().map(settle).collect::<Vec<_>>()).await {
        Ok(settled) => {
            let failed = settled.into_iter().filter_map(std::result::Result::err);
            failed.for_each(|error| tracing::debug!(%error, "a result may come once more"));
        }
        Err(error) => tracing::debug!(%error, "these results may come once more"),
    }
    kept
}

/// Writes down what came.
async fn keep<O: 'static, J: Judging<O>>(
    run: &mut EvalRun,
    mut batch: Batch<MainLoopResult<O>, ()>,
    known: &HashMap<Uuid, (Index, u32)>,
    judge: &J,
) -> Result<()> {
    let mut strays = Vec::new();
    let mut results = Vec::new();
    // What is new in this batch.
    let mut taken: HashMap<Index, Light> = HashMap::new();
    for unread in batch.take_undecodable() {
        let (message, error) = (&unread.message().delivery().message, unread.error());
        match answers(&message.body).and_then(|request| known.get(&request)) {
            Some(&(index, round)) => {
                results.push((index, unreadable(run, index, round, message, error)?));
            }
            None => strays.push(stray(message, error.to_string())),
        }
    }
    for message in batch {
        let (answer, delivery) = message.into_parts();
        let Some(&(index, round)) = known.get(&answer.request_id) else {
            let reason = format!("request {} is not of this run", answer.request_id);
            strays.push(stray(&delivery.message, reason));
            continue;
        };
        // One that is known already is not judged again.
        let may_count = |other: &Light| other.may_be_replaced_in(round);
        if !run.slots.may_count(index, round) || !taken.get(&index).is_none_or(may_count) {
            continue;
        }
        let answer = judge.judge(run, index, answer).await;
        let (experiment, sample) = (&run.experiment(index).name, run.sample_id(index));
        let result = EvalResult::new(experiment, sample, round, answer);
        let light = Light::of(&result, 0);
        if taken.get(&index).is_none_or(|other| light.replaces(other)) {
            taken.insert(index, light);
            results.push((index, result));
        }
        if J::IS_COSTLY {
            run.keep(std::mem::take(&mut results), Vec::new()).await?;
        }
    }
    run.keep(results, strays).await
}

/// Which request a body answers, if it is an answer at all.
fn answers(body: &[u8]) -> Option<Uuid> {
    #[derive(serde::Deserialize)]
    struct Answer {
        request_id: Uuid,
    }
    serde_json::from_slice::<Answer>(body).ok().map(|answer| answer.request_id)
}

/// What becomes of an answer to one of our requests that cannot be read. If it is JSON, whoever collects expects
/// something else, and can collect it once more; if it is not, nobody can.
fn unreadable(
    run: &EvalRun,
    index: Index,
    round: u32,
    message: &RawMessage,
    error: &Error,
) -> Result<EvalResult> {
    if serde_json::from_slice::<serde_json::Value>(&message.body).is_ok() {
        return Err(EvalError::Invalid(format!(
            "the answer to sample {:?} is not what is expected here, and stays where it is: {error}",
            run.sample_id(index)
        )));
    }
    Ok(run.failed(index, round, format!("its answer cannot be read: {error}")))
}

fn stray(message: &RawMessage, reason: String) -> Stray {
    tracing::warn!(message_id = %message.id, reason, "a message is no result of this run, and is put aside");
    let ReadableBody { encoding, value } = ReadableBody::convenient(&message.body);
    Stray { message_id: message.id, reason, body_encoding: encoding, body: value }
}

/// Tells how far it is.
struct Show {
    told: Option<Told>,
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
