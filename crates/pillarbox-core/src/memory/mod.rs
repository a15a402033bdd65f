//! The memory backend: the lease ledger behind a mutex.
//!
//! For tests, for development, and for work that may be lost with its process. There is no thread
//! and no task behind it: a queue does something only while somebody calls it. Receivers that
//! wait are woken one per message, in order of arrival; expired leases and due messages wake them
//! at the very moment, by a timer that the first in line holds.

mod queue;
mod waiters;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use self::queue::{Core, MemoryQueue};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::gate::Gate;
use crate::queue::{Backend, BoxFuture, Queue, QueueOptions};
use crate::{Capabilities, Diagnosis, QueueName};

#[cfg(test)]
mod tests;

static CAPABILITIES: Capabilities = Capabilities::full("memory");

/// Queues in the memory of this process.
///
/// A queue exists while somebody has it open or it holds messages. All of them are gone when the
/// last handle of the backend is.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let numbers: Mailbox<u32> = backend.mailbox("numbers")?;
/// numbers.send(&7).await?;
/// for message in numbers.receive(Receive::one()).await? {
///     assert_eq!(*message.body(), 7);
///     message.acknowledge().await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MemoryBackend {
    shared: Arc<Shared>,
    gate: Arc<Gate>,
}

/// What all handles of one backend share.
#[derive(Debug)]
struct Shared {
    clock: Arc<dyn Clock>,
    queues: Mutex<BTreeMap<QueueName, Registered>>,
}

#[derive(Debug, Default)]
struct Registered {
    core: Arc<Core>,
    /// How many handles are open. Counted here, under the lock, rather than read off the `Arc`:
    /// of two handles that go at once, exactly one is the last.
    handles: usize,
}

/// The backends opened by name, for as long as somebody holds them.
static NAMED: LazyLock<Mutex<BTreeMap<String, Weak<Shared>>>> = LazyLock::new(Mutex::default);

impl MemoryBackend {
    /// Makes a backend of its own, on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// Makes a backend of its own, on the caller's clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::of(Arc::new(Shared { clock, queues: Mutex::default() }))
    }

    /// Opens the backend called `name`, which all of this process share. It lives until the last
    /// handle of it, or of one of its queues, is dropped.
    pub fn named(name: &str) -> Self {
        let mut named = lock(&NAMED);
        if let Some(shared) = named.get(name).and_then(Weak::upgrade) {
            return Self::of(shared);
        }
        let backend = Self::new();
        named.retain(|_, shared| shared.strong_count() > 0);
        named.insert(name.to_owned(), Arc::downgrade(&backend.shared));
        backend
    }

    fn of(shared: Arc<Shared>) -> Self {
        Self { shared, gate: Arc::new(Gate::new()) }
    }
}

impl Default for MemoryBackend {
    fn default() -> Self {
        Self::new()
    }
}

impl Backend for MemoryBackend {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        self.gate.check(name)?;
        let core = {
            let mut queues = lock(&self.shared.queues);
            let registered = queues.entry(name.clone()).or_default();
            registered.handles += 1;
            registered.core.clone()
        };
        let gate = Gate::child(&self.gate);
        Ok(Arc::new(MemoryQueue::new(name.clone(), options, core, self.shared.clone(), gate)))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.gate.check_backend()?;
            Ok(lock(&self.shared.queues).keys().cloned().collect())
        })
    }

    fn diagnose(&self, _: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        Box::pin(async {
            self.gate.check_backend()?;
            Ok(Diagnosis::of(self.capabilities()))
        })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async { self.gate.close() })
    }
}

impl Shared {
    /// Drops a queue that holds nothing when its last handle goes, so that short-lived reply
    /// queues do not pile up.
    fn handle_dropped(&self, name: &QueueName) {
        let mut queues = lock(&self.queues);
        if let Some(registered) = queues.get_mut(name) {
            registered.handles -= 1;
            if registered.handles == 0 && registered.core.is_empty() {
                queues.remove(name);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
