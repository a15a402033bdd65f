//! What this process knows of one queue, whichever partition.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::QueueName;
use tokio::time::{Instant, timeout};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::format::Keys;
use crate::layout::{Layout, Number};
use crate::line::Line;
use crate::options::LONGEST_TTL;
use crate::reply::Words;
use crate::scripts::{self, Script};
use crate::servers::Route;

/// How old may be what is known of a queue's layout while it is used. A change is told as well, to those
/// who listen.
const LAYOUT_AGE: Duration = Duration::from_secs(5);

/// How long reading it anew may keep somebody waiting who knows what it was.
const LAYOUT_WITHIN: Duration = Duration::from_secs(1);

/// How often it is tried to take away partitions that are no longer sent to.
const NARROW_AGAIN: Duration = Duration::from_secs(1);

/// How often a queue that is sent to is put on the list anew. See `Backend::queues`.
const LIST_AGAIN: Duration = Duration::from_secs(600);

/// How long a send waits for that. The list may be at another server than the queue, which may be down.
const LIST_WITHIN: Duration = Duration::from_secs(1);

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
    listed: Mutex<Listed>,
    /// When it was last tried to take partitions away.
    narrowed: Mutex<Option<Instant>>,
    /// How many partitions those who wait have been counted for. Changed under the line's lock.
    waited_at: AtomicUsize,
    /// Longest `default_ttl` that a handle has named, in milliseconds. 0: none has.
    named_ttl: AtomicU64,
}

/// Whether the queue is on the list of queues.
#[derive(Debug, Clone, Copy, Default)]
enum Listed {
    #[default]
    Not,
    /// It is being put there, and nobody waits for it any more.
    Soon,
    /// It was put there.
    At(Instant),
}

/// The layout, as far as is known.
#[derive(Debug, Clone, Copy)]
struct LayoutNote {
    layout: Layout,
    /// When it was read, or tried to be.
    read: Option<Instant>,
    /// How many partitions were asked for then.
    asked_for: Number,
    /// How often it was heard that it has changed, and how often when it was last read.
    changes: u64,
    changes_read: u64,
}

impl QueueState {
    pub(crate) fn new(name: QueueName, engine: Arc<Engine>) -> Self {
        Self {
            name,
            engine,
            line: Mutex::new(Line::new()),
            layout: Mutex::new(LayoutNote {
                layout: Layout::WHOLE,
                read: None,
                asked_for: 0,
                changes: 0,
                changes_read: 0,
            }),
            is_learning: AtomicBool::new(false),
            is_used: AtomicBool::new(false),
            listed: Mutex::default(),
            narrowed: Mutex::default(),
            waited_at: AtomicUsize::new(0),
            named_ttl: AtomicU64::new(0),
        }
    }

    /// Keeps the queue for this long without use, at least.
    pub(crate) fn name_ttl(&self, ttl: Duration) {
        self.named_ttl.fetch_max(ttl_millis(ttl), Ordering::Relaxed);
    }

    /// Longest `default_ttl` that a handle has named.
    pub(crate) fn named_ttl(&self) -> Option<Duration> {
        let millis = self.named_ttl.load(Ordering::Relaxed);
        (millis > 0).then(|| Duration::from_millis(millis))
    }

    /// Milliseconds without use after which the server deletes the queue. 0: never. A queue that is
    /// spread has keys that are not used together, and so has none.
    pub(crate) fn ttl(&self) -> u64 {
        if self.known_layout().held_in > 1 {
            return 0;
        }
        let ttl = self.named_ttl().or(self.engine.link.usage.default_ttl);
        ttl.map_or(0, ttl_millis)
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
        self.note().changes += 1;
        self.line().call_next();
    }

    /// How the queue is spread: over `least` partitions at least, unless a person has said how many.
    ///
    /// What was read lately will do. What is older is read anew; what was known before will do only
    /// where that cannot be done soon, and for those who ask while another does so.
    pub(crate) async fn layout(&self, least: Number) -> Result<Layout, Failure> {
        let LayoutNote { layout, read, asked_for, changes, changes_read } = *self.note();
        let least = least.max(asked_for);
        let Some(read) = read.filter(|_| asked_for >= least) else {
            return self.learn_layout(least).await;
        };
        if changes == changes_read && read.elapsed() < LAYOUT_AGE {
            return Ok(layout);
        }
        let Some(_learning) = Learning::begin(&self.is_learning) else { return Ok(layout) };
        match timeout(LAYOUT_WITHIN, self.learn_layout(least)).await {
            Ok(Ok(layout)) => Ok(layout),
            Ok(Err(failure @ Failure::Layout { .. })) => Err(failure),
            Ok(Err(_)) | Err(_) => {
                self.note().read = Some(Instant::now());
                Ok(layout)
            }
        }
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
        self.note().changes += 1;
        Ok(())
    }

    async fn change_layout(
        &self,
        script: &Script,
        arguments: &[String],
    ) -> Result<Layout, Failure> {
        let (changes, asked) = (self.note().changes, Instant::now());
        let mut words = self.run_on_layout(script, arguments).await?;
        let layout = match words.bytes_or_nothing()? {
            None => Layout::WHOLE,
            Some(text) => Layout::read(&text)
                .ok_or_else(|| Failure::Layout { key: Keys::new(&self.name, 0).partitions() })?,
        };
        let mut note = self.note();
        // An answer may be overtaken by a later one, if both were asked for at the same time. Otherwise it is
        // true whatever its version: the key may have been deleted, and made anew by a clock that was set back.
        let is_later = note.read.is_none_or(|read| asked >= read);
        if layout.version == 0 || layout.version >= note.layout.version || is_later {
            note.layout = layout;
            (note.read, note.changes_read) = (Some(Instant::now()), changes);
            drop(note);
            let mut line = self.line();
            line.cover(layout.held_in);
            self.count_waiters(&line);
        }
        Ok(layout)
    }

    /// Counts the partitions that somebody waits at, for all queues.
    pub(crate) fn count_waiters(&self, line: &Line) {
        let partitions = if line.is_empty() { 0 } else { line.covered() };
        let before = self.waited_at.swap(partitions, Ordering::Relaxed);
        self.engine.waited_at.fetch_add(partitions, Ordering::Relaxed);
        self.engine.waited_at.fetch_sub(before, Ordering::Relaxed);
    }

    async fn run_on_layout(&self, script: &Script, arguments: &[String]) -> Result<Words, Failure> {
        let Engine { link, gate, .. } = &*self.engine;
        let keys = Keys::new(&self.name, 0);
        let reply = link.run(gate, Route::Slot(keys.slot), script, false, |command, _| {
            command.arg(5).arg(keys.partitions()).arg(&keys.types().map(|(key, _)| key));
            command.arg(arguments);
        });
        Ok(reply.await?.words())
    }

    /// Puts the queue on the list of queues, for it came into being just now.
    pub(crate) async fn list_anew(self: &Arc<Self>) -> Result<(), Failure> {
        {
            let mut listed = self.listed();
            if matches!(*listed, Listed::At(_)) {
                *listed = Listed::Not;
            }
        }
        self.list().await
    }

    /// Puts the queue on the list of queues, unless that was done lately. Where the list cannot be
    /// reached, it is tried further while others go on.
    pub(crate) async fn list(self: &Arc<Self>) -> Result<(), Failure> {
        let listed = *self.listed();
        match listed {
            Listed::Soon => return Ok(()),
            Listed::At(at) if at.elapsed() < LIST_AGAIN => return Ok(()),
            Listed::At(_) | Listed::Not => {}
        }
        match timeout(LIST_WITHIN, self.engine.list(&self.name)).await {
            Ok(Ok(())) => *self.listed() = Listed::At(Instant::now()),
            Ok(Err(failure)) if !failure.may_pass() => return Err(failure),
            Ok(Err(_)) | Err(_) => {
                *self.listed() = Listed::Soon;
                let state = self.clone();
                self.engine.spawn(async move { state.list_later().await });
            }
        }
        Ok(())
    }

    async fn list_later(&self) {
        let listed = self.engine.list(&self.name).await;
        if let Err(failure) = &listed {
            tracing::debug!(queue = %self.name, %failure, "a queue is not on the list of queues");
        }
        *self.listed() = listed.map_or(Listed::Not, |()| Listed::At(Instant::now()));
    }

    fn listed(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A time to live as scripts take it.
fn ttl_millis(ttl: Duration) -> u64 {
    let millis = ttl.min(LONGEST_TTL).as_millis().max(1);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// Somebody reads the layout anew.
struct Learning<'a>(&'a AtomicBool);

impl<'a> Learning<'a> {
    /// Unless another does.
    fn begin(is_learning: &'a AtomicBool) -> Option<Self> {
        (!is_learning.swap(true, Ordering::Relaxed)).then_some(Self(is_learning))
    }
}

impl Drop for Learning<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl fmt::Debug for QueueState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueState").field("name", &self.name).finish_non_exhaustive()
    }
}
