//! The results of a batch.

use std::ops::Deref;

use crate::error::Result;

/// Results of the entries of a batch, in the order of the entries.
///
/// Single entries may have failed although the call succeeded: check each, or use [`all`](Self::all).
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let small: Mailbox<u32> = backend.builder("small").max_size(2).open()?;
/// let ids = small.send_batch(&[1, 2]).await?.all()?;
/// assert_eq!(ids.len(), 2);
/// assert!(small.send_batch(&[3]).await?.all().is_err());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "single entries may have failed; `all` turns the first failure into an error"]
pub struct BatchResults<T>(pub(super) Vec<Result<T>>);

impl<T> BatchResults<T> {
    /// Returns the values of all entries, or the first error. Other entries may have succeeded despite the error.
    pub fn all(self) -> Result<Vec<T>> {
        self.0.into_iter().collect()
    }
}

impl<T> Deref for BatchResults<T> {
    type Target = [Result<T>];

    fn deref(&self) -> &[Result<T>] {
        &self.0
    }
}

impl<T> IntoIterator for BatchResults<T> {
    type Item = Result<T>;
    type IntoIter = std::vec::IntoIter<Result<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
