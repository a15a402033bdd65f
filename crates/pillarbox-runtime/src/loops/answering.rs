//! The rules by which requests are answered.
//!
//! | what happens | the sender is answered | the request |
//! |---|---|---|
//! | the adapter gives an output | with it | is deleted, once the answer is stored |
//! | the deadline is past, or passes | with an error; the adapter is not run, or cancelled | is deleted |
//! | the adapter fails, without dead letters | with the error | is deleted |
//! | the adapter fails, with dead letters | not yet | is tried again |
//! | and is not to be tried again | with the error, once the dead letter is stored | is a dead letter |
//! | the answer cannot be stored | not yet | is tried again |
//! | there is nowhere to answer to | not, and that is logged | is deleted as if it were |
//! | its body cannot be read, without dead letters | not | is parked, as by any worker: nothing that was not understood is deleted |
//!
//! Each answer has an id that comes from its request: stored twice before it is received, it is there once.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::clock::after;
use pillarbox_core::{Attributes, BoxFuture, Error, MessageId, SendOptions, Timestamp};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use uuid::Uuid;

use super::message::{MainLoopRequest, MainLoopResult, RemoteError, RemoteErrorKind};
use super::run::{About, Live, LoopCall, Run};
use crate::attributes::{DEADLINE, replay_count};
use crate::dead_letters::DeadLetter;
use crate::handler::Parts;
use crate::log::DELIVERIES;
use crate::metrics;
use crate::outcome::{BoxError, Failure, FailureKind, Outcome, truncate_error};
use crate::request::ServiceRequest;

/// How often an answer is tried to be stored before the request goes back.
const ATTEMPTS: u32 = 4;
/// How long to wait before the second; twice as long before each after it.
const PAUSE: Duration = Duration::from_millis(100);

/// The service of a loop: runs the adapter, answers, and says what becomes of the request.
pub(super) struct Answering<U, O> {
    pub(super) adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
    pub(super) rules: Arc<Rules>,
}

/// What holds for all requests of a loop.
pub(super) struct Rules {
    pub(super) live: Live,
    /// How long the adapter may take.
    pub(super) timeout: Option<Duration>,
    /// A failure is answered at once, for there are no dead letters.
    pub(super) answers_failures: bool,
}

impl<U, O> Clone for Answering<U, O> {
    fn clone(&self) -> Self {
        Self { adapter: self.adapter.clone(), rules: self.rules.clone() }
    }
}

type Request<U, O> = ServiceRequest<MainLoopRequest<U>, MainLoopResult<O>, ()>;

impl<U, O> Service<Request<U, O>> for Answering<U, O>
where
    U: Send + Sync + 'static,
    O: Send + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    /// The adapter gets ready within the time that a request has.
    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<U, O>) -> Self::Future {
        let (adapter, rules) = (self.adapter.clone(), self.rules.clone());
        Box::pin(async move { rules.handle(adapter, request).await })
    }
}

/// How the adapter ended.
enum End<O> {
    Output(O),
    Failed(Failure),
    /// Its deadline has passed.
    Deadline,
}

impl Rules {
    async fn handle<U, O>(
        &self,
        adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
        request: Request<U, O>,
    ) -> Result<Outcome, BoxError>
    where
        U: Send + Sync + 'static,
        O: Send + 'static,
    {
        let (body, parts) = request.into_parts();
        let MainLoopRequest { request, budget, deadline, resources, request_id, created_at } = body;
        let own_id = || *parts.metadata.original_id().as_uuid();
        let request_id = if request_id.is_nil() { own_id() } else { request_id };
        let deadline = earlier(deadline, waited_for_until(parts.metadata.attributes()));
        let about = About { request_id, created_at, deadline, budget, resources };
        let (metadata, heartbeat) = (parts.metadata.clone(), parts.heartbeat.clone());
        let run = Run::new(about, self.live.clone(), metadata, heartbeat);
        let outcome = match self.work(adapter, LoopCall { request, run: run.clone() }).await {
            End::Output(output) => Ok(output),
            // Tried again, be it by the policy or because a limit was reached before the adapter was called.
            End::Failed(failure)
                if !self.answers_failures || failure.kind() == FailureKind::Overloaded =>
            {
                return Err(failure.into());
            }
            End::Failed(failure) => Err(remote(&failure)),
            End::Deadline => {
                Err(RemoteError::new(RemoteErrorKind::Deadline, "its deadline has passed"))
            }
        };
        let (queue, message_id) = (parts.metadata.queue(), parts.metadata.id());
        let worker_id = parts.worker_id.0;
        match &outcome {
            Ok(_) => metrics::answered(queue, "output"),
            Err(error) => {
                let (kind, error) = (error.kind.as_str(), &*error.text);
                metrics::answered(queue, kind);
                tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, kind, error, "a request failed");
            }
        }
        let completed_at = Timestamp::now();
        let session_id = run.session_id();
        reply(&parts, MainLoopResult { request_id, outcome, session_id, completed_at }).await
    }

    /// Runs the adapter, for as long as it may take.
    async fn work<U, O>(
        &self,
        adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
        call: LoopCall<U>,
    ) -> End<O>
    where
        U: Send + 'static,
        O: Send + 'static,
    {
        let left = call.run.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            return End::Deadline;
        }
        let limit = [left, self.timeout].into_iter().flatten().min();
        // The adapter is gone with the panic; what adapters share is theirs to keep sound.
        let work = AssertUnwindSafe(async { adapter.oneshot(call).await }).catch_unwind();
        let ended = match limit {
            Some(limit) => tokio::time::timeout_at(after(limit), work).await,
            None => Ok(work.await),
        };
        match ended {
            Ok(Ok(Ok(output))) => End::Output(output),
            Ok(Ok(Err(error))) => End::Failed(Failure::from_service(error)),
            Ok(Err(payload)) => End::Failed(Failure::panic(&*payload)),
            Err(_) if limit == left => End::Deadline,
            Err(_) => {
                let text = format!("the adapter took longer than {:?}", limit.unwrap_or_default());
                End::Failed(Failure::new(FailureKind::Timeout, text))
            }
        }
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}

/// Until when the sender waits, if it says so. Of a request that was replayed, somebody else wants it done.
fn waited_for_until(attributes: &Attributes) -> Option<Timestamp> {
    let until = attributes.get(DEADLINE).filter(|_| replay_count(attributes) == 0)?;
    until.parse().ok()
}

/// A failure, as the sender of the request is told of it.
fn remote(failure: &Failure) -> RemoteError {
    let kind = match failure.kind() {
        FailureKind::Timeout => RemoteErrorKind::Timeout,
        _ => RemoteErrorKind::Failed,
    };
    let error_type = Some(failure.type_name().to_owned());
    RemoteError { text: truncate_error(&failure.to_string()), kind, error_type }
}

/// What the sender of a request is told when it has become a dead letter, and the id of that answer.
pub(super) fn dead_lettered<O>(letter: &DeadLetter) -> (MessageId, MainLoopResult<O>) {
    let request_id = letter.request_id.unwrap_or(*letter.message_id.as_uuid());
    let times = match letter.delivery_count {
        1 => "1 attempt".to_owned(),
        count => format!("{count} attempts"),
    };
    let text = format!("dead-lettered after {times}: {}", letter.last_error);
    let error_type = Some(letter.last_error_type.clone());
    let error = RemoteError { text, kind: RemoteErrorKind::DeadLettered, error_type };
    let id = reply_id(request_id, letter.message_id, letter.replay_count);
    (id, MainLoopResult::new(request_id, Err(error)))
}

/// The id of the answer to a request: the same however often its message is delivered, and another one if it was
/// sent once more, or replayed as a dead letter.
fn reply_id(request_id: Uuid, message_id: MessageId, replays: u32) -> MessageId {
    MessageId::from_key(&format!("reply to {request_id} of {message_id}, replay {replays}"))
}

/// Stores the answer, and says what becomes of the request.
async fn reply<U: 'static, O: 'static>(
    parts: &Parts<MainLoopRequest<U>, MainLoopResult<O>, ()>,
    result: MainLoopResult<O>,
) -> Result<Outcome, BoxError> {
    let (queue, message_id) = (parts.metadata.queue(), parts.metadata.id());
    let (request_id, worker_id) = (result.request_id, parts.worker_id.0);
    let unanswered = |error: &Error| {
        tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, %error, "a request was not answered");
        Ok(Outcome::done())
    };
    let mailbox = match parts.replies().mailbox() {
        Ok(mailbox) => mailbox,
        Err(error) => return unanswered(&error),
    };
    let replays = replay_count(parts.metadata.attributes());
    let id = reply_id(request_id, parts.metadata.original_id(), replays);
    let written = |result| mailbox.encode(&result, SendOptions::new().id(id));
    // What does not fit can still be told not to.
    let misfit = |error: &Error| {
        let error = RemoteError::new(RemoteErrorKind::Failed, error.to_string());
        written(MainLoopResult::new(request_id, Err(error)))
    };
    let mut is_misfit = false;
    let mut message = match written(result) {
        Ok(message) => message,
        Err(error) => misfit(&error)?,
    };
    let mut pause = PAUSE;
    let mut attempt = 1;
    loop {
        let sent = parts.producer.forward(mailbox.queue().clone(), message.clone()).await;
        match sent {
            Ok(_) => return Ok(Outcome::done()),
            Err(error @ Error::InvalidParameter { .. }) if is_misfit => return unanswered(&error),
            Err(error @ Error::InvalidParameter { .. }) => {
                is_misfit = true;
                message = misfit(&error)?;
            }
            Err(error) if attempt == ATTEMPTS => return Err(error.into()),
            Err(error) => {
                tracing::debug!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, %error, "an answer is sent again");
                tokio::time::sleep(pause).await;
                (pause, attempt) = (pause * 2, attempt + 1);
            }
        }
    }
}
