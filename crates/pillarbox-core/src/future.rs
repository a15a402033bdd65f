//! The future types of the object-safe traits.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A boxed future, which keeps the traits of this crate object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Future of an operation on one message: complete from the start, or boxed.
///
/// A backend that can do the operation at once returns its result without an allocation:
///
/// ```
/// use pillarbox_core::OperationFuture;
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// assert_eq!(OperationFuture::ready(7).await, 7);
/// assert_eq!(OperationFuture::boxed(async { 7 }).await, 7);
/// # }
/// ```
#[must_use = "await it to learn whether the operation succeeded"]
pub struct OperationFuture<'a, T>(State<'a, T>);

enum State<'a, T> {
    /// `None` once the result was returned.
    Ready(Option<T>),
    Boxed(BoxFuture<'a, T>),
}

impl<'a, T> OperationFuture<'a, T> {
    /// Creates a future that is complete.
    pub const fn ready(result: T) -> Self {
        Self(State::Ready(Some(result)))
    }

    /// Boxes a future.
    pub fn boxed(future: impl Future<Output = T> + Send + 'a) -> Self {
        Self(State::Boxed(Box::pin(future)))
    }
}

// The result is never pinned.
impl<T> Unpin for OperationFuture<'_, T> {}

impl<T> Future for OperationFuture<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        match &mut self.0 {
            State::Ready(result) => {
                Poll::Ready(result.take().expect("a future is not polled after it has completed"))
            }
            State::Boxed(future) => future.as_mut().poll(context),
        }
    }
}

impl<T> fmt::Debug for OperationFuture<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.0 {
            State::Ready(_) => "ready",
            State::Boxed(_) => "boxed",
        };
        f.debug_tuple("OperationFuture").field(&state).finish()
    }
}
