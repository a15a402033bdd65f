//! A worker that stops after a number of attempts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pillarbox_core::BoxFuture;
use tower::{Layer, Service};

use crate::control::Control;
use crate::outcome::{BoxError, Outcome};
use crate::request::ServiceRequest;

/// Layer that lets `max` attempts through, and stops the worker when the last of them has ended.
pub(crate) struct AttemptLimitLayer {
    started: Arc<AtomicUsize>,
    max: usize,
    control: Control,
}

impl AttemptLimitLayer {
    pub(crate) fn new(max: usize, control: Control) -> Self {
        if max == 0 {
            control.stop();
        }
        Self { started: Arc::default(), max, control }
    }
}

impl<S> Layer<S> for AttemptLimitLayer {
    type Service = AttemptLimit<S>;

    fn layer(&self, service: S) -> AttemptLimit<S> {
        let Self { started, max, control } = self;
        AttemptLimit { service, started: started.clone(), max: *max, control: control.clone() }
    }
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
    type Future = BoxFuture<'static, std::result::Result<Outcome, BoxError>>;

    fn poll_ready(
        &mut self,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<std::result::Result<(), BoxError>> {
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
