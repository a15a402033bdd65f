//! A worker: takes deliveries out of its inbox, one at a time, and runs the service.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use pillarbox_core::{BoxFuture, Mailbox, MessageId, Outgoing, Queue, RawMessage, SendOptions};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tower::{Service, ServiceExt};
use tracing::Instrument;

use crate::control::Shared;
use crate::dead_letters::DeadLetter;
use crate::dispatcher::{Assigned, Finished, Key, Verdict};
use crate::event::{About, Event};
use crate::hooks::{FailedAttempt, Hooks};
use crate::lease::Heartbeat;
use crate::log::DELIVERIES;
use crate::outcome::{BoxError, Failure, FailureKind, Outcome, Verb};
use crate::policy::Policy;
use crate::producer::{Outlet, ProducerHandle};
use crate::pulse::WorkerPulse;
use crate::request::{Context, Metadata, Received, ServiceRequest, WorkerId};
use crate::stack::ServiceStack;
use crate::trace::{Kinship, TraceContext};

/// Why a handler has failed that says it has settled its message and has not.
const NOT_ACKNOWLEDGED: &str = "the handler returned Outcome::settled() but acknowledged its message in no transaction: call \
     transaction::acknowledge first, or return Outcome::done()";

/// What a worker has to say to the dispatcher.
#[derive(Debug)]
pub(crate) enum WorkerResult {
    Finished(Finished),
    /// It has taken up a delivery, and waits until the queue knows.
    Starting {
        key: Key,
    },
    /// What it took out of its inbox had been taken back.
    Skipped {
        worker: usize,
    },
    /// It has not run what it took out of its inbox, for there is to be a stop.
    Declined {
        key: Key,
        worker: usize,
    },
}

/// What all workers of a group have in common.
pub(crate) struct Common {
    pub(crate) shared: Arc<Shared>,
    pub(crate) outlet: Outlet,
    /// By mailbox.
    pub(crate) served: Vec<Served>,
}

/// What workers know of a mailbox.
pub(crate) struct Served {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) policy: Policy,
    pub(crate) hooks: Hooks,
    /// Each worker has a service of its own, made after this one.
    pub(crate) prototype: Box<dyn Serve>,
}

/// One worker.
pub(crate) struct WorkerTask {
    id: usize,
    inbox: mpsc::Receiver<Assigned>,
    results: mpsc::Sender<WorkerResult>,
    /// The services, one for each mailbox.
    serves: Vec<Box<dyn Serve>>,
    /// What it shows to a watchdog.
    slot: Arc<WorkerPulse>,
    common: Arc<Common>,
}

impl WorkerTask {
    pub(crate) fn new(
        id: usize,
        inbox: mpsc::Receiver<Assigned>,
        results: mpsc::Sender<WorkerResult>,
        common: Arc<Common>,
    ) -> Self {
        let serves = common.served.iter().map(|served| served.prototype.another()).collect();
        let slot = common.shared.pulse.worker(id);
        Self { id, inbox, results, serves, slot, common }
    }

    /// Works until the inbox is closed and empty.
    pub(crate) async fn run(mut self) {
        while let Some(assigned) = self.inbox.recv().await {
            // The dispatcher may be too late to take it back, if handlers block all threads.
            let is_declined = self.common.shared.is_stopping() && assigned.lease.take_back();
            let result = if is_declined {
                WorkerResult::Declined { key: assigned.key, worker: self.id }
            } else if assigned.lease.begin() {
                self.work(assigned).await
            } else {
                WorkerResult::Skipped { worker: self.id }
            };
            if self.results.send(result).await.is_err() {
                return;
            }
            if !self.inbox.is_empty() {
                yield_behind_others().await;
            }
        }
    }

    async fn work(&mut self, assigned: Assigned) -> WorkerResult {
        let Assigned { key, source, message, receipt, lease, attempt, is_to_record } = assigned;
        let worker = self.id;
        if is_to_record {
            // If nobody listens any more, nobody will run it either.
            let is_told = self.results.send(WorkerResult::Starting { key }).await.is_ok();
            let may_run = is_told && lease.started().await;
            if !may_run && !lease.is_lost() {
                return WorkerResult::Declined { key, worker };
            }
        }
        if lease.is_lost() {
            let verdict = Verdict::TooLate;
            return WorkerResult::Finished(Finished { key, source, worker, verdict, took: None });
        }
        let Served { queue: served, policy, hooks, prototype } = &self.common.served[source];
        let queue = served.name();
        self.common.shared.emit(|| {
            Event::Started(About {
                queue: queue.clone(),
                message_id: message.id,
                attempt,
                worker_id: Some(WorkerId(self.id)),
            })
        });
        let _shown = self.common.shared.pulse.is_watched().then(|| {
            let mut about = About::new(queue.clone(), message.id, attempt);
            about.worker_id = Some(WorkerId(self.id));
            self.slot.show(about, lease.clone())
        });
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
        let call = Call {
            metadata: Metadata::new(message.clone(), served.clone(), receipt, lease.clone()),
            heartbeat: Heartbeat(lease.clone()),
            outlet: Outlet { trace: trace.clone(), ..self.common.outlet.clone() },
            attempt,
            worker_id: WorkerId(self.id),
        };
        let start = Instant::now();
        // Before the span is entered, which is when tracing systems want to know.
        if let Some(trace) = &trace
            && !join_trace(&span, trace, attempt, &self.common.outlet)
        {
            tracing::error!(target: DELIVERIES, %queue, message_id = %message.id, worker_id = self.id, "the tracer panicked; a span is without its trace");
        }
        tracing::debug!(target: DELIVERIES, %queue, message_id = %message.id, attempt, worker_id = self.id, "a handler starts");
        // Whatever panics here, a layer or a codec, the worker goes on with a service that is sound.
        let serve = &mut self.serves[source];
        let guarded = AssertUnwindSafe(async { serve.serve(call).await });
        let guarded = guarded.catch_unwind();
        let ended = tokio::select! {
            biased;
            ended = guarded.instrument(span.clone()) => Some(ended),
            () = lease.cancelled() => None,
        };
        let took = Some(start.elapsed());
        // What the handler has left behind, in other tasks or threads, acknowledges nothing from here on.
        let is_acknowledged = lease.close();
        let judge = |end| match end {
            Ok(Outcome(Verb::Settled)) if !is_acknowledged => {
                let failure = Failure::new(FailureKind::Error, NOT_ACKNOWLEDGED);
                policy.judge(Err(failure.into()), &message, attempt, served.capabilities())
            }
            end => policy.judge(end, &message, attempt, served.capabilities()),
        };
        let verdict = match ended {
            Some(Ok(end)) => judge(end),
            Some(Err(payload)) => {
                self.serves[source] = prototype.another();
                judge(Err(Failure::panic(&*payload).into()))
            }
            None => {
                // What was cancelled may have left a claim on a limit behind.
                self.serves[source] = prototype.another();
                policy.cancelled()
            }
        };
        record(&span, &verdict);
        if let Verdict::Failed { failure, then } = &verdict
            && hooks.has_on_failure()
        {
            let mut about = About::new(queue.clone(), message.id, attempt);
            about.worker_id = Some(WorkerId(self.id));
            hooks.failed(FailedAttempt::new(about, failure, then)).await;
        }
        WorkerResult::Finished(Finished { key, source, worker, verdict, took })
    }
}

/// Says to the span of a delivery where it belongs. False if the tracer panicked.
fn join_trace(span: &tracing::Span, trace: &TraceContext, attempt: u32, outlet: &Outlet) -> bool {
    span.record("trace_id", trace.trace_id());
    let Some(tracer) = &outlet.tracer else { return true };
    let kinship = if attempt <= 1 { Kinship::Child(trace) } else { Kinship::Link(trace) };
    // Tracing never keeps a message from being handled.
    std::panic::catch_unwind(AssertUnwindSafe(|| tracer.join(span, kinship))).is_ok()
}

/// Says in its span how a delivery ended.
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
        Verdict::TooLate => {}
    }
}

/// Lets those go first who were woken meanwhile.
///
/// The dispatcher, which was just told of a result, may be next on this very thread, where no other thread
/// can take it from. If the next handler blocks its thread, the dispatcher must not be stuck behind it:
/// leases would end, and other workers would have nothing to do.
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

/// A delivery as a service gets it, before its body is decoded.
#[derive(Debug)]
pub(crate) struct Call {
    metadata: Metadata,
    heartbeat: Heartbeat,
    outlet: Outlet,
    attempt: u32,
    worker_id: WorkerId,
}

/// A service for one mailbox, whatever its types are.
pub(crate) trait Serve: Send + Sync {
    /// Decodes and handles a delivery.
    fn serve(&mut self, call: Call) -> BoxFuture<'_, Result<Outcome, BoxError>>;

    /// What the sender of a message is told when it has become a dead letter, and where.
    fn error_reply(
        &self,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<Option<ErrorReply>, BoxError>;

    /// The same for another worker.
    fn another(&self) -> Box<dyn Serve>;
}

/// An answer to a message that became a dead letter.
#[derive(Debug)]
pub(crate) struct ErrorReply {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) message: Outgoing,
}

/// Makes the answer to a message that became a dead letter, and the id of it, if it is to have one of its own.
pub(crate) type MakeErrorReply<R> =
    Arc<dyn Fn(&DeadLetter) -> (Option<MessageId>, R) + Send + Sync>;

pub(crate) struct Typed<T, R, C> {
    pub(crate) mailbox: Arc<Mailbox<T, R>>,
    pub(crate) context: Context<C>,
    pub(crate) service: ServiceStack<T, R, C>,
    pub(crate) error_reply: Option<MakeErrorReply<R>>,
}

impl<T: 'static, R: 'static, C> Typed<T, R, C> {
    fn try_error_reply(
        &self,
        make: &MakeErrorReply<R>,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<ErrorReply, BoxError> {
        let mailbox = self.mailbox.reply_mailbox(message)?;
        let (id, reply) = make(letter);
        // Once for each life of a message, however often it is sent.
        let id = id.unwrap_or_else(|| {
            let (id, source, lives) = (message.id, &letter.source_mailbox, letter.replay_count);
            MessageId::from_key(&format!("error reply to {id} of {source}, replay {lives}"))
        });
        let mut message = mailbox.encode(&reply, SendOptions::new().id(id))?;
        if let Some(trace) = TraceContext::of(&letter.attributes) {
            trace.add_to(&mut message.attributes);
        }
        Ok(ErrorReply { queue: mailbox.queue().clone(), message })
    }
}

impl<T, R, C> Serve for Typed<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    fn serve(&mut self, call: Call) -> BoxFuture<'_, Result<Outcome, BoxError>> {
        let body = match self.mailbox.decode(call.metadata.raw()) {
            Ok(body) => body,
            Err(error) => {
                let failure = Failure::new(FailureKind::Undecodable, error);
                return Box::pin(std::future::ready(Err(failure.into())));
            }
        };
        let request = ServiceRequest {
            message: Received::new(body, call.metadata, self.mailbox.clone()),
            context: self.context.clone(),
            producer: ProducerHandle::new(self.mailbox.clone(), call.outlet),
            heartbeat: call.heartbeat,
            attempt: call.attempt,
            worker_id: call.worker_id,
        };
        Box::pin(async move { self.service.ready().await?.call(request).await })
    }

    fn error_reply(
        &self,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<Option<ErrorReply>, BoxError> {
        let (Some(make), Some(_)) = (&self.error_reply, &message.reply_to) else { return Ok(None) };
        // All of it is the program's own: what makes the reply, what finds the mailbox, and the codec.
        let made = || self.try_error_reply(make, message, letter);
        std::panic::catch_unwind(AssertUnwindSafe(made))
            .unwrap_or_else(|payload| Err(Failure::panic(&*payload).into()))
            .map(Some)
    }

    fn another(&self) -> Box<dyn Serve> {
        Box::new(Self {
            mailbox: self.mailbox.clone(),
            context: self.context.clone(),
            service: self.service.clone(),
            error_reply: self.error_reply.clone(),
        })
    }
}
