//! The loops suite: calls of a main loop, on every backend.
//!
//! A call is a request that is sent, received, answered and acknowledged, and an answer that is received and
//! acknowledged. The limit is the same six operations without a loop and a client (see `bare`): loops that
//! receive, send and acknowledge, in batches, with the same bodies, where nobody keeps leases, catches panics,
//! watches deadlines or gives up waiting.
//!
//! Callers are tasks that call one after the other. The loop has as many workers as there are callers, so that
//! none waits for another. In memory and on a file both sides share a backend; on Redis each has one of its
//! own, as if they were two processes.

mod bare;
mod ours;

use std::time::{Duration, Instant};

use pillarbox_core::{Mailbox, Mailboxes};
use pillarbox_runtime::loops::{MainLoopRequest, MainLoopResult};
use tokio::task::JoinSet;

use crate::load::ResponseTimes;
use crate::measure::{
    Case, Figure, Plan, Result, expect_eq, micros, on_two_threads, per_second, percentile,
};
use crate::place;
use crate::report::{Report, Unit};
use crate::store::{Kind, Store};

const SUITE: &str = "loops";
/// How long anything is waited for before something must be wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is asked, and answered: 256 characters, as of the other suites.
type Requests = Mailbox<MainLoopRequest<String>, MainLoopResult<String>>;

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    place::warn_if_in_memory();
    for kind in Kind::ALL {
        for callers in [1, 64] {
            let case = case(plan, kind, callers);
            if plan.wants(case.name()) {
                if kind == Kind::Sqlite {
                    place::tell_sync_time(SUITE)?;
                }
                report.add(case.run(SUITE, plan.rounds())?);
            }
        }
    }
    Ok(())
}

fn case(plan: &Plan, kind: Kind, callers: usize) -> Case {
    let full = match (kind, callers) {
        (Kind::Memory, _) => 100_000,
        (_, 1) => 2_000,
        (_, _) => 40_000,
    };
    let calls = plan.pick(full, 256);
    let of = if callers == 1 { "1 caller".to_owned() } else { format!("{callers} callers") };
    let name = format!("requests, {of}, {}", kind.name());
    let figures = [
        Figure::median(name.clone(), Unit::MessagesPerSecond),
        Figure::median(format!("{name}, p50"), Unit::Micros),
        Figure::median(format!("{name}, p99"), Unit::Micros),
    ];
    let shape = Shape { kind, callers, calls };
    Case::several(name, figures, move || shape.run(ours::Ours::open))
        .against_limit("mailbox operations only", move || shape.run(bare::Bare::open))
}

/// The backend, the number of callers, and the number of calls.
#[derive(Debug, Clone, Copy)]
struct Shape {
    kind: Kind,
    callers: usize,
    calls: usize,
}

/// A client of a main loop, together with the loop that answers its calls.
trait Caller: Clone + Send + Sync + 'static {
    fn call(&self, request: MainLoopRequest<String>)
    -> impl Future<Output = Result<String>> + Send;
    /// Checks that nothing is left behind.
    fn close(self) -> impl Future<Output = Result<()>>;
}

impl Shape {
    /// Calls per second, and in how many microseconds half of them and 99 of 100 were answered.
    fn run<C: Caller>(self, open: impl AsyncFnOnce(Ends) -> Result<C>) -> Result<[f64; 3]> {
        let store = Store::fresh(self.kind)?;
        let address = store.address();
        on_two_threads(async {
            let loops = address.backend().await?;
            let clients = match self.kind {
                Kind::Memory | Kind::Sqlite => loops.clone(),
                Kind::Redis => address.backend().await?,
            };
            let caller = open(Ends {
                loops: loops.clone(),
                clients: clients.clone(),
                callers: self.callers,
            })
            .await?;
            let start = Instant::now();
            let mut tasks = JoinSet::new();
            for _ in 0..self.callers {
                let times = ResponseTimes::start(self.callers as u64);
                tasks.spawn(call_again_and_again(caller.clone(), self.calls / self.callers, times));
            }
            let mut times = Vec::with_capacity(self.calls);
            while let Some(ended) = tasks.join_next().await {
                times.extend(ended??);
            }
            let elapsed = start.elapsed();
            caller.close().await?;
            let requests: Requests = clients.mailbox("requests")?;
            expect_eq("requests left", requests.approximate_count().await?, 0)?;
            clients.close().await;
            loops.close().await;
            let rate = per_second(times.len() as u64, elapsed);
            Ok([rate, micros(percentile(&mut times, 50)?), micros(percentile(&mut times, 99)?)])
        })
    }
}

/// Where both sides are, and how many are under way at a time.
struct Ends {
    loops: Mailboxes,
    clients: Mailboxes,
    callers: usize,
}

async fn call_again_and_again(
    caller: impl Caller,
    calls: usize,
    mut times: ResponseTimes,
) -> Result<Vec<Duration>> {
    let body = "x".repeat(256);
    for _ in 0..calls {
        let request = MainLoopRequest::new(body.clone());
        let answer = caller.call(request).await?;
        expect_eq("the answer", &answer, &body)?;
        times.next().await;
    }
    Ok(times.all())
}
