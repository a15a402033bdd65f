//! Functions that handle messages, and the arguments that they may take.

use std::fmt;
use std::marker::PhantomData;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;

use futures_util::FutureExt;
use futures_util::future::{CatchUnwind, Either, Map, Ready, ready};
use tower::Service;

pub use crate::lease::Heartbeat;
pub use crate::outcome::IntoOutcome;
use crate::outcome::{BoxError, Failure, Outcome};
use crate::producer::ProducerHandle;
pub use crate::request::{Attempt, Context, Metadata, Received, Replies, WorkerId};
use crate::request::{ResolveReplies, ServiceRequest};

/// A function that handles messages: takes the body, then up to six arguments that implement [`FromRequest`], in
/// any order.
///
/// ```
/// use pillarbox_runtime::Outcome;
/// use pillarbox_runtime::handler::{Context, Heartbeat, Metadata};
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
    /// The future of a call.
    type Future: Future<Output = Result<Outcome, BoxError>> + Send + 'static;

    /// Handles a delivery.
    fn handle(&self, request: ServiceRequest<T, R, C>) -> Self::Future;
}

/// An argument that a [`Handler`] may take after the body.
#[diagnostic::on_unimplemented(
    message = "a handler cannot ask for `{Self}`",
    label = "not something that a delivery has",
    note = "it may ask for `Context<{C}>`, `Metadata`, `ProducerHandle<{T}>`, `Heartbeat`, `Replies<{R}>`, \
            `Attempt` and `WorkerId`; the body comes first"
)]
pub trait FromRequest<T, R, C>: Sized {
    /// Extracts it from the request.
    fn from_request(request: &Parts<T, R, C>) -> Self;
}

/// A request without its body.
#[non_exhaustive]
pub struct Parts<T, R, C> {
    /// Everything else about the message.
    pub metadata: Metadata,
    resolver: Arc<dyn ResolveReplies<R>>,
    /// The context of the workers.
    pub context: Context<C>,
    /// Sends further messages.
    pub producer: ProducerHandle<T>,
    /// The lease of this delivery.
    pub heartbeat: Heartbeat,
    /// Number of the attempt.
    pub attempt: Attempt,
    /// The worker that handles it.
    pub worker_id: WorkerId,
}

impl<T: Send + Sync + 'static, R: 'static, C> ServiceRequest<T, R, C> {
    /// Splits into the body and everything else.
    pub fn into_parts(self) -> (T, Parts<T, R, C>) {
        let (body, metadata, resolver) = self.message.into_body();
        let parts = Parts {
            metadata,
            resolver,
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
    /// Returns the reply address.
    pub fn replies(&self) -> Replies<R> {
        Replies::new(&self.metadata, &self.resolver)
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

            #[allow(unused_variables, reason = "a handler may take the body alone")]
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

/// Tower service that calls a [`Handler`]. A panic of the handler becomes an error.
#[derive(Debug)]
pub struct HandlerService<H, Args> {
    handler: H,
    arguments: PhantomData<fn(Args)>,
}

impl<H, Args> HandlerService<H, Args> {
    /// Creates a service that calls `handler`.
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
    type Future = Either<Caught<H::Future>, Ready<Result<Outcome, BoxError>>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        // The body is dropped with the handler, and the state that handlers share is theirs to keep consistent.
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.handler.handle(request))) {
            Ok(handling) => {
                let handling = AssertUnwindSafe(handling).catch_unwind();
                handling.map(caught as fn(_) -> _).left_future()
            }
            Err(payload) => ready(caught(Err(payload))).right_future(),
        }
    }
}

/// The future of a handler whose panic becomes an error.
type Caught<F> = Map<CatchUnwind<AssertUnwindSafe<F>>, fn(Handled) -> Result<Outcome, BoxError>>;
/// The result of a handler, or the payload of its panic.
type Handled = std::thread::Result<Result<Outcome, BoxError>>;

fn caught(handled: Handled) -> Result<Outcome, BoxError> {
    handled.unwrap_or_else(|payload| Err(Box::new(Failure::panic(&*payload))))
}
