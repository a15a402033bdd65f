//! A fuzzer for everything in Pillarbox that reads foreign input.
//!
//! | subject | module |
//! |---|---|
//! | readers and their properties | [`targets`] |
//! | generation of inputs, detection and shrinking of failures | [`driver`] |
//! | initial inputs, and those that once failed | `corpus/`, a directory for each target |
//!
//! `make test` runs each target for some seconds, always with the same inputs; `make fuzz-more` for longer, with
//! others. `docs/verification.md` describes how to handle a failure.

pub mod driver;
pub mod targets;

/// A reader under test, with checks of what it has read.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the target and of its directory in `corpus/`.
    pub name: &'static str,
    /// Reads an input. Panics if a check fails.
    pub run: fn(&[u8]),
    /// Words to insert into inputs.
    pub words: &'static [&'static str],
    /// Number of inputs in `make test`: some seconds without optimisation.
    pub inputs: u64,
}

/// Returns the target of this name.
pub fn target(name: &str) -> Option<Target> {
    targets::ALL.iter().find(|target| target.name == name).copied()
}
