//! The writer, which its thread and a lone caller use in turn.
//!
//! The thread executes the requests of all callers in batches. A caller that finds it asleep, and has for some calls,
//! executes its own request on its own thread, which saves two thread switches. It waits for nothing but a quick disk:
//! if the writer or the database is in use, or the work may take long, the request goes to the thread after all. It
//! never executes the requests of others.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use crate::requests::{Request, RequestQueue};
use crate::writer::IdleWriter;

pub(crate) struct SharedWriter {
    requests: Arc<RequestQueue>,
    /// `None` before the file is open, and after it was closed.
    writer: Mutex<Option<IdleWriter>>,
}

impl SharedWriter {
    pub(crate) const fn new(requests: Arc<RequestQueue>) -> Self {
        Self { requests, writer: Mutex::new(None) }
    }

    /// Executes a request on this thread, and replies to it. Returns the request if the writer thread must do it.
    pub(crate) fn try_execute(&self, request: Request) -> Result<(), Request> {
        if !request.is_short() {
            return Err(request);
        }
        // Before the look at the queue: the writer thread does not end meanwhile, and can execute what follows.
        let _outstanding = OutstandingCall::new(&self.requests);
        self.execute_if_idle(request)
    }

    fn execute_if_idle(&self, request: Request) -> Result<(), Request> {
        if !self.requests.is_idle_for_caller() {
            return Err(request);
        }
        let Ok(mut writer) = self.writer.try_lock() else { return Err(request) };
        match &mut *writer {
            Some(writer) => writer.resume(|writer| writer.try_execute(request)),
            None => Err(request),
        }
    }

    /// Executes batches until the request queue is closed and empty. To be called by the writer thread.
    pub(crate) fn run(&self, writer: IdleWriter) {
        let Ok(mut slot) = self.writer.lock() else { return };
        let mut timeout = slot.insert(writer).resume(|writer| writer.idle_timeout());
        drop(slot);
        let mut batch = Vec::new();
        while self.requests.take_batch(&mut batch, timeout) {
            // Poisoned: a transaction has panicked on the thread of a caller.
            let Ok(mut slot) = self.writer.lock() else { return };
            let Some(writer) = &mut *slot else { return };
            timeout = writer.resume(|writer| {
                writer.execute_or_work(std::mem::take(&mut batch));
                writer.idle_timeout()
            });
        }
        let writer = self.writer.lock().ok().and_then(|mut slot| slot.take());
        if let Some(writer) = writer {
            writer.close();
        }
    }

    /// Drops all requests, and closes the file if that was not done: a transaction has panicked. While it is open,
    /// nobody else can write.
    pub(crate) fn abandon(&self) {
        self.requests.abandon();
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(writer);
    }
}

/// A request that a caller executes itself. If it panics, the writer thread learns of it, and ends.
struct OutstandingCall<'a>(&'a RequestQueue);

impl<'a> OutstandingCall<'a> {
    fn new(requests: &'a RequestQueue) -> Self {
        requests.add_outstanding();
        Self(requests)
    }
}

impl Drop for OutstandingCall<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.wake_writer();
        }
        self.0.remove_outstanding();
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::future::Future;
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Context, Poll, Waker};
    use std::thread::ThreadId;

    use pillarbox_core::internal::lock;
    use pillarbox_core::{
        BoxFuture, Clock, Mailboxes, Outgoing, Queue, QueueOptions, Receive, Settle, Timestamp,
    };
    use tempfile::TempDir;

    use super::*;
    use crate::{SqliteBackend, SqliteOptions, Synchronous};

    /// A clock that knows which thread has executed the last transaction, and can make one panic.
    #[derive(Debug, Default)]
    struct ThreadClock {
        last: Mutex<Option<ThreadId>>,
        panics: AtomicBool,
    }

    impl Clock for ThreadClock {
        fn now(&self) -> Timestamp {
            assert!(!self.panics.load(Ordering::Relaxed), "a transaction panics");
            *lock(&self.last) = Some(thread::current().id());
            Timestamp::now()
        }

        fn sleep_until(&self, _: Timestamp) -> BoxFuture<'_, ()> {
            Box::pin(std::future::pending())
        }
    }

    /// A queue with a single caller.
    struct Lone {
        directory: TempDir,
        clock: Arc<ThreadClock>,
        backend: Mailboxes,
        jobs: Arc<dyn Queue>,
    }

    impl Lone {
        /// Opens a queue, and uses it until the caller executes its requests itself.
        async fn open() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let clock = Arc::new(ThreadClock::default());
            // The duration of a sync, which also decides, is unknown here.
            let options = SqliteOptions::new(directory.path().join("jobs.db"));
            let options = options.synchronous(Synchronous::Normal);
            let backend = SqliteBackend::open_with_clock(options, clock.clone()).await.unwrap();
            let backend = Mailboxes::new(backend);
            let jobs = backend.queue("jobs", QueueOptions::new()).unwrap();
            let lone = Self { directory, clock, backend, jobs };
            lone.cycle_until_inline().await;
            lone
        }

        async fn cycle_until_inline(&self) {
            for _ in 0..10_000 {
                thread::yield_now();
                self.send("x").await;
                let received = self.jobs.receive(Receive::one()).await.unwrap();
                let is_inline = self.is_inline();
                let receipt = received[0].receipt.clone();
                self.jobs.settle(vec![Settle::acknowledge(receipt)]).await.unwrap();
                if is_inline && self.is_inline() {
                    return;
                }
            }
            panic!("the writer thread executes every request of a lone caller");
        }

        async fn send(&self, body: &'static str) {
            self.jobs.send(vec![Outgoing::new(body)]).await.unwrap().remove(0).unwrap();
        }

        /// Returns whether this thread has executed the last transaction.
        fn is_inline(&self) -> bool {
            *lock(&self.clock.last) == Some(thread::current().id())
        }
    }

    #[tokio::test]
    async fn a_lone_caller_executes_its_requests_itself() {
        let lone = Lone::open().await;
        lone.backend.close().await;
    }

    #[tokio::test]
    async fn a_caller_does_not_wait_for_the_lock_of_another_process() {
        let lone = Lone::open().await;
        let other = File::open(lone.directory.path().join("jobs.db-lock")).unwrap();
        other.lock().unwrap();
        let mut send = pin!(lone.send("a"));
        let polled = send.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "the writer thread waits for the lock");
        other.unlock().unwrap();
        send.await;
        assert!(!lone.is_inline());
        assert_eq!(lone.jobs.counts().await.unwrap().ready, 1);
        lone.backend.close().await;
    }

    #[tokio::test]
    async fn a_receive_that_is_dropped_after_its_transaction_is_undone() {
        let lone = Lone::open().await;
        lone.send("a").await;
        for _ in 0..50 {
            let mut receive = pin!(lone.jobs.receive(Receive::one()));
            // It has its reply if the writer thread was quick.
            let polled = receive.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(received) = polled {
                let receipt = received.unwrap().remove(0).receipt;
                lone.jobs.settle(vec![Settle::acknowledge(receipt)]).await.unwrap();
                lone.send("a").await;
            }
        }
        let received = lone.jobs.receive(Receive::one()).await.unwrap();
        assert_eq!(received[0].message.delivery_count, 1);
        lone.backend.close().await;
    }

    #[tokio::test]
    async fn a_receive_that_finds_nothing_waits_for_a_message() {
        let lone = Lone::open().await;
        let wait = Receive::one().wait(std::time::Duration::from_secs(20));
        let send = async {
            tokio::task::yield_now().await;
            lone.send("a").await;
        };
        let (received, ()) = tokio::join!(lone.jobs.receive(wait), send);
        assert_eq!(&received.unwrap()[0].message.body[..], b"a");
        lone.backend.close().await;
    }

    /// Checks that a program can write although a transaction of another has panicked.
    async fn assert_unlocked(lone: &Lone) {
        let file = lone.directory.path().join("jobs.db");
        let clock = Arc::new(ThreadClock::default());
        let other = SqliteBackend::open_with_clock(SqliteOptions::new(file), clock).await.unwrap();
        let other = Mailboxes::new(other);
        let jobs = other.queue("jobs", QueueOptions::new()).unwrap();
        jobs.send(vec![Outgoing::new("b")]).await.unwrap().remove(0).unwrap();
        assert_eq!(jobs.counts().await.unwrap().ready, 1);
        other.close().await;
        assert!(lone.jobs.counts().await.is_err(), "its writer has ended");
        lone.backend.close().await;
    }

    #[tokio::test]
    async fn a_transaction_that_panics_on_the_thread_of_its_caller_locks_nobody_out() {
        let lone = Lone::open().await;
        lone.clock.panics.store(true, Ordering::Relaxed);
        let jobs = lone.jobs.clone();
        let send = tokio::spawn(async move { jobs.send(vec![Outgoing::new("a")]).await });
        // If the writer thread executes it, that panics instead.
        assert!(!send.await.is_ok_and(|sent| sent.is_ok()));
        assert_unlocked(&lone).await;
    }

    #[tokio::test]
    async fn a_transaction_that_panics_on_the_writer_thread_locks_nobody_out() {
        let lone = Lone::open().await;
        lone.clock.panics.store(true, Ordering::Relaxed);
        assert!(lone.jobs.purge().await.is_err());
        assert_unlocked(&lone).await;
    }
}
