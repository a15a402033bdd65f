//! The runtime suite: workers that serve a mailbox, on every backend.
//!
//! | case | what it asks |
//! |---|---|
//! | no-op jobs | how many jobs go through four workers, and what the runtime costs on top of the mailbox, also in CPU time |
//! | handlers of 100 ms | what each of two processes holds, and how they divide the work |
//! | from send to the handler | how soon an idle worker has a message |
//! | idle workers | what it costs to have nothing to do |
//! | not watched | what events and metrics cost those who want them |
//!
//! The limit is loops that receive and acknowledge without a runtime (see `bare`). The peers are
//! capp's runtime in memory, and the workers of apalis on a file and on a server; each says in its
//! module how it is configured and what it leaves out. In memory apalis has nothing that could be
//! acknowledged, and so is no peer; see the memory suite.
//!
//! Ours is a default `Worker`: nothing is set but the number of workers, which all contestants have. Rows
//! with fixed caps of the prefetch show what could be gained by setting it. Files are synced and servers
//! keep a log, as in production; what the SQLite suite says of disks, and the Redis suite of shared
//! processors, holds here too.

mod apalis;
mod bare;
mod capp;
mod divide;
mod idle;
pub(crate) mod load;
mod observed;
mod ours;
mod store;
mod throughput;
mod wake;

use clap::Subcommand;

use self::store::Kind;
use crate::measure::{Case, Plan, Result};
use crate::report::Report;
use crate::{place, process};

const SUITE: &str = "runtime";
/// The hidden subcommand that runs a [`Child`].
const CHILD: &str = "runtime-child";

/// A measurement that needs a process of its own.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// CPU time of workers that have nothing to do.
    Idle(idle::Idle),
    /// One of several processes that share the work.
    Divide(divide::Process),
}

impl Child {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Idle(idle) => process::say(&idle.measure()?.to_string()),
            Self::Divide(process) => process.run(),
        }
    }
}

/// Runs all cases.
pub(crate) fn run(plan: &Plan, report: &mut Report) -> Result<()> {
    place::warn_if_in_memory();
    let mut add = |case: Case, kind: Kind| -> Result<()> {
        if !plan.wants(case.name()) {
            return Ok(());
        }
        if kind == Kind::Sqlite {
            place::tell_sync_time(SUITE)?;
        }
        report.add(case.run(SUITE, plan.rounds())?);
        Ok(())
    };
    for kind in Kind::ALL {
        add(throughput::case(plan, kind), kind)?;
    }
    for kind in [Kind::Sqlite, Kind::Redis] {
        add(divide::case(plan, kind), kind)?;
    }
    for kind in Kind::ALL {
        add(wake::case(plan, kind), kind)?;
    }
    for kind in Kind::ALL {
        add(idle::case(plan, kind), kind)?;
    }
    // At last, for it installs a recorder.
    add(observed::case(plan), Kind::Memory)
}
