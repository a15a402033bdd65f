//! What becomes of a delivery after its handler has ended.

use std::time::Duration;

use crate::outcome::{FailureDetails, FailureKind};

/// The decision about a delivery that a worker is through with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The message is acknowledged.
    Done,
    /// The handler acknowledged the message in its own transaction.
    Settled,
    /// The handler failed, was cancelled, or could not be called.
    Failed { failure: FailureDetails, disposition: Disposition },
    /// The handler gave the message back.
    Released { delay: Duration },
    /// A limit refused the delivery; it stays in flight and is assigned again after `delay`.
    Shed { delay: Duration },
    /// The lease was lost before the handler ran; there is nothing to settle.
    NotRun,
}

/// What becomes of a message whose handler failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// It is delivered again after `delay`.
    Retry { delay: Duration },
    /// It stays in its queue, and is delivered again after `delay`.
    Park { delay: Duration },
    /// `route` is the index of the dead-letter queue.
    DeadLetter { route: usize },
    /// The handler was cancelled: the message is released at once.
    Release,
}

impl Disposition {
    /// Returns whether the message is not retried after a failure of this kind.
    pub(crate) fn is_terminal(&self, kind: FailureKind) -> bool {
        match self {
            Self::DeadLetter { .. } => true,
            Self::Park { .. } => kind != FailureKind::UnknownKind,
            Self::Retry { .. } | Self::Release => false,
        }
    }
}
