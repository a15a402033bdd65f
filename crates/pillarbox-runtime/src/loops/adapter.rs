//! Adapters: functions and services that answer requests.

use std::fmt;
use std::marker::PhantomData;
use std::task::{Context, Poll};

use pillarbox_core::BoxFuture;
use tower::Service;

use super::run::{LoopCall, Run};
use crate::outcome::{BoxError, Failure};

/// A function that answers requests: an async function of the request, or of the request and its [`Run`], that
/// returns the output or a `Result` of it.
///
/// ```
/// use pillarbox_runtime::loops::Run;
///
/// async fn double(n: u64) -> u64 { 2 * n }
/// async fn halve(n: u64, run: Run) -> Result<u64, String> {
///     if n % 2 == 0 { Ok(n / 2) } else { Err(format!("{n} is odd, in request {}", run.request_id())) }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot answer the requests of this loop",
    label = "its arguments, its output or its future does not fit: see the notes",
    note = "an adapter is an async function or a closure `|request: {U}| async move {{ ... }}` or \
            `|request: {U}, run: Run| async move {{ ... }}`",
    note = "it returns `{O}` or `Result<{O}, E>`, where `E` is an error, an `anyhow::Error`, a `String` or a \
            `&str`, and its future is `Send`"
)]
pub trait Adapter<U, O, Args>: Clone + Send + Sync + 'static {
    /// Answers a request.
    fn answer(&self, request: U, run: Run) -> impl Future<Output = Result<O, BoxError>> + Send;
}

/// Return types of an [`Adapter`]: the output, or a `Result` of it.
pub trait IntoOutput<O> {
    /// Returns the output, or the error of the adapter.
    fn into_output(self) -> Result<O, BoxError>;
}

impl<O> IntoOutput<O> for O {
    fn into_output(self) -> Result<O, BoxError> {
        Ok(self)
    }
}

impl<O, E: Into<BoxError> + 'static> IntoOutput<O> for Result<O, E> {
    fn into_output(self) -> Result<O, BoxError> {
        self.map_err(|error| Failure::of(error).into())
    }
}

impl<U, O, F, Fut> Adapter<U, O, (U,)> for F
where
    F: Fn(U) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoOutput<O>> + Send + 'static,
    U: Send + 'static,
{
    async fn answer(&self, request: U, _: Run) -> Result<O, BoxError> {
        self(request).await.into_output()
    }
}

impl<U, O, F, Fut> Adapter<U, O, (U, Run)> for F
where
    F: Fn(U, Run) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoOutput<O>> + Send + 'static,
    U: Send + 'static,
{
    async fn answer(&self, request: U, run: Run) -> Result<O, BoxError> {
        self(request, run).await.into_output()
    }
}

/// An [`Adapter`] as a Tower service, for use with middleware.
pub struct AdapterService<A, O, Args> {
    adapter: A,
    types: PhantomData<fn(Args) -> O>,
}

impl<A, O, Args> AdapterService<A, O, Args> {
    /// Creates the service of an adapter.
    pub const fn new(adapter: A) -> Self {
        Self { adapter, types: PhantomData }
    }
}

impl<A: Clone, O, Args> Clone for AdapterService<A, O, Args> {
    fn clone(&self) -> Self {
        Self::new(self.adapter.clone())
    }
}

impl<A, O, Args> fmt::Debug for AdapterService<A, O, Args> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterService").finish_non_exhaustive()
    }
}

impl<A, Args, U, O> Service<LoopCall<U>> for AdapterService<A, O, Args>
where
    A: Adapter<U, O, Args>,
    U: Send + 'static,
    O: 'static,
{
    type Response = O;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<O, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, call: LoopCall<U>) -> Self::Future {
        let adapter = self.adapter.clone();
        Box::pin(async move { adapter.answer(call.request, call.run).await })
    }
}
