//! A backend under test.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    BoxFuture, Capabilities, Clock, Mailboxes, ManualClock, MessageId, Peeked, Queue, QueueName,
    QueueOptions, Timestamp,
};
use tokio::time::Instant;

/// A backend under test, and its clock.
///
/// Tests measure time in ticks. On a backend with its own clock, a tick must be long compared to one
/// operation. On one that follows tokio's clock, pause that clock; any tick will do.
///
/// ```
/// use pillarbox_core::{Mailboxes, MemoryBackend};
/// use pillarbox_testing::Subject;
///
/// // The memory backend follows tokio's clock:
/// # pillarbox_testing::block_on(async {
/// let exact = Subject::with_paused_time(Mailboxes::new(MemoryBackend::new()));
/// // A server does not:
/// let real = Subject::new(Mailboxes::new(MemoryBackend::new()));
/// # });
/// ```
pub struct Subject {
    backend: Mailboxes,
    tick: Duration,
    time: Time,
    restart: Option<Restart>,
    inspect: Option<Inspect>,
    kept_alive: Option<Box<dyn Any + Send + Sync>>,
}

/// The clock of a subject.
#[derive(Debug)]
enum Time {
    /// Runs by itself.
    Real { start: Instant },
    /// Advances when every task waits for it.
    Paused { start: Instant },
    /// Advances when the test calls [`Subject::pass`].
    Manual { start: Timestamp, clock: ManualClock },
}

type Restart = Box<dyn Fn() -> BoxFuture<'static, Mailboxes> + Send + Sync>;

type Inspect = Box<dyn Fn(Expected) -> BoxFuture<'static, Result<(), String>> + Send + Sync>;

/// Expected content of a queue, for [`Subject::inspected_by`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Expected {
    /// The queue.
    pub queue: QueueName,
    /// All its messages: the ready ones in order, then the others by when they become ready.
    pub messages: Vec<Peeked>,
    /// Number of messages ever stored.
    pub sent: u64,
}

impl Subject {
    /// Creates a subject whose clock runs by itself, with ticks of 200 ms, or of one second if the
    /// backend only supports whole seconds.
    pub fn new(backend: Mailboxes) -> Self {
        let tick =
            Duration::from_millis(if backend.capabilities().sub_second { 200 } else { 1000 });
        Self::with(backend, tick, Time::Real { start: Instant::now() })
    }

    fn with(backend: Mailboxes, tick: Duration, time: Time) -> Self {
        Self { backend, tick, time, restart: None, inspect: None, kept_alive: None }
    }

    /// Creates a subject on a manual clock, which [`pass`](Self::pass) advances. For tests in which no
    /// receive waits, such as those of [`property`](crate::property).
    pub fn with_clock(backend: Mailboxes, clock: ManualClock) -> Self {
        Self::with(backend, Duration::from_secs(1), Time::Manual { start: clock.now(), clock })
    }

    /// Creates a subject that follows tokio's clock, and pauses that clock: time passes only when every
    /// task waits for it, and then at once.
    ///
    /// # Panics
    ///
    /// If tokio's clock is paused already, or the runtime is not a current-thread one.
    pub fn with_paused_time(backend: Mailboxes) -> Self {
        tokio::time::pause();
        Self::with(backend, Duration::from_secs(1), Time::Paused { start: Instant::now() })
    }

    /// Sets how to open the same backend again, as another process would, which enables the rules about
    /// durability.
    ///
    /// `open` is called after the old backend is closed; it may stop and start a server.
    #[must_use]
    pub fn with_restart<F>(mut self, open: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Mailboxes> + Send + 'static,
    {
        self.restart = Some(Box::new(move || Box::pin(open())));
        self
    }

    /// Sets a check of the backend's storage, run after each step of a [property](crate::property)
    /// test. It returns what is wrong.
    #[must_use]
    pub fn inspected_by<F>(mut self, look: impl Fn(Expected) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        self.inspect = Some(Box::new(move |expected| Box::pin(look(expected))));
        self
    }

    /// Checks the backend's storage, if the subject has a check.
    pub(crate) async fn inspect(&self, expected: impl FnOnce() -> Expected) -> Result<(), String> {
        match &self.inspect {
            Some(look) => look(expected()).await,
            None => Ok(()),
        }
    }

    /// Keeps a value alive until the subject is dropped, such as a directory or a server.
    #[must_use]
    pub fn keeping(mut self, something: impl Any + Send + Sync) -> Self {
        self.kept_alive = Some(Box::new(something));
        self
    }

    /// Sets the length of a tick.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Returns the backend.
    pub fn backend(&self) -> &Mailboxes {
        &self.backend
    }

    /// Returns the capabilities of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    /// Whether time passes only when the test lets it.
    pub fn is_exact(&self) -> bool {
        !matches!(self.time, Time::Real { .. })
    }

    /// Returns the time since the subject was created.
    pub fn elapsed(&self) -> Duration {
        match &self.time {
            Time::Real { start } | Time::Paused { start } => start.elapsed(),
            Time::Manual { start, clock } => clock.now().since(*start),
        }
    }

    /// Returns the duration of `count` ticks.
    pub fn ticks(&self, count: u32) -> Duration {
        self.tick * count
    }

    /// Lets `count` ticks pass.
    pub async fn pass(&self, count: u32) {
        match &self.time {
            Time::Real { .. } | Time::Paused { .. } => tokio::time::sleep(self.ticks(count)).await,
            Time::Manual { clock, .. } => clock.advance(self.ticks(count)),
        }
    }

    /// Closes the backend and opens it again. Returns `None` if the subject has no
    /// [restart](Self::with_restart).
    pub async fn restart(&self) -> Option<Mailboxes> {
        let open = self.restart.as_ref()?;
        self.backend.close().await;
        Some(open().await)
    }

    /// Returns a name that no other test uses.
    pub fn fresh_name(&self) -> QueueName {
        let id = MessageId::new();
        QueueName::new(&format!("test-{id}")).expect("hexadecimal digits and hyphens are allowed")
    }

    /// Opens a queue that no other test uses.
    pub fn queue(&self) -> Arc<dyn Queue> {
        self.queue_with(QueueOptions::new())
    }

    /// Opens a queue that no other test uses, with options.
    pub fn queue_with(&self, options: QueueOptions) -> Arc<dyn Queue> {
        self.reopen(&self.fresh_name(), options)
    }

    /// Opens a queue by its name.
    pub fn reopen(&self, name: &QueueName, options: QueueOptions) -> Arc<dyn Queue> {
        self.backend.queue(name, options).expect("the queue opens")
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("backend", &self.backend)
            .field("tick", &self.tick)
            .field("time", &self.time)
            .field("restarts", &self.restart.is_some())
            .finish()
    }
}

/// Runs a test on a current-thread runtime.
pub fn block_on<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(test)
}

/// Runs a test on a runtime with two threads.
pub fn on_threads<F: Future>(test: F) -> F::Output {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(test)
}
