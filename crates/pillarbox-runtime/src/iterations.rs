//! Running a loop for a number of messages.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{BoxFuture, Counts, Result};
use tower::Service;

use crate::control::Control;
use crate::outcome::{BoxError, Outcome};
use crate::request::ServiceRequest;
use crate::stats::StatsSnapshot;
use crate::worker::ReadyWorker;

/// Interval at which is looked whether there is nothing more to do.
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl<T, R, C> ReadyWorker<T, R, C>
where
    T: Send + Sync + 'static,
    R: 'static,
    C: Send + Sync + 'static,
{
    /// Handles at most so many messages, one after the other, and ends; or earlier, when there is nothing
    /// `remaining`. Of a worker for one mailbox.
    pub(crate) async fn run_iterations(
        self,
        max_iterations: usize,
        remaining: impl Fn(&Counts) -> u64,
    ) -> Result<StatsSnapshot> {
        let begun = Arc::new(AtomicUsize::new(0));
        let control = self.control();
        if max_iterations == 0 {
            control.stop();
        }
        let gate = tower::layer::layer_fn(move |service| Gate {
            service,
            begun: begun.clone(),
            max: max_iterations,
            control: control.clone(),
        });
        self.workers(1).inbox(0).layer(gate).run_until_none(LOOK_EVERY, remaining).await
    }
}

/// Lets so many deliveries through, and then stops the worker.
#[derive(Clone)]
struct Gate<S> {
    service: S,
    begun: Arc<AtomicUsize>,
    max: usize,
    control: Control,
}

impl<S, T, R, C> Service<ServiceRequest<T, R, C>> for Gate<S>
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
        let before = self.begun.fetch_add(1, Ordering::Relaxed);
        if before >= self.max {
            return Box::pin(async { Ok(Outcome::release()) });
        }
        let work = self.service.call(request);
        let last = (before + 1 == self.max).then(|| self.control.clone());
        Box::pin(async move {
            let ended = work.await;
            // Not before: a stop gives what is running no more time than a drain has.
            last.iter().for_each(Control::stop);
            ended
        })
    }
}
