//! Functions that handle messages, and what they may ask for.

use std::fmt;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::Map;
use pillarbox_core::BoxFuture;
use tower::Service;

use crate::lease::Heartbeat;
use crate::outcome::{BoxError, Failure, IntoOutcome, Outcome};
use crate::producer::ProducerHandle;
use crate::request::{Attempt, Context, Metadata, Replies, Replying, ServiceRequest, WorkerId};

/// A function that handles messages: takes the body, and then up to six further arguments of those
/// that implement [`FromRequest`], in any order.
///
/// ```
/// use pillarbox_runtime::{Context, Heartbeat, Metadata, Outcome};
/// # struct Shop;
/// # #[derive(serde::Serialize, serde::Deserialize)] struct Order;
///
/// async fn pack(order: Order) {}
/// async fn ship(order: Order, about: Metadata, Context(shop): Context<Shop>) -> Result<(), std::io::Error> {
///     Ok(())
/// }
/// async fn bill(order: Order, heartbeat: Heartbeat) -> Outcome {
///     Outcome::retry_after(std::time::Duration::from_secs(5))
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle messages of this worker",
    label = "its body, its other arguments, what it returns or its future does not fit: see the notes",
    note = "a handler is an async function or a closure `|body: {T}, ...| async move {{ ... }}`",
    note = "after the body it takes any of `Context<{C}>`, `Metadata`, `ProducerHandle<{T}>`, `Heartbeat`, \
            `Replies<{R}>`, `Attempt` and `WorkerId`; `.context(...)` comes before `.handler(...)`",
    note = "it returns `()`, `Outcome`, or a `Result` of one of them, and its future is `Send`"
)]
pub trait Handler<T, R, C, Args>: Clone + Send + Sync + 'static {
    /// What it returns when called.
    type Future: Future<Output = Result<Outcome, BoxError>> + Send + 'static;

    /// Handles a delivery.
    fn handle(&self, request: ServiceRequest<T, R, C>) -> Self::Future;
}

/// Something a [`Handler`] may ask for beside the body.
#[diagnostic::on_unimplemented(
    message = "a handler cannot ask for `{Self}`",
    label = "not something that a delivery has",
    note = "it may ask for `Context<{C}>`, `Metadata`, `ProducerHandle<{T}>`, `Heartbeat`, `Replies<{R}>`, \
            `Attempt` and `WorkerId`; the body comes first"
)]
pub trait FromRequest<T, R, C>: Sized {
    /// Takes it out of the request.
    fn from_request(request: &Parts<T, R, C>) -> Self;
}

/// A request without its body.
#[non_exhaustive]
pub struct Parts<T, R, C> {
    /// Everything else about the message.
    pub metadata: Metadata,
    mailbox: Arc<dyn Replying<R>>,
    /// What the workers share.
    pub context: Context<C>,
    /// Sends further messages.
    pub producer: ProducerHandle<T>,
    /// The lease of this delivery.
    pub heartbeat: Heartbeat,
    /// Which delivery of the message this is.
    pub attempt: Attempt,
    /// Which worker has it.
    pub worker_id: WorkerId,
}

impl<T: Send + Sync + 'static, R: 'static, C> ServiceRequest<T, R, C> {
    /// Takes the body out.
    pub fn into_parts(self) -> (T, Parts<T, R, C>) {
        let (body, metadata, mailbox) = self.message.into_body();
        let parts = Parts {
            metadata,
            mailbox,
            context: self.context,
            producer: self.producer,
            heartbeat: self.heartbeat,
            attempt: Attempt(self.attempt),
            worker_id: self.worker_id,
        };
        (body, parts)
    }
}

impl<T, R, C> Parts<T, R, C> {
    /// Where answers go.
    pub fn replies(&self) -> Replies<R> {
        Replies::new(&self.metadata, &self.mailbox)
    }
}

impl<T, R, C: fmt::Debug> fmt::Debug for Parts<T, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts")
            .field("metadata", &self.metadata)
            .field("context", &self.context)
            .field("attempt", &self.attempt)
            .field("worker_id", &self.worker_id)
            .finish_non_exhaustive()
    }
}

impl<T, R, C> FromRequest<T, R, C> for Replies<R> {
    fn from_request(request: &Parts<T, R, C>) -> Self {
        request.replies()
    }
}

macro_rules! from_request {
    ($($type:ty, $field:ident;)*) => {$(
        impl<T, R, C> FromRequest<T, R, C> for $type {
            fn from_request(request: &Parts<T, R, C>) -> Self {
                request.$field.clone()
            }
        }
    )*};
}

from_request! {
    Metadata, metadata;
    Context<C>, context;
    ProducerHandle<T>, producer;
    Heartbeat, heartbeat;
    Attempt, attempt;
    WorkerId, worker_id;
}

macro_rules! handler {
    ($($argument:ident)*) => {
        impl<T, R, C, F, Fut, $($argument,)*> Handler<T, R, C, (T, $($argument,)*)> for F
        where
            F: Fn(T, $($argument,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send + 'static,
            T: Send + Sync + 'static,
            R: 'static,
            $($argument: FromRequest<T, R, C>,)*
        {
            type Future = Map<Fut, fn(Fut::Output) -> Result<Outcome, BoxError>>;

            #[allow(unused_variables, reason = "a handler may ask for nothing")]
            fn handle(&self, request: ServiceRequest<T, R, C>) -> Self::Future {
                let (body, parts) = request.into_parts();
                self(body, $($argument::from_request(&parts),)*).map(IntoOutcome::into_outcome)
            }
        }
    };
}

handler!();
handler!(A);
handler!(A B);
handler!(A B D);
handler!(A B D E);
handler!(A B D E G);
handler!(A B D E G H);

/// A handler as a Tower service. A panic of the handler is an error like any other.
#[derive(Debug)]
pub struct HandlerService<H, Args> {
    handler: H,
    arguments: PhantomData<fn(Args)>,
}

impl<H, Args> HandlerService<H, Args> {
    /// Makes a service of a handler.
    pub const fn new(handler: H) -> Self {
        Self { handler, arguments: PhantomData }
    }
}

impl<H: Clone, Args> Clone for HandlerService<H, Args> {
    fn clone(&self) -> Self {
        Self::new(self.handler.clone())
    }
}

impl<H, Args, T, R, C> Service<ServiceRequest<T, R, C>> for HandlerService<H, Args>
where
    H: Handler<T, R, C, Args>,
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        let handler = self.handler.clone();
        Box::pin(async move {
            // Nothing that a handler may have left half done is used again: the body is gone with it, and
            // what handlers share is theirs to keep sound.
            let guarded = AssertUnwindSafe(async move { handler.handle(request).await });
            guarded
                .catch_unwind()
                .await
                .unwrap_or_else(|payload| Err(Box::new(Failure::panic(&*payload))))
        })
    }
}
