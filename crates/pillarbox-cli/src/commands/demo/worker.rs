//! Handler of the demo: a task that sleeps, and sometimes fails.

use std::time::Duration;

use pillarbox::Failure;
use pillarbox::handler::{Attempt, Context};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::demo_errors::{Disconnected, RateLimited, Timeout};

/// Percentage of attempts that fail.
const FAILS: u64 = 20;
/// Percentage of tasks whose attempts all fail.
const ALWAYS_FAILS: u64 = 4;
/// The failures, one of which is chosen at random. A `Failure` keeps the type of its error.
const FAILURES: [fn() -> Failure; 3] =
    [|| Failure::of(Disconnected), || Failure::of(RateLimited), || Failure::of(Timeout)];

/// Body of a message.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    task: u64,
    prompt: String,
}

impl Task {
    pub(crate) fn new(task: u64) -> Self {
        Self { task, prompt: format!("Summarise document {task}") }
    }
}

/// Determines the duration and failures of tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Simulation {
    pub(crate) seed: u64,
    pub(crate) fast: bool,
}

impl Simulation {
    pub(crate) fn scaled(self, duration: Duration) -> Duration {
        if self.fast { duration / 10 } else { duration }
    }
}

/// Simulates work, with failures determined by the seed.
pub(crate) async fn work(
    Task { task, .. }: Task,
    Attempt(attempt): Attempt,
    Context(simulation): Context<Simulation>,
) -> Result<(), Failure> {
    let Simulation { seed, .. } = *simulation;
    let always_fails = StdRng::seed_from_u64(seed ^ task << 8).random_range(0..100) < ALWAYS_FAILS;
    let mut random = StdRng::seed_from_u64(seed ^ task << 8 ^ u64::from(attempt) << 40);
    let milliseconds = random.random_range(250..750);
    tokio::time::sleep(simulation.scaled(Duration::from_millis(milliseconds))).await;
    if always_fails || random.random_range(0..100) < FAILS {
        return Err(FAILURES[random.random_range(0..FAILURES.len())]());
    }
    Ok(())
}
