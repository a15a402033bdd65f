//! Handlers for several kinds of message in one mailbox.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use bytes::Bytes;
use pillarbox_core::{BoxFuture, Codec, Json, Mailbox, Outgoing};
use tower::Service;

use crate::handler::{Handler, HandlerService};
use crate::outcome::{BoxError, Failure, FailureKind, Outcome};
use crate::request::{Received, ServiceRequest};

/// Handlers for the kinds of message in one mailbox.
///
/// The sender sets the kind by [`SendOptions::kind`](pillarbox_core::SendOptions::kind). A message of a kind
/// without a handler is [parked](crate::Worker::park_for): it stays in the queue, delayed, for a worker that knows
/// its kind.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, SendOptions};
/// use pillarbox_runtime::{Router, Runnable, Worker};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)] struct Email { to: String }
/// #[derive(Serialize, Deserialize)] struct Resize { width: u32 }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let emails: Mailbox<Email> = backend.mailbox("jobs")?;
/// emails.send_with(&Email { to: "ada@example.org".into() }, SendOptions::new().kind("email")).await?;
///
/// let router = Router::new()
///     .on("email", |email: Email| async move { println!("to {}", email.to) })
///     .on("resize", |resize: Resize| async move { println!("to {} pixels", resize.width) });
/// let worker = Worker::new(emails).router(router);
/// # worker.control().stop(); worker.run().await?;
/// # Ok(()) }
/// ```
pub struct Router<R = (), C = ()> {
    kinds: BTreeMap<String, Box<dyn KindService<R, C>>>,
}

impl<R: 'static, C: Send + Sync + 'static> Router<R, C> {
    /// Creates a router without handlers.
    pub fn new() -> Self {
        Self { kinds: BTreeMap::new() }
    }

    /// Adds the handler of a kind whose bodies are JSON.
    pub fn on<J, Args>(self, kind: impl Into<String>, handler: impl Handler<J, R, C, Args>) -> Self
    where
        J: Send + Sync + 'static,
        Json: Codec<J>,
        Args: 'static,
    {
        self.on_with(kind, Json, handler)
    }

    /// Adds the handler of a kind whose bodies have another codec.
    pub fn on_with<J, Args>(
        mut self,
        kind: impl Into<String>,
        codec: impl Codec<J> + Clone,
        handler: impl Handler<J, R, C, Args>,
    ) -> Self
    where
        J: Send + Sync + 'static,
        Args: 'static,
    {
        let service = HandlerService::new(handler);
        let codec: Arc<dyn Codec<J>> = Arc::new(codec);
        let kind = kind.into();
        let entry =
            TypedKind { kind: kind.as_str().into(), codec, service, mailbox: OnceLock::new() };
        self.kinds.insert(kind, Box::new(entry));
        self
    }

    /// Returns the kinds that have a handler.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }
}

impl<R: 'static, C: Send + Sync + 'static> Default for Router<R, C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R, C> Clone for Router<R, C> {
    fn clone(&self) -> Self {
        let kinds = self.kinds.iter().map(|(kind, entry)| (kind.clone(), entry.clone_boxed()));
        Self { kinds: kinds.collect() }
    }
}

impl<R, C> fmt::Debug for Router<R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Router").field(&self.kinds.keys()).finish()
    }
}

impl<R: 'static, C: Send + Sync + 'static> Service<ServiceRequest<Bytes, R, C>> for Router<R, C> {
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ServiceRequest<Bytes, R, C>) -> Self::Future {
        let kind = request.message.metadata().attributes().get(Outgoing::KIND);
        let problem = match kind.map(|kind| (kind, self.kinds.get_mut(kind))) {
            Some((_, Some(entry))) => return entry.call(request),
            Some((kind, None)) => format!("there is no handler for messages of kind {kind:?}"),
            None => format!("the message has no kind: the attribute {} is missing", Outgoing::KIND),
        };
        Box::pin(std::future::ready(Err(Failure::new(FailureKind::UnknownKind, problem).into())))
    }
}

/// The service of one kind, whatever its body type is.
trait KindService<R, C>: Send + Sync {
    fn call(
        &mut self,
        request: ServiceRequest<Bytes, R, C>,
    ) -> BoxFuture<'static, Result<Outcome, BoxError>>;

    fn clone_boxed(&self) -> Box<dyn KindService<R, C>>;
}

struct TypedKind<J, R, S> {
    kind: Arc<str>,
    codec: Arc<dyn Codec<J>>,
    service: S,
    /// The mailbox with this kind's body type, set at the first message.
    mailbox: OnceLock<Arc<Mailbox<J, R>>>,
}

impl<J, R, C, S> KindService<R, C> for TypedKind<J, R, S>
where
    J: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
    S: Service<
            ServiceRequest<J, R, C>,
            Response = Outcome,
            Error = BoxError,
            Future: Send + 'static,
        > + Clone
        + Send
        + Sync
        + 'static,
{
    fn call(
        &mut self,
        request: ServiceRequest<Bytes, R, C>,
    ) -> BoxFuture<'static, Result<Outcome, BoxError>> {
        let mailbox = self
            .mailbox
            .get_or_init(|| Arc::new(request.message.mailbox.with_codec(self.codec.clone())));
        let body = match mailbox.decode(request.message.metadata().raw()) {
            Ok(body) => body,
            Err(error) => {
                let failure = Failure::new(FailureKind::Undecodable, error);
                return Box::pin(std::future::ready(Err(failure.into())));
            }
        };
        let metadata = request.message.metadata().clone();
        Box::pin(self.service.call(ServiceRequest {
            message: Received::new(body, metadata, mailbox.clone()),
            context: request.context,
            producer: request.producer.for_kind(mailbox.clone(), &self.kind),
            heartbeat: request.heartbeat,
            attempt: request.attempt,
            worker_id: request.worker_id,
        }))
    }

    fn clone_boxed(&self) -> Box<dyn KindService<R, C>> {
        Box::new(Self {
            kind: self.kind.clone(),
            codec: self.codec.clone(),
            service: self.service.clone(),
            mailbox: self.mailbox.clone(),
        })
    }
}
