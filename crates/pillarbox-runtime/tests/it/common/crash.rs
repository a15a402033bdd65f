//! A process that ends at a chosen step.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pillarbox_core::{BoxFuture, Delivery, Outgoing, Queue, Receive, Result, Sent, Settle};
use pillarbox_testing::forward_queue;
use tokio::sync::Notify;

/// The end of a process: at its n-th call of a queue, before the call has its effect or after.
#[derive(Debug)]
pub(crate) struct Crash {
    at: usize,
    is_after: bool,
    calls: AtomicUsize,
    come: Notify,
}

impl Crash {
    pub(crate) fn at(at: usize, is_after: bool) -> Arc<Self> {
        Arc::new(Self { at, is_after, calls: AtomicUsize::new(0), come: Notify::new() })
    }

    /// A queue as the process sees it.
    pub(crate) fn over(self: &Arc<Self>, queue: Arc<dyn Queue>) -> Arc<dyn Queue> {
        Arc::new(CrashQueue { queue, crash: self.clone() })
    }

    /// Runs a process until it is done, or ends. Says whether it is done.
    pub(crate) async fn run<T>(&self, process: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.come.notified() => None,
            done = process => Some(done),
        }
    }

    async fn step<T>(&self, call: Pin<Box<dyn Future<Output = T> + Send + '_>>) -> T {
        let n = self.calls.fetch_add(1, Ordering::SeqCst);
        if n < self.at {
            return call.await;
        }
        if n == self.at && self.is_after {
            drop(call.await);
        }
        self.come.notify_one();
        // Whatever it has under way has no effect any more.
        std::future::pending().await
    }
}

#[derive(Debug)]
struct CrashQueue {
    queue: Arc<dyn Queue>,
    crash: Arc<Crash>,
}

impl Queue for CrashQueue {
    forward_queue!(queue: name capabilities peek counts purge close is_closed);

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(self.crash.step(self.queue.send(batch)))
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.crash.step(self.queue.receive(request)))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(self.crash.step(self.queue.settle(batch)))
    }
}
