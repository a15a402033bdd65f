//! The Tower stack around a handler.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Ready, ready};
use pillarbox_core::BoxFuture;
use tokio::sync::Mutex;
use tower::util::{BoxCloneSyncService, Either};
use tower::{Service, ServiceBuilder, ServiceExt};

use crate::outcome::{BoxError, Failure, Outcome};
pub use crate::request::ServiceRequest;

/// A service stack, whatever its layers are.
pub type ServiceStack<T, R = (), C = ()> =
    BoxCloneSyncService<ServiceRequest<T, R, C>, Outcome, BoxError>;

/// The layers that [`build_service_stack`] puts around a service. `None` leaves a layer out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ServiceStackOptions {
    /// Refuses a delivery that would have to wait for the layers below; it is tried again a moment later. Without
    /// it, the delivery waits.
    pub load_shed: bool,
    /// Number of calls that may wait for the layers below.
    pub buffer: Option<usize>,
    /// The timeout of a call. Time spent waiting for a permit is not part of it.
    pub timeout: Option<Duration>,
    /// Number of calls that may run concurrently, over all workers that share the stack.
    pub concurrency_limit: Option<usize>,
}

impl ServiceStackOptions {
    /// The default timeout of a call.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

    /// Creates options without layers.
    pub const fn none() -> Self {
        Self { load_shed: false, buffer: None, timeout: None, concurrency_limit: None }
    }

    /// Creates the default options of a [`Worker`](crate::Worker): the timeout alone. Each worker handles one delivery at a time
    /// and has its own prefetched ones, which does the job of a limit and a buffer.
    pub const fn worker() -> Self {
        Self { timeout: Some(Self::DEFAULT_TIMEOUT), ..Self::none() }
    }

    /// Sets whether deliveries that would have to wait are refused.
    pub const fn load_shed(mut self, yes: bool) -> Self {
        self.load_shed = yes;
        self
    }

    /// Sets the number of calls that may wait.
    pub const fn buffer(mut self, calls: usize) -> Self {
        self.buffer = Some(calls);
        self
    }

    /// Sets the timeout of a call.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets the number of calls that may run concurrently.
    pub const fn concurrency_limit(mut self, calls: usize) -> Self {
        self.concurrency_limit = Some(calls);
        self
    }
}

impl Default for ServiceStackOptions {
    /// All layers, for one worker: load shedding, a buffer of 1, a timeout of 30 seconds, one call at a time.
    fn default() -> Self {
        Self::worker().load_shed(true).buffer(1).concurrency_limit(1)
    }
}

/// Puts load shedding, a buffer, a timeout and a concurrency limit around a service, from the outside in, and boxes
/// the result.
///
/// The buffer spawns a task, so a stack with one is built within a Tokio runtime.
///
/// ```
/// use pillarbox_runtime::handler::HandlerService;
/// use pillarbox_runtime::service::{ServiceStack, ServiceStackOptions, build_service_stack};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// let handler = HandlerService::new(|job: String| async move { println!("{job}") });
/// let stack: ServiceStack<String> = build_service_stack(handler, &ServiceStackOptions::default());
/// # }
/// ```
pub fn build_service_stack<S, T, R, C>(
    service: S,
    options: &ServiceStackOptions,
) -> ServiceStack<T, R, C>
where
    S: Service<ServiceRequest<T, R, C>, Response = Outcome> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError> + Send + Sync,
    S::Future: Send + 'static,
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    let inner = ServiceBuilder::new()
        .option_layer(options.timeout.map(tower::timeout::TimeoutLayer::new))
        .option_layer(options.concurrency_limit.map(tower::limit::GlobalConcurrencyLimitLayer::new))
        .layer(tower::layer::layer_fn(CatchPanic))
        .map_err(Into::into)
        .service(service);
    match (options.buffer, options.load_shed) {
        (None, false) => BoxCloneSyncService::new(inner),
        (None, true) => BoxCloneSyncService::new(tower::load_shed::LoadShed::new(inner)),
        (Some(calls), shed) => {
            let buffered =
                tower::buffer::Buffer::new(BoxCloneSyncService::new(inner), calls.max(1));
            let stack = if shed {
                Either::Left(tower::load_shed::LoadShed::new(buffered))
            } else {
                Either::Right(buffered)
            };
            BoxCloneSyncService::new(stack)
        }
    }
}

/// Turns a panic in `call` into an error. Otherwise it would end the task of a buffer, which then refuses all calls.
#[derive(Debug, Clone)]
struct CatchPanic<S>(S);

impl<S: Service<Request, Error = BoxError>, Request> Service<Request> for CatchPanic<S> {
    type Response = S::Response;
    type Error = BoxError;
    type Future = futures_util::future::Either<S::Future, Ready<Result<S::Response, BoxError>>>;

    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        match std::panic::catch_unwind(AssertUnwindSafe(|| self.0.call(request))) {
            Ok(response) => response.left_future(),
            Err(payload) => ready(Err(Failure::panic(&*payload).into())).right_future(),
        }
    }
}

/// Shares one service that cannot be cloned, such as a rate limit, between all workers: they take turns to wait until
/// it is ready, and their calls run concurrently.
pub(crate) struct SharedService<S> {
    // Tokio's mutex, since it is held while the service gets ready. It is fair and cancel-safe.
    service: Arc<Mutex<S>>,
}

impl<S> SharedService<S> {
    pub(crate) fn new(service: S) -> Self {
        Self { service: Arc::new(Mutex::new(service)) }
    }
}

impl<S> Clone for SharedService<S> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone() }
    }
}

impl<S, Request> Service<Request> for SharedService<S>
where
    S: Service<Request, Error: Into<BoxError>, Future: Send> + Send + 'static,
    Request: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let service = self.service.clone();
        Box::pin(async move {
            let response = {
                let mut service = service.lock().await;
                service.ready().await.map_err(Into::into)?.call(request)
            };
            response.await.map_err(Into::into)
        })
    }
}
