//! The state that a program wants its worker pool to be in.

use std::time::Duration;

/// The desired state of a worker pool. It is a value, not a stream of commands: a reader that is slow sees the
/// latest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DesiredState {
    pub(crate) is_paused: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) workers: usize,
    /// Time that running handlers have to finish after a stop.
    pub(crate) drain: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    /// Lets running handlers finish.
    Graceful,
    /// Cancels running handlers.
    Now,
}
