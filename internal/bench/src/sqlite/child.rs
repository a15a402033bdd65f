//! The processes that the suite starts.

use std::path::Path;

use clap::Subcommand;

use super::{processes, reopen, wake};
use crate::measure::Result;
use crate::process::Companion;

/// The hidden subcommand that runs a [`Child`].
const COMMAND: &str = "sqlite-child";

/// A child process of the benchmark, controlled by its parent.
#[derive(Debug, Subcommand)]
pub(crate) enum Child {
    /// One of several processes on one file.
    Process(processes::Process),
    /// Waits for messages that another process sends.
    Receiver(wake::Receiver),
    /// Has receivers that wait in vain.
    Idle(wake::Idle),
    /// Sends until it is killed.
    Victim(reopen::Victim),
}

impl Child {
    pub(crate) fn run(self) -> Result<()> {
        match self {
            Self::Process(process) => process.run(),
            Self::Receiver(receiver) => receiver.run(),
            Self::Idle(idle) => idle.run(),
            Self::Victim(victim) => victim.run(),
        }
    }
}

/// Starts one of them, on a file.
pub(super) fn start(kind: &str, path: &Path, numbers: &[String]) -> Result<Companion> {
    let path = path.to_str().ok_or("the path of the file is not text")?;
    let mut args = vec![COMMAND, kind, path];
    args.extend(numbers.iter().map(String::as_str));
    Companion::start(&args)
}
