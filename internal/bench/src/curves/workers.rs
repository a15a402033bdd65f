//! Throughput by number of workers, with handlers that wait and with no-op handlers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pillarbox_core::Mailbox;
use pillarbox_runtime::handler::Context;
use pillarbox_runtime::{Runnable, Worker};

use crate::chart::{Contest, Role};
use crate::load::{Job, crowd};
use crate::measure::{Plan, Result, expect_eq, on_two_threads, per_second};
use crate::report::Unit;
use crate::runtime::load::{Seen, fill};
use crate::store::{Kind, Store};

/// How long a handler waits, as for a model or a service.
const WAITS: Duration = Duration::from_millis(5);

/// What a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handler {
    /// Five milliseconds of waiting for something else.
    Waits,
    /// Counting it, and no more.
    Counts,
}

/// How many workers there are, at each place.
pub(super) fn numbers(plan: &Plan) -> &'static [usize] {
    plan.pick(&[1, 2, 8, 16, 32, 64], &[1, 2, 16])
}

pub(super) fn contest(plan: &Plan, handler: Handler) -> Contest {
    let numbers = numbers(plan);
    let (id, title, about) = match handler {
        Handler::Waits => (
            "workers-waiting",
            "Worker throughput, handlers that wait 5 ms",
            "A worker handles one message at a time, so throughput doubles with the number of workers until something else limits it. Default settings.",
        ),
        Handler::Counts => (
            "workers-counting",
            "Worker throughput, no-op handlers",
            "The cost of the runtime and the backend alone. Default settings. [The runtime suite](#suite-runtime) compares four workers with peers and with fixed settings.",
        ),
    };
    let at = numbers.iter().map(usize::to_string);
    let mut contest = Contest::new(id, title, about, Unit::MessagesPerSecond).along("workers", at);
    for kind in Kind::ALL {
        let settings = match kind {
            Kind::Memory => "not persistent",
            Kind::Sqlite => "WAL, synchronous=FULL",
            Kind::Redis => "AOF everysec",
        };
        let jobs = move |plan: &Plan, workers: usize| match (handler, kind) {
            (Handler::Waits, _) => waits(plan, workers),
            (Handler::Counts, Kind::Memory) => plan.pick(200_000, 4_000),
            (Handler::Counts, Kind::Sqlite | Kind::Redis) => plan.pick(40_000, 1_000),
        };
        let plan = plan.clone();
        contest = contest.enter(Role::Ours, kind.name(), settings, move |place| {
            let (workers, store) = (numbers[place], Store::fresh(kind)?);
            let jobs = jobs(&plan, workers);
            on_two_threads(async {
                let backend = store.address().backend().await?;
                let rate = drain(&backend.mailbox("jobs")?, handler, workers, jobs).await?;
                backend.close().await;
                Ok(rate)
            })
        });
    }
    if handler == Handler::Counts {
        return contest;
    }
    let plan = plan.clone();
    contest.enter(Role::Limit, "sleeping tasks", "no queue", move |place| {
        let workers = numbers[place];
        on_two_threads(only_wait(workers, waits(&plan, workers)))
    })
}

/// How many jobs there are where handlers wait.
fn waits(plan: &Plan, workers: usize) -> u64 {
    workers as u64 * plan.pick(150, 20)
}

/// Fills a mailbox and has workers empty it. Says how many jobs they did in a second.
async fn drain(mailbox: &Mailbox<Job>, handler: Handler, workers: usize, jobs: u64) -> Result<f64> {
    fill(mailbox, jobs).await?;
    let seen = Seen::none_of(jobs);
    let worker = Worker::new(mailbox.clone()).context((seen.clone(), handler)).handler(handle);
    let start = Instant::now();
    let running = worker.workers(workers).start();
    seen.all().await?;
    running.stop().await?;
    let elapsed = start.elapsed();
    seen.expect_all()?;
    expect_eq("messages left", mailbox.approximate_count().await?, 0)?;
    Ok(per_second(jobs, elapsed))
}

async fn handle(job: Job, Context(context): Context<(Seen, Handler)>) -> Result<()> {
    let (seen, handler) = &*context;
    if *handler == Handler::Waits {
        tokio::time::sleep(WAITS).await;
    }
    seen.add(&job)
}

/// The limit: as many tasks as there would be workers, which take numbers and wait.
async fn only_wait(workers: usize, jobs: u64) -> Result<f64> {
    let next = Arc::new(AtomicU64::new(0));
    let tasks = (0..workers).map(|_| {
        let next = next.clone();
        async move {
            while next.fetch_add(1, Ordering::Relaxed) < jobs {
                tokio::time::sleep(WAITS).await;
            }
            Ok(())
        }
    });
    let (_, elapsed) = crowd(tasks).await?;
    Ok(per_second(jobs, elapsed))
}
