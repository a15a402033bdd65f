//! Runs a target on many inputs, and says what is wrong with it.
//!
//! | to find | look at |
//! |---|---|
//! | how inputs are made of others | `mutate.rs` |
//! | how an input that fails is made small | `shrink.rs` |
//! | one input: panics, memory, time | `attempt.rs` |
//! | inputs to begin with | `corpus.rs` |
//!
//! All of it follows from a seed. There is no instrumentation, which stable Rust does not offer; but a target says what
//! came out of an input ([`saw`]), and an input with an outcome that is new is kept, and others are made of it.

mod attempt;
mod corpus;
mod mutate;
mod shrink;

use std::collections::HashSet;
use std::fmt;
use std::path::PathBuf;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use self::attempt::Attempt;
pub use self::attempt::saw;
pub use self::corpus::{corpus, corpus_directory};
use self::mutate::Mutator;
use crate::Target;

/// Inputs are no longer than this.
pub const MAX_LEN: usize = 4096;

/// How long a target is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Campaign {
    /// How many inputs are made, beside those of the corpus.
    pub inputs: u64,
    /// What they follow from.
    pub seed: u64,
}

impl Campaign {
    /// As many inputs as `PILLARBOX_INPUTS` says, or as the target has in `make test`; from the seed of
    /// `PILLARBOX_SEED`, or from the same one every time.
    pub fn of(target: &Target) -> Self {
        let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
        Self {
            inputs: number("PILLARBOX_INPUTS").unwrap_or(target.inputs),
            seed: number("PILLARBOX_SEED").unwrap_or(1),
        }
    }

    /// Runs a target on these inputs and on others that are made of them, until one fails.
    ///
    /// # Errors
    ///
    /// The first input that fails, made small.
    pub fn run(&self, target: &Target, corpus: &[Vec<u8>]) -> Result<Done, Box<Failure>> {
        attempt::keep_panics_quiet();
        let mut pool = Pool::default();
        for input in corpus {
            self.attempt(target, input, &mut pool)?;
        }
        // Long ones come to an end, too, and take no more memory than they may.
        for seed in corpus.iter().filter(|seed| !seed.is_empty()) {
            let long: Vec<_> = seed.iter().copied().cycle().take(LONG).collect();
            // What they show first is still to be found by short ones.
            self.attempt(target, &long, &mut Pool::default())?;
        }
        // Those that show nothing new are something to begin with all the same.
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
            self.attempt(target, &input, &mut pool)?;
        }
        Ok(Done { tried: pool.tried, outcomes: pool.outcomes.len() })
    }

    fn attempt(&self, target: &Target, input: &[u8], pool: &mut Pool) -> Result<(), Box<Failure>> {
        pool.tried += 1;
        match attempt::run(target, input) {
            Attempt::Passed { outcomes } => {
                if pool.outcomes.len() < MOST_OUTCOMES
                    && outcomes.iter().any(|one| !pool.outcomes.contains(one))
                {
                    pool.outcomes.extend(outcomes);
                    pool.inputs.push(input.to_vec());
                }
                Ok(())
            }
            Attempt::Failed { reason, place } => {
                let small = shrink::shrink(target, input, &place);
                let reason = match attempt::run(target, &small) {
                    Attempt::Failed { reason, .. } => reason,
                    Attempt::Passed { .. } => reason,
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

/// The length of inputs that are repetitions of others.
const LONG: usize = 64 << 10;

/// More of them are made of data, not of what the target does with it.
const MOST_OUTCOMES: usize = 20_000;

/// Inputs that have shown something new.
#[derive(Debug, Default)]
struct Pool {
    inputs: Vec<Vec<u8>>,
    outcomes: HashSet<u64>,
    tried: u64,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// How many inputs were tried, those of the corpus included.
    pub tried: u64,
    /// How many different things came out of them.
    pub outcomes: usize,
}

/// An input that a target fails on.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The target.
    pub target: Target,
    /// The seed of the campaign.
    pub seed: u64,
    /// The so-manieth input of it.
    pub number: u64,
    /// The input, as it was found.
    pub found: Vec<u8>,
    /// The input, made small.
    pub input: Vec<u8>,
    /// What went wrong.
    pub reason: String,
}

impl Failure {
    /// Keeps the input in a file under `target/`, from which it can be tried again.
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
                writeln!(f, "  again    cargo run -p pillarbox-fuzz -- {name} {path}")?;
                write!(f, "  for good mv {path} {}/", here.display())
            }
            Err(error) => write!(f, "  it could not be kept: {error}"),
        }
    }
}
