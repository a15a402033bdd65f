//! The memory backend: a [`Ledger`](crate::ledger::Ledger) behind a mutex.
//!
//! It has no thread and no task: a queue does something only while it is called. Waiting receivers are woken one per
//! message, in order of arrival. When a lease expires or a delayed message is due, a timer held by the first waiter
//! wakes it at that time.

mod queue;
mod waiters;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, Weak};

use self::queue::{MemoryQueue, QueueState};
use crate::clock::{Clock, SystemClock};
use crate::error::Result;
use crate::future::BoxFuture;
use crate::gate::Gate;
use crate::internal::lock;
use crate::options::QueueOptions;
use crate::queue::{Backend, Queue};
use crate::{Capabilities, Diagnosis, QueueName};

#[cfg(test)]
mod tests;

static CAPABILITIES: Capabilities = Capabilities::full("memory");

/// Queues in the memory of this process, for tests, development, and work that may be lost with the process.
///
/// A queue exists while it is open or holds messages. All queues are gone when the last handle of the backend is
/// dropped.
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
    storage: Arc<Storage>,
    gate: Arc<Gate>,
}

/// Clock and queues of a backend, shared by its handles.
#[derive(Debug)]
struct Storage {
    clock: Arc<dyn Clock>,
    queues: Mutex<BTreeMap<QueueName, StoredQueue>>,
}

#[derive(Debug, Default)]
struct StoredQueue {
    state: Arc<Mutex<QueueState>>,
    /// Number of open handles. Counted under the lock rather than taken from the `Arc`: of two handles that are
    /// dropped at the same time, exactly one is the last.
    handles: usize,
}

/// Backends opened by name that still have a handle.
static NAMED: LazyLock<Mutex<BTreeMap<String, Weak<Storage>>>> = LazyLock::new(Mutex::default);

impl MemoryBackend {
    /// Creates a private backend on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// Creates a private backend on the caller's clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self::open(Arc::new(Storage { clock, queues: Mutex::default() }))
    }

    /// Opens the backend called `name`, which the whole process shares. It lives until the last handle of it, or of
    /// one of its queues, is dropped.
    pub fn named(name: &str) -> Self {
        let mut named = lock(&NAMED);
        if let Some(storage) = named.get(name).and_then(Weak::upgrade) {
            return Self::open(storage);
        }
        let backend = Self::new();
        named.retain(|_, storage| storage.strong_count() > 0);
        named.insert(name.to_owned(), Arc::downgrade(&backend.storage));
        backend
    }

    fn open(storage: Arc<Storage>) -> Self {
        Self { storage, gate: Arc::new(Gate::new()) }
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
        let mut queues = lock(&self.storage.queues);
        let stored = queues.entry(name.clone()).or_default();
        stored.handles += 1;
        let state = stored.state.clone();
        let gate = Gate::child(&self.gate);
        let (name, storage) = (name.clone(), self.storage.clone());
        Ok(Arc::new(MemoryQueue { name, options, state, storage, gate }))
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        Box::pin(async {
            self.gate.check_backend()?;
            Ok(lock(&self.storage.queues).keys().cloned().collect())
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

impl Storage {
    /// Removes an empty queue when its last handle is dropped, so that short-lived reply queues do not accumulate.
    fn handle_dropped(&self, name: &QueueName) {
        let mut queues = lock(&self.queues);
        if let Some(stored) = queues.get_mut(name) {
            stored.handles -= 1;
            if stored.handles == 0 && lock(&stored.state).ledger.is_empty() {
                queues.remove(name);
            }
        }
    }
}
