//! A program that handles dead letters.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pillarbox_core::{BoxFuture, Error, Mailbox, Mailboxes, Queue, Result, Timestamp};
use tokio::time::Instant;

use super::dlq::time_of;
use super::left::{FreshOnly, Left};
use super::pass::{DEFAULT_MAX_REPLAYS, tell};
use super::replay::send_back;
use super::{DeadLetter, Dlq, metrics};
use crate::backoff::Backoff;
use crate::control::Control;
use crate::outcome::{BoxError, Failure, Outcome};
use crate::request::Metadata;
use crate::runnable::Runnable;
use crate::stats::StatsSnapshot;
use crate::worker::{ReadyWorker, Worker};

/// What is to become of a dead letter, as its handler says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct DlqAction(Act);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    Done,
    Replay,
    Discard,
    Keep(Duration),
    Leave,
}

impl DlqAction {
    /// All that was to be done is done: the dead letter is deleted.
    pub const fn done() -> Self {
        Self(Act::Done)
    }

    /// The message goes back to where it came from, and the dead letter is deleted.
    pub const fn replay() -> Self {
        Self(Act::Replay)
    }

    /// It is not worth keeping: the dead letter is deleted, and counted as discarded.
    pub const fn discard() -> Self {
        Self(Act::Discard)
    }

    /// The dead letter stays, and comes again after this time. Until then others can only look at it, or
    /// [wait](super::Pass::delayed) until they can replay or discard it.
    pub const fn keep_for(time: Duration) -> Self {
        Self(Act::Keep(time))
    }

    /// The dead letter stays where it is, ready at once: for `pillarbox dlq replay`, for a [`Dlq`] and for other
    /// consumers. This consumer does not handle it again for as long as it runs; the next one does.
    ///
    /// For a handler that alerts, and leaves it to somebody else to decide. As long as nothing but left
    /// letters is ready, the consumer receives none of them: it counts them once a second, and goes through
    /// them when there are more. It remembers the last 100,000 that it has left.
    pub const fn leave() -> Self {
        Self(Act::Leave)
    }

    const fn name(self) -> &'static str {
        match self.0 {
            Act::Done => "done",
            Act::Replay => "replay",
            Act::Discard => "discard",
            Act::Keep(_) => "keep",
            Act::Leave => "leave",
        }
    }
}

impl From<()> for DlqAction {
    fn from((): ()) -> Self {
        Self::done()
    }
}

/// What a handler of dead letters may return: nothing, a [`DlqAction`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler of dead letters cannot return `{Self}`",
    note = "it returns `()`, `DlqAction`, `Result<(), E>` or `Result<DlqAction, E>`, \
            where `E` is an error, an `anyhow::Error`, a `String` or a `&str`"
)]
pub trait IntoDlqAction {
    /// What is to be done, or the error by which the handler failed.
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError>;
}

impl IntoDlqAction for () {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        Ok(DlqAction::done())
    }
}

impl IntoDlqAction for DlqAction {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        Ok(self)
    }
}

impl<O: Into<DlqAction>, E: Into<BoxError> + 'static> IntoDlqAction for std::result::Result<O, E> {
    fn into_dlq_action(self) -> std::result::Result<DlqAction, BoxError> {
        self.map(Into::into).map_err(|error| Failure::of(error).into())
    }
}

/// Handles dead letters: alerts, files them, replays or discards them.
///
/// ```
/// # use std::time::Duration;
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{DeadLetter, DlqAction, DlqConsumer, DlqPolicy, Outcome, Runnable, Worker};
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
/// It is a [`Worker`] with other habits: one worker, leases of 5 minutes, a handler that may take as long as
/// [a lease runs](Self::visibility), and one that fails never makes a dead letter of a dead letter; it is
/// given it again after an hour, for as long as it takes. A body that is not of type `T` is such a failure; with `DeadLetter<serde_json::Value>`, or
/// `DeadLetter<Bytes>` and the codec [`Letters(Raw)`](super::Letters), there are none.
#[must_use = "a consumer does nothing until it is run"]
pub struct DlqConsumer<T, R = ()> {
    worker: Worker<DeadLetter<T>, R>,
    handler: Handle<T>,
    dlq: Dlq,
    left: Arc<Left>,
    again_after: Duration,
    retain_for: Option<Duration>,
    max_replays: u32,
    depth_every: Duration,
}

/// The handler, whatever its types are.
type Handle<T> = Arc<
    dyn Fn(DeadLetter<T>) -> BoxFuture<'static, std::result::Result<DlqAction, BoxError>>
        + Send
        + Sync,
>;

impl<T: Send + Sync + 'static, R: 'static> DlqConsumer<T, R> {
    /// Handles the dead letters of a mailbox by a function.
    pub fn new<F>(
        mailbox: Mailbox<DeadLetter<T>, R>,
        handler: impl Fn(DeadLetter<T>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output: IntoDlqAction> + Send + 'static,
    {
        let handler: Handle<T> = Arc::new(move |letter| {
            let handled = handler(letter);
            Box::pin(async move { handled.await.into_dlq_action() })
        });
        let left = Arc::<Left>::default();
        let known = left.clone();
        Self {
            dlq: Dlq::of(&mailbox),
            worker: Worker::new(mailbox)
                .count_ready(move |counts| known.unknown(counts))
                .workers(1)
                .visibility(Duration::from_secs(300))
                .timeout_by_lease(),
            handler,
            left,
            again_after: Duration::from_secs(3600),
            retain_for: None,
            max_replays: DEFAULT_MAX_REPLAYS,
            depth_every: Duration::from_secs(30),
        }
    }

    /// Changes the worker beneath: how many there are, how long a handler may take, and so on. What it says
    /// of dead letters and retries does not count.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::{DeadLetter, DlqConsumer};
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

    /// How long the lease of a dead letter runs, and with it how long the handler may take, unless
    /// [`Worker::timeout`] or [`Worker::without_timeout`] says otherwise. Defaults to 5 minutes.
    ///
    /// A handler that takes longer has failed, and is given the dead letter [again](Self::again_after).
    pub fn visibility(self, visibility: Duration) -> Self {
        self.worker(|worker| worker.visibility(visibility))
    }

    /// After how long a dead letter comes again whose handler failed. An hour unless said otherwise.
    pub fn again_after(mut self, delay: Duration) -> Self {
        self.again_after = delay;
        self
    }

    /// Deletes dead letters that came to their queue longer ago than this, by the clock of the backend, instead
    /// of handling them. For those that nobody receives, and those that were [left](DlqAction::leave), see
    /// [`DlqPolicy::retain_for`](super::DlqPolicy::retain_for).
    pub fn retain_for(mut self, age: Duration) -> Self {
        self.retain_for = Some(age);
        self
    }

    /// How often a message is replayed at most; after that, to [replay](DlqAction::replay) it fails. 3
    /// unless said otherwise.
    pub fn max_replays(mut self, replays: u32) -> Self {
        self.max_replays = replays;
        self
    }

    /// Replays all messages to this mailbox, on whatever backend.
    pub fn replay_to<U: 'static, V: 'static>(mut self, mailbox: &Mailbox<U, V>) -> Self {
        self.dlq = self.dlq.replay_to(mailbox);
        self
    }

    /// Replays messages to where they came from, on this backend. On that of the mailbox unless said
    /// otherwise; to replay one that came from another then fails, and it is kept.
    pub fn sources_on(mut self, backend: &Mailboxes) -> Self {
        self.dlq = self.dlq.sources_on(backend);
        self
    }

    /// How often the dead letters are counted, for the gauge `dlq.queue.depth`. Every 30 seconds unless
    /// said otherwise.
    pub fn depth_every(mut self, interval: Duration) -> Self {
        self.depth_every = interval;
        self
    }

    /// The worker that does it.
    fn ready(self) -> ReadyWorker<DeadLetter<T>, R> {
        let queue = self.dlq.queue().clone();
        metrics::begin(queue.name());
        let depth = Dlq::watch_depth(vec![queue], self.depth_every.max(Duration::from_millis(100)));
        let (handler, dlq, left) = (self.handler, self.dlq, self.left);
        let fresh = FreshOnly::new(dlq.queue().clone(), left.clone());
        let last = left.clone();
        let (retain_for, max_replays) = (self.retain_for, self.max_replays);
        let again_after = self.again_after;
        let time = Arc::new(BackendTime::new(dlq.queue().clone()));
        self.worker
            .no_dead_letters()
            .max_deliveries(u32::MAX)
            .retry(Backoff::constant(again_after))
            .park_for(again_after)
            .beside(depth)
            .receive_from(Arc::new(fresh))
            .on_shutdown(move || async move { last.released().await })
            .handler(move |letter: DeadLetter<T>, about: Metadata| {
                let (dlq, left, time) = (dlq.clone(), left.clone(), time.clone());
                let duty = Duty { dlq, left, time, retain_for, max_replays };
                let handler = handler.clone();
                async move { duty.handle(letter, &about, &*handler).await }
            })
    }
}

/// The time by the clock of a backend, which is asked for now and then. In between it goes on by a clock of this
/// process that nobody can set.
struct BackendTime {
    queue: Arc<dyn Queue>,
    known: Mutex<Option<(Timestamp, Instant)>>,
}

impl BackendTime {
    /// For how long an answer is good.
    const KEPT_FOR: Duration = Duration::from_secs(60);

    fn new(queue: Arc<dyn Queue>) -> Self {
        Self { queue, known: Mutex::new(None) }
    }

    /// The time there. `None` where it is not told and does not matter, for nothing is there.
    async fn now(&self) -> Result<Option<Timestamp>> {
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((time, at)) = known
            && at.elapsed() < Self::KEPT_FOR
        {
            return Ok(Some(time + at.elapsed()));
        }
        let time = time_of(&*self.queue, self.queue.counts().await?)?;
        // From when the answer is here: what is worked out from it is never ahead of the backend's clock.
        let known = time.map(|time| (time, Instant::now()));
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = known;
        Ok(time)
    }
}

/// What a consumer knows of its duty.
struct Duty {
    dlq: Dlq,
    left: Arc<Left>,
    time: Arc<BackendTime>,
    retain_for: Option<Duration>,
    max_replays: u32,
}

impl Duty {
    async fn handle<T>(
        self,
        letter: DeadLetter<T>,
        about: &Metadata,
        handler: &(
             dyn Fn(DeadLetter<T>) -> BoxFuture<'static, std::result::Result<DlqAction, BoxError>>
                 + Send
                 + Sync
         ),
    ) -> std::result::Result<Outcome, BoxError> {
        let queue = about.queue();
        let (message_id, request_id) = (letter.message_id, letter.request_id);
        let mut age = letter.age(Timestamp::now());
        let mut left = Duration::MAX;
        if let Some(most) = self.retain_for
            && let Some(stored_for) = self.stored_for(about).await
        {
            if stored_for >= most {
                metrics::expired(queue, 1);
                tell(queue, message_id, request_id, stored_for, "expire");
                return Ok(Outcome::done());
            }
            (age, left) = (stored_for, most - stored_for);
        }
        let stopwatch = metrics::Stopwatch::start(queue);
        let action = handler(letter).await?;
        let outcome = match action.0 {
            Act::Done | Act::Discard => Outcome::done(),
            Act::Replay => {
                self.replay(about).await?;
                Outcome::done()
            }
            // No longer than it is kept at all.
            Act::Keep(time) => Outcome::release_for(time.min(left)),
            Act::Leave => {
                self.left.add(about.raw());
                Outcome::release()
            }
        };
        drop(stopwatch);
        metrics::processed(queue);
        match action.0 {
            Act::Replay => metrics::replayed(queue),
            Act::Discard => metrics::discarded(queue),
            Act::Done | Act::Keep(_) | Act::Leave => {}
        }
        tell(queue, message_id, request_id, age, action.name());
        Ok(outcome)
    }

    /// How long a dead letter has been in its queue, by the clock of the backend. `None` where that cannot be
    /// told: then it is handled as any other, for only what is known to be old is deleted.
    async fn stored_for(&self, about: &Metadata) -> Option<Duration> {
        match self.time.now().await {
            Ok(now) => now.map(|now| now.since(about.raw().enqueued_at)),
            Err(error) => {
                let queue = about.queue();
                tracing::warn!(%queue, %error, "it is not known how old a dead letter is; it is handled");
                None
            }
        }
    }

    async fn replay(&self, about: &Metadata) -> std::result::Result<(), BoxError> {
        let letter = DeadLetter::read(about.raw())?;
        if letter.replay_count >= self.max_replays {
            let error = format!(
                "replayed {} times already, and {} is the most: it stays a dead letter",
                letter.replay_count, self.max_replays
            );
            return Err(error.into());
        }
        self.dlq.target().check(&letter, self.dlq.name())?;
        let target = self.dlq.target().queue(&letter.source_mailbox, self.dlq.name())?;
        for stored in send_back(&target, [(about.id(), &letter)]).await {
            stored?;
        }
        Ok(())
    }
}

impl<T: Send + Sync + 'static, R: 'static> Runnable for DlqConsumer<T, R> {
    type Error = Error;

    fn name(&self) -> String {
        self.worker.group_name()
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
