//! Tower middleware around a handler: a rate limit, a concurrency limit, a timeout, and a custom layer that measures.
//!
//!     cargo run --example middleware
//!
//! From the outermost layer to the innermost:
//!
//! | layer | does |
//! |---|---|
//! | `RateLimitLayer` | starts at most 10 handlers in 200 ms |
//! | `StopwatchLayer` | measures, and prints slow and failed handlers |
//! | timeout | fails a handler after half a second |
//! | concurrency limit | runs at most 3 handlers at a time, although there are 8 workers |
//!
//! All workers share the layers, so the limits apply to all of them together.

use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use pillarbox::BoxFuture;
use pillarbox::prelude::*;
use pillarbox::service::{ServiceRequest, ServiceStackOptions};
use tower::limit::RateLimitLayer;
use tower::{Layer, Service};

const JOBS: u32 = 40;

/// Measures the duration of handlers.
#[derive(Debug, Clone, Default)]
struct StopwatchLayer {
    times: Arc<Mutex<Vec<Duration>>>,
}

impl<S> Layer<S> for StopwatchLayer {
    type Service = Stopwatch<S>;

    fn layer(&self, inner: S) -> Stopwatch<S> {
        Stopwatch { inner, times: self.times.clone() }
    }
}

#[derive(Debug, Clone)]
struct Stopwatch<S> {
    inner: S,
    times: Arc<Mutex<Vec<Duration>>>,
}

impl<S, T, R, C> Service<ServiceRequest<T, R, C>> for Stopwatch<S>
where
    S: Service<ServiceRequest<T, R, C>, Response = Outcome, Future: Send + 'static>,
    S::Error: std::fmt::Display,
    T: Debug,
{
    type Response = Outcome;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Outcome, S::Error>>;

    // The limits of the inner layers apply backpressure here.
    fn poll_ready(&mut self, context: &mut std::task::Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: ServiceRequest<T, R, C>) -> Self::Future {
        let (start, times) = (Instant::now(), self.times.clone());
        let about = format!("job {:?}, worker {}", request.message.body, request.worker_id);
        let call = self.inner.call(request);
        Box::pin(async move {
            let result = call.await;
            let took = start.elapsed();
            match &result {
                Err(error) => println!("stopwatch: {about}: {error}, after {took:.0?}"),
                Ok(_) if took > Duration::from_millis(80) => {
                    println!("stopwatch: {about}: slow, {took:.0?}");
                }
                Ok(_) => {}
            }
            times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            result
        })
    }
}

/// Current and maximum number of running handlers.
#[derive(Debug, Clone, Default)]
struct Gauge {
    now: Arc<AtomicU32>,
    max: Arc<AtomicU32>,
}

async fn work(job: u32, Context(gauge): Context<Gauge>) {
    let now = gauge.now.fetch_add(1, Ordering::SeqCst) + 1;
    gauge.max.fetch_max(now, Ordering::SeqCst);
    let _guard = RunningGuard(gauge);
    let milliseconds = match job {
        13 => 100,
        // Longer than the timeout: it is cancelled.
        29 => 60_000,
        _ => 10,
    };
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Decrements the gauge when dropped, even if the handler is cancelled.
struct RunningGuard(Arc<Gauge>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::main]
async fn main() -> pillarbox::Result<()> {
    let backend = pillarbox::open("memory:").await?;
    let jobs: Mailbox<u32> = backend.mailbox("jobs")?;
    jobs.send_batch(&Vec::from_iter(1..=JOBS)).await?.all()?;

    let (gauge, stopwatch) = (Gauge::default(), StopwatchLayer::default());
    let worker = Worker::new(jobs)
        .context(gauge.clone())
        .handler(work)
        .workers(8)
        .stack(ServiceStackOptions::none().timeout(Duration::from_millis(500)).concurrency_limit(3))
        .layer(stopwatch.clone())
        .layer(RateLimitLayer::new(10, Duration::from_millis(200)))
        .max_deliveries(1)
        .dead_letters(DlqPolicy::new());

    let start = Instant::now();
    let mut stats = worker.control().stats();
    let all = async move {
        let _ = stats.wait_for(|now| now.succeeded + now.dead_lettered == u64::from(JOBS)).await;
    };
    let stats = worker.run_until(all).await?;
    let elapsed = start.elapsed();

    let mut times = stopwatch.times.lock().unwrap_or_else(PoisonError::into_inner).clone();
    times.sort();
    println!("{JOBS} jobs in {elapsed:.1?}, at most 10 per 200 ms");
    println!("median duration {:.0?}", times[times.len() / 2]);
    let max = gauge.max.load(Ordering::SeqCst);
    println!("at most {max} ran at a time");
    println!("{} timed out and became a dead letter", stats.timeouts);

    assert_eq!((stats.succeeded, stats.timeouts, stats.dead_lettered), (39, 1, 1));
    assert_eq!(times.len(), 40);
    assert!(max <= 3, "the concurrency limit was exceeded");
    // The first ten start at once, the others in three more intervals.
    assert!(elapsed >= Duration::from_millis(600), "the rate limit was exceeded");
    Ok(())
}
