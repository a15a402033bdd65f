//! The results of a group.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use pillarbox_core::Error;

use crate::runnable::LoopFailure;
use crate::stats::StatsSnapshot;

/// The result of a group of loops.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GroupReport {
    /// The result of each loop, in the order in which they were added.
    pub loops: Vec<LoopReport>,
}

impl GroupReport {
    /// Returns the result of the loop of this name.
    pub fn get(&self, name: &str) -> Option<&LoopReport> {
        self.loops.iter().find(|one| one.name == name)
    }
}

/// The result of a loop.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoopReport {
    /// The name of the loop.
    pub name: String,
    /// The statistics since the loop was last started.
    pub stats: StatsSnapshot,
    /// Number of restarts.
    pub restarts: u32,
    /// The last failure of the loop.
    pub failure: Option<LoopFailure>,
    /// Whether the loop, or a handler that blocks its thread, did not end in time. Its messages are delivered again
    /// when their leases expire. A [task](super::Task) was cancelled.
    pub is_left_behind: bool,
}

/// The error of a group of loops.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// An option is invalid ([`Error::InvalidParameter`]). Nothing was started.
    #[error(transparent)]
    Invalid(Error),
    /// The Tokio runtime in which the loops ran was shut down. Only a [handle](super::RunningGroup) outlives that.
    #[error("the Tokio runtime of the loops was shut down")]
    ShutDown,
    /// The health server cannot listen on this address. Nothing was started.
    #[error("cannot listen on {address} for health probes: {cause}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause, most often that the address is in use.
        #[source]
        cause: io::Error,
    },
    /// A loop failed and was not restarted. The others were drained.
    #[error("the loop '{name}' failed: {cause}")]
    Failed {
        /// The name of the first loop that failed.
        name: String,
        /// The failure.
        #[source]
        cause: LoopFailure,
        /// The results of all loops.
        report: Box<GroupReport>,
    },
    /// Some loops, or some of their handlers, did not end although they were cancelled. A thread may be blocked
    /// forever, and Tokio would wait for it: end the program by [`std::process::exit`], not by returning from
    /// `main`.
    #[error("{} did not end in time and was left behind", LeftBehindNames(report))]
    LeftBehind {
        /// The results of all loops.
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
    /// Returns the results of all loops, if they were started.
    pub fn report(&self) -> Option<&GroupReport> {
        match self {
            Self::Failed { report, .. } | Self::LeftBehind { report } => Some(report),
            Self::Invalid(_) | Self::ShutDown | Self::Listen { .. } => None,
        }
    }
}

/// The names of the loops that were left behind.
struct LeftBehindNames<'a>(&'a GroupReport);

impl fmt::Display for LeftBehindNames<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = self.0.loops.iter().filter(|one| one.is_left_behind);
        let names: Vec<_> = left.map(|one| format!("'{}'", one.name)).collect();
        write!(f, "the loop {}", names.join(", "))
    }
}
