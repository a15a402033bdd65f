//! What the contestants of the suite have in common.

use bytes::Bytes;

pub(super) use crate::load::{BODY, Numbers, ResponseTimes, WAIT, body, crowd, seq_of};
use crate::measure::Result;

/// A durable queue: when a send or an acknowledgement returns, it is on the disk. A receive need not be: ours
/// is not, that of the log is.
///
/// Each call is for one message, which is how the callers of the cases use it. The implementation
/// may coalesce concurrent calls.
pub(crate) trait Durable: Clone + Send + Sync + 'static {
    /// The right to acknowledge one delivery.
    type Receipt: Send + 'static;

    fn send(&self, body: Bytes) -> impl Future<Output = Result<()>> + Send;

    /// Receives a message. Waits at most [`WAIT`] for it, and fails if none arrives.
    fn receive(&self) -> impl Future<Output = Result<(Bytes, Self::Receipt)>> + Send;

    fn acknowledge(&self, receipt: Self::Receipt) -> impl Future<Output = Result<()>> + Send;

    /// Checks how many messages are there, and closes.
    fn close(self, left: u64) -> impl Future<Output = Result<()>> + Send;
}
