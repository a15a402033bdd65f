//! Runs a target on many inputs, and reports failures.
//!
//! | subject | file |
//! |---|---|
//! | mutation of inputs | `mutate.rs` |
//! | shrinking of failures | `shrink.rs` |
//! | one input: panics, memory, time | `trial.rs` |
//! | initial inputs | `corpus.rs` |
//!
//! Everything is derived from a seed. Stable Rust has no coverage instrumentation for this; instead, a target records
//! the outcomes of an input ([`record_outcome`]), and an input with a new outcome is kept for mutation.

mod corpus;
mod mutate;
mod shrink;
mod trial;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use self::corpus::{corpus, corpus_directory};
use self::mutate::Mutator;
use self::trial::Trial;
pub use self::trial::record_outcome;
use crate::Target;

/// Largest size of an input.
pub const MAX_LEN: usize = 4096;

/// Size and seed of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Campaign {
    /// Number of generated inputs, in addition to the corpus.
    pub inputs: u64,
    /// Seed of the generated inputs.
    pub seed: u64,
}

impl Campaign {
    /// Returns the settings of `PILLARBOX_INPUTS` and `PILLARBOX_SEED`. They default to the target's number of
    /// inputs and to a constant seed.
    pub fn of(target: &Target) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
        Self {
            inputs: number("PILLARBOX_INPUTS").unwrap_or(target.inputs),
            seed: number("PILLARBOX_SEED").unwrap_or(1),
        }
    }

    /// Runs a target on these inputs and on mutations of them, until one fails.
    ///
    /// # Errors
    ///
    /// Returns the first input that fails, shrunk.
    pub fn run(&self, target: &Target, corpus: &[Vec<u8>]) -> Result<Done, Box<Failure>> {
        trial::keep_panics_quiet();
        let mut pool = Pool::default();
        for input in corpus {
            self.run_input(target, input, &mut pool)?;
        }
        // Long inputs check the limits of time and memory.
        for seed in corpus.iter().filter(|seed| !seed.is_empty()) {
            let long: Vec<_> = seed.iter().copied().cycle().take(LONG).collect();
            // Their outcomes still count as new for short ones.
            self.run_input(target, &long, &mut Pool::default())?;
        }
        // Inputs without a new outcome are still mutated.
        pool.inputs = corpus.to_vec();
        let mut rng = StdRng::seed_from_u64(self.seed);
        let mutator = Mutator { words: target.words };
        for _ in 0..self.inputs {
            let input = match &pool.inputs[..] {
                [] => mutator.change(&[], &[], &mut rng),
                inputs => {
                    let one = &inputs[rng.random_range(0..inputs.len())];
                    let other = &inputs[rng.random_range(0..inputs.len())];
                    mutator.change(one, other, &mut rng)
                }
            };
            self.run_input(target, &input, &mut pool)?;
        }
        Ok(Done { tried: pool.tried, outcomes: pool.outcomes.len() })
    }

    fn run_input(
        &self,
        target: &Target,
        input: &[u8],
        pool: &mut Pool,
    ) -> Result<(), Box<Failure>> {
        pool.tried += 1;
        match trial::run(target, input) {
            Trial::Passed { outcomes } => {
                if pool.outcomes.len() < MOST_OUTCOMES
                    && outcomes.iter().any(|one| !pool.outcomes.contains(one))
                {
                    pool.outcomes.extend(outcomes);
                    pool.inputs.push(input.to_vec());
                }
                Ok(())
            }
            Trial::Failed { reason, place } => {
                let small = shrink::shrink(target, input, &place);
                let reason = match trial::run(target, &small) {
                    Trial::Failed { reason, .. } => reason,
                    Trial::Passed { .. } => reason,
                };
                Err(Box::new(Failure {
                    target: *target,
                    seed: self.seed,
                    number: pool.tried,
                    found: input.to_vec(),
                    input: small,
                    reason,
                }))
            }
        }
    }
}

/// Size of inputs that repeat others.
const LONG: usize = 64 << 10;

/// Largest number of outcomes: more of them come from the data, not from the target.
const MOST_OUTCOMES: usize = 20_000;

/// Inputs with new outcomes.
#[derive(Debug, Default)]
struct Pool {
    inputs: Vec<Vec<u8>>,
    outcomes: HashSet<u64>,
    tried: u64,
}

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// Number of inputs, including the corpus.
    pub tried: u64,
    /// Number of distinct outcomes.
    pub outcomes: usize,
}

/// An input that a target fails on.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The target.
    pub target: Target,
    /// The seed of the campaign.
    pub seed: u64,
    /// Index of the input in the campaign.
    pub number: u64,
    /// The input, as it was found.
    pub found: Vec<u8>,
    /// The input, shrunk.
    pub input: Vec<u8>,
    /// What went wrong.
    pub reason: String,
}

impl Failure {
    /// Saves the input in a file under `target/`, to run it again.
    pub fn keep(&self) -> std::io::Result<PathBuf> {
        corpus::keep(self.target.name, &self.input)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.target.name;
        writeln!(f, "{name} fails: {}", self.reason)?;
        let (small, found) = (self.input.len(), self.found.len());
        writeln!(f, "  input    \"{}\"", self.input.escape_ascii())?;
        writeln!(f, "           {small} bytes, of {found} as it was found")?;
        let seed = self.seed;
        writeln!(f, "  found    as input {} of PILLARBOX_SEED={seed}", self.number)?;
        match self.keep() {
            Ok(path) => {
                let (path, here) = (path.display(), corpus_directory(name));
                writeln!(f, "  rerun    cargo run -p pillarbox-fuzz -- {name} {path}")?;
                write!(f, "  keep     mv {path} {}/", here.display())
            }
            Err(error) => write!(f, "  it could not be kept: {error}"),
        }
    }
}
