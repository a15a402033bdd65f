//! Delivery counts of a message.

use pillarbox_core::RawMessage;
use rusqlite::{Result, Row};

/// The columns `deliveries`, `unsettled` and `uncounted` of a timer or of a message that is ready again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deliveries {
    pub(super) count: u32,
    /// Number of deliveries that were started and expired.
    pub(super) unsettled: u32,
    /// Number of deliveries that were no attempt: released, or expired before they were started.
    pub(super) uncounted: u32,
}

impl Deliveries {
    /// The counts of a message that was never delivered.
    pub(super) const NONE: Self = Self { count: 0, unsettled: 0, uncounted: 0 };

    /// Reads the three columns, starting at `column`.
    pub(super) fn read(row: &Row<'_>, column: usize) -> Result<Self> {
        let [count, unsettled, uncounted] =
            [row.get(column)?, row.get(column + 1)?, row.get(column + 2)?];
        Ok(Self { count, unsettled, uncounted })
    }

    /// Returns the counts after one more delivery.
    pub(super) fn delivered(self) -> Self {
        Self { count: self.count.saturating_add(1), ..self }
    }

    /// Returns the counts without the last delivery.
    pub(super) fn undone(self) -> Self {
        Self { count: self.count.saturating_sub(1), ..self }
    }

    /// Returns the counts after the lease of the last delivery has expired.
    pub(super) fn expired(self, is_started: bool) -> Self {
        if is_started {
            Self { unsettled: self.unsettled.saturating_add(1), ..self }
        } else {
            self.released()
        }
    }

    /// Returns the counts after the last delivery was no attempt.
    pub(super) fn released(self) -> Self {
        Self { uncounted: self.uncounted.saturating_add(1), ..self }
    }

    /// Sets the counts of a message.
    pub(super) fn apply_to(self, message: &mut RawMessage) {
        message.delivery_count = self.count;
        message.unsettled = self.unsettled;
        message.uncounted = self.uncounted;
    }
}
