//! How a group has ended.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use pillarbox_core::Error;

use crate::runnable::LoopFailure;
use crate::stats::StatsSnapshot;

/// How a group of loops has ended, loop by loop.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupReport {
    /// Each loop, in the order in which they were added.
    pub loops: Vec<LoopReport>,
}

impl GroupReport {
    /// How the loop of this name has ended.
    pub fn get(&self, name: &str) -> Option<&LoopReport> {
        self.loops.iter().find(|one| one.name == name)
    }
}

/// How a loop has ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoopReport {
    /// What it is called.
    pub name: String,
    /// What it has done since it was last begun.
    pub stats: StatsSnapshot,
    /// How often it was made anew.
    pub restarts: u32,
    /// Why it failed at last, if it did.
    pub failure: Option<LoopFailure>,
    /// It did not end in time, or one of its handlers, which blocks its thread. What it held comes back when its
    /// leases end. A [task](super::Task) was cancelled.
    pub is_left_behind: bool,
}

/// Why a group of loops did not end well.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// An option is out of range, and nothing was begun: [`Error::InvalidParameter`].
    #[error(transparent)]
    Invalid(Error),
    /// The Tokio runtime in which the loops ran was shut down, and they with it. Only a
    /// [handle](super::RunningGroup) outlives that.
    #[error("the Tokio runtime of the loops was shut down")]
    ShutDown,
    /// Health cannot be told at this address, and nothing was begun.
    #[error("cannot listen on {address} for health probes: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why: most often somebody else listens there.
        #[source]
        cause: io::Error,
    },
    /// A loop failed, and was not made anew. The others were drained.
    #[error("the loop '{name}' failed: {cause}")]
    Failed {
        /// The loop. Where several failed, the first.
        name: String,
        /// Why.
        #[source]
        cause: LoopFailure,
        /// How all of them have ended.
        report: Box<GroupReport>,
    },
    /// Some loops did not end, or some of their handlers, although they were told to and what they were at was
    /// cancelled. A thread may be blocked for ever, and Tokio would wait for it: the program ends by
    /// [`std::process::exit`], and not by returning from `main`.
    #[error("{} did not end in time, and was left behind", Names(report))]
    LeftBehind {
        /// How all of them have ended.
        report: Box<GroupReport>,
    },
}

pillarbox_core::__error_debug!(enum GroupError {
    Invalid(error),
    ShutDown,
    Listen { address, cause },
    Failed { name, cause, report },
    LeftBehind { report },
});

impl GroupError {
    /// How each loop has ended, where they had begun.
    pub fn report(&self) -> Option<&GroupReport> {
        match self {
            Self::Failed { report, .. } | Self::LeftBehind { report } => Some(report),
            Self::Invalid(_) | Self::ShutDown | Self::Listen { .. } => None,
        }
    }
}

/// The names of those that were left behind.
struct Names<'a>(&'a GroupReport);

impl fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.0.loops.iter().filter(|one| one.is_left_behind);
        let names: Vec<_> = left.map(|one| format!("'{}'", one.name)).collect();
        write!(f, "the loop {}", names.join(", "))
    }
}
