//! A loop that works on samples and judges what comes out.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use pillarbox_core::{BoxFuture, Error, Result};
use pillarbox_runtime::tower::util::BoxCloneSyncService;
use pillarbox_runtime::tower::{Service, ServiceExt};
use pillarbox_runtime::{
    Adapter, AdapterService, BoxError, Control, DlqPolicy, LoopCall, MainLoop, MainLoopRequest,
    MainLoopResult, Runnable, StatsSnapshot, Worker,
};
use serde::Serialize;

use crate::evaluator::{BoxEvaluator, Case, IntoEvaluator, Session};
use crate::message::{EvalRequest, EvalRequests, Scored};

/// Gives samples to the adapter of a main loop, judges what comes out, and sends the score to whoever collects
/// the run.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_evals::{
///     Collect, Dataset, EvalLoop, EvalRequests, EvalRun, Experiment, Sample, collect_results, exact_match,
///     submit_dataset,
/// };
/// use pillarbox_runtime::{MainLoop, MainLoopRequest, MainLoopResult, Runnable};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// // The loop of the program, as it runs in production ...
/// let squares: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> = backend.mailbox("squares")?;
/// let main_loop = MainLoop::new(squares, |n: i64| async move { n * n });
/// // ... and one that finds out how good it is.
/// let requests: EvalRequests<i64, i64> = backend.mailbox("squares-eval")?;
/// let running = EvalLoop::new(main_loop, exact_match, requests.clone()).start();
///
/// let dataset = Dataset::new([Sample::new("two", 2, 4), Sample::new("three", 3, 10)])?;
/// let mut run = EvalRun::in_memory();
/// submit_dataset(&mut run, &requests, &dataset, Experiment::baseline()).await?;
/// let report = collect_results(&mut run, &requests, Collect::within(Duration::from_secs(10))).await?;
/// assert_eq!((report.total, report.passed), (2, 1));
/// assert_eq!(report.failures[0].reason.as_deref(), Some("expected 10, got 9"));
/// # running.stop().await?;
/// # Ok(()) }
/// ```
///
/// It is a [`MainLoop`], with all that one does: leases, timeouts, deadlines, dead letters. Any number of them, in
/// any number of processes, work on a run together.
#[must_use = "a loop does nothing until it is run"]
pub struct EvalLoop<I, E> {
    inner: MainLoop<EvalRequest<I, E>, Scored>,
}

/// The worker beneath a loop.
type EvalWorker<I, E> = Worker<MainLoopRequest<EvalRequest<I, E>>, MainLoopResult<Scored>>;

impl<I, E> EvalLoop<I, E>
where
    I: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Judges what the adapter of a main loop gives, with the resources and the timeout that it has there. Its own
    /// requests are left alone.
    pub fn new<O, Args>(
        main_loop: MainLoop<I, O>,
        evaluator: impl IntoEvaluator<I, O, E, Args>,
        requests: EvalRequests<I, E>,
    ) -> Self
    where
        O: Serialize + Send + Sync + 'static,
    {
        let evaluator = evaluator.into_evaluator();
        let inner = main_loop.behind(requests, |adapter| Evaluating { adapter, evaluator });
        // Nobody is a client here, and who collects a run may take its time.
        Self { inner: inner.keep_all_replies() }
    }

    /// Judges what an adapter gives that is not that of a main loop.
    ///
    /// Where it returns a `Result`, the type of its output must be said: `EvalLoop::of::<String, _, _>(...)`.
    pub fn of<O, A, V>(
        adapter: impl Adapter<I, O, A>,
        evaluator: impl IntoEvaluator<I, O, E, V>,
        requests: EvalRequests<I, E>,
    ) -> Self
    where
        A: 'static,
        O: Serialize + Send + Sync + 'static,
    {
        let adapter = BoxCloneSyncService::new(AdapterService::new(adapter));
        let evaluating = Evaluating { adapter, evaluator: evaluator.into_evaluator() };
        Self { inner: MainLoop::service(requests, evaluating).keep_all_replies() }
    }

    /// Gives the adapter something to work with that cannot travel; see [`MainLoop::resource`].
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        Self { inner: self.inner.resource(resource) }
    }

    /// Where samples go that fail as often as they may: from now on a failure of the adapter or of the evaluator is
    /// tried again, and only a sample that has become a dead letter has died.
    pub fn dead_letters(self, policy: DlqPolicy) -> Self {
        Self { inner: self.inner.dead_letters(policy) }
    }

    /// Sets the number of deliveries after which a sample that fails becomes a
    /// [dead letter](Self::dead_letters). Defaults to 5.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        Self { inner: self.inner.max_deliveries(deliveries) }
    }

    /// How many samples are worked on at the same time. 4 unless said otherwise.
    pub fn workers(self, workers: usize) -> Self {
        Self { inner: self.inner.workers(workers) }
    }

    /// How long the lease of a sample runs: how long others wait if this process dies. It is extended while the
    /// work goes on. 5 minutes unless said otherwise.
    pub fn visibility(self, visibility: Duration) -> Self {
        Self { inner: self.inner.visibility(visibility) }
    }

    /// How long the adapter and the evaluator may take together. That of the main loop unless said otherwise.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.timeout(timeout) }
    }

    /// Lets them take as long as they want.
    pub fn without_timeout(self) -> Self {
        Self { inner: self.inner.without_timeout() }
    }

    /// Changes the worker beneath; see [`MainLoop::worker`].
    pub fn worker(self, change: impl FnOnce(EvalWorker<I, E>) -> EvalWorker<I, E>) -> Self {
        Self { inner: self.inner.worker(change) }
    }
}

impl<I, E> Runnable for EvalLoop<I, E>
where
    I: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Error = Error;

    fn name(&self) -> String {
        self.inner.name()
    }

    fn control(&self) -> Control {
        self.inner.control()
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot>> + Send + 'static {
        self.inner.work()
    }
}

impl<I: 'static, E: 'static> fmt::Debug for EvalLoop<I, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EvalLoop").field(&self.inner).finish()
    }
}

/// The service of the loop: runs the adapter, judges what it gives.
struct Evaluating<I, O, E> {
    adapter: BoxCloneSyncService<LoopCall<I>, O, BoxError>,
    evaluator: BoxEvaluator<I, O, E>,
}

impl<I, O, E> Clone for Evaluating<I, O, E> {
    fn clone(&self) -> Self {
        Self { adapter: self.adapter.clone(), evaluator: self.evaluator.clone() }
    }
}

impl<I, O, E> Service<LoopCall<EvalRequest<I, E>>> for Evaluating<I, O, E>
where
    I: Clone + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Response = Scored;
    type Error = BoxError;
    type Future = BoxFuture<'static, std::result::Result<Scored, BoxError>>;

    /// The adapter gets ready within the time that a sample has.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: LoopCall<EvalRequest<I, E>>) -> Self::Future {
        let (adapter, evaluator) = (self.adapter.clone(), self.evaluator.clone());
        Box::pin(async move {
            let run = call.run.clone();
            let mut request = None;
            let call = call.map(|whole| request.insert(whole).sample.input.clone());
            let begun = Instant::now();
            let output = adapter.oneshot(call).await?;
            let latency = begun.elapsed();
            let EvalRequest { run_id, experiment, sample } =
                request.ok_or("a call without a request")?;
            let written = serde_json::to_value(&output)
                .map_err(|error| format!("the output cannot be written as JSON: {error}"))?;
            let session = Session {
                run_id,
                experiment,
                session_id: run.session_id(),
                latency: Some(latency),
                steps: run.steps(),
                resources: run.resources().clone(),
                budget: run.budget().clone(),
            };
            let case = Arc::new(Case { sample, output, session });
            let score = evaluator.evaluate(&case).await?;
            let steps = if score.passed { Vec::new() } else { case.session.steps.clone() };
            let latency_ms = Some(milliseconds(latency));
            Ok(Scored { score, output: written, latency_ms, steps })
        })
    }
}

/// To the microsecond.
pub(crate) fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}
