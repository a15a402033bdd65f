//! Whether a message grows dearer with the number of queues: one caller at one after the other.

use std::time::Duration;

use super::window;
use crate::chart::{Contest, Role};
use crate::cycles::{Contestant, cycle};
use crate::load::{Numbers, crowd};
use crate::measure::{Plan, Result, micros_each, on_two_threads};
use crate::ours::Ours;
use crate::report::{Unit, grouped};
use crate::store::{Kind, Store};

/// Messages in a call.
const BATCH: u64 = 10;

/// How many queues there are, at each place.
pub(super) fn numbers(plan: &Plan) -> &'static [u64] {
    plan.pick(&[1, 10, 100, 1_000, 10_000], &[1, 10, 100])
}

pub(super) fn contest(plan: &Plan) -> Contest {
    let numbers = numbers(plan);
    let about = "One caller sends, receives and acknowledges ten messages of 256 bytes at one queue after the other, all of one backend.";
    let mut contest =
        Contest::new("queues", "A message of one of many queues", about, Unit::MicrosPerMessage)
            .along("queues", numbers.iter().map(|number| grouped(*number)));
    for kind in Kind::ALL {
        let settings = match kind {
            Kind::Memory => "",
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

async fn in_turn(store: Store, queues: u64, window: Duration) -> Result<f64> {
    let ours = Ours::of(store.address().backend().await?)?;
    let names = (0..queues).map(|number| format!("bench-{number}"));
    let all = names.map(|name| ours.another(&name)).collect::<Result<Vec<_>>>()?;
    // Once around, so that all are there.
    for queue in &all {
        cycle(queue, 0, 1).await?;
    }
    let numbers = Numbers::within(window);
    let of_caller = numbers.clone();
    let caller = async move {
        while let Some(number) = of_caller.take() {
            cycle(&all[(number % queues) as usize], number, BATCH).await?;
        }
        Ok(())
    };
    let (_, elapsed) = crowd([caller]).await?;
    ours.close(0).await?;
    Ok(micros_each(numbers.taken() * BATCH, elapsed))
}
