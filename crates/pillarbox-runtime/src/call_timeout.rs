//! The time limit of a call to a queue.

use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{Error, Queue, Result};

/// Fails a call that takes longer than `limit`.
pub(crate) async fn in_time<T>(
    limit: Duration,
    queue: &dyn Queue,
    action: &'static str,
    call: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::time::timeout_at(after(limit), call).await.unwrap_or_else(|_| {
        let cause = format!("there was no answer within {limit:?}");
        Err(Error::connection(Some(queue.name()), action, cause))
    })
}
