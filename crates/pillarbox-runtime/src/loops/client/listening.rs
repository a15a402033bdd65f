//! Receiving answers.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{Fuse, FusedFuture};
use pillarbox_core::{Delivery, Error, Mailbox, MessageId, Receive, Settle};
use tokio::sync::watch;

use super::super::message::MainLoopResult;
use super::waiting::Waiting;
use crate::attributes::request_id;
use crate::outcome::Failure;

/// How many answers are received at a time, at most.
const BATCH: usize = 128;
/// How long one receive waits.
const POLL: Duration = Duration::from_secs(20);
/// How long to wait after a failure; twice as long after each that follows, up to the second.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long the end may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// The task that receives the answers of a client and hands them out.
pub(super) struct Listening<O> {
    pub(super) replies: Mailbox<MainLoopResult<O>>,
    pub(super) waiting: Arc<Waiting<O>>,
    /// True, or closed, when it is to end.
    pub(super) ended: watch::Receiver<bool>,
}

impl<O> Drop for Listening<O> {
    /// However it ends, be it with the runtime that it runs in, nobody waits in vain.
    fn drop(&mut self) {
        self.waiting.end(&Error::Closed { queue: None });
    }
}

impl<O: 'static> Listening<O> {
    pub(super) async fn run(mut self) {
        let queue = self.replies.queue().clone();
        let capabilities = queue.capabilities();
        let wait = capabilities.max_wait.map_or(POLL, |most| POLL.min(most));
        let request = Receive::up_to(BATCH.min(capabilities.max_receive)).wait(wait);
        let most = BATCH.min(capabilities.max_batch);
        // One call at a time: what is received meanwhile is acknowledged together by the next.
        let mut acknowledging = Fuse::terminated();
        let mut receiving = Fuse::terminated();
        let mut settles: Vec<Settle> = Vec::new();
        let mut pause = PAUSES.0;
        let closed = loop {
            if acknowledging.is_terminated() && !settles.is_empty() {
                let some = settles.drain(..settles.len().min(most)).collect();
                acknowledging = queue.settle(some).fuse();
            }
            if receiving.is_terminated() && settles.len() < most {
                receiving = queue.receive(request).fuse();
            }
            let received = tokio::select! {
                biased;
                _ = self.ended.wait_for(|ended| *ended) => {
                    break Error::Closed { queue: Some(queue.name().clone()) };
                }
                // If it fails, they come again, and nobody waits for them then.
                _ = &mut acknowledging => continue,
                received = &mut receiving => received,
            };
            match received {
                Ok(deliveries) => {
                    pause = PAUSES.0;
                    self.waiting.set_outage(None);
                    settles.extend(deliveries.into_iter().map(|delivery| self.hand_out(delivery)));
                }
                Err(error @ Error::Closed { .. }) => break error,
                Err(error) => {
                    tracing::debug!(queue = %queue.name(), %error, "cannot receive answers; trying again");
                    self.waiting.set_outage(Some(error));
                    let mut ended = self.ended.clone();
                    let _ = tokio::time::timeout(pause, ended.wait_for(|ended| *ended)).await;
                    pause = (pause * 2).min(PAUSES.1);
                }
            }
        };
        self.waiting.end(&closed);
        // What it was about to deliver goes back, and is emptied out with the rest.
        drop(receiving);
        let farewell = async {
            if !acknowledging.is_terminated() {
                let _ = acknowledging.await;
            }
            // Answers that nobody waits for any more. Those that are late are swept away by a loop.
            if let Err(error) = queue.purge().await {
                tracing::debug!(queue = %queue.name(), %error, "a reply mailbox was not emptied");
            }
        };
        let _ = tokio::time::timeout(FAREWELL, farewell).await;
    }

    /// Gives an answer to whoever waits for it.
    fn hand_out(&self, delivery: Delivery) -> Settle {
        let Delivery { message, receipt, .. } = delivery;
        // A type of the program's own may panic; the listener must not end by it.
        let decoded = std::panic::catch_unwind(AssertUnwindSafe(|| self.replies.decode(&message)));
        let decoded = decoded.unwrap_or_else(|payload| {
            let cause = Failure::panic(&*payload).to_string();
            Err(Error::connection(Some(self.replies.name()), "decode an answer", cause))
        });
        let (id, answer) = match decoded {
            Ok(result) => (Some(result.request_id), Ok(result)),
            Err(error) => (request_id(&message), Err(error)),
        };
        let is_wanted = id.is_some_and(|id| self.waiting.answer(id, answer));
        if !is_wanted {
            let (queue, message_id): (_, MessageId) = (self.replies.name(), message.id);
            let request_id = id.map(tracing::field::display);
            tracing::debug!(%queue, %message_id, request_id, "nobody waits for an answer any more");
        }
        Settle::acknowledge(receipt)
    }
}
