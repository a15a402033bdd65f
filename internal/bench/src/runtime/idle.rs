//! CPU time of a process whose workers have nothing to do.
//!
//! A fresh process opens the mailbox, lets the workers handle one message, and looks at its CPU time
//! before and after a while: of the Tokio runtime, and of what threads the backend has. For ten
//! seconds after a message the workers still publish how their rate falls, which is in it. A
//! thousandth of a core is 1,000 µs/s. Compared with a loop that waits in a receive, and with the
//! mailbox merely open; these use next to nothing, so that their ratios say little.

use std::time::Duration;

use clap::{Args, ValueEnum};
use pillarbox_core::{Mailbox, Receive};
use pillarbox_runtime::Runnable;

use super::load::{Job, Seen, WAIT};
use super::store::{Address, Kind, Store};
use super::{CHILD, ours};
use crate::measure::{Case, Plan, Result, expect_eq, on_one_thread};
use crate::process::{CpuClock, in_child};
use crate::report::Unit;

/// A process that has nothing to do.
#[derive(Debug, Args)]
pub(crate) struct Idle {
    who: Who,
    address: Address,
    millis: u64,
}

/// Who waits in it.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Who {
    Nobody,
    Bare,
    Worker,
}

pub(super) fn case(plan: &Plan, kind: Kind) -> Case {
    let window = plan.pick(Duration::from_secs(2), Duration::from_millis(200));
    let child = move |who: &'static str| {
        move || {
            let store = Store::fresh(kind)?;
            let millis = window.as_millis().to_string();
            in_child(&[CHILD, "idle", who, &store.address().argument()?, &millis])
        }
    };
    let name = format!("idle CPU, workers, {}", kind.name());
    Case::new(name, Unit::CpuMicrosPerSecond, child("worker"))
        .against_limit("plain waiter", child("bare"))
        .against_limit("no waiter", child("nobody"))
}

impl Idle {
    /// Says how many microseconds of CPU time a second of it took.
    pub(super) fn measure(self) -> Result<f64> {
        let window = Duration::from_millis(self.millis);
        on_one_thread(async {
            let opened = self.address.open().await?;
            let mailbox = &opened.mailbox;
            // All have the same behind them.
            mailbox.send(&Job::new(0)).await?;
            match self.who {
                Who::Nobody => {
                    take(mailbox).await?;
                    let used = watch(window).await?;
                    opened.close().await?;
                    Ok(used)
                }
                Who::Bare => {
                    take(mailbox).await?;
                    let wait = {
                        let mailbox = mailbox.clone();
                        async move { mailbox.receive(Receive::one().wait(WAIT)).await.map(drop) }
                    };
                    let wait = tokio::spawn(wait);
                    let used = watch(window).await?;
                    expect_eq("a receive that ended early", wait.is_finished(), false)?;
                    wait.abort();
                    opened.close().await?;
                    Ok(used)
                }
                Who::Worker => {
                    let seen = Seen::none_of(1);
                    let running = ours::workers(mailbox, &seen).start();
                    seen.all().await?;
                    let used = watch(window).await?;
                    expect_eq("jobs done", running.stop().await?.succeeded, 1)?;
                    opened.close().await?;
                    Ok(used)
                }
            }
        })
    }
}

async fn take(mailbox: &Mailbox<Job>) -> Result<()> {
    let batch = mailbox.receive(Receive::one().wait(WAIT)).await?;
    expect_eq("messages received", batch.len(), 1)?;
    batch.acknowledge().await?.all()?;
    Ok(())
}

/// How many microseconds of CPU time this process uses in a second.
async fn watch(window: Duration) -> Result<f64> {
    tokio::time::sleep(window / 10).await;
    // Only now, so that all threads of the backend are among those it looks at.
    let clock = CpuClock::new()?;
    let before = clock.read()?;
    tokio::time::sleep(window).await;
    let used = clock.read()? - before;
    Ok(used.as_secs_f64() * 1e6 / window.as_secs_f64())
}
