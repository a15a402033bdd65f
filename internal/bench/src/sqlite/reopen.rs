//! How soon a file can be used again whose process was killed.
//!
//! A child fills the file and keeps sending; it is killed by SIGKILL in the midst of it. Then the
//! file is opened here and a message received. Compared with a file that is empty and was closed in
//! order. The child of the next round finds the file full and sends on.
//!
//! The operating system still has the file in memory, as it has after a crash of a process, unlike
//! after one of the machine.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use super::load::{BODY, Durable, Numbers, body, crowd};
use super::ours::Ours;
use super::{SUITE, child, place};
use crate::measure::{Case, Plan, Result, expect_eq, millis, on_one_thread, on_two_threads};
use crate::process;
use crate::progress;
use crate::report::{Unit, grouped};

/// How long the child sends before it is killed.
const SENDING: Duration = Duration::from_millis(300);
/// How long it sends if it is not, which happens only where its parent has died.
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that fills a file and sends until it is killed.
#[derive(Debug, Args)]
pub(crate) struct Victim {
    path: PathBuf,
    messages: u64,
}

pub(super) fn case(plan: &Plan) -> Result<Case> {
    let messages = plan.pick(1_000_000, 5_000);
    let (full, empty) = (place::fresh()?, place::fresh()?);
    let path = |directory: &tempfile::TempDir| directory.path().join("queue.db");
    on_one_thread(async { Ours::open(&path(&empty)).await?.close(0).await })?;
    progress::say(format_args!("{SUITE}: filling another queue with {} ...", grouped(messages)));
    kill_while_sending(&path(&full), messages)?;

    let name = format!("open and receive after SIGKILL, {} messages", grouped(messages));
    Ok(Case::new(name, Unit::Millis, move || {
        kill_while_sending(&path(&full), messages)?;
        on_one_thread(open_and_receive(&path(&full), 1))
    })
    .against("Pillarbox, empty file, closed cleanly", move || {
        on_one_thread(open_and_receive(&path(&empty), 0))
    }))
}

fn kill_while_sending(path: &Path, messages: u64) -> Result<()> {
    let mut victim = child::start("victim", path, &[messages.to_string()])?;
    victim.expect("full")?;
    std::thread::sleep(SENDING);
    victim.kill()
}

/// Opens the file and receives up to one message. Returns the time in milliseconds, and fails unless
/// `expected` messages were received.
async fn open_and_receive(path: &Path, expected: usize) -> Result<f64> {
    let start = Instant::now();
    let queue = Ours::open(path).await?;
    let deliveries = queue.receive_up_to(1, Duration::ZERO).await?;
    let elapsed = start.elapsed();
    expect_eq("messages received", deliveries.len(), expected)?;
    let left = queue.count().await?;
    queue.close(left).await?;
    Ok(millis(elapsed))
}

impl Victim {
    pub(super) fn run(self) -> Result<()> {
        on_two_threads(async {
            let queue = Ours::open(&self.path).await?;
            queue.fill(self.messages).await?;
            process::say("full")?;
            let time = Numbers::within(PATIENCE);
            crowd((0..16).map(|_| send(queue.clone(), time.clone()))).await?;
            Err("nobody has killed this process".into())
        })
    }
}

async fn send(queue: Ours, time: Numbers) -> Result<()> {
    while let Some(seq) = time.take() {
        queue.send(body(seq, BODY)).await?;
    }
    Ok(())
}
