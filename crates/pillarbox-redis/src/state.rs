//! What this process knows of one queue, whichever partition.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::QueueName;
use tokio::time::Instant;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::format::Keys;
use crate::layout::{Layout, Number};
use crate::line::Line;
use crate::scripts::{self, Script};
use crate::servers::Route;

/// How old may be what is known of a queue's layout while it is used. A change is told as well, to those
/// who listen.
const LAYOUT_AGE: Duration = Duration::from_secs(5);

/// How often it is tried to take away partitions that are no longer sent to.
const NARROW_AGAIN: Duration = Duration::from_secs(1);

/// How often a queue that is sent to is put on the list anew. See `Backend::queues`.
const LIST_AGAIN: Duration = Duration::from_secs(600);

/// What this process knows of one queue.
pub(crate) struct QueueState {
    pub(crate) name: QueueName,
    pub(crate) engine: Arc<Engine>,
    line: Mutex<Line>,
    layout: Mutex<LayoutNote>,
    /// Whether the layout is being read anew.
    is_learning: AtomicBool,
    /// Whether more was done with it than looking.
    is_used: AtomicBool,
    /// When the queue was last put on the list of queues.
    listed: Mutex<Option<Instant>>,
    /// When it was last tried to take partitions away.
    narrowed: Mutex<Option<Instant>>,
    /// How many partitions those who wait have been counted for.
    pub(crate) waited_at: AtomicUsize,
}

/// The layout, when it was read, and how many partitions were asked for then.
#[derive(Debug, Clone, Copy)]
struct LayoutNote {
    layout: Layout,
    read: Option<Instant>,
    asked_for: Number,
}

impl QueueState {
    pub(crate) fn new(name: QueueName, engine: Arc<Engine>) -> Self {
        Self {
            name,
            engine,
            line: Mutex::new(Line::new()),
            layout: Mutex::new(LayoutNote { layout: Layout::WHOLE, read: None, asked_for: 0 }),
            is_learning: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            listed: Mutex::default(),
            narrowed: Mutex::default(),
            waited_at: AtomicUsize::new(0),
        }
    }

    /// The receivers that wait. Held for moments, never across an await.
    pub(crate) fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that more is done than looking.
    pub(crate) fn use_it(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    fn note(&self) -> MutexGuard<'_, LayoutNote> {
        self.layout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the queue is spread, as far as is known.
    pub(crate) fn known_layout(&self) -> Layout {
        self.note().layout
    }

    /// Hears that the queue is spread otherwise.
    pub(crate) fn layout_has_changed(&self) {
        self.note().read = None;
        self.line().call_next();
    }

    /// How the queue is spread: over `least` partitions at least, unless a person has said how many. What was read lately will do; what is
    /// older will do, too, and is read anew meanwhile.
    pub(crate) async fn layout(self: &Arc<Self>, least: Number) -> Result<Layout, Failure> {
        let LayoutNote { layout, read, asked_for } = *self.note();
        let least = least.max(asked_for);
        let Some(read) = read.filter(|_| asked_for >= least) else {
            return self.learn_layout(least).await;
        };
        if read.elapsed() > LAYOUT_AGE && !self.is_learning.swap(true, Ordering::Relaxed) {
            let state = self.clone();
            self.engine.spawn(async move {
                if let Err(failure) = state.learn_layout(least).await {
                    tracing::debug!(queue = %state.name, %failure, "a layout could not be read");
                }
                state.is_learning.store(false, Ordering::Relaxed);
            });
        }
        Ok(layout)
    }

    /// Whether it may be tried to take partitions away: not again and again while they are not empty.
    pub(crate) fn may_narrow(&self) -> bool {
        let mut narrowed = self.narrowed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let may = narrowed.is_none_or(|at| now.duration_since(at) >= NARROW_AGAIN);
        if may {
            *narrowed = Some(now);
        }
        may
    }

    /// Reads how the queue is spread, and spreads it over `least` partitions if they are fewer.
    pub(crate) async fn learn_layout(&self, least: Number) -> Result<Layout, Failure> {
        let layout = self
            .change_layout(&scripts::LAYOUT, &[least.to_string(), "1".into(), "0".into()])
            .await?;
        self.note().asked_for = least;
        Ok(layout)
    }

    /// Has a partition received from that has just come into being.
    pub(crate) async fn enlist(&self, partition: Number) -> Result<Layout, Failure> {
        let sent_to = self.known_layout().sent_to.to_string();
        let held_in = (partition + 1).to_string();
        self.change_layout(&scripts::LAYOUT, &[sent_to, held_in, "1".into()]).await
    }

    /// Spreads the queue over so many partitions from now on.
    pub(crate) async fn spread(&self, partitions: Number) -> Result<Layout, Failure> {
        self.change_layout(&scripts::SPREAD, &[partitions.to_string()]).await
    }

    /// Notes that only so many partitions are left, or none, unless the layout was changed.
    pub(crate) async fn narrow(&self, layout: Layout, held_in: Number) -> Result<(), Failure> {
        let arguments = [layout.version.to_string(), held_in.to_string()];
        self.run_on_layout(&scripts::NARROW, &arguments).await?;
        self.note().read = None;
        Ok(())
    }

    async fn change_layout(
        &self,
        script: &Script,
        arguments: &[String],
    ) -> Result<Layout, Failure> {
        let mut words = self.run_on_layout(script, arguments).await?;
        let layout = match words.bytes_or_nothing()? {
            None => Layout::WHOLE,
            Some(text) => std::str::from_utf8(&text)
                .ok()
                .and_then(Layout::parse)
                .ok_or_else(|| words.wrong())?,
        };
        {
            let mut note = self.note();
            (note.layout, note.read) = (layout, Some(Instant::now()));
        }
        self.line().cover(layout.held_in);
        Ok(layout)
    }

    async fn run_on_layout(
        &self,
        script: &Script,
        arguments: &[String],
    ) -> Result<crate::reply::Words, Failure> {
        let Engine { link, gate, .. } = &*self.engine;
        let keys = Keys::new(&self.name, 0);
        let reply = link.run(gate, Route::Slot(keys.slot), script, false, |command, _| {
            command.arg(1).arg(keys.partitions()).arg(arguments);
        });
        Ok(reply.await?.words())
    }

    /// Puts the queue on the list of queues, for it came into being just now.
    pub(crate) async fn list_anew(&self) -> Result<(), Failure> {
        *self.listed() = None;
        self.list().await
    }

    /// Puts the queue on the list of queues, unless that was done lately.
    pub(crate) async fn list(&self) -> Result<(), Failure> {
        let now = Instant::now();
        let listed = *self.listed();
        if listed.is_some_and(|at| now.duration_since(at) < LIST_AGAIN) {
            return Ok(());
        }
        self.engine.list(&self.name).await?;
        *self.listed() = Some(now);
        Ok(())
    }

    fn listed(&self) -> MutexGuard<'_, Option<Instant>> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState").field("name", &self.name).finish_non_exhaustive()
    }
}
