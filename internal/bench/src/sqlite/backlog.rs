//! Whether a long queue makes each message dearer.
//!
//! Two files, one with a backlog and one without, are open through all rounds. Each message that is
//! received is acknowledged, and another is sent, so that both stay as long as they are. With
//! `synchronous=FULL` most of a cycle is spent waiting for the disk, which hides what SQLite does;
//! with `NORMAL` it shows.

use std::path::PathBuf;
use std::time::Duration;

use pillarbox_sqlite::Synchronous;
use tempfile::TempDir;

use super::load::{BODY, Durable, Numbers, WAIT, body, crowd, seq_of};
use super::ours::Ours;
use super::{SUITE, place, window};
use crate::measure::{Case, Plan, Result, expect_eq, nanos_each, on_two_threads};
use crate::progress;
use crate::report::{Unit, grouped};

/// Messages in a batch.
const BATCH: u64 = 10;

/// The two files.
pub(super) struct Backlog {
    long: Level,
    empty: Level,
    /// How long a run takes.
    window: Duration,
}

/// Who asks for what.
#[derive(Debug, Clone, Copy)]
pub(super) enum Callers {
    /// One, in batches of 10.
    One,
    /// 64, one message at a time.
    Many,
}

/// A file whose queue holds `messages` messages before and after each run.
struct Level {
    directory: TempDir,
    messages: u64,
}

impl Backlog {
    /// Fills the files.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let messages = plan.pick(1_000_000, 5_000);
        progress::say(format_args!("{SUITE}: filling a queue with {} ...", grouped(messages)));
        Ok(Self { long: Level::new(messages)?, empty: Level::new(0)?, window: window(plan) })
    }

    /// A case of cycles for a while.
    ///
    /// It must be over before the next is made: who opens the same file in two ways has two
    /// threads that write it.
    pub(super) fn case(&self, callers: Callers, synchronous: Synchronous) -> Result<Case> {
        let side = |level: &Level| -> Result<_> {
            let queue = on_two_threads(Ours::open_with(&level.path(), synchronous))?;
            let (messages, window) = (level.messages, self.window);
            Ok(move || {
                on_two_threads(async {
                    let nanos = callers.cycles(&queue, Numbers::within(window)).await?;
                    expect_eq("messages left", queue.count().await?, messages)?;
                    Ok(nanos)
                })
            })
        };
        let callers = match callers {
            Callers::One => "1 caller, batch 10",
            Callers::Many => "64 callers",
        };
        let synchronous = match synchronous {
            Synchronous::Full => "",
            Synchronous::Normal => ", synchronous=NORMAL",
        };
        let name = format!("backlog of {}, {callers}{synchronous}", grouped(self.long.messages));
        Ok(Case::new(name, Unit::NanosPerCycle, side(&self.long)?)
            .against("the same queue, empty", side(&self.empty)?))
    }
}

impl Level {
    fn new(messages: u64) -> Result<Self> {
        let level = Self { directory: place::fresh()?, messages };
        on_two_threads(async {
            let queue = Ours::open_with(&level.path(), Synchronous::Normal).await?;
            queue.fill(messages).await?;
            queue.close(messages).await
        })?;
        Ok(level)
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("queue.db")
    }
}

impl Callers {
    /// Cycles as long as there are numbers. Says how many nanoseconds each took.
    async fn cycles(self, queue: &Ours, numbers: Numbers) -> Result<f64> {
        let (count, elapsed) = match self {
            Self::One => {
                let (_, elapsed) = crowd([in_batches(queue.clone(), numbers.clone())]).await?;
                (numbers.taken() * BATCH, elapsed)
            }
            Self::Many => {
                let caller = |_| one_by_one(queue.clone(), numbers.clone());
                let (_, elapsed) = crowd((0..64).map(caller)).await?;
                (numbers.taken(), elapsed)
            }
        };
        Ok(nanos_each(count, elapsed))
    }
}

/// Sends, receives and acknowledges a batch for each number.
async fn in_batches(queue: Ours, numbers: Numbers) -> Result<()> {
    while let Some(batch) = numbers.take() {
        let bodies = (batch * BATCH..(batch + 1) * BATCH).map(|seq| body(seq, BODY));
        queue.send_all(bodies.collect()).await?;
        let deliveries = queue.receive_up_to(BATCH as usize, WAIT).await?;
        expect_eq("messages received", deliveries.len() as u64, BATCH)?;
        for delivery in &deliveries {
            seq_of(&delivery.message.body, BODY)?;
        }
        queue.acknowledge_all(deliveries).await?;
    }
    Ok(())
}

/// Sends, receives and acknowledges a message for each number.
async fn one_by_one(queue: Ours, numbers: Numbers) -> Result<()> {
    while let Some(seq) = numbers.take() {
        queue.send(body(seq, BODY)).await?;
        let (body, receipt) = queue.receive().await?;
        seq_of(&body, BODY)?;
        queue.acknowledge(receipt).await?;
    }
    Ok(())
}
