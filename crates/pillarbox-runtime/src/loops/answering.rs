//! The service of a loop, which answers requests.
//!
//! | event | answer | request |
//! |---|---|---|
//! | the adapter returns an output | the output | deleted, once the answer is stored |
//! | the deadline passed or passes | an error; the adapter is not run, or is cancelled | deleted |
//! | the adapter fails, without dead letters | the error | deleted |
//! | the adapter fails, with dead letters | none yet | retried |
//! | the adapter fails for the last time, with dead letters | the error, once the dead letter is stored | dead letter |
//! | the answer cannot be stored | none yet | retried |
//! | there is no reply address that works | none, which is logged | deleted |
//! | the body cannot be decoded, without dead letters | none | parked, as by any worker |
//!
//! The id of an answer is derived from its request: an answer that is stored twice before it is received is
//! received once.

use std::borrow::Cow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use pillarbox_core::clock::after;
use pillarbox_core::internal::RetryDelay;
use pillarbox_core::{Attributes, BoxFuture, Error, MessageId, SendOptions, Timestamp};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};
use uuid::Uuid;

use super::message::{MainLoopRequest, MainLoopResult, RemoteError, RemoteErrorKind};
use super::run::{LiveResources, LoopCall, RequestInfo, Run};
use crate::attributes::{DEADLINE, replay_count};
use crate::call_timeout::until;
use crate::dead_letters::DeadLetter;
use crate::handler::Parts;
use crate::log::DELIVERIES;
use crate::metrics::AnswerMetrics;
use crate::outcome::{BoxError, Failure, FailureKind, Outcome, truncate_error};
use crate::request::ServiceRequest;

/// Number of times that an answer is sent before the request is retried.
const MAX_TRIES: u32 = 4;
/// Delay before the second try; it doubles from there.
const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(1);

/// The service of a loop: runs the adapter and sends its answer.
pub(super) struct AnswerService<U, O> {
    pub(super) adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
    pub(super) options: Arc<AnswerOptions>,
}

/// The options of a loop that apply to each request.
pub(super) struct AnswerOptions {
    pub(super) live: LiveResources,
    /// Timeout of the adapter.
    pub(super) timeout: Option<Duration>,
    /// Whether a failure is answered at once, because the loop has no dead letters.
    pub(super) answers_failures: bool,
    pub(super) metrics: AnswerMetrics,
}

impl<U, O> Clone for AnswerService<U, O> {
    fn clone(&self) -> Self {
        Self { adapter: self.adapter.clone(), options: self.options.clone() }
    }
}

type Request<U, O> = ServiceRequest<MainLoopRequest<U>, MainLoopResult<O>, ()>;

impl<U: Send + Sync + 'static, O: Send + 'static> Service<Request<U, O>> for AnswerService<U, O> {
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    /// The readiness of the adapter is awaited within the timeout of a request.
    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<U, O>) -> Self::Future {
        let (adapter, options) = (self.adapter.clone(), self.options.clone());
        Box::pin(options.handle(adapter, request))
    }
}

/// The result of the adapter.
enum AdapterResult<O> {
    Output(O),
    Failed(Failure),
    /// The deadline of the request passed.
    Deadline,
}

impl AnswerOptions {
    async fn handle<U: Send + Sync + 'static, O: Send + 'static>(
        self: Arc<Self>,
        adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
        request: Request<U, O>,
    ) -> Result<Outcome, BoxError> {
        let (body, parts) = request.into_parts();
        let MainLoopRequest { request, budget, deadline, resources, request_id, created_at } = body;
        let own_id = || *parts.metadata.original_id().as_uuid();
        let request_id = if request_id.is_nil() { own_id() } else { request_id };
        let deadline = earlier(deadline, client_deadline(parts.metadata.attributes()));
        let info = RequestInfo { request_id, created_at, deadline, budget, resources };
        let (metadata, heartbeat) = (parts.metadata.clone(), parts.heartbeat.clone());
        let run = Run::new(info, self.live.clone(), metadata, heartbeat);
        let outcome = match self.run_adapter(adapter, LoopCall { request, run: run.clone() }).await
        {
            AdapterResult::Output(output) => Ok(output),
            // Retried, by the policy or because the adapter was not called due to a limit.
            AdapterResult::Failed(failure)
                if !self.answers_failures || failure.kind() == FailureKind::Overloaded =>
            {
                return Err(failure.into());
            }
            AdapterResult::Failed(failure) => Err(remote_error(&failure)),
            AdapterResult::Deadline => {
                Err(RemoteError::new(RemoteErrorKind::Deadline, "its deadline has passed"))
            }
        };
        let (queue, message_id) = (parts.metadata.queue(), parts.metadata.id());
        let worker_id = parts.worker_id.0;
        match &outcome {
            Ok(_) => self.metrics.answered("output"),
            Err(error) => {
                let (kind, error) = (error.kind.as_str(), &*error.text);
                self.metrics.answered(kind);
                tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, kind, error, "a request failed");
            }
        }
        let completed_at = Timestamp::now();
        let session_id = run.session_id();
        reply(&parts, MainLoopResult { request_id, outcome, session_id, completed_at }).await
    }

    /// Runs the adapter until the timeout or the deadline.
    async fn run_adapter<U: Send + 'static, O: Send + 'static>(
        &self,
        adapter: BoxCloneSyncService<LoopCall<U>, O, BoxError>,
        call: LoopCall<U>,
    ) -> AdapterResult<O> {
        let left = call.run.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            return AdapterResult::Deadline;
        }
        let limit = [left, self.timeout].into_iter().flatten().min();
        // This clone of the adapter is dropped after a panic. State that adapters share is their responsibility.
        let work = AssertUnwindSafe(async { adapter.oneshot(call).await }).catch_unwind();
        let ended = match limit {
            Some(limit) => {
                let deadline = after(limit);
                until(|| deadline, work).await
            }
            None => Some(work.await),
        };
        match ended {
            Some(Ok(Ok(output))) => AdapterResult::Output(output),
            Some(Ok(Err(error))) => AdapterResult::Failed(Failure::from_service(error)),
            Some(Err(payload)) => AdapterResult::Failed(Failure::panic(&*payload)),
            None if limit == left => AdapterResult::Deadline,
            None => {
                let text = format!("the adapter took longer than {:?}", limit.unwrap_or_default());
                AdapterResult::Failed(Failure::new(FailureKind::Timeout, text))
            }
        }
    }
}

fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    [one, other].into_iter().flatten().min()
}

/// Returns the time until which the client waits. It does not apply to a replay, which does not depend on the client.
fn client_deadline(attributes: &Attributes) -> Option<Timestamp> {
    let until = attributes.get(DEADLINE).filter(|_| replay_count(attributes) == 0)?;
    until.parse().ok()
}

/// Converts a failure into the error of an answer.
fn remote_error(failure: &Failure) -> RemoteError {
    let kind = match failure.kind() {
        FailureKind::Timeout => RemoteErrorKind::Timeout,
        _ => RemoteErrorKind::Failed,
    };
    let error_type = Some(failure.type_name().to_owned());
    RemoteError { text: truncate_error(&failure.to_string()), kind, error_type }
}

/// Returns the answer to a request that became a dead letter, and its id.
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

/// Returns the id of the answer to a request: the same at each delivery of its message, and another one if the
/// request is sent again or replayed.
fn reply_id(request_id: Uuid, message_id: MessageId, replays: u32) -> MessageId {
    let (mut one, mut other) = (Uuid::encode_buffer(), Uuid::encode_buffer());
    let request_id = request_id.hyphenated().encode_lower(&mut one);
    let message_id = message_id.as_uuid().hyphenated().encode_lower(&mut other);
    let replays = if replays == 0 { Cow::Borrowed("0") } else { replays.to_string().into() };
    let key = ["reply to ", request_id, " of ", message_id, ", replay ", &replays];
    MessageId::from_key(&key.concat())
}

/// Sends the answer, and returns the outcome of the request.
async fn reply<U: 'static, O: 'static>(
    parts: &Parts<MainLoopRequest<U>, MainLoopResult<O>, ()>,
    result: MainLoopResult<O>,
) -> Result<Outcome, BoxError> {
    let (queue, message_id) = (parts.metadata.queue(), parts.metadata.id());
    let (request_id, worker_id) = (result.request_id, parts.worker_id.0);
    let unanswered = |error: &Error| {
        tracing::warn!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, %error, "cannot answer a request");
        Ok(Outcome::done())
    };
    let mailbox = match parts.replies().mailbox() {
        Ok(mailbox) => mailbox,
        Err(error) => return unanswered(&error),
    };
    let replays = replay_count(parts.metadata.attributes());
    let id = reply_id(request_id, parts.metadata.original_id(), replays);
    let encode = |result| mailbox.encode(&result, SendOptions::new().id(id));
    // An answer that is refused, such as one that is too large, is replaced by an error.
    let replacement = |error: &Error| {
        let error = RemoteError::new(RemoteErrorKind::Failed, error.to_string());
        encode(MainLoopResult::new(request_id, Err(error)))
    };
    let mut is_replaced = false;
    let mut message = match encode(result) {
        Ok(message) => message,
        Err(error) => replacement(&error)?,
    };
    let mut delay = RetryDelay::new(FIRST_DELAY, MAX_DELAY);
    let mut tries = 1;
    loop {
        let sent = parts.producer.send_for_handler(mailbox.queue().clone(), message.clone()).await;
        match sent {
            Ok(_) => return Ok(Outcome::done()),
            Err(error @ Error::InvalidParameter { .. }) if is_replaced => {
                return unanswered(&error);
            }
            Err(error @ Error::InvalidParameter { .. }) => {
                is_replaced = true;
                message = replacement(&error)?;
            }
            Err(error) if tries == MAX_TRIES => return Err(error.into()),
            Err(error) => {
                tracing::debug!(target: DELIVERIES, %queue, %message_id, worker_id, %request_id, %error, "cannot send an answer; trying again");
                tokio::time::sleep(delay.next_delay()).await;
                tries += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_reply_stays_derivable_after_an_upgrade() {
        let (request, message) = (Uuid::from_u128(u128::MAX / 3), MessageId::new());
        for replays in [0, 1, u32::MAX] {
            let key = format!("reply to {request} of {message}, replay {replays}");
            assert_eq!(reply_id(request, message, replays), MessageId::from_key(&key));
        }
    }
}
