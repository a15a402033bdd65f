//! The thread behind an opened backend, and how callers wait.

use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, JoinHandle};

use pillarbox_core::{Error, Mailboxes, QueueName, Result};
use tokio::runtime::{Builder, Handle, RuntimeFlavor};
use tokio::sync::oneshot;

/// An opened backend and the thread that it is at home on. All blocking handles share one.
///
/// A call is driven by the thread that makes it; the background thread drives timers and connections.
/// When the last handle goes, the backend is closed and the thread ended.
pub(super) struct Engine {
    pub(super) backend: Mailboxes,
    background: Background,
}

impl Engine {
    pub(super) fn open(open: impl Future<Output = Result<Mailboxes>>) -> Result<Arc<Self>> {
        may_wait(None)?;
        let background = Background::start()?;
        let backend = background.wait(None, open)?;
        Ok(Arc::new(Self { backend, background }))
    }

    /// Waits for a call, whose queue is named where the thread must not wait.
    pub(super) fn wait<T>(
        &self,
        queue: Option<&QueueName>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.background.wait(queue, call)
    }

    /// Runs what does not wait, within the runtime of the background thread.
    pub(super) fn within<T>(&self, run: impl FnOnce(&Mailboxes) -> T) -> T {
        let _entered = self.background.handle.enter();
        run(&self.backend)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Some(end) = self.background.end.take() {
            // A thread that is gone has nothing to close any more.
            let _ = end.send(self.backend.clone());
        }
    }
}

/// A thread that drives a runtime. Ends when it is dropped.
struct Background {
    handle: Handle,
    /// Ends the thread: with a backend to close first, or when it is dropped.
    end: Option<oneshot::Sender<Mailboxes>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    fn start() -> Result<Self> {
        let failed = |error: std::io::Error| Error::connection(None, "open", error);
        let (end, ended) = oneshot::channel::<Mailboxes>();
        let (built, handle) = mpsc::sync_channel(1);
        // The runtime is dropped on this thread too: Tokio does not let async code drop one.
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
        let gone = |_| Err(std::io::Error::other("the background thread has ended"));
        let handle = handle.recv().unwrap_or_else(gone).map_err(failed)?;
        Ok(Self { handle, end: Some(end), thread: Some(thread) })
    }

    fn wait<T>(
        &self,
        queue: Option<&QueueName>,
        call: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match may_wait(queue)? {
            Way::Park => self.drive(call),
            Way::HandOver => tokio::task::block_in_place(|| self.drive(call)),
        }
    }

    /// Drives a future on this thread.
    ///
    /// `Handle::block_on` would do, but for threads that are inside of a runtime: it panics there.
    fn drive<F: Future>(&self, future: F) -> F::Output {
        let _entered = self.handle.enter();
        let signal = Arc::new(Signal::default());
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        // A task around this call has a budget, which nobody would renew.
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
    /// Ends the thread and waits for it, unless that would hold up a runtime: then it ends by itself.
    fn drop(&mut self) {
        drop(self.end.take());
        let is_own = Handle::try_current().is_ok_and(|current| current.id() == self.handle.id());
        if let Some(thread) = self.thread.take()
            && tokio::runtime::worker_index().is_none()
            && !is_own
        {
            // Its panic, if there was one, was printed when it happened.
            let _ = thread.join();
        }
    }
}

/// How a thread waits.
enum Way {
    /// It sleeps.
    Park,
    /// It is a worker of a multi-thread runtime, and hands its other tasks over before it sleeps.
    HandOver,
}

/// How this thread waits, or an error where it drives a runtime that nobody else would drive meanwhile.
fn may_wait(queue: Option<&QueueName>) -> Result<Way> {
    if tokio::runtime::worker_index().is_none() {
        return Ok(Way::Park);
    }
    match Handle::try_current().map(|current| current.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => Ok(Way::HandOver),
        _ => {
            let value = "it drives a current-thread Tokio runtime, which would stand still until the call returns";
            let allowed = "a thread of its own, or tokio::task::spawn_blocking; async code uses the mailbox \
                 that pillarbox::open gives, or as_async()";
            Err(Error::invalid(queue, "calling thread", value, allowed))
        }
    }
}

/// Wakes a thread that waits. Not `thread::park`: its token may be meant for the program.
#[derive(Default)]
struct Signal {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Waits until it is set, and clears it.
    fn wait(&self) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(is_set, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner) = false;
    }
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}
