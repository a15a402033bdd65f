//! CPU time of receivers that wait for a message that does not come.
//!
//! A fresh process starts the receivers, lets them settle, and looks at its CPU time before and
//! after a while. Compared with the same process without receivers, which pays for the runtime and
//! for looking. That is some 100 µs in all and differs from run to run, so ratios between 0.7 and 1.4
//! say no more than that waiting costs nothing that can be seen this way.
//!
//! Not measured: what it costs to start the receivers, and to end them.

use std::time::Duration;

use clap::ValueEnum;
use pillarbox_core::{Outgoing, Receive};

use super::ours;
use crate::measure::{Case, Result, expect_eq, on_one_thread};
use crate::process::{CpuClock, in_child};
use crate::report::{Unit, grouped};

/// How many receivers wait.
const WAITERS: u64 = 1000;
/// How long each of them would wait.
const WAIT: Duration = Duration::from_secs(60);

/// What the receivers of a child wait for.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Waiters {
    /// There are none.
    None,
    /// For a message to be sent: the queue is empty.
    Empty,
    /// The same, while one message is in flight and the end of its lease has to be watched.
    InFlight,
}

/// The two cases, with a child for each run that watches for `window`.
pub(super) fn cases(window: Duration) -> [Case; 2] {
    let child = |waiters: &'static str| {
        move || in_child(&[super::CHILD, "idle", waiters, &window.as_millis().to_string()])
    };
    [("empty queue", "empty"), ("one message in flight", "in-flight")].map(|(queue, waiters)| {
        let name = format!("idle CPU, {} waiters, {queue}", grouped(WAITERS));
        Case::new(name, Unit::CpuMicrosPerSecond, child(waiters))
            .against_limit("no waiters", child("none"))
    })
}

/// Waits in this process and says how many microseconds of CPU time a second of it took.
pub(super) fn measure(waiters: Waiters, window: Duration) -> Result<f64> {
    on_one_thread(async {
        let clock = CpuClock::new()?;
        let queue = ours::queue()?;
        if let Waiters::InFlight = waiters {
            queue.send(vec![Outgoing::new("held")]).await?;
            let lease = Receive::one().visibility(WAIT);
            expect_eq("messages in flight", queue.receive(lease).await?.len(), 1)?;
        }
        let count = if let Waiters::None = waiters { 0 } else { WAITERS };
        let receivers: Vec<_> = (0..count)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.receive(Receive::one().wait(WAIT)).await })
            })
            .collect();
        tokio::time::sleep(window / 10).await;

        let before = clock.read()?;
        tokio::time::sleep(window).await;
        let used = clock.read()? - before;

        let ended = receivers.iter().filter(|receiver| receiver.is_finished()).count();
        expect_eq("receivers that ended early", ended, 0)?;
        Ok(used.as_secs_f64() * 1e6 / window.as_secs_f64())
    })
}
