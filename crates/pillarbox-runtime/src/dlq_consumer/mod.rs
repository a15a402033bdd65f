//! A worker pool that handles dead letters.

mod action;
mod handling;
mod skip_left;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Mailboxes, Result};

pub use self::action::{DlqAction, IntoDlqAction};
use self::handling::{BackendClock, DynHandler, Handling};
use self::skip_left::{LeftDeadLetters, SkipLeftQueue};
use crate::backoff::Backoff;
use crate::control::Control;
use crate::dead_letters::{DEFAULT_MAX_REPLAYS, DeadLetter, Dlq, metrics};
use crate::request::Metadata;
use crate::runnable::Runnable;
use crate::stats::StatsSnapshot;
use crate::worker::{ReadyWorker, Worker};

/// Worker pool that handles dead letters: alerts, stores, replays or discards them.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{DlqAction, DlqConsumer, Outcome, Runnable, Worker};
/// # use pillarbox_runtime::dead_letters::{DeadLetter, DlqPolicy};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let orders: Mailbox<u32> = backend.mailbox("orders")?;
/// # orders.send(&7).await?;
/// # Worker::new(orders.clone()).dead_letters(DlqPolicy::new())
/// #     .handler(|_: u32| async { Outcome::reject("no") }).run_until_empty().await?;
/// let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq")?;
/// let consumer = DlqConsumer::new(dead, |letter: DeadLetter<u32>| async move {
///     println!("order {} failed {} times: {}", letter.body, letter.delivery_count, letter.last_error);
///     match letter.last_error_type.as_str() {
///         "timeout" => DlqAction::replay(),
///         _ => DlqAction::done(),
///     }
/// });
/// consumer.retain_for(Duration::from_secs(30 * 24 * 3600)).run_until_empty().await?;
/// # Ok(()) }
/// ```
///
/// It is a [`Worker`] with other defaults: one worker, leases of 5 minutes, and a handler timeout equal to the
/// [lease](Self::visibility). A dead letter whose handler fails is retried every hour until it succeeds. A body
/// that is not of type `T` is such a failure; `DeadLetter<serde_json::Value>` accepts all JSON, and
/// `DeadLetter<Bytes>` with the codec [`DeadLetterCodec(Raw)`](crate::dead_letters::DeadLetterCodec) all bodies.
#[must_use = "a consumer does nothing until it is run"]
pub struct DlqConsumer<T, R = ()> {
    worker: Worker<DeadLetter<T>, R>,
    handler: Arc<DynHandler<T>>,
    dlq: Dlq,
    left: Arc<LeftDeadLetters>,
    retry_after: Duration,
    retain_for: Option<Duration>,
    max_replays: u32,
    depth_every: Duration,
}

impl<T: Send + Sync + 'static, R: 'static> DlqConsumer<T, R> {
    /// Creates a consumer of the dead letters of a mailbox.
    pub fn new<F>(
        mailbox: Mailbox<DeadLetter<T>, R>,
        handler: impl Fn(DeadLetter<T>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output: IntoDlqAction> + Send + 'static,
    {
        let handler: Arc<DynHandler<T>> = Arc::new(move |letter| {
            let handled = handler(letter);
            Box::pin(async move { handled.await.into_dlq_action() })
        });
        let left = Arc::<LeftDeadLetters>::default();
        let counted = left.clone();
        Self {
            dlq: Dlq::of(&mailbox),
            worker: Worker::new(mailbox)
                .count_ready(move |counts| counted.possibly_new(counts))
                .workers(1)
                .visibility(Duration::from_secs(300))
                .timeout_by_lease(),
            handler,
            left,
            retry_after: Duration::from_secs(3600),
            retain_for: None,
            max_replays: DEFAULT_MAX_REPLAYS,
            depth_every: Duration::from_secs(30),
        }
    }

    /// Sets options of the underlying [`Worker`], such as the number of workers and the timeout. Its options for
    /// dead letters and retries have no effect.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::DlqConsumer;
    /// # use pillarbox_runtime::dead_letters::DeadLetter;
    /// # let backend = Mailboxes::new(MemoryBackend::new());
    /// # let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
    /// let consumer = DlqConsumer::new(dead, |_: DeadLetter<u32>| async {})
    ///     .worker(|worker| worker.workers(4).timeout(Duration::from_secs(5)));
    /// ```
    pub fn worker(
        mut self,
        change: impl FnOnce(Worker<DeadLetter<T>, R>) -> Worker<DeadLetter<T>, R>,
    ) -> Self {
        self.worker = change(self.worker);
        self
    }

    /// Sets the lease of a dead letter, which is also the timeout of the handler unless [`Worker::timeout`] or
    /// [`Worker::without_timeout`] is set. Defaults to 5 minutes.
    ///
    /// A dead letter whose handler takes longer is [retried](Self::retry_after).
    pub fn visibility(self, visibility: Duration) -> Self {
        self.worker(|worker| worker.visibility(visibility))
    }

    /// Sets the delay before a dead letter whose handler failed is retried. Defaults to 1 hour.
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    /// Deletes dead letters that were sent to their queue at least this long ago, by the clock of the backend,
    /// instead of handling them. Defaults to no limit. For those that this consumer does not receive, such as
    /// those that were [left](DlqAction::leave), see [`DlqPolicy::retain_for`](crate::dead_letters::DlqPolicy::retain_for).
    pub fn retain_for(mut self, age: Duration) -> Self {
        self.retain_for = Some(age);
        self
    }

    /// Sets the maximum number of replays of a message, beyond which [`DlqAction::replay`] fails. Defaults to 3.
    pub fn max_replays(mut self, replays: u32) -> Self {
        self.max_replays = replays;
        self
    }

    /// Replays all messages to this mailbox, which may be on any backend.
    pub fn replay_to<U: 'static, V: 'static>(mut self, mailbox: &Mailbox<U, V>) -> Self {
        self.dlq = self.dlq.replay_to(mailbox);
        self
    }

    /// Replays messages to their source queues on this backend. Defaults to the backend of the mailbox; then the
    /// replay of a message that came from another backend fails, and its dead letter is kept.
    pub fn sources_on(mut self, backend: &Mailboxes) -> Self {
        self.dlq = self.dlq.sources_on(backend);
        self
    }

    /// Sets the interval at which dead letters are counted for the gauge `dlq.queue.depth`. Defaults to 30
    /// seconds.
    pub fn depth_every(mut self, interval: Duration) -> Self {
        self.depth_every = interval;
        self
    }

    /// Builds the worker.
    fn ready(self) -> ReadyWorker<DeadLetter<T>, R> {
        let queue = self.dlq.queue.clone();
        metrics::register(queue.name());
        let interval = self.depth_every.max(Duration::from_millis(100));
        let depth = Dlq::watch_depth(vec![queue.clone()], interval);
        let (handler, left) = (self.handler, self.left.clone());
        let skipping = SkipLeftQueue { queue: queue.clone(), left: self.left.clone() };
        let handling = Arc::new(Handling {
            dlq: self.dlq,
            left: self.left,
            clock: BackendClock::new(queue),
            retain_for: self.retain_for,
            max_replays: self.max_replays,
        });
        self.worker
            .without_dead_letters()
            .max_deliveries(u32::MAX)
            .retry(Backoff::constant(self.retry_after))
            .park_for(self.retry_after)
            .beside(depth)
            .receive_from(Arc::new(skipping))
            .on_shutdown(move || async move { left.released().await })
            .handler(move |letter: DeadLetter<T>, metadata: Metadata| {
                let (handling, handler) = (handling.clone(), handler.clone());
                async move { handling.handle(letter, &metadata, &*handler).await }
            })
    }
}

impl<T: Send + Sync + 'static, R: 'static> Runnable for DlqConsumer<T, R> {
    type Error = Error;

    fn name(&self) -> String {
        self.worker.pool_name()
    }

    fn control(&self) -> Control {
        self.worker.control()
    }

    fn work(self) -> impl Future<Output = Result<StatsSnapshot>> + Send + 'static {
        self.ready().work()
    }
}

impl<T, R> fmt::Debug for DlqConsumer<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DlqConsumer").field(self.dlq.name()).finish()
    }
}
