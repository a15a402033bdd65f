//! The service of one mailbox without its types: decodes a delivery, runs the stack, and makes error replies.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use pillarbox_core::{BoxFuture, Mailbox, MessageId, Outgoing, Queue, RawMessage, SendOptions};
use tower::Service;

use crate::dead_letters::DeadLetter;
use crate::lease::Heartbeat;
use crate::outcome::{BoxError, Failure, FailureKind, Outcome};
use crate::producer::{ProducerHandle, SendChannel};
use crate::request::{Context, Metadata, Received, ServiceRequest, WorkerId};
use crate::service::ServiceStack;
use crate::trace::TraceContext;

/// A delivery before its body is decoded.
#[derive(Debug)]
pub(crate) struct UndecodedRequest {
    pub(crate) metadata: Metadata,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) sends: SendChannel,
    pub(crate) attempt: u32,
    pub(crate) worker_id: WorkerId,
}

/// The future of a delivery that is handled.
pub(crate) type Handling = BoxFuture<'static, Result<Outcome, BoxError>>;

/// The service of one mailbox, whatever its types are.
pub(crate) trait MailboxService: Send + Sync {
    /// Decodes a delivery, which is handled by the next call.
    fn decode(&mut self, request: UndecodedRequest) -> Result<(), BoxError>;

    /// Calls the stack with the delivery that was decoded last, once the stack is ready.
    fn poll_call(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<Handling, BoxError>>;

    /// Returns the error reply to a message that becomes a dead letter. `None` if its sender wants none.
    fn error_reply(
        &self,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<Option<ErrorReply>, BoxError>;

    /// Returns the same service for another worker.
    fn clone_boxed(&self) -> Box<dyn MailboxService>;
}

/// The reply to the sender of a message that became a dead letter.
#[derive(Debug)]
pub(crate) struct ErrorReply {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) message: Outgoing,
}

/// Makes the error reply of a dead letter, and the id of the reply if it is not the default one.
pub(crate) type MakeErrorReply<R> =
    Arc<dyn Fn(&DeadLetter) -> (Option<MessageId>, R) + Send + Sync>;

pub(crate) struct TypedMailboxService<T, R, C> {
    pub(crate) mailbox: Arc<Mailbox<T, R>>,
    pub(crate) context: Context<C>,
    pub(crate) service: ServiceStack<T, R, C>,
    pub(crate) error_reply: Option<MakeErrorReply<R>>,
    /// The delivery that waits for the stack to be ready.
    pub(crate) decoded: Option<ServiceRequest<T, R, C>>,
}

impl<T: 'static, R: 'static, C> TypedMailboxService<T, R, C> {
    fn try_error_reply(
        &self,
        make: &MakeErrorReply<R>,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<ErrorReply, BoxError> {
        let mailbox = self.mailbox.reply_mailbox(message)?;
        let (id, reply) = make(letter);
        // Derived from the message and its replay count, so that a repeated reply is stored once.
        let id = id.unwrap_or_else(|| {
            let (id, source, replays) = (message.id, &letter.source_mailbox, letter.replay_count);
            MessageId::from_key(&format!("error reply to {id} of {source}, replay {replays}"))
        });
        let mut message = mailbox.encode(&reply, SendOptions::new().id(id))?;
        if let Some(trace) = TraceContext::of(&letter.attributes) {
            trace.add_to(&mut message.attributes);
        }
        Ok(ErrorReply { queue: mailbox.queue().clone(), message })
    }
}

impl<T, R, C> MailboxService for TypedMailboxService<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    fn decode(&mut self, request: UndecodedRequest) -> Result<(), BoxError> {
        let body = self.mailbox.decode(request.metadata.raw());
        let body = body.map_err(|error| Failure::new(FailureKind::Undecodable, error))?;
        self.decoded = Some(ServiceRequest {
            message: Received::new(body, request.metadata, self.mailbox.clone()),
            context: self.context.clone(),
            producer: ProducerHandle::new(self.mailbox.clone(), request.sends),
            heartbeat: request.heartbeat,
            attempt: request.attempt,
            worker_id: request.worker_id,
        });
        Ok(())
    }

    fn poll_call(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<Handling, BoxError>> {
        let is_ready = ready!(self.service.poll_ready(context));
        let request = self.decoded.take().expect("a delivery was decoded");
        Poll::Ready(is_ready.map(|()| self.service.call(request)))
    }

    fn error_reply(
        &self,
        message: &RawMessage,
        letter: &DeadLetter,
    ) -> Result<Option<ErrorReply>, BoxError> {
        let (Some(make), Some(_)) = (&self.error_reply, &message.reply_to) else { return Ok(None) };
        // The function, the resolver of the mailbox and the codec are the program's own, and may panic.
        let make_reply = || self.try_error_reply(make, message, letter);
        std::panic::catch_unwind(AssertUnwindSafe(make_reply))
            .unwrap_or_else(|payload| Err(Failure::panic(&*payload).into()))
            .map(Some)
    }

    fn clone_boxed(&self) -> Box<dyn MailboxService> {
        Box::new(Self {
            mailbox: self.mailbox.clone(),
            context: self.context.clone(),
            service: self.service.clone(),
            error_reply: self.error_reply.clone(),
            decoded: None,
        })
    }
}
