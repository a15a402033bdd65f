//! Cost of a message by the number of queues that one caller visits in turn.

use std::time::{Duration, Instant};

use super::window;
use crate::chart::{Contest, Role};
use crate::cycles::{Contestant, cycle};
use crate::load::{Numbers, crowd};
use crate::measure::{Plan, Result, expect_eq, micros_each, on_two_threads};
use crate::ours::Ours;
use crate::report::{Unit, grouped};
use crate::store::{Kind, Store};
use crate::tally::Tally;

/// Messages in a call.
const BATCH: u64 = 10;

/// How many queues there are, at each place.
pub(super) fn numbers(plan: &Plan) -> &'static [u64] {
    plan.pick(&[1, 10, 100, 1_000, 10_000], &[1, 10, 100])
}

pub(super) fn contest(plan: &Plan) -> Contest {
    let numbers = numbers(plan);
    let about = "One caller sends, receives and acknowledges ten 256-byte messages per call and visits the queues of one backend in turn.";
    let mut contest =
        Contest::new("queues", "Cost by number of queues", about, Unit::MicrosPerMessage)
            .along("queues", numbers.iter().map(|number| grouped(*number)));
    for kind in Kind::ALL {
        let settings = match kind {
            Kind::Memory => "not persistent",
            Kind::Sqlite => "WAL, synchronous=FULL",
            Kind::Redis => "AOF everysec",
        };
        let window = window(plan);
        contest = contest.enter(Role::Ours, kind.name(), settings, move |place| {
            let store = Store::fresh(kind)?;
            on_two_threads(in_turn(store, numbers[place], window))
        });
    }
    contest
}

/// Goes around all queues, as often as there is time, and once at least. Says how long a message took.
async fn in_turn(store: Store, queues: u64, window: Duration) -> Result<f64> {
    let ours = Ours::of(store.address().backend().await?)?;
    let names = (0..queues).map(|number| format!("bench-{number}"));
    let all = names.map(|name| ours.another(&name)).collect::<Result<Vec<_>>>()?;
    // All of them are there before the time runs.
    let numbers = Numbers::up_to(queues);
    let callers = (0..64).map(|_| {
        let (all, numbers) = (all.clone(), numbers.clone());
        async move {
            while let Some(number) = numbers.take() {
                cycle(&all[number as usize], 0, 1).await?;
            }
            Ok(())
        }
    });
    crowd(callers).await?;
    let of_caller = all.clone();
    let caller = async move {
        let (start, mut number, mut tally) = (Instant::now(), 0, Tally::default());
        while number < queues || start.elapsed() < window {
            let queue = &of_caller[(number % queues) as usize];
            tally.merge(cycle(queue, number, BATCH).await?);
            number += 1;
        }
        let elapsed = start.elapsed();
        tally.expect_all(number * BATCH)?;
        Ok(micros_each(number * BATCH, elapsed))
    };
    let (figures, _) = crowd([caller]).await?;
    for queue in &all {
        expect_eq("messages left", queue.count().await?, 0)?;
    }
    ours.close(0).await?;
    Ok(figures[0])
}
