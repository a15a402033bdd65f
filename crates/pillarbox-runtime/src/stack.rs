//! The Tower stack around a handler.

use std::fmt;
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
use crate::request::ServiceRequest;

/// A service stack whatever it is made of.
pub type ServiceStack<T, R = (), C = ()> =
    BoxCloneSyncService<ServiceRequest<T, R, C>, Outcome, BoxError>;

/// What [`build_service_stack`] puts around a service. `None` leaves a layer out.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct ServiceStackOptions {
    /// A delivery that would have to wait for the layers below is refused at once, and goes back to the
    /// queue for a moment. Without it, it waits.
    pub load_shed: bool,
    /// How many calls may wait in line for the layers below.
    pub buffer: Option<usize>,
    /// How long one call may take. Time spent waiting for a free place is not part of it.
    pub timeout: Option<Duration>,
    /// How many calls may run at the same time, over all workers that share the stack.
    pub concurrency_limit: Option<usize>,
}

impl ServiceStackOptions {
    /// How long a call may take unless said otherwise.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

    /// Nothing at all.
    pub const fn none() -> Self {
        Self { load_shed: false, buffer: None, timeout: None, concurrency_limit: None }
    }

    /// What a [`Worker`](crate::Worker) uses: the timeout alone. Its workers take one delivery at a
    /// time, each from its own inbox, which is what a limit and a buffer are for.
    pub const fn worker() -> Self {
        Self { timeout: Some(Self::DEFAULT_TIMEOUT), ..Self::none() }
    }

    /// Refuses what would have to wait.
    pub const fn load_shed(mut self, yes: bool) -> Self {
        self.load_shed = yes;
        self
    }

    /// Lets so many calls wait in line.
    pub const fn buffer(mut self, calls: usize) -> Self {
        self.buffer = Some(calls);
        self
    }

    /// Lets a call take so long.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets so many calls run at the same time.
    pub const fn concurrency_limit(mut self, calls: usize) -> Self {
        self.concurrency_limit = Some(calls);
        self
    }
}

impl Default for ServiceStackOptions {
    /// All of it, for one worker: load shedding, a buffer of 1, 30 seconds, one call at a time.
    fn default() -> Self {
        Self::worker().load_shed(true).buffer(1).concurrency_limit(1)
    }
}

/// Puts load shedding, a buffer, a timeout and a concurrency limit around a service, from the outside
/// in, and makes one type of it.
///
/// The buffer runs in a task of its own, so with one this is called within a runtime.
///
/// ```
/// use pillarbox_runtime::{HandlerService, ServiceStack, ServiceStackOptions, build_service_stack};
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
        .layer(tower::layer::layer_fn(Caught))
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

/// Makes an error of a panic in `call`, where a buffer would otherwise die of it and refuse everything after.
#[derive(Debug, Clone)]
struct Caught<S>(S);

impl<S, Request> Service<Request> for Caught<S>
where
    S: Service<Request, Error = BoxError>,
{
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

/// Lets all workers share one service that cannot be cloned, such as a rate limit: they take turns to
/// ask whether it is ready, and run beside each other once it has taken their call.
pub(crate) struct Shared<S> {
    // Tokio's, for it is held while the service gets ready. Those who wait for it are served in turn,
    // and one that gives up leaves nothing behind.
    service: Arc<Mutex<S>>,
}

impl<S> Shared<S> {
    pub(crate) fn new(service: S) -> Self {
        Self { service: Arc::new(Mutex::new(service)) }
    }
}

impl<S> Clone for Shared<S> {
    fn clone(&self) -> Self {
        Self { service: self.service.clone() }
    }
}

impl<S> fmt::Debug for Shared<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

impl<S, Request> Service<Request> for Shared<S>
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
