//! The evals suite: what an eval run costs beside the work itself, on every backend.
//!
//! A run submits samples, has them worked on by an adapter that does nothing, judged, collected to a directory on the
//! disk, and reported as a web page. The limit is the same main loop without an eval: the same inputs sent in
//! batches, answered by the same adapter, and received and acknowledged in batches, by any receiver. All in one
//! process.
//!
//! Memory is that of a process that collects and reports a run whose results are all there, in a SQLite file: at
//! its peak, against the same with a tenth of the samples.

mod bare;
mod memory;
mod ours;

use std::time::Duration;

use clap::Subcommand;

use crate::measure::{Case, Figure, Plan, Result};
use crate::place;
use crate::report::{Report, Unit, grouped};
use crate::store::Kind;

const SUITE: &str = "evals";
/// The hidden subcommand that runs a [`Child`].
const CHILD: &str = "evals-child";
/// How long anything is waited for before something must be wrong.
const PATIENCE: Duration = Duration::from_secs(120);

/// A measurement that needs a process of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// The peak of memory while a run is collected and reported.
    Collect(memory::Collecting),
}

impl Child {
    pub(crate) fn measure(self) -> Result<f64> {
        match self {
            Self::Collect(collecting) => collecting.measure(),
        }
    }
}

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    place::warn_if_in_memory();
    let samples = plan.pick(10_000, 200);
    for kind in Kind::ALL {
        let name = format!("eval run, {} samples, {}", grouped(samples), kind.name());
        if plan.wants(&name) {
            if kind == Kind::Sqlite {
                place::tell_sync_time(SUITE)?;
            }
            let figures = [
                Figure::median(name.clone(), Unit::Millis),
                Figure::median(format!("{name}, per sample"), Unit::Micros),
            ];
            let case = Case::several(name, figures, move || ours::run(kind, samples))
                .against_limit("main loop only", move || bare::run(kind, samples));
            report.add(case.run(SUITE, plan.rounds())?);
        }
    }
    let case = memory::case(samples);
    if plan.wants(case.name()) {
        report.add(case.run(SUITE, plan.rounds())?);
    }
    Ok(())
}

/// What a sample is: 256 characters, as of the other suites.
fn input(n: u64) -> String {
    format!("{n:0>256}")
}

/// The time of all, and of each.
fn figures(samples: u64, elapsed: Duration) -> [f64; 2] {
    [crate::measure::millis(elapsed), crate::measure::micros(elapsed) / samples as f64]
}
