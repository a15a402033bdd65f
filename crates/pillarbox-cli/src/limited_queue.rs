//! A queue with the limits of SQS, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pillarbox::{
    BoxFuture, Capabilities, Cursor, Delivery, Outgoing, PeekPage, Queue, Receive, Result, Sent,
    Settle,
};
use pillarbox_testing::forward_queue;

/// Takes ten messages per call, bodies of ten bytes and whole seconds, has no peek, and every other receive is empty.
#[derive(Debug)]
pub(crate) struct LimitedQueue {
    queue: Arc<dyn Queue>,
    capabilities: Capabilities,
    receives: AtomicU32,
}

impl LimitedQueue {
    pub(crate) fn over(queue: Arc<dyn Queue>) -> Self {
        let mut capabilities = Capabilities::full("limited");
        capabilities.max_batch = 10;
        capabilities.coalesces = false;
        capabilities.max_receive = 10;
        capabilities.max_wait = Some(Duration::from_secs(20));
        capabilities.max_body = Some(10);
        capabilities.sub_second = false;
        capabilities.exact_counts = false;
        capabilities.reports_duplicates = false;
        capabilities.peek = false;
        Self { queue, capabilities, receives: AtomicU32::new(0) }
    }
}

impl Queue for LimitedQueue {
    forward_queue!(queue: name counts purge close is_closed);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.capabilities.check_batch(self.name(), batch.len())?;
            let mut results = Vec::new();
            for message in batch {
                results.push(match self.capabilities.check_outgoing(self.name(), &message) {
                    Ok(()) => {
                        let sent = self.queue.send(vec![message]).await?.remove(0);
                        sent.map(|sent| Sent::stored(sent.id))
                    }
                    Err(error) => Err(error),
                });
            }
            Ok(results)
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            self.capabilities.check_receive(self.name(), &request)?;
            if self.receives.fetch_add(1, Ordering::Relaxed) % 2 == 1 {
                return Ok(Vec::new());
            }
            self.queue.receive(request.wait(Duration::ZERO)).await
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.capabilities.check_batch(self.name(), batch.len())?;
            self.queue.settle(batch).await
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.capabilities.check_peek(self.name(), max)?;
            self.queue.peek(max, after).await
        })
    }
}
