//! What the contestants of the suite have in common.

use bytes::Bytes;

pub(super) use crate::load::{BODY, Numbers, WAIT, body, crowd, seq_of};
use crate::measure::Result;

/// A queue that is durable: what one of its futures has returned, the disk has.
///
/// One message at a time, which is how the callers of the cases ask for it. What they ask for at
/// the same time is put together behind this.
pub(crate) trait Durable: Clone + Send + Sync + 'static {
    /// The right to acknowledge one delivery.
    type Receipt: Send + 'static;

    fn send(&self, body: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Takes a message, or waits for one no longer than [`WAIT`]. Fails if there is none.
    fn receive(&self) -> impl Future<Output = Result<(Bytes, Self::Receipt)>> + Send;

    fn acknowledge(&self, receipt: Self::Receipt) -> impl Future<Output = Result<()>> + Send;

    /// Checks how many messages are there, and closes.
    fn close(self, left: u64) -> impl Future<Output = Result<()>> + Send;
}
