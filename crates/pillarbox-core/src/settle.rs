//! Settling a delivery by its receipt.

use std::time::Duration;

use crate::Receipt;

/// A request to settle one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// Receipt of the delivery.
    pub receipt: Receipt,
    /// Effect on the delivery.
    pub action: SettleAction,
}

impl Settle {
    /// Creates a settle that deletes the message, because its work is done.
    pub const fn acknowledge(receipt: Receipt) -> Self {
        Self { receipt, action: SettleAction::Acknowledge }
    }

    /// Creates a settle that returns the message to the queue, ready at once or after `delay`.
    pub const fn nack(receipt: Receipt, delay: Duration) -> Self {
        Self { receipt, action: SettleAction::Nack { delay } }
    }

    /// Creates a settle that returns the message to the queue as [`nack`](Self::nack) does, without counting the
    /// delivery as an attempt.
    pub const fn release(receipt: Receipt, delay: Duration) -> Self {
        Self { receipt, action: SettleAction::Release { delay } }
    }

    /// Creates a settle that extends the lease to `timeout` from now.
    pub const fn extend(receipt: Receipt, timeout: Duration) -> Self {
        Self { receipt, action: SettleAction::Extend { timeout } }
    }

    /// Creates a settle that records the start of the work on the message, and extends the lease to `timeout` from
    /// now.
    pub const fn start(receipt: Receipt, timeout: Duration) -> Self {
        Self { receipt, action: SettleAction::Start { timeout } }
    }
}

/// Effect of a settle on its delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettleAction {
    /// Deletes the message.
    Acknowledge,
    /// Returns the message to the queue and invalidates the receipt.
    Nack {
        /// Time until the message is ready.
        delay: Duration,
    },
    /// Returns the message to the queue as a nack does, and counts the delivery as
    /// [no attempt](crate::RawMessage::uncounted).
    Release {
        /// Time until the message is ready.
        delay: Duration,
    },
    /// Sets a new deadline for the lease. The receipt stays valid.
    Extend {
        /// Time from now until the lease expires.
        timeout: Duration,
    },
    /// Extends the lease and records that the work on the message starts. If the lease of a started delivery
    /// expires, the delivery counts as [unsettled](crate::RawMessage::unsettled); if it was not started, it
    /// counts as [no attempt](crate::RawMessage::uncounted).
    Start {
        /// Time from now until the lease expires.
        timeout: Duration,
    },
}

impl SettleAction {
    /// Returns the time until a returned message is ready. `None` for actions that do not return it.
    pub const fn delay(self) -> Option<Duration> {
        match self {
            Self::Nack { delay } | Self::Release { delay } => Some(delay),
            Self::Acknowledge | Self::Extend { .. } | Self::Start { .. } => None,
        }
    }

    /// Returns the time from now until the lease expires. `None` for actions that end the lease.
    pub const fn timeout(self) -> Option<Duration> {
        match self {
            Self::Extend { timeout } | Self::Start { timeout } => Some(timeout),
            Self::Acknowledge | Self::Nack { .. } | Self::Release { .. } => None,
        }
    }
}
