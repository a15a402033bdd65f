//! The mailbox of jobs, wherever it is.

use pillarbox_core::{Mailbox, Mailboxes};

use super::load::Job;
use crate::measure::{Result, expect_eq};
pub(super) use crate::store::{Address, Kind, Store};

/// A mailbox, and the backend that it is on.
#[derive(Debug)]
pub(super) struct Opened {
    backend: Mailboxes,
    pub(super) mailbox: Mailbox<Job>,
}

impl Address {
    /// Opens the mailbox as users do.
    pub(super) async fn open(&self) -> Result<Opened> {
        let backend = self.backend().await?;
        let mailbox = backend.mailbox("jobs")?;
        Ok(Opened { backend, mailbox })
    }
}

impl Opened {
    /// Checks that nothing is left, and closes.
    pub(super) async fn close(self) -> Result<()> {
        let left = self.mailbox.approximate_count().await?;
        self.backend.close().await;
        expect_eq("messages left", left, 0)
    }
}
