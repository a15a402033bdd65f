//! What this process knows of one queue, apart from its partitions.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pillarbox_core::QueueName;
use pillarbox_core::internal::lock;
use redis::Cmd;
use tokio::time::{Instant, timeout};

use crate::context::BackendContext;
use crate::failure::{Failure, Result};
use crate::format::Keys;
use crate::options::MAX_TTL;
use crate::partition_layout::{Layout, PartitionNumber};
use crate::reply::ReplyReader;
use crate::script_call::ScriptCall;
use crate::scripts::{self, Script};
use crate::servers::Route;
use crate::waiting::SharedWaiters;

/// Age at which the layout of a queue in use is read again. Changes are also published.
const MAX_LAYOUT_AGE: Duration = Duration::from_secs(5);

/// Time that a caller who knows an older layout waits for the current one.
const LAYOUT_TIMEOUT: Duration = Duration::from_secs(1);

/// Minimum interval between attempts to remove partitions that are no longer sent to.
const NARROW_INTERVAL: Duration = Duration::from_secs(1);

/// Knowledge of this process about one queue.
pub(crate) struct QueueState {
    pub(crate) name: QueueName,
    pub(crate) context: Arc<BackendContext>,
    pub(crate) waiters: Arc<SharedWaiters>,
    layout: Mutex<KnownLayout>,
    /// Whether the layout is being read.
    is_reading_layout: AtomicBool,
    /// Whether the queue was sent to, received from, settled or purged.
    is_used: AtomicBool,
    pub(crate) registration: Mutex<Registration>,
    /// Time of the last attempt to remove partitions.
    last_narrow: Mutex<Option<Instant>>,
    /// Longest `default_ttl` of a handle, in milliseconds. 0 for none.
    requested_ttl: AtomicU64,
}

/// Whether the queue is on the list of queues.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Registration {
    #[default]
    Missing,
    /// A task adds it in the background, and no call waits for that.
    InBackground,
    /// It was added at this time.
    Done(Instant),
}

/// The layout as it was last read.
#[derive(Debug, Clone, Copy)]
struct KnownLayout {
    layout: Layout,
    /// When it was read, or could not be.
    read: Option<Instant>,
    /// Minimum number of partitions that was requested then.
    requested: PartitionNumber,
    /// Number of reported changes at that time.
    changes: u64,
}

impl QueueState {
    pub(crate) fn new(name: QueueName, context: Arc<BackendContext>) -> Self {
        let waiters = Arc::new(SharedWaiters::new(context.waited_partitions.clone()));
        let layout = KnownLayout { layout: Layout::SINGLE, read: None, requested: 0, changes: 0 };
        Self {
            name,
            context,
            waiters,
            layout: Mutex::new(layout),
            is_reading_layout: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            registration: Mutex::default(),
            last_narrow: Mutex::default(),
            requested_ttl: AtomicU64::new(0),
        }
    }

    /// Keeps the queue at least this long without use.
    pub(crate) fn request_ttl(&self, ttl: Duration) {
        self.requested_ttl.fetch_max(ttl_millis(ttl), Ordering::Relaxed);
    }

    /// Returns the longest `default_ttl` of a handle.
    pub(crate) fn requested_ttl(&self) -> Option<Duration> {
        let millis = self.requested_ttl.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Returns the milliseconds without use after which the server deletes the queue. 0 for never, as for
    /// a queue with partitions, whose keys are not used together.
    pub(crate) fn ttl(&self) -> u64 {
        if self.known_layout().received_from > 1 {
            return 0;
        }
        let ttl = self.requested_ttl().or(self.context.client.settings.default_ttl);
        ttl.map_or(0, ttl_millis)
    }

    pub(crate) fn mark_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, KnownLayout> {
        lock(&self.layout)
    }

    /// Returns the layout as it was last read.
    pub(crate) fn known_layout(&self) -> Layout {
        self.known().layout
    }

    /// Returns the layout, with at least `least` partitions unless an operator has set their number.
    ///
    /// A layout that was read recently is returned as it is. An older one is read again; it is returned
    /// only if that does not succeed soon, and while another caller reads it.
    pub(crate) async fn layout(&self, least: PartitionNumber) -> Result<Layout> {
        let KnownLayout { layout, read, requested, changes } = *self.known();
        let least = least.max(requested);
        let Some(read) = read.filter(|_| requested >= least) else {
            return self.read_layout(least).await;
        };
        if changes == self.waiters.layout_changes() && read.elapsed() < MAX_LAYOUT_AGE {
            return Ok(layout);
        }
        let Some(_guard) = ReadGuard::acquire(&self.is_reading_layout) else { return Ok(layout) };
        match timeout(LAYOUT_TIMEOUT, self.read_layout(least)).await {
            Ok(Ok(layout)) => Ok(layout),
            Ok(Err(failure @ Failure::Layout { .. })) => Err(failure),
            Ok(Err(_)) | Err(_) => {
                self.known().read = Some(Instant::now());
                Ok(layout)
            }
        }
    }

    /// Returns whether partitions may be removed now: attempts are limited while they are not empty.
    pub(crate) fn may_narrow(&self) -> bool {
        let mut last = lock(&self.last_narrow);
        let now = Instant::now();
        let may = last.is_none_or(|at| now.duration_since(at) >= NARROW_INTERVAL);
        if may {
            *last = Some(now);
        }
        may
    }

    /// Reads the layout, and adds partitions if there are fewer than `least`.
    pub(crate) async fn read_layout(&self, least: PartitionNumber) -> Result<Layout> {
        let layout = self
            .update_layout(&scripts::LAYOUT, &[least.to_string(), "1".into(), "0".into()])
            .await?;
        self.known().requested = least;
        Ok(layout)
    }

    /// Sets the number of partitions that are sent to.
    pub(crate) async fn spread(&self, partitions: PartitionNumber) -> Result<Layout> {
        self.update_layout(&scripts::SPREAD, &[partitions.to_string()]).await
    }

    /// Removes the partitions from `received_from` on from the layout, unless it has changed meanwhile.
    pub(crate) async fn narrow(
        &self,
        layout: Layout,
        received_from: PartitionNumber,
    ) -> Result<()> {
        let arguments = [layout.version.to_string(), received_from.to_string()];
        self.run_on_layout(&scripts::NARROW, &arguments).await?;
        self.waiters.record_layout_change();
        Ok(())
    }

    /// Runs a script that answers with the layout, which may be changed by it.
    pub(crate) async fn update_layout(
        &self,
        script: &Script,
        arguments: &[String],
    ) -> Result<Layout> {
        let (changes, begin) = (self.waiters.layout_changes(), Instant::now());
        let mut reply = self.run_on_layout(script, arguments).await?;
        let layout = match reply.optional_bytes()? {
            None => Layout::SINGLE,
            Some(text) => Layout::read(&text)
                .ok_or_else(|| Failure::Layout { key: Keys::new(&self.name, 0).partitions() })?,
        };
        let mut known = self.known();
        // Of two concurrent reads, the answer of the later one may arrive first. Otherwise the answer is true
        // whatever its version: the key may have been deleted, and written again after a clock was set back.
        let is_later = known.read.is_none_or(|read| begin >= read);
        if layout.version == 0 || layout.version >= known.layout.version || is_later {
            known.layout = layout;
            (known.read, known.changes) = (Some(Instant::now()), changes);
            drop(known);
            self.waiters.set_partitions(layout.received_from);
        }
        Ok(layout)
    }

    async fn run_on_layout(&self, script: &Script, arguments: &[String]) -> Result<ReplyReader> {
        let BackendContext { client, gate, .. } = &*self.context;
        let keys = Keys::new(&self.name, 0);
        let (partitions, [pending, invisible, data, meta]) =
            (keys.partitions(), keys.types().map(|(key, _)| key));
        let of_layout = [&*partitions, pending, invisible, data, meta];
        let add = |command: &mut Cmd| {
            command.arg(arguments);
        };
        let call = ScriptCall::with_own_keys(script, &of_layout, add);
        Ok(client.run(gate, Route::Slot(keys.slot), call).await?.into_reader())
    }
}

/// Returns a time to live as scripts take it.
fn ttl_millis(ttl: Duration) -> u64 {
    let millis = ttl.min(MAX_TTL).as_millis().max(1);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Held by the one caller that reads the layout.
struct ReadGuard<'a>(&'a AtomicBool);

impl<'a> ReadGuard<'a> {
    fn acquire(is_reading: &'a AtomicBool) -> Option<Self> {
        (!is_reading.swap(true, Ordering::Relaxed)).then_some(Self(is_reading))
    }
}

impl Drop for ReadGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState").field("name", &self.name).finish_non_exhaustive()
    }
}
