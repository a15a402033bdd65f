//! A fuzzer for everything in Pillarbox that reads what others have written.
//!
//! | to find | look at |
//! |---|---|
//! | what is read, and what must hold of it | [`targets`] |
//! | how inputs are made, how a failure is found and made small | [`driver`] |
//! | inputs to begin with, and those that once failed | `corpus/`, a directory for each target |
//!
//! `make test` runs each target for some seconds, with inputs that are the same every time; `make fuzz-more` for
//! longer, with others. `docs/verification.md` says how to go on from a failure.

pub mod driver;
pub mod targets;

/// Something that reads, and checks what it has read.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// What it is called; so is its directory in `corpus/`.
    pub name: &'static str,
    /// Reads an input. Panics where something does not hold.
    pub run: fn(&[u8]),
    /// What is worth putting into an input.
    pub words: &'static [&'static str],
    /// How many inputs `make test` tries: some seconds without optimisation.
    pub inputs: u64,
}

/// The target of this name.
pub fn target(name: &str) -> Option<Target> {
    targets::ALL.iter().find(|target| target.name == name).copied()
}
