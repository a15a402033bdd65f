//! What the workers do: a task that takes its time, and sometimes fails.

use std::time::Duration;

use pillarbox::runtime::{Attempt, Context};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// How often in a hundred a task fails, and how often it fails whenever it is tried.
const FAILS: u64 = 20;
const ALWAYS_FAILS: u64 = 4;
const ERRORS: [&str; 3] = ["connection reset by peer", "rate limit exceeded", "no answer in time"];

/// The work to be done.
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

/// Chooses how long tasks take and which of them fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Luck {
    pub(crate) seed: u64,
    pub(crate) fast: bool,
}

impl Luck {
    pub(crate) fn scaled(self, duration: Duration) -> Duration {
        if self.fast { duration / 10 } else { duration }
    }
}

/// Pretends to work, and fails as the seed says.
pub(crate) async fn work(
    Task { task, .. }: Task,
    Attempt(attempt): Attempt,
    Context(luck): Context<Luck>,
) -> Result<(), &'static str> {
    let Luck { seed, .. } = *luck;
    let doomed = StdRng::seed_from_u64(seed ^ task << 8).random_range(0..100) < ALWAYS_FAILS;
    let mut chance = StdRng::seed_from_u64(seed ^ task << 8 ^ u64::from(attempt) << 40);
    let milliseconds = chance.random_range(250..750);
    tokio::time::sleep(luck.scaled(Duration::from_millis(milliseconds))).await;
    if doomed || chance.random_range(0..100) < FAILS {
        return Err(ERRORS[chance.random_range(0..ERRORS.len())]);
    }
    Ok(())
}
