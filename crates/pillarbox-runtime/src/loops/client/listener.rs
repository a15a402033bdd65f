//! The task that receives the answers of a client.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use pillarbox_core::internal::RetryDelay;
use pillarbox_core::{Delivery, Error, Mailbox, MessageId, Receive, Settle};
use tokio::sync::watch;

use super::super::message::MainLoopResult;
use super::waiters::Waiters;
use crate::attributes::request_id;
use crate::outcome::Failure;

/// Maximum number of answers in a batch.
const BATCH: usize = 128;
/// Wait of a receive.
const POLL: Duration = Duration::from_secs(20);
/// Delay after a failed receive; it doubles up to the maximum.
const FIRST_DELAY: Duration = Duration::from_millis(50);
const MAX_DELAY: Duration = Duration::from_secs(2);
/// Timeout of the last acknowledgement and the purge.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Receives the answers of a client and passes them to the waiters.
pub(super) struct Listener<O> {
    pub(super) replies: Mailbox<MainLoopResult<O>>,
    pub(super) waiters: Arc<Waiters<O>>,
    /// Set to true, or closed, when the client is closed.
    pub(super) closed: watch::Receiver<bool>,
}

impl<O> Drop for Listener<O> {
    /// Fails all waiters however the task ends, also with its Tokio runtime.
    fn drop(&mut self) {
        self.waiters.end(&Error::Closed { queue: None });
    }
}

impl<O: 'static> Listener<O> {
    pub(super) async fn run(mut self) {
        let queue = self.replies.queue().clone();
        let capabilities = queue.capabilities();
        let wait = capabilities.max_wait.map_or(POLL, |max| POLL.min(max));
        let request = Receive::up_to(BATCH.min(capabilities.max_receive)).wait(wait);
        let max = BATCH.min(capabilities.max_batch);
        // At most one settle call at a time: answers that are received meanwhile are acknowledged by the next one.
        let mut acknowledging = Fuse::terminated();
        let mut receiving = Fuse::terminated();
        let mut settles: Vec<Settle> = Vec::new();
        let mut delay = RetryDelay::new(FIRST_DELAY, MAX_DELAY);
        let error = loop {
            if acknowledging.is_terminated() && !settles.is_empty() {
                let some = settles.drain(..settles.len().min(max)).collect();
                acknowledging = queue.settle(some).fuse();
            }
            if receiving.is_terminated() && settles.len() < max {
                receiving = queue.receive(request).fuse();
            }
            let received = tokio::select! {
                biased;
                _ = self.closed.wait_for(|closed| *closed) => {
                    break Error::Closed { queue: Some(queue.name().clone()) };
                }
                // If it fails, the answers are delivered again and ignored, since nobody waits for them.
                _ = &mut acknowledging => continue,
                received = &mut receiving => received,
            };
            match received {
                Ok(deliveries) => {
                    delay.reset();
                    self.waiters.set_outage(None);
                    settles.extend(deliveries.into_iter().map(|delivery| self.dispatch(delivery)));
                }
                Err(error @ Error::Closed { .. }) => break error,
                Err(error) => {
                    tracing::debug!(queue = %queue.name(), %error, "cannot receive answers; trying again");
                    self.waiters.set_outage(Some(error));
                    let mut closed = self.closed.clone();
                    let wait = closed.wait_for(|closed| *closed);
                    let _ = tokio::time::timeout(delay.next_delay(), wait).await;
                }
            }
        };
        self.waiters.end(&error);
        // Releases what the receive has claimed, so that it is purged as well.
        drop(receiving);
        let close = async {
            if !acknowledging.is_terminated() {
                let _ = acknowledging.await;
            }
            // Answers that nobody waits for. Those that are sent later are swept by a loop.
            if let Err(error) = queue.purge().await {
                tracing::debug!(queue = %queue.name(), %error, "cannot empty a reply mailbox");
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, close).await;
    }

    /// Passes an answer to its waiter, and returns its acknowledgement.
    fn dispatch(&self, delivery: Delivery) -> Settle {
        let Delivery { message, receipt, .. } = delivery;
        // A type of the program may panic, which must not end the listener.
        let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| self.replies.decode(&message)));
        let decoded = decoded.unwrap_or_else(|payload| {
            let cause = Failure::panic(&*payload).to_string();
            Err(Error::connection(Some(self.replies.name()), "decode an answer", cause))
        });
        let (id, answer) = match decoded {
            Ok(result) => (Some(result.request_id), Ok(result)),
            Err(error) => (request_id(&message), Err(error)),
        };
        let is_wanted = id.is_some_and(|id| self.waiters.answer(id, answer));
        if !is_wanted {
            let (queue, message_id): (_, MessageId) = (self.replies.name(), message.id);
            let request_id = id.map(tracing::field::display);
            tracing::debug!(%queue, %message_id, request_id, "nobody waits for an answer");
        }
        Settle::acknowledge(receipt)
    }
}
