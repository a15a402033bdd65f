//! Telling workers what to do, and hearing what they did.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{Counts, Mailbox, MessageId, Queue, Result, SendOptions};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::event::{Event, EventBus, Events};
use crate::producer::{Outlet, ProducerHandle, ProducerMsg};
use crate::pulse::Pulse;
use crate::stats::{State, StatsSnapshot};
use crate::trace::Tracer;

/// More workers than this are taken for a mistake.
pub(crate) const MOST_WORKERS: usize = 10_000;

/// What workers shall do. The last word counts, so that nobody can miss one by being slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) is_paused: bool,
    pub(crate) stop: Option<Stop>,
    pub(crate) workers: usize,
    /// How long handlers may take to finish once there is to be a stop.
    pub(crate) drain: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    Graceful,
    Now,
}

/// Controls a group of workers: pause, resume, stop, how many there are; and tells how they are doing.
///
/// Cheap to clone. What is asked for takes effect soon and in order of asking; the
/// [events](Self::events) and the [stats](Self::stats) tell when.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{Runnable, Worker};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let jobs: Mailbox<u32> = Mailboxes::new(MemoryBackend::new()).mailbox("jobs")?;
/// let worker = Worker::new(jobs).handler(|job: u32| async move { println!("{job}") });
/// let control = worker.control();
/// control.set_workers(8);
/// control.stop();
/// worker.run().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Control {
    shared: Arc<Shared>,
}

/// What the two ends share from before the start.
pub(crate) struct Shared {
    pub(crate) wanted: watch::Sender<Wanted>,
    /// Says to the driver that something else is wanted. One that is on its way is enough.
    pub(crate) poke: mpsc::Sender<()>,
    pub(crate) stats: watch::Sender<StatsSnapshot>,
    pub(crate) bus: EventBus,
    pub(crate) producers: mpsc::Sender<ProducerMsg>,
    /// Room for messages of producers that wait to be sent. See [`Outlet`].
    pub(crate) producer_room: Arc<Semaphore>,
    pub(crate) tracer: OnceLock<Arc<dyn Tracer>>,
    pub(crate) is_stopping: AtomicBool,
    /// The last event was told.
    pub(crate) is_over: AtomicBool,
    /// What a watchdog sees of them.
    pub(crate) pulse: Pulse,
    pub(crate) run: RunOptions,
}

/// Returns the number of ready messages, of these counts, that are still to be handled.
type CountReady = Box<dyn Fn(&Counts) -> u64 + Send + Sync>;

/// What the methods of [`Runnable`](crate::Runnable) need to know of the workers.
#[derive(Default)]
pub(crate) struct RunOptions {
    pub(crate) ignores_signals: AtomicBool,
    /// The number of attempts after which the workers stop.
    pub(crate) max_attempts: OnceLock<usize>,
    /// The queues of all mailboxes.
    pub(crate) queues: Mutex<Vec<Arc<dyn Queue>>>,
    /// All ready messages, if it is not set.
    pub(crate) count_ready: OnceLock<CountReady>,
}

impl Control {
    pub(crate) const fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Stops fetching. What is in the workers' hands is finished.
    pub fn pause(&self) {
        self.want(|wanted| wanted.is_paused = true);
    }

    /// Fetches again.
    pub fn resume(&self) {
        self.want(|wanted| wanted.is_paused = false);
    }

    /// Stops for good: fetches nothing more, gives back what has not been begun, and lets what is
    /// running come to an end, for as long as [`drain_for`](crate::Worker::drain_for) says. Then it is
    /// cancelled and given back.
    pub fn stop(&self) {
        self.want(|wanted| wanted.stop = wanted.stop.or(Some(Stop::Graceful)));
    }

    /// Stops for good, now: cancels what is running and gives it back.
    pub fn stop_now(&self) {
        self.want_stop(Stop::Now);
    }

    pub(crate) fn want_stop(&self, stop: Stop) {
        self.want(|wanted| wanted.stop = Some(stop));
    }

    /// Changes how many workers there are. Those that are too many finish what they are at; what waits in
    /// their inboxes goes to the others. With none, nothing is fetched, and what waits goes back. At most
    /// 10,000.
    pub fn set_workers(&self, workers: usize) {
        self.want(|wanted| wanted.workers = workers.min(MOST_WORKERS));
    }

    /// How the workers are doing, as of now and whenever it changes: at most ten times a second.
    pub fn stats(&self) -> watch::Receiver<StatsSnapshot> {
        self.shared.stats.subscribe()
    }

    /// What happens from now on. Who listens too slowly misses some, and is told how many; the workers
    /// never wait for a listener.
    pub fn events(&self) -> Events {
        self.shared.bus.subscribe(self.shared.is_over.load(Ordering::Acquire))
    }

    /// Sends to `mailbox` through the dispatcher.
    pub fn producer<T: 'static, R: 'static>(&self, mailbox: &Mailbox<T, R>) -> ProducerHandle<T> {
        ProducerHandle::new(Arc::new(mailbox.clone()), self.shared.outlet())
    }

    /// Sends one message to `mailbox` through the dispatcher.
    pub async fn send<T: 'static, R: 'static>(
        &self,
        mailbox: &Mailbox<T, R>,
        body: &T,
    ) -> Result<MessageId> {
        self.producer(mailbox).send_with(body, SendOptions::new()).await
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        &self.shared.pulse
    }

    pub(crate) fn obeys_signals(&self) -> bool {
        !self.shared.run.ignores_signals.load(Ordering::Relaxed)
    }

    /// Stops the workers after `max` attempts. Has to be called before they run.
    pub(crate) fn limit_attempts(&self, max: usize) {
        let _ = self.shared.run.max_attempts.set(max);
    }

    pub(crate) fn queues(&self) -> Vec<Arc<dyn Queue>> {
        lock(&self.shared.run.queues).clone()
    }

    /// Leaves out the ready messages that the workers ignore.
    pub(crate) fn without_ignored(&self, mut counts: Counts) -> Counts {
        if let Some(count_ready) = self.shared.run.count_ready.get() {
            counts.ready = count_ready(&counts);
        }
        counts
    }

    fn want(&self, change: impl FnOnce(&mut Wanted)) {
        self.shared.wanted.send_modify(|wanted| {
            change(wanted);
            if wanted.stop.is_some() {
                self.shared.is_stopping.store(true, Ordering::Release);
            }
        });
        let _ = self.shared.poke.try_send(());
    }
}

impl Shared {
    pub(crate) fn new(
        wanted: Wanted,
        stats: StatsSnapshot,
        producers: mpsc::Sender<ProducerMsg>,
        poke: mpsc::Sender<()>,
    ) -> Self {
        Self {
            wanted: watch::Sender::new(wanted),
            poke,
            stats: watch::Sender::new(stats),
            bus: EventBus::new(),
            producers,
            producer_room: Arc::new(Semaphore::new(0)),
            tracer: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            pulse: Pulse::default(),
            run: RunOptions::default(),
        }
    }

    /// Of something that has neither workers nor mailboxes. Nobody takes what would be sent by it.
    pub(crate) fn without_workers() -> Self {
        let wanted = Wanted { is_paused: false, stop: None, workers: 0, drain: Duration::ZERO };
        let stats = StatsSnapshot::new(std::iter::empty());
        Self::new(wanted, stats, mpsc::channel(1).0, mpsc::channel(1).0)
    }

    /// Whether somebody has said stop, which the dispatcher may not have heard yet.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        self.bus.emit(event);
    }

    pub(crate) fn outlet(&self) -> Outlet {
        Outlet {
            sender: self.producers.clone(),
            room: self.producer_room.clone(),
            tracer: self.tracer.get().cloned(),
            trace: None,
        }
    }

    pub(crate) fn say_state(&self, state: State) {
        self.stats.send_modify(|stats| stats.state = state);
    }

    /// Tells the last event, once.
    pub(crate) fn say_drained(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.say_state(State::Stopped);
            self.emit(|| Event::Drained);
        }
    }
}

/// Whatever becomes of the workers, those who listen hear of their end.
pub(crate) struct Farewell(pub(crate) Arc<Shared>);

impl Drop for Farewell {
    fn drop(&mut self) {
        self.0.producer_room.close();
        self.0.say_drained();
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Control").field(&*self.shared.wanted.borrow()).finish()
    }
}
