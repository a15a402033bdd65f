//! A worker that stops after a number of attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use pillarbox_core::BoxFuture;
use tower::layer::layer_fn;
use tower::{Layer, Service};

use crate::control::Control;
use crate::outcome::{BoxError, Outcome};
use crate::request::ServiceRequest;

/// Layer that lets `max` attempts through, and stops the worker when the last of them has ended.
pub(crate) fn limit_attempts<S>(
    max: usize,
    control: Control,
) -> impl Layer<S, Service = AttemptLimit<S>> {
    if max == 0 {
        control.stop();
    }
    let started = Arc::<AtomicUsize>::default();
    layer_fn(move |service| {
        let (started, control) = (started.clone(), control.clone());
        AttemptLimit { service, started, max, control }
    })
}

/// Service that lets `max` attempts through, and then stops the worker.
#[derive(Clone)]
pub(crate) struct AttemptLimit<S> {
    service: S,
    started: Arc<AtomicUsize>,
    max: usize,
    control: Control,
}

impl<S, T, R, C> Service<ServiceRequest<T, R, C>> for AttemptLimit<S>
where
    S: Service<ServiceRequest<T, R, C>, Response = Outcome, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = Outcome;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Outcome, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        let before = self.started.fetch_add(1, Ordering::Relaxed);
        if before >= self.max {
            return Box::pin(async { Ok(Outcome::release()) });
        }
        let work = self.service.call(request);
        let last = (before + 1 == self.max).then(|| StopWhenDropped(self.control.clone()));
        Box::pin(async move {
            // Dropped when the work has ended or is cancelled. An earlier stop would limit the work to the drain time.
            let _last = last;
            work.await
        })
    }
}

/// Stops the worker when the last attempt has ended, however it ends.
struct StopWhenDropped(Control);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop();
    }
}
