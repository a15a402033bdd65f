//! Whether a long queue makes each message dearer.
//!
//! Two files, one with a backlog and one without, are open through all rounds. Each message that is
//! received is acknowledged, and another is sent, so that both stay as long as they are. With
//! `synchronous=FULL` most of a cycle is spent waiting for the disk, which hides what SQLite does;
//! with `NORMAL` it shows. The curves have the same for one caller that sends in batches.

use std::path::PathBuf;
use std::time::Duration;

use pillarbox_sqlite::Synchronous;
use tempfile::TempDir;

use super::load::{BODY, Durable, Numbers, body, crowd, seq_of};
use super::ours::Ours;
use super::{SUITE, place, window};
use crate::measure::{Case, Plan, Result, expect_eq, nanos_each, on_two_threads};
use crate::progress;
use crate::report::{Unit, grouped};

/// How many ask at the same time.
const CALLERS: u64 = 64;

/// The two files.
pub(super) struct Backlog {
    long: Level,
    empty: Level,
    /// How long a run takes.
    window: Duration,
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
    pub(super) fn case(&self, synchronous: Synchronous) -> Result<Case> {
        let side = |level: &Level| -> Result<_> {
            let queue = on_two_threads(Ours::open_with(&level.path(), synchronous))?;
            let (messages, window) = (level.messages, self.window);
            Ok(move || {
                on_two_threads(async {
                    let nanos = cycles(&queue, Numbers::within(window)).await?;
                    expect_eq("messages left", queue.count().await?, messages)?;
                    Ok(nanos)
                })
            })
        };
        let synchronous = match synchronous {
            Synchronous::Full => "",
            Synchronous::Normal => ", synchronous=NORMAL",
        };
        let name =
            format!("backlog of {}, {CALLERS} callers{synchronous}", grouped(self.long.messages));
        Ok(Case::new(name, Unit::NanosPerCycle, side(&self.long)?)
            .against("Pillarbox, the same queue, empty", side(&self.empty)?))
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

/// Cycles as long as there are numbers. Says how many nanoseconds each took.
async fn cycles(queue: &Ours, numbers: Numbers) -> Result<f64> {
    let callers = (0..CALLERS).map(|_| one_by_one(queue.clone(), numbers.clone()));
    let (_, elapsed) = crowd(callers).await?;
    Ok(nanos_each(numbers.taken(), elapsed))
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
