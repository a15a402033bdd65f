//! Whether a long queue makes each message dearer, or many queues do.
//!
//! The servers live through all rounds. Each message that is received is acknowledged, and another
//! is sent, so that every queue stays as long as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pillarbox_testing::server::RedisServer;

use super::cycle::Kept;
use super::{fresh, window};
use crate::cycles::{Contestant, Load, Numbers, crowd, cycle, cycles_on_backlog};
use crate::measure::{Case, Plan, Result, nanos_each, on_two_threads};
use crate::ours::Ours;
use crate::report::{Unit, grouped};

/// Messages in a batch.
const BATCH: u64 = 10;

/// What a queue holds before and after each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Pending,
    InFlight,
}

/// Cycles on a queue with a backlog.
pub(super) fn long(plan: &Plan, state: State) -> Case {
    let messages = plan.pick(1_000_000, 2_000);
    let what = match state {
        State::Pending => "ready",
        State::InFlight => "in flight",
    };
    let load = Load { callers: 1, batch: BATCH, window: window(plan) };
    let side = |messages: u64| {
        let mut server = None;
        move || {
            // Filled by the run that is not measured.
            let server = match &mut server {
                Some(server) => server,
                none => none.insert(filled(messages, state)?),
            };
            on_two_threads(async {
                let queue = Ours::open(&server.url()).await?;
                let (done, _) = cycles_on_backlog(&queue, load).await?;
                queue.close(messages).await?;
                Ok(nanos_each(done.messages, done.elapsed))
            })
        }
    };
    let name = format!("cycle, {}, {} {what}", load.name(), grouped(messages));
    Case::new(name, Unit::NanosPerCycle, side(messages)).against("the same queue, empty", side(0))
}

/// Starts a server whose queue holds `messages` messages.
fn filled(messages: u64, state: State) -> Result<RedisServer> {
    let server = fresh(Kept::No);
    on_two_threads(async {
        let queue = Ours::open(&server.url()).await?;
        queue.fill(messages).await?;
        if state == State::InFlight {
            queue.hold(messages).await?;
        }
        queue.close(messages).await
    })?;
    Ok(server)
}

/// Cycles on many queues, one after the other.
pub(super) fn many(plan: &Plan) -> Case {
    let queues = plan.pick(10_000, 100);
    let window = window(plan);
    let side = |queues: u64| {
        let mut server = None;
        // Goes on where the run before has ended, so that all queues have their turn.
        let next = Arc::new(AtomicU64::new(0));
        move || {
            let next = next.clone();
            let server = server.get_or_insert_with(|| fresh(Kept::No));
            on_two_threads(async {
                let ours = Ours::open(&server.url()).await?;
                let names = (0..queues).map(|number| format!("bench-{number}"));
                let all = names.map(|name| ours.another(&name)).collect::<Result<Vec<_>>>()?;
                let numbers = Numbers::within(window);
                let of_caller = numbers.clone();
                let caller = async move {
                    while let Some(number) = of_caller.take() {
                        let turn = next.fetch_add(1, Ordering::Relaxed) % queues;
                        cycle(&all[turn as usize], number, BATCH).await?;
                    }
                    Ok(())
                };
                let (_, elapsed) = crowd([caller]).await?;
                ours.close(0).await?;
                Ok(nanos_each(numbers.taken() * BATCH, elapsed))
            })
        }
    };
    let name = format!("cycle, 1 caller, batch {BATCH}, {} queues in turn", grouped(queues));
    Case::new(name, Unit::NanosPerCycle, side(queues)).against("one queue", side(1))
}
