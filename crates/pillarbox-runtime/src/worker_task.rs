//! A worker: takes its deliveries one at a time and runs the service.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use pillarbox_core::Queue;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::Instrument;

use crate::control::ControlState;
use crate::dispatcher::{Assignment, Finished};
use crate::event::{About, Event};
use crate::hooks::{FailedAttempt, Hooks};
use crate::lease::Heartbeat;
use crate::log::DELIVERIES;
use crate::mailbox_service::{MailboxService, UndecodedRequest};
use crate::outcome::{Failure, FailureKind, Outcome, Verb};
use crate::producer::SendChannel;
use crate::pulse::WorkerPulse;
use crate::report_queue::{CollectedReports, ReportQueue, WorkerReport};
use crate::request::{Metadata, WorkerId};
use crate::retry_policy::RetryPolicy;
use crate::trace::{SpanRelation, TraceContext};
use crate::verdict::Verdict;

/// The error of a handler that returned `Outcome::settled()` without having acknowledged its message.
const NOT_ACKNOWLEDGED: &str = "the handler returned Outcome::settled() but acknowledged its message in no transaction: call \
     transaction::acknowledge first, or return Outcome::done()";

/// One worker.
pub(crate) struct WorkerTask {
    id: usize,
    assignments: mpsc::Receiver<Vec<Assignment>>,
    reports: CollectedReports,
    /// One service per mailbox.
    services: Vec<Box<dyn MailboxService>>,
    pulse: Arc<WorkerPulse>,
    pool: Arc<PoolContext>,
}

/// What the driver and all workers of a pool share.
pub(crate) struct PoolContext {
    pub(crate) control: Arc<ControlState>,
    pub(crate) sends: SendChannel,
    pub(crate) mailboxes: Vec<ServedMailbox>,
}

/// One mailbox that a pool serves.
pub(crate) struct ServedMailbox {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) policy: RetryPolicy,
    pub(crate) hooks: Hooks,
    /// The service that each worker clones.
    pub(crate) prototype: Box<dyn MailboxService>,
}

impl WorkerTask {
    pub(crate) fn new(
        id: usize,
        assignments: mpsc::Receiver<Vec<Assignment>>,
        reports: Arc<ReportQueue>,
        pool: Arc<PoolContext>,
    ) -> Self {
        let services = pool.mailboxes.iter().map(|it| it.prototype.clone_boxed()).collect();
        let pulse = pool.control.pulse.worker(id);
        let reports = CollectedReports::new(reports);
        Self { id, assignments, reports, services, pulse, pool }
    }

    /// Works until the channel of assignments is closed and empty, or the driver has ended.
    pub(crate) async fn run(mut self) {
        while let Some(assignments) = self.assignments.recv().await {
            for assignment in assignments {
                // If handlers block all threads, the dispatcher may be too late to take it back.
                let is_declined = self.pool.control.is_stopping() && assignment.lease.take_back();
                let (report, now) = if is_declined {
                    let (key, worker) = (assignment.key, self.id);
                    (WorkerReport::Declined { key, worker }, Instant::now())
                } else if assignment.lease.begin() {
                    self.work(assignment).await
                } else {
                    (WorkerReport::Skipped { worker: self.id }, Instant::now())
                };
                if self.reports.add(report, now) {
                    if !self.reports.pass_on() {
                        return;
                    }
                    yield_behind_others().await;
                }
            }
            if self.assignments.is_empty() {
                if !self.reports.pass_on() {
                    return;
                }
                // Some may have come just before the driver was woken.
                if !self.assignments.is_empty() {
                    yield_behind_others().await;
                }
            }
        }
    }

    /// Handles a delivery. Returns the report, and when the handler and its hooks had ended.
    async fn work(&mut self, assignment: Assignment) -> (WorkerReport, Instant) {
        let Assignment { key, source, message, receipt, lease, attempt, must_record_start } =
            assignment;
        let worker = self.id;
        if must_record_start {
            // If the driver has ended, the delivery is not run.
            self.reports.add(WorkerReport::Starting { key }, Instant::now());
            let may_run = self.reports.pass_on() && lease.started().await;
            if !may_run && !lease.is_lost() {
                return (WorkerReport::Declined { key, worker }, Instant::now());
            }
        }
        if lease.is_lost() {
            let (verdict, took) = (Verdict::NotRun, None);
            let finished = Finished { key, source, worker, verdict, took };
            return (WorkerReport::Finished(finished), Instant::now());
        }
        let ServedMailbox { queue: served, policy, hooks, prototype } =
            &self.pool.mailboxes[source];
        let queue = served.name();
        let (message_id, worker_id) = (message.id, Some(WorkerId(worker)));
        let about = || About { queue: queue.clone(), message_id, attempt, worker_id };
        self.pool.control.emit(|| Event::Started(about()));
        let is_watched = self.pool.control.pulse.is_watched();
        let _shown = is_watched.then(|| self.pulse.show(about(), lease.clone()));
        let span = tracing::info_span!(
            "delivery",
            queue = %queue,
            message_id = %message.id,
            attempt,
            worker_id = self.id,
            trace_id = tracing::field::Empty,
            outcome = tracing::field::Empty,
            error = tracing::field::Empty,
            otel.kind = "consumer",
            otel.status_code = tracing::field::Empty,
        );
        let trace = TraceContext::of(&message.attributes);
        let request = UndecodedRequest {
            metadata: Metadata::new(message.clone(), served.clone(), receipt, lease.clone()),
            heartbeat: Heartbeat(lease.clone()),
            sends: SendChannel { pool: self.pool.sends.pool.clone(), trace: trace.clone() },
            attempt,
            worker_id: WorkerId(self.id),
        };
        let start = Instant::now();
        // Tracing systems need the parent before the span is entered.
        if let Some(trace) = &trace
            && !join_trace(&span, trace, attempt, &self.pool.sends)
        {
            tracing::error!(target: DELIVERIES, %queue, message_id = %message.id, worker_id = self.id, "the tracer panicked; the span is not linked to its trace");
        }
        tracing::debug!(target: DELIVERIES, %queue, message_id = %message.id, attempt, worker_id = self.id, "a handler starts");
        // If a layer or a codec panics, the worker goes on with a new service.
        let ended = {
            let service = &mut self.services[source];
            let guarded = AssertUnwindSafe(async {
                service.decode(request)?;
                std::future::poll_fn(|context| service.poll_call(context)).await?.await
            });
            let guarded = guarded.catch_unwind().instrument(span.clone());
            let ending = async {
                tokio::select! {
                    biased;
                    ended = guarded => Some(ended),
                    () = lease.cancelled() => None,
                }
            };
            self.reports.pass_on_while_pending(ending).await
        };
        let mut end = Instant::now();
        let took = Some(end - start);
        // Tasks and threads that the handler left behind can no longer acknowledge.
        let is_acknowledged = lease.close();
        let verdict_of = |result| match result {
            Ok(Outcome(Verb::Settled)) if !is_acknowledged => {
                let failure = Failure::new(FailureKind::Error, NOT_ACKNOWLEDGED);
                policy.verdict(Err(failure.into()), &message, attempt, served.capabilities())
            }
            result => policy.verdict(result, &message, attempt, served.capabilities()),
        };
        let verdict = match ended {
            Some(Ok(result)) => verdict_of(result),
            Some(Err(payload)) => {
                self.services[source] = prototype.clone_boxed();
                verdict_of(Err(Failure::panic(&*payload).into()))
            }
            None => {
                // The cancelled call may still hold a permit of a limit.
                self.services[source] = prototype.clone_boxed();
                policy.cancelled()
            }
        };
        record(&span, &verdict);
        if let Verdict::Failed { failure, disposition } = &verdict
            && hooks.has_on_failure()
        {
            let hooks = hooks.failed(FailedAttempt::new(about(), failure, disposition));
            self.reports.pass_on_while_pending(hooks).await;
            end = Instant::now();
        }
        (WorkerReport::Finished(Finished { key, source, worker, verdict, took }), end)
    }
}

/// Links the span of a delivery to the trace of its message. Returns false if the tracer panicked.
fn join_trace(
    span: &tracing::Span,
    trace: &TraceContext,
    attempt: u32,
    sends: &SendChannel,
) -> bool {
    span.record("trace_id", trace.trace_id());
    let Some(tracer) = &sends.pool.tracer else { return true };
    let relation =
        if attempt <= 1 { SpanRelation::Child(trace) } else { SpanRelation::Link(trace) };
    // A failure of tracing must not keep a message from being handled.
    std::panic::catch_unwind(AssertUnwindSafe(|| tracer.join(span, relation))).is_ok()
}

/// Records in its span how a delivery ended.
fn record(span: &tracing::Span, verdict: &Verdict) {
    if span.is_disabled() {
        return;
    }
    match verdict {
        Verdict::Failed { failure, .. } => {
            span.record("outcome", failure.kind.as_str());
            span.record("error", &*failure.text);
            span.record("otel.status_code", "ERROR");
        }
        Verdict::Released { .. } => drop(span.record("outcome", "released")),
        Verdict::Shed { .. } => drop(span.record("outcome", "shed")),
        Verdict::Done | Verdict::Settled => drop(span.record("outcome", "done")),
        Verdict::NotRun => {}
    }
}

/// Yields to tasks that were woken in the meantime.
///
/// The driver, woken by the last report, may be in this thread's LIFO slot, from which no other thread steals. If
/// the next handler blocked its thread, the driver would be stuck behind it: leases would expire and other workers
/// would have nothing to do.
pub(crate) async fn yield_behind_others() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
