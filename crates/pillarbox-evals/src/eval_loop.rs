//! A loop that runs an adapter on samples and scores its outputs.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use pillarbox_core::{BoxFuture, Error, Result};
use pillarbox_runtime::dead_letters::DlqPolicy;
use pillarbox_runtime::loops::{
    Adapter, AdapterService, LoopCall, MainLoop, MainLoopRequest, MainLoopResult,
};
use pillarbox_runtime::stats::StatsSnapshot;
use pillarbox_runtime::tower::util::BoxCloneSyncService;
use pillarbox_runtime::tower::{Service, ServiceExt};
use pillarbox_runtime::{BoxError, Control, Runnable, Worker};
use serde::Serialize;

use crate::evaluator::{BoxEvaluator, Case, IntoEvaluator, Session};
use crate::message::{EvalRequest, EvalRequests, Scored};
use crate::steps::{StepRecorder, milliseconds};

/// Runs the adapter of a main loop on samples, scores the outputs, and sends the scores to the collector of the run.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_evals::{
///     Collect, Dataset, EvalLoop, EvalRequests, EvalRun, Experiment, Sample, collect_results, exact_match,
///     submit_dataset,
/// };
/// use pillarbox_runtime::Runnable;
/// use pillarbox_runtime::loops::{MainLoop, MainLoopRequest, MainLoopResult};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// // The main loop, as it runs in production ...
/// let squares: Mailbox<MainLoopRequest<i64>, MainLoopResult<i64>> = backend.mailbox("squares")?;
/// let main_loop = MainLoop::new(squares, |n: i64| async move { n * n });
/// // ... and an eval loop around its adapter.
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
/// It is a [`MainLoop`], with its leases, timeouts, deadlines and dead letters. Any number of eval loops, in any number
/// of processes, can work on a run.
#[must_use = "a loop does nothing until it is run"]
pub struct EvalLoop<I, E> {
    inner: MainLoop<EvalRequest<I, E>, Scored>,
}

/// The worker of an eval loop.
type EvalWorker<I, E> = Worker<MainLoopRequest<EvalRequest<I, E>>, MainLoopResult<Scored>>;

impl<I, E> EvalLoop<I, E>
where
    I: Clone + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    /// Creates a loop around the adapter of a main loop, with that loop's resources and timeout. The main loop's own
    /// requests are not touched.
    pub fn new<O, Args>(
        main_loop: MainLoop<I, O>,
        evaluator: impl IntoEvaluator<I, O, E, Args>,
        requests: EvalRequests<I, E>,
    ) -> Self
    where
        O: Serialize + Send + Sync + 'static,
    {
        let evaluator = evaluator.into_evaluator();
        let inner = main_loop.behind(requests, |adapter| EvalService { adapter, evaluator });
        // Results wait for a collector, which may come much later than a client would.
        Self { inner: inner.keep_all_replies() }
    }

    /// Creates a loop around an adapter.
    ///
    /// If the adapter returns a `Result`, the type of its output has to be given:
    /// `EvalLoop::from_adapter::<String, _, _>(...)`.
    pub fn from_adapter<O, A, V>(
        adapter: impl Adapter<I, O, A>,
        evaluator: impl IntoEvaluator<I, O, E, V>,
        requests: EvalRequests<I, E>,
    ) -> Self
    where
        A: 'static,
        O: Serialize + Send + Sync + 'static,
    {
        let adapter = BoxCloneSyncService::new(AdapterService::new(adapter));
        let evaluating = EvalService { adapter, evaluator: evaluator.into_evaluator() };
        Self { inner: MainLoop::service(requests, evaluating).keep_all_replies() }
    }

    /// Adds a resource of this process for the adapter; see [`MainLoop::resource`].
    pub fn resource<T: Send + Sync + 'static>(self, resource: T) -> Self {
        Self { inner: self.inner.resource(resource) }
    }

    /// Sets the policy for samples whose adapter or evaluator fails: they are retried, and become dead letters when
    /// they have used up their deliveries.
    pub fn dead_letters(self, policy: DlqPolicy) -> Self {
        Self { inner: self.inner.dead_letters(policy) }
    }

    /// Sets the number of deliveries after which a sample that fails becomes a
    /// [dead letter](Self::dead_letters). Defaults to 5.
    pub fn max_deliveries(self, deliveries: u32) -> Self {
        Self { inner: self.inner.max_deliveries(deliveries) }
    }

    /// Sets the number of samples that are processed concurrently. Defaults to 4.
    pub fn workers(self, workers: usize) -> Self {
        Self { inner: self.inner.workers(workers) }
    }

    /// Sets the lease duration of a sample: the time after which another process takes it over if this one dies. The
    /// lease is extended while the sample is processed. Defaults to 5 minutes.
    pub fn visibility(self, visibility: Duration) -> Self {
        Self { inner: self.inner.visibility(visibility) }
    }

    /// Sets the time limit for the adapter and the evaluator together. Defaults to that of the main loop.
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { inner: self.inner.timeout(timeout) }
    }

    /// Removes the time limit.
    pub fn without_timeout(self) -> Self {
        Self { inner: self.inner.without_timeout() }
    }

    /// Changes the underlying worker; see [`MainLoop::worker`].
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

/// The service of the loop: runs the adapter and scores its output.
struct EvalService<I, O, E> {
    adapter: BoxCloneSyncService<LoopCall<I>, O, BoxError>,
    evaluator: BoxEvaluator<I, O, E>,
}

impl<I, O, E> Clone for EvalService<I, O, E> {
    fn clone(&self) -> Self {
        Self { adapter: self.adapter.clone(), evaluator: self.evaluator.clone() }
    }
}

impl<I, O, E> Service<LoopCall<EvalRequest<I, E>>> for EvalService<I, O, E>
where
    I: Clone + Send + Sync + 'static,
    O: Serialize + Send + Sync + 'static,
    E: Send + Sync + 'static,
{
    type Response = Scored;
    type Error = BoxError;
    type Future = BoxFuture<'static, std::result::Result<Scored, BoxError>>;

    /// The readiness of the adapter counts towards the time limit of a sample.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: LoopCall<EvalRequest<I, E>>) -> Self::Future {
        let (adapter, evaluator) = (self.adapter.clone(), self.evaluator.clone());
        Box::pin(async move {
            let run = call.run.clone();
            let mut request = None;
            let call = call.map(|whole| request.insert(whole).sample.input.clone());
            let recorder = run.extensions().insert(StepRecorder::new());
            let output = adapter.oneshot(call).await?;
            let latency = recorder.elapsed();
            let EvalRequest { run_id, experiment, sample } =
                request.ok_or("a call without a request")?;
            let written = serde_json::to_value(&output)
                .map_err(|error| format!("the output cannot be serialized to JSON: {error}"))?;
            let session = Session {
                run_id,
                experiment,
                session_id: run.session_id(),
                latency: Some(latency),
                steps: recorder.steps(),
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
