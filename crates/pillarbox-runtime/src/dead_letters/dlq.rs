//! A queue of dead letters, as those see it who look after it.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Counts, Error, Mailbox, Mailboxes, MessageId, MessageState, Peeked, Queue, QueueName,
    QueueOptions, Receive, Result, Settle, Timestamp,
};
use serde::Serialize;

use super::paging::Paging;
use super::pass::{Pass, Task};
use super::summary::Summary;
use super::{DeadLetter, metrics};

/// A queue of dead letters: to look into, to replay, to discard.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// # use pillarbox_runtime::{Dlq, DlqPolicy, Outcome, Runnable, Worker};
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
/// assert_eq!((summary.letters, summary.errors[0].count), (3, 3));
///
/// // After the fix: back to where they came from, but not all of them.
/// let report = dlq.replay().matching(|letter| letter.last_error != "2 is out of stock").run().await?;
/// assert_eq!((report.done, report.left), (2, 1));
/// assert_eq!(orders.approximate_count().await?, 2);
///
/// // The rest is not worth it.
/// assert_eq!(dlq.discard().run().await?.done, 1);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Dlq {
    queue: Arc<dyn Queue>,
    target: Target,
}

/// Where replayed messages go.
#[derive(Clone)]
pub(super) enum Target {
    /// To where they came from, on this backend, which was named for it (`is_said`), or else is that of the
    /// dead letters.
    Sources {
        backend: Mailboxes,
        is_said: bool,
    },
    /// All to one queue.
    Queue(Arc<dyn Queue>),
    Unknown,
}

impl Target {
    /// Refuses a message whose queue is not where it would be sent to.
    pub(super) fn check(&self, letter: &DeadLetter, dlq: &QueueName) -> Result<()> {
        let (Self::Sources { is_said: false, .. }, Some(kind)) = (self, &letter.source_backend)
        else {
            return Ok(());
        };
        let value = format!(
            "message {}, whose queue '{}' is on another backend ({kind})",
            letter.message_id, letter.source_mailbox
        );
        let allowed = "with a backend to find it on: say sources_on(&backend) or replay_to(&mailbox), or \
             --to-url to the command";
        Err(Error::invalid(Some(dlq), "replay", value, allowed))
    }

    /// The queue that a message of this source goes to.
    pub(super) fn queue(&self, source: &QueueName, dlq: &QueueName) -> Result<Arc<dyn Queue>> {
        match self {
            Self::Sources { backend, .. } => backend.queue(source, QueueOptions::new()),
            Self::Queue(queue) => Ok(queue.clone()),
            Self::Unknown => {
                let allowed = "a place to replay to: say replay_to(&mailbox) or sources_on(&backend), for \
                     this mailbox was not opened on a backend where sources could be found";
                Err(Error::invalid(Some(dlq), "replay", "no target", allowed))
            }
        }
    }
}

/// A dead letter that was found in its queue.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Found {
    /// The id of the dead letter itself, which is not that of the message in it.
    pub id: MessageId,
    /// The dead letter; or why it is none that can be read.
    pub letter: std::result::Result<DeadLetter, String>,
    /// Whether it can be replayed and discarded now: only what is ready can. A pass may
    /// [wait](Pass::delayed) for what is delayed.
    pub state: MessageState,
    /// How often it was delivered itself, to consumers of dead letters.
    pub delivery_count: u32,
    /// When it came to this queue, by the clock of its backend.
    pub enqueued_at: Timestamp,
}

impl Found {
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
    /// The dead letters in a mailbox. Messages are replayed to where they came from, on the same backend; those
    /// that came from another one are left, unless [`sources_on`](Self::sources_on) names it.
    pub fn of<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        let target = mailbox
            .backend()
            .cloned()
            .map_or(Target::Unknown, |backend| Target::Sources { backend, is_said: false });
        Self { queue: mailbox.queue().clone(), target }
    }

    /// The dead letters in the queue of this name.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] where that is no name for a queue.
    pub fn open(
        backend: &Mailboxes,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Self> {
        let queue = backend.queue(name, QueueOptions::new())?;
        Ok(Self { queue, target: Target::Sources { backend: backend.clone(), is_said: false } })
    }

    /// Replays all messages to this mailbox, on whatever backend.
    #[must_use]
    pub fn replay_to<T: 'static, R: 'static>(mut self, mailbox: &Mailbox<T, R>) -> Self {
        self.target = Target::Queue(mailbox.queue().clone());
        self
    }

    /// Replays messages to where they came from, on this backend.
    #[must_use]
    pub fn sources_on(mut self, backend: &Mailboxes) -> Self {
        self.target = Target::Sources { backend: backend.clone(), is_said: true };
        self
    }

    /// The name of the queue.
    pub fn name(&self) -> &QueueName {
        self.queue.name()
    }

    pub(super) fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    pub(super) const fn target(&self) -> &Target {
        &self.target
    }

    /// Looks at all dead letters, in every state, without delivering them, until it is told to stop. What
    /// comes or goes meanwhile may be missed or shown.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] where the backend cannot be looked into
    /// ([`peek`](pillarbox_core::Capabilities::peek)), and those of [`Queue::peek`].
    pub async fn look(&self, mut see: impl FnMut(Found) -> ControlFlow<()>) -> Result<()> {
        let mut paging = Paging::new(self.queue.capabilities().max_receive);
        let mut after = None;
        loop {
            let page = self.queue.peek(paging.next(), after).await?.whole(self.queue.name())?;
            paging.saw(page.messages.iter().map(|one| &one.message));
            for peeked in &page.messages {
                if see(Found::new(peeked)).is_break() {
                    return Ok(());
                }
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// The dead letter of this id, or of the message of this id: the last one that came, if there are
    /// several.
    ///
    /// # Errors
    ///
    /// Those of [`look`](Self::look).
    pub async fn find(&self, id: MessageId) -> Result<Option<Found>> {
        let mut found: Option<Found> = None;
        self.look(|one| {
            let is_it =
                one.id == id || one.letter.as_ref().is_ok_and(|letter| letter.message_id == id);
            if is_it {
                found = Some(one);
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(found)
    }

    /// Groups the dead letters that are meant by what went wrong.
    ///
    /// # Errors
    ///
    /// Those of [`look`](Self::look).
    pub async fn summary(&self, mut is_meant: impl FnMut(&DeadLetter) -> bool) -> Result<Summary> {
        let mut summary = Summary::default();
        self.look(|found| {
            summary.add(&found, &mut is_meant);
            ControlFlow::Continue(())
        })
        .await?;
        summary.sort();
        Ok(summary)
    }

    /// Sends messages back to where they came from: with the same body, attributes, reply address and time
    /// of sending, one more replay counted, and an id of its own for each replay (the first one is in the
    /// attribute `pillarbox.original_id`). Does nothing until it is [run](Pass::run).
    pub fn replay(&self) -> Pass {
        Pass::new(self.clone(), Task::Replay)
    }

    /// Deletes dead letters. Does nothing until it is [run](Pass::run).
    pub fn discard(&self) -> Pass {
        Pass::new(self.clone(), Task::Discard)
    }

    /// Deletes the dead letters that came to this queue longer ago than this, and says how many they were. The
    /// age is by the clock of the backend alone, which stamped them: a program whose own clock is wrong
    /// deletes none that is not old. Unlike
    /// [`discard`](Self::discard) it looks only as far as there are old ones, the oldest being the first;
    /// those that were received since, and given back, are further behind. What cannot be read is passed
    /// over, and stays.
    ///
    /// # Errors
    ///
    /// Those of the calls of its queue, and [`Error::InvalidParameter`] where the backend does not tell its
    /// time ([`counted_at`](pillarbox_core::Counts::counted_at)).
    pub async fn expire(&self, age: Duration) -> Result<u64> {
        let Some(now) = time_of(&*self.queue, self.queue.counts().await?)? else { return Ok(0) };
        let mut expired = 0;
        let capabilities = self.queue.capabilities();
        let mut paging = Paging::new(capabilities.max_receive.min(capabilities.max_batch));
        loop {
            // Where nothing can be looked at, some are received on trial.
            let looked =
                if capabilities.peek { Some(self.old_ones(age, now).await?) } else { None };
            let (old, within) = looked.unwrap_or((1, paging.next()));
            let removed =
                if old > 0 { self.expire_some(age, now, within, &mut paging).await? } else { 0 };
            expired += removed;
            metrics::expired(self.name(), removed);
            // One that is young, or not ready, is the first now.
            if removed < old || old == 0 {
                return Ok(expired);
            }
        }
    }

    /// How many old ones are at the head of the queue, up to some, and among how many: there may be what
    /// cannot be read between them.
    async fn old_ones(&self, age: Duration, now: Timestamp) -> Result<(u64, usize)> {
        const ENOUGH: u64 = 500;
        let (mut old, mut within, mut seen) = (0, 0, 0);
        self.look(|found| {
            seen += 1;
            match &found.letter {
                _ if found.state != MessageState::Ready => return ControlFlow::Break(()),
                Ok(_) if now.since(found.enqueued_at) < age => return ControlFlow::Break(()),
                Ok(_) => (old, within) = (old + 1, seen),
                Err(_) => {}
            }
            if old < ENOUGH { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await?;
        Ok((old, within))
    }

    /// Receives so many, deletes the old ones among them, gives back the others, and says how many were
    /// deleted.
    async fn expire_some(
        &self,
        age: Duration,
        now: Timestamp,
        within: usize,
        paging: &mut Paging,
    ) -> Result<u64> {
        let (mut seen, mut expired, mut others) = (0, 0, Vec::new());
        while seen < within {
            let request = Receive::up_to(paging.next().min(within - seen));
            let deliveries = self.queue.receive(request).await?;
            if deliveries.is_empty() {
                break;
            }
            seen += deliveries.len();
            paging.saw(deliveries.iter().map(|one| &one.message));
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

    /// Whether there are more dead letters than there should be, or older ones. It asks the queue, and looks
    /// at none of them: the age is that of the next one that is ready, since it came to this queue. Those that
    /// somebody [keeps](super::DlqAction::keep_for) or has in hand count, but are not seen to be old. For
    /// how long all of them have been dead letters, see [`summary`](Self::summary).
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

    /// Counts the dead letters now and then, for the gauge `dlq.queue.depth`. Never ends.
    pub(crate) async fn watch_depth(queues: Vec<Arc<dyn Queue>>, every: Duration) {
        let mut tick = tokio::time::interval(every);
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

    /// Deletes dead letters that are too old, now and then. Never ends.
    pub(crate) async fn keep_retention(queues: Vec<Arc<dyn Queue>>, age: Duration) {
        queues.iter().for_each(|queue| metrics::begin_expiring(queue.name()));
        let every = age.min(Duration::from_secs(3600)).max(Duration::from_secs(1));
        let mut tick = tokio::time::interval(every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            for queue in &queues {
                let dlq = Self { queue: queue.clone(), target: Target::Unknown };
                match dlq.expire(age).await {
                    Ok(0) => {}
                    Ok(expired) => {
                        tracing::info!(queue = %queue.name(), expired, "dead letters were too old and are deleted");
                    }
                    Err(error) => {
                        tracing::warn!(queue = %queue.name(), %error, "cannot delete dead letters that are too old");
                    }
                }
            }
        }
    }
}

/// The time by the clock of the backend, as it was when the messages were counted. `None` where there are none
/// and it is not told.
///
/// # Errors
///
/// Where there are some whose age cannot be told.
pub(super) fn time_of(queue: &dyn Queue, counts: Counts) -> Result<Option<Timestamp>> {
    if counts.counted_at.is_none() && counts.total() > 0 {
        let value = format!("the time of backend '{}'", queue.capabilities().backend);
        let allowed =
            "told by Queue::counts (Counts::counted_at): without it nothing is deleted for its age";
        return Err(Error::invalid(Some(queue.name()), "age of dead letters", value, allowed));
    }
    Ok(counts.counted_at)
}

/// From where on there are too many dead letters, or too old ones.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct DlqLimits {
    /// From how many on.
    pub depth: u64,
    /// From which age of the next one on, if any.
    pub age: Option<Duration>,
}

impl Default for DlqLimits {
    fn default() -> Self {
        Self { depth: 100, age: None }
    }
}

impl DlqLimits {
    /// From so many on. 100 unless said otherwise.
    pub const fn depth(mut self, depth: u64) -> Self {
        self.depth = depth;
        self
    }

    /// From so old a one on.
    pub const fn age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }
}

/// How a queue of dead letters is. Written as JSON for a health probe.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DlqHealth {
    /// Whether there are too many, or too old ones.
    pub status: DlqStatus,
    /// The name of the queue.
    pub name: QueueName,
    /// How many dead letters it holds.
    pub depth: u64,
    /// From how many on it is degraded.
    pub threshold: u64,
    /// How long ago the next one that is ready came to this queue.
    pub oldest_age_seconds: Option<f64>,
    /// From which age on it is degraded.
    pub age_threshold_seconds: Option<f64>,
}

/// Whether all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DlqStatus {
    /// There are few dead letters, and young ones.
    Healthy,
    /// Somebody should look.
    Degraded,
}

impl fmt::Debug for Dlq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dlq").field(self.name()).finish()
    }
}
