//! How often a message was delivered, and how often nobody has settled it.

use pillarbox_core::RawMessage;
use rusqlite::{Result, Row};

/// The columns `deliveries` and `unsettled` of a timer or of a message that is ready again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Deliveries {
    pub(super) count: u32,
    /// How many of them ended by their deadline.
    pub(super) unsettled: u32,
}

impl Deliveries {
    /// Of a message that was never delivered.
    pub(super) const NONE: Self = Self { count: 0, unsettled: 0 };

    /// Reads both columns, the first of which is this one.
    pub(super) fn read(row: &Row<'_>, column: usize) -> Result<Self> {
        Ok(Self { count: row.get(column)?, unsettled: row.get(column + 1)? })
    }

    /// After one more delivery.
    pub(super) fn delivered(self) -> Self {
        Self { count: self.count.saturating_add(1), ..self }
    }

    /// Where the last delivery never was.
    pub(super) fn taken_back(self) -> Self {
        Self { count: self.count.saturating_sub(1), ..self }
    }

    /// After the lease of the last delivery ran out.
    pub(super) fn left_alone(self) -> Self {
        Self { unsettled: self.unsettled.saturating_add(1), ..self }
    }

    /// Tells a message of them.
    pub(super) fn tell(self, message: &mut RawMessage) {
        message.delivery_count = self.count;
        message.unsettled = self.unsettled;
    }
}
