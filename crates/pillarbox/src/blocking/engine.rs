//! The background thread of an open backend, and blocking waits.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use pillarbox_core::internal::lock;
use pillarbox_core::{Error, Mailboxes, QueueName, Result};
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;

/// An open backend and its background thread, shared by all blocking handles.
///
/// The calling thread drives a call; the background thread drives timers and connections. When the last handle is
/// dropped, the backend is closed and the thread ends.
pub(super) struct Engine {
    pub(super) backend: Mailboxes,
    background: Background,
}

impl Engine {
    pub(super) fn open(open: impl Future<Output = Result<Mailboxes>>) -> Result<Arc<Self>> {
        wait_mode(None)?;
        let background = Background::start()?;
        let backend = background.wait(None, open)?;
        Ok(Arc::new(Self { backend, background }))
    }

    /// Waits for a call. `queue` is for the error if this thread must not wait.
    pub(super) fn wait<T>(
        &self,
        queue: Option<&QueueName>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.background.wait(queue, call)
    }

    /// Calls a function that does not wait, in the context of the background thread's runtime.
    pub(super) fn within<T>(&self, run: impl FnOnce(&Mailboxes) -> T) -> T {
        let _entered = self.background.handle.enter();
        run(&self.backend)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(end) = self.background.end.take() {
            // A thread that has ended has nothing to close.
            let _ = end.send(self.backend.clone());
        }
    }
}

/// A thread that drives a runtime. Dropping it ends the thread.
struct Background {
    handle: Handle,
    /// Ends the thread: sending a backend closes that first, dropping it closes nothing.
    end: Option<oneshot::Sender<Mailboxes>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::connection(None, "open", error);
        let (end, ended) = oneshot::channel::<Mailboxes>();
        let (built, handle) = mpsc::sync_channel(1);
        // The runtime is also dropped on this thread, since Tokio does not allow that in async code.
        let body = move || {
            let runtime =
                Builder::new_current_thread().enable_all().thread_name("pillarbox-pool").build();
            let runtime = match runtime {
                Ok(runtime) => runtime,
                Err(error) => return drop(built.send(Err(error))),
            };
            if built.send(Ok(runtime.handle().clone())).is_ok() {
                runtime.block_on(async {
                    if let Ok(backend) = ended.await {
                        backend.close().await;
                    }
                });
            }
        };
        let thread =
            thread::Builder::new().name("pillarbox-io".into()).spawn(body).map_err(failed)?;
        let ended = |_| Err(std::io::Error::other("the background thread has ended"));
        let handle = handle.recv().unwrap_or_else(ended).map_err(failed)?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }

    fn wait<T>(
        &self,
        queue: Option<&QueueName>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match wait_mode(queue)? {
            WaitMode::Park => self.drive(call),
            WaitMode::BlockInPlace => tokio::task::block_in_place(|| self.drive(call)),
        }
    }

    /// Drives a future on this thread.
    ///
    /// Not `Handle::block_on`, which panics on threads inside a runtime.
    fn drive<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.handle.enter();
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        // The budget of a surrounding task would not be renewed while it blocks.
        let mut future = pin!(tokio::task::unconstrained(future));
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            signal.wait();
        }
    }
}

impl Drop for Background {
    /// Ends the thread and joins it. On a thread of a runtime it is not joined, since that would block the runtime.
    fn drop(&mut self) {
        drop(self.end.take());
        let is_own = Handle::try_current().is_ok_and(|current| current.id() == self.handle.id());
        if let Some(thread) = self.thread.take()
            && tokio::runtime::worker_index().is_none()
            && !is_own
        {
            // A panic of the thread was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// Way in which a thread waits.
enum WaitMode {
    /// It sleeps.
    Park,
    /// It is a worker of a multi-thread runtime, and hands over its other tasks before it sleeps.
    BlockInPlace,
}

/// Returns how this thread waits. Fails if it drives a current-thread runtime, which no other thread would drive
/// meanwhile.
fn wait_mode(queue: Option<&QueueName>) -> Result<WaitMode> {
    if tokio::runtime::worker_index().is_none() {
        return Ok(WaitMode::Park);
    }
    match Handle::try_current().map(|current| current.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => Ok(WaitMode::BlockInPlace),
        _ => {
            let value = "it drives a current-thread Tokio runtime, which would be blocked until the call returns";
            let allowed = "a separate thread, or tokio::task::spawn_blocking; async code uses the mailboxes \
                 of pillarbox::open, or as_async()";
            Err(Error::invalid(queue, "calling thread", value, allowed))
        }
    }
}

/// Wakes a waiting thread. Not `thread::park`, whose token may belong to the program.
#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Waits until the signal is set, and clears it.
    fn wait(&self) {
        let waited = self.changed.wait_while(lock(&self.is_set), |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *lock(&self.is_set) = true;
        self.changed.notify_one();
    }
}
