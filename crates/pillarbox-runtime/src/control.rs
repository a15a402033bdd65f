//! The control handle of a worker pool: pause, stop, scale, statistics and events.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{Counts, Mailbox, MessageId, Queue, Result, SendOptions};
use tokio::sync::{Semaphore, mpsc, watch};

use crate::desired_state::{DesiredState, Stop};
use crate::event::{Event, EventBus, Events};
use crate::producer::{DirectSends, PoolSends, ProducerHandle, SendChannel, SendRequest};
use crate::pulse::Pulse;
use crate::stats::{State, StatsSnapshot};
use crate::trace::Tracer;

/// The largest number of workers. More are taken for a mistake.
pub(crate) const MAX_WORKERS: usize = 10_000;

/// Controls a worker pool: pauses, resumes, stops and scales it, and reports its state.
///
/// Cheap to clone. Requests take effect soon and in order; the [events](Self::events) and the
/// [stats](Self::stats) show when.
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
    state: Arc<ControlState>,
}

/// What the handles of a pool share with its driver and workers.
pub(crate) struct ControlState {
    pub(crate) desired: watch::Sender<DesiredState>,
    /// Wakes the driver after a change of the desired state. Of capacity 1, since one wake-up is enough.
    pub(crate) desired_changed: mpsc::Sender<()>,
    pub(crate) stats: watch::Sender<StatsSnapshot>,
    pub(crate) events: EventBus,
    pub(crate) sends: mpsc::Sender<SendRequest>,
    /// See [`PoolSends::permits`].
    pub(crate) send_permits: Arc<Semaphore>,
    pub(crate) tracer: OnceLock<Arc<dyn Tracer>>,
    pub(crate) is_stopping: AtomicBool,
    /// The last event was emitted.
    pub(crate) is_over: AtomicBool,
    pub(crate) pulse: Pulse,
    pub(crate) run: RunOptions,
}

/// Returns the number of ready messages, of these counts, that are still to be handled.
type CountReady = Box<dyn Fn(&Counts) -> u64 + Send + Sync>;

/// What the methods of [`Runnable`](crate::Runnable) need to know of the workers.
#[derive(Default)]
pub(crate) struct RunOptions {
    pub(crate) leaves_signals_alone: AtomicBool,
    /// The number of attempts after which the workers stop.
    pub(crate) max_attempts: OnceLock<usize>,
    /// The queues of all mailboxes.
    pub(crate) queues: Mutex<Vec<Arc<dyn Queue>>>,
    /// All ready messages, if it is not set.
    pub(crate) count_ready: OnceLock<CountReady>,
}

impl Control {
    pub(crate) const fn new(state: Arc<ControlState>) -> Self {
        Self { state }
    }

    /// Stops receiving. Messages that were received are handled.
    pub fn pause(&self) {
        self.change(|desired| desired.is_paused = true);
    }

    /// Receives again after a pause.
    pub fn resume(&self) {
        self.change(|desired| desired.is_paused = false);
    }

    /// Stops gracefully: receives nothing more, returns messages that no handler has started on, and lets running
    /// handlers finish within [`drain_for`](crate::Worker::drain_for). After that they are cancelled and their
    /// messages are released.
    pub fn stop(&self) {
        self.request_stop(Stop::Graceful);
    }

    /// Stops immediately: cancels running handlers and releases their messages.
    pub fn stop_now(&self) {
        self.request_stop(Stop::Now);
    }

    /// A graceful stop does not take back an immediate one.
    pub(crate) fn request_stop(&self, stop: Stop) {
        self.change(|desired| desired.stop = desired.stop.max(Some(stop)));
    }

    /// Sets the number of workers, which is at most 10,000. Surplus workers finish the message that they handle;
    /// their prefetched messages go to the others. With 0 workers nothing is received, and prefetched messages
    /// are returned.
    pub fn set_workers(&self, workers: usize) {
        self.change(|desired| desired.workers = workers.min(MAX_WORKERS));
    }

    /// Returns the statistics of the workers, updated at most ten times a second.
    pub fn stats(&self) -> watch::Receiver<StatsSnapshot> {
        self.state.stats.subscribe()
    }

    /// Returns the events from now on. A listener that is too slow misses some, and can see
    /// [how many](Events::missed); workers never wait for a listener.
    pub fn events(&self) -> Events {
        self.state.events.subscribe(self.state.is_over.load(Ordering::Acquire))
    }

    /// Returns a handle that sends to `mailbox` through the worker pool.
    pub fn producer<T: 'static, R: 'static>(&self, mailbox: &Mailbox<T, R>) -> ProducerHandle<T> {
        ProducerHandle::new(Arc::new(mailbox.clone()), self.state.send_channel(None))
    }

    /// Sends one message to `mailbox` through the worker pool.
    pub async fn send<T: 'static, R: 'static>(
        &self,
        mailbox: &Mailbox<T, R>,
        body: &T,
    ) -> Result<MessageId> {
        self.producer(mailbox).send_with(body, SendOptions::new()).await
    }

    pub(crate) fn pulse(&self) -> &Pulse {
        &self.state.pulse
    }

    pub(crate) fn handles_signals(&self) -> bool {
        !self.state.run.leaves_signals_alone.load(Ordering::Relaxed)
    }

    /// Stops the workers after `max` attempts. Has to be called before they run.
    pub(crate) fn limit_attempts(&self, max: usize) {
        let _ = self.state.run.max_attempts.set(max);
    }

    pub(crate) fn queues(&self) -> Vec<Arc<dyn Queue>> {
        lock(&self.state.run.queues).clone()
    }

    /// Leaves out the ready messages that the workers ignore.
    pub(crate) fn without_ignored(&self, mut counts: Counts) -> Counts {
        if let Some(count_ready) = self.state.run.count_ready.get() {
            counts.ready = count_ready(&counts);
        }
        counts
    }

    fn change(&self, change: impl FnOnce(&mut DesiredState)) {
        self.state.desired.send_modify(|desired| {
            change(desired);
            if desired.stop.is_some() {
                self.state.is_stopping.store(true, Ordering::Release);
            }
        });
        let _ = self.state.desired_changed.try_send(());
    }
}

impl ControlState {
    pub(crate) fn new(
        desired: DesiredState,
        stats: StatsSnapshot,
        sends: mpsc::Sender<SendRequest>,
        desired_changed: mpsc::Sender<()>,
    ) -> Self {
        Self {
            desired: watch::Sender::new(desired),
            desired_changed,
            stats: watch::Sender::new(stats),
            events: EventBus::new(),
            sends,
            send_permits: Arc::new(Semaphore::new(0)),
            tracer: OnceLock::new(),
            is_stopping: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            pulse: Pulse::default(),
            run: RunOptions::default(),
        }
    }

    /// The state of something that has neither workers nor mailboxes. It cannot send.
    pub(crate) fn without_workers() -> Self {
        let drain = Duration::ZERO;
        let desired = DesiredState { is_paused: false, stop: None, workers: 0, drain };
        let stats = StatsSnapshot::new(std::iter::empty());
        Self::new(desired, stats, mpsc::channel(1).0, mpsc::channel(1).0)
    }

    /// Returns whether a stop was requested, which the dispatcher may not know yet.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        self.events.emit(event);
    }

    pub(crate) fn send_channel(&self, direct: Option<DirectSends>) -> SendChannel {
        let pool = PoolSends {
            sender: self.sends.clone(),
            permits: self.send_permits.clone(),
            tracer: self.tracer.get().cloned(),
            direct,
        };
        SendChannel { pool: Arc::new(pool), trace: None }
    }

    pub(crate) fn report_state(&self, state: State) {
        self.stats.send_modify(|stats| stats.state = state);
    }

    /// Emits the last event, once.
    pub(crate) fn report_drained(&self) {
        if !self.is_over.swap(true, Ordering::AcqRel) {
            self.report_state(State::Stopped);
            self.emit(|| Event::Drained);
        }
    }
}

/// Reports the end of the workers when dropped, however they end.
pub(crate) struct DrainedOnDrop(pub(crate) Arc<ControlState>);

impl Drop for DrainedOnDrop {
    fn drop(&mut self) {
        self.0.send_permits.close();
        self.0.report_drained();
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Control").field(&*self.state.desired.borrow()).finish()
    }
}
