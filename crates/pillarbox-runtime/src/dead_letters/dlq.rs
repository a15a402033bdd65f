//! Access to a dead-letter queue: peeking, retention, health.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::internal::BatchSizer;
use pillarbox_core::{
    Counts, Error, Mailbox, Mailboxes, MessageId, MessageState, Peeked, Queue, QueueName,
    QueueOptions, RawMessage, Receive, Result, Settle, Timestamp,
};
use serde::Serialize;

use super::dead_letter::DeadLetter;
use super::metrics;
use super::replay::ReplayTarget;

/// Maximum number of dead letters in a batch.
const MAX_BATCH: usize = 500;

/// A dead-letter queue: inspects, replays, discards and expires them.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{Outcome, Runnable, Worker};
/// # use pillarbox_runtime::dead_letters::{Dlq, DlqPolicy};
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let orders: Mailbox<u32> = backend.mailbox("orders")?;
/// # orders.send_batch(&[1, 2, 3]).await?.all()?;
/// # Worker::new(orders.clone()).dead_letters(DlqPolicy::new())
/// #     .handler(|n: u32| async move { Outcome::reject(format!("{n} is out of stock")) })
/// #     .run_until_empty().await?;
/// let dlq = Dlq::open(&backend, "orders-dlq")?;
///
/// // What is in it?
/// let summary = dlq.summary(|_| true).await?;
/// assert_eq!((summary.dead_letters, summary.errors[0].count), (3, 3));
///
/// // After the fix, most of them go back to their source.
/// let report = dlq.replay().matching(|letter| letter.last_error != "2 is out of stock").run().await?;
/// assert_eq!((report.done, report.skipped), (2, 1));
/// assert_eq!(orders.approximate_count().await?, 2);
///
/// // The rest is deleted.
/// assert_eq!(dlq.discard().run().await?.done, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Dlq {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) target: ReplayTarget,
}

/// A dead letter that was peeked at in its queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PeekedDeadLetter {
    /// The id of the dead letter itself, which differs from that of the message in it.
    pub id: MessageId,
    /// The dead letter, or the reason why the message cannot be read as one.
    pub letter: std::result::Result<DeadLetter, String>,
    /// The state of the dead letter. Only a ready one can be replayed or discarded; a pass may
    /// [wait](super::Pass::delayed) for a delayed one.
    pub state: MessageState,
    /// Number of deliveries of the dead letter to its consumers.
    pub delivery_count: u32,
    /// When the dead letter was sent to this queue, by the clock of its backend.
    pub enqueued_at: Timestamp,
}

impl PeekedDeadLetter {
    fn new(peeked: &Peeked) -> Self {
        Self {
            id: peeked.message.id,
            letter: DeadLetter::read(&peeked.message).map_err(|error| error.to_string()),
            state: peeked.state,
            delivery_count: peeked.message.delivery_count,
            enqueued_at: peeked.message.enqueued_at,
        }
    }
}

impl Dlq {
    /// Opens the dead letters in a mailbox. Messages are replayed to their source queues on the same backend.
    /// Those that came from another backend are skipped, unless [`sources_on`](Self::sources_on) names it.
    pub fn of<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        let target = mailbox.backend().map_or(ReplayTarget::Unknown, ReplayTarget::same_backend);
        Self { queue: mailbox.queue().clone(), target }
    }

    /// Opens the dead-letter queue of this name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if the name is invalid.
    pub fn open(
        backend: &Mailboxes,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Self> {
        let queue = backend.queue(name, QueueOptions::new())?;
        Ok(Self { queue, target: ReplayTarget::same_backend(backend) })
    }

    /// Replays all messages to this mailbox, which may be on any backend.
    #[must_use]
    pub fn replay_to<T: 'static, R: 'static>(mut self, mailbox: &Mailbox<T, R>) -> Self {
        self.target = ReplayTarget::Queue(mailbox.queue().clone());
        self
    }

    /// Replays messages to their source queues on this backend.
    #[must_use]
    pub fn sources_on(mut self, backend: &Mailboxes) -> Self {
        self.target = ReplayTarget::Sources { backend: backend.clone(), is_explicit: true };
        self
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &QueueName {
        self.queue.name()
    }

    /// Peeks at all dead letters, in every state, until `visit` breaks. Dead letters that are sent or settled
    /// meanwhile may or may not be visited.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if the backend does not support
    /// [`peek`](pillarbox_core::Capabilities::peek), and those of [`Queue::peek`].
    pub async fn peek(
        &self,
        mut visit: impl FnMut(PeekedDeadLetter) -> ControlFlow<()>,
    ) -> Result<()> {
        let mut sizer = batch_sizer(self.queue.capabilities().max_receive);
        let mut after = None;
        loop {
            let page = self.queue.peek(sizer.next_size(), after).await?.whole(self.queue.name())?;
            record(&mut sizer, page.messages.iter().map(|one| &one.message));
            for peeked in &page.messages {
                if visit(PeekedDeadLetter::new(peeked)).is_break() {
                    return Ok(());
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Returns the dead letter of this id, or of the message of this id. If there are several, the one that
    /// was sent to the queue last.
    ///
    /// # Errors
    ///
    /// Those of [`peek`](Self::peek).
    pub async fn find(&self, id: MessageId) -> Result<Option<PeekedDeadLetter>> {
        let mut last: Option<PeekedDeadLetter> = None;
        self.peek(|one| {
            let is_it =
                one.id == id || one.letter.as_ref().is_ok_and(|letter| letter.message_id == id);
            if is_it {
                last = Some(one);
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(last)
    }

    /// Deletes the dead letters that were sent to this queue at least `age` ago, and returns their number.
    ///
    /// The age goes by the clock of the backend alone, so a program whose own clock is wrong deletes nothing
    /// too early. Unlike [`discard`](Self::discard), it stops at the first dead letter that is young enough:
    /// old ones that were received and released since are behind it, and are not reached. Messages that
    /// cannot be read are skipped and stay.
    ///
    /// # Errors
    ///
    /// Those of the queue, and [`Error::InvalidParameter`] if the backend does not report its time
    /// ([`counted_at`](pillarbox_core::Counts::counted_at)).
    pub async fn expire(&self, age: Duration) -> Result<u64> {
        let Some(now) = backend_time(&*self.queue, self.queue.counts().await?)? else {
            return Ok(0);
        };
        let mut expired = 0;
        let capabilities = self.queue.capabilities();
        let mut sizer = batch_sizer(capabilities.max_receive.min(capabilities.max_batch));
        loop {
            // A backend that cannot be peeked at is asked for a batch, old or not.
            let peeked =
                if capabilities.peek { Some(self.count_old(age, now).await?) } else { None };
            let (old, within) = peeked.unwrap_or((1, sizer.next_size()));
            let removed =
                if old > 0 { self.expire_first(age, now, within, &mut sizer).await? } else { 0 };
            expired += removed;
            metrics::expired(self.name(), removed);
            // One that is young, or not ready, is at the head now.
            if removed < old || old == 0 {
                return Ok(expired);
            }
        }
    }

    /// Returns the number of old dead letters at the head of the queue, up to a maximum, and the number of
    /// messages among which they are: unreadable ones may be between them.
    async fn count_old(&self, age: Duration, now: Timestamp) -> Result<(u64, usize)> {
        let (mut old, mut within, mut seen) = (0, 0, 0);
        self.peek(|one| {
            seen += 1;
            match &one.letter {
                _ if one.state != MessageState::Ready => return ControlFlow::Break(()),
                Ok(_) if now.since(one.enqueued_at) < age => return ControlFlow::Break(()),
                Ok(_) => (old, within) = (old + 1, seen),
                Err(_) => {}
            }
            if old < MAX_BATCH as u64 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await?;
        Ok((old, within))
    }

    /// Receives the first `within` messages, deletes the old dead letters among them, releases the others,
    /// and returns the number of deleted ones.
    async fn expire_first(
        &self,
        age: Duration,
        now: Timestamp,
        within: usize,
        sizer: &mut BatchSizer,
    ) -> Result<u64> {
        let (mut seen, mut expired, mut others) = (0, 0, Vec::new());
        while seen < within {
            let request = Receive::up_to(sizer.next_size().min(within - seen));
            let deliveries = self.queue.receive(request).await?;
            if deliveries.is_empty() {
                break;
            }
            seen += deliveries.len();
            record(sizer, deliveries.iter().map(|one| &one.message));
            let (old, rest): (Vec<_>, Vec<_>) = deliveries.into_iter().partition(|one| {
                now.since(one.message.enqueued_at) >= age && DeadLetter::read(&one.message).is_ok()
            });
            others.extend(rest.into_iter().map(|one| Settle::release(one.receipt, Duration::ZERO)));
            if !old.is_empty() {
                let settles = old.into_iter().map(|one| Settle::acknowledge(one.receipt));
                let answers = self.queue.settle(settles.collect()).await?;
                expired += answers.iter().filter(|answer| answer.is_ok()).count() as u64;
            }
        }
        while !others.is_empty() {
            let some = others.drain(..others.len().min(self.queue.capabilities().max_batch));
            self.queue.settle(some.collect()).await?;
        }
        Ok(expired)
    }

    /// Compares the number of dead letters, and the age of the next ready one, with limits.
    ///
    /// It asks for the counts of the queue and reads no dead letter. The age is the time since the next ready
    /// one was sent to this queue; delayed ones ([`keep_for`](crate::DlqAction::keep_for)) and those in flight
    /// count toward the depth but not the age. [`summary`](Self::summary) has the ages of all.
    ///
    /// # Errors
    ///
    /// Those of [`Queue::counts`].
    pub async fn health(&self, limits: DlqLimits) -> Result<DlqHealth> {
        let counts = self.queue.counts().await?;
        let depth = counts.total();
        metrics::depth(self.name(), depth);
        let is_deep = depth >= limits.depth;
        let oldest = counts.oldest_age;
        let is_old = limits.age.zip(oldest).is_some_and(|(limit, oldest)| oldest >= limit);
        let status = if is_deep || is_old { DlqStatus::Degraded } else { DlqStatus::Healthy };
        Ok(DlqHealth {
            status,
            name: self.name().clone(),
            depth,
            threshold: limits.depth,
            oldest_age_seconds: oldest.map(|age| age.as_secs_f64()),
            age_threshold_seconds: limits.age.map(|age| age.as_secs_f64()),
        })
    }

    /// Sets the gauge `dlq.queue.depth` at an interval. Never returns.
    pub(crate) async fn watch_depth(queues: Vec<Arc<dyn Queue>>, interval: Duration) {
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for queue in &queues {
                if let Ok(counts) = queue.counts().await {
                    metrics::depth(queue.name(), counts.total());
                }
            }
        }
    }

    /// Deletes dead letters older than `age` at an interval. Never returns.
    pub(crate) async fn keep_retention(queues: Vec<Arc<dyn Queue>>, age: Duration) {
        queues.iter().for_each(|queue| metrics::register_expired(queue.name()));
        let interval = age.min(Duration::from_secs(3600)).max(Duration::from_secs(1));
        let mut tick = tokio::time::interval(interval);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for queue in &queues {
                let dlq = Self { queue: queue.clone(), target: ReplayTarget::Unknown };
                match dlq.expire(age).await {
                    Ok(0) => {}
                    Ok(expired) => {
                        tracing::info!(queue = %queue.name(), expired, "expired dead letters deleted");
                    }
                    Err(error) => {
                        tracing::warn!(queue = %queue.name(), %error, "cannot delete expired dead letters");
                    }
                }
            }
        }
    }
}

/// A sizer of batches of dead letters, of at most `max`.
pub(super) fn batch_sizer(max: usize) -> BatchSizer {
    BatchSizer::new(max.min(MAX_BATCH))
}

/// Records a batch of messages.
pub(super) fn record<'a>(
    sizer: &mut BatchSizer,
    messages: impl ExactSizeIterator<Item = &'a RawMessage>,
) {
    let count = messages.len();
    sizer.record(count, messages.map(|message| message.body.len()).sum());
}

/// Returns the time by the clock of the backend when the messages were counted. `None` if the backend does not
/// report it and the queue is empty.
///
/// # Errors
///
/// Fails if there are messages whose age cannot be known.
pub(crate) fn backend_time(queue: &dyn Queue, counts: Counts) -> Result<Option<Timestamp>> {
    if counts.counted_at.is_none() && counts.total() > 0 {
        let value = format!("the time of backend '{}'", queue.capabilities().backend);
        let allowed =
            "reported by Queue::counts (Counts::counted_at): without it nothing is expired";
        return Err(Error::invalid(Some(queue.name()), "age of dead letters", value, allowed));
    }
    Ok(counts.counted_at)
}

/// Limits from which a dead-letter queue is degraded.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DlqLimits {
    /// Number of dead letters.
    pub depth: u64,
    /// Age of the next ready dead letter, if it is limited.
    pub age: Option<Duration>,
}

impl Default for DlqLimits {
    fn default() -> Self {
        Self { depth: 100, age: None }
    }
}

impl DlqLimits {
    /// Sets the number of dead letters from which the queue is degraded. Defaults to 100.
    pub const fn depth(mut self, depth: u64) -> Self {
        self.depth = depth;
        self
    }

    /// Sets the age of the next ready dead letter from which the queue is degraded. Defaults to no limit.
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// The health of a dead-letter queue. Serialized as JSON for a health probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DlqHealth {
    /// Whether a limit is reached.
    pub status: DlqStatus,
    /// The name of the queue.
    pub name: QueueName,
    /// Number of dead letters in the queue.
    pub depth: u64,
    /// Number of dead letters from which the queue is degraded.
    pub threshold: u64,
    /// Time since the next ready dead letter was sent to this queue.
    pub oldest_age_seconds: Option<f64>,
    /// Age from which the queue is degraded.
    pub age_threshold_seconds: Option<f64>,
}

/// Whether a dead-letter queue is within its [limits](DlqLimits).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DlqStatus {
    /// No limit is reached.
    Healthy,
    /// A limit is reached.
    Degraded,
}

impl fmt::Debug for Dlq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dlq").field(self.name()).finish()
    }
}
