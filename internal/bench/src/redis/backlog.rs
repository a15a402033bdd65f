//! Whether messages in flight make each message dearer, and what the first use of a queue costs.
//!
//! The servers live through all rounds. Each message that is received is acknowledged, and another
//! is sent, so that every queue stays as long as it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pillarbox_testing::server::RedisServer;

use super::cycle::Kept;
use super::{fresh, wait_for_rewrites, window};
use crate::cycles::{Contestant, Load, Numbers, crowd, cycle, cycles_on_backlog};
use crate::measure::{Case, Plan, Result, nanos_each, on_two_threads};
use crate::ours::Ours;
use crate::report::{Unit, grouped};

/// Messages in a batch.
const BATCH: u64 = 10;

/// Cycles on a queue with many messages in flight.
pub(super) fn in_flight(plan: &Plan) -> Case {
    let messages = plan.pick(1_000_000, 2_000);
    let load = Load { callers: 1, batch: BATCH, window: window(plan) };
    let side = |messages: u64| {
        let mut server = None;
        move || {
            // Filled before the first run.
            let server = match &mut server {
                Some(server) => server,
                none => none.insert(filled(messages)?),
            };
            on_two_threads(async {
                let queue = Ours::open(&server.url()).await?;
                let (done, _) = cycles_on_backlog(&queue, load).await?;
                queue.close(messages).await?;
                Ok(nanos_each(done.messages, done.elapsed))
            })
        }
    };
    let name = format!("cycle, {}, {} in flight", load.name(), grouped(messages));
    Case::new(name, Unit::NanosPerCycle, side(messages))
        .against("Pillarbox, the same queue, empty", side(0))
}

/// Starts a server whose queue holds `messages` messages, all of them in flight.
fn filled(messages: u64) -> Result<RedisServer> {
    let server = fresh(Kept::EverySecond);
    on_two_threads(async {
        let queue = Ours::open(&server.url()).await?;
        queue.fill(messages).await?;
        queue.hold(messages).await?;
        queue.close(messages).await
    })?;
    wait_for_rewrites(&server);
    Ok(server)
}

/// Cycles of a process on queues that it has not used before. (On the curves it has used all of them.)
pub(super) fn new_queues(plan: &Plan) -> Case {
    let queues = plan.pick(10_000, 100);
    let window = window(plan);
    let side = |queues: u64| {
        let mut server = None;
        // Goes on where the run before has ended, so that all queues have their turn.
        let next = Arc::new(AtomicU64::new(0));
        move || {
            let next = next.clone();
            let server = server.get_or_insert_with(|| fresh(Kept::EverySecond));
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
    let name = format!(
        "cycle, 1 caller, batch {BATCH}, each on another of {} new queues",
        grouped(queues)
    );
    Case::new(name, Unit::NanosPerCycle, side(queues)).against("Pillarbox, one queue", side(1))
}
