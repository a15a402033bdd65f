//! What a backend writes: [`Queue`] and [`Backend`].
//!
//! Everything here speaks bytes and batches. Users hold a [`Mailbox`](crate::Mailbox) instead,
//! which adds types; it is built on nothing but these two traits, and so is every test double.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::options::Receive;
use crate::{Attributes, Capabilities, Counts, Diagnosis, MessageId, QueueName, Receipt};

/// A boxed future, which keeps the traits object-safe.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// One queue of a backend, as bytes and in batches.
///
/// The rules that each method keeps are those of the contract (see `docs/design.md`);
/// `pillarbox-testing` has a test for each of them that a backend runs by one macro call. In
/// short:
///
/// * The outer error of a batch says that nothing is known to have happened to any entry. The
///   inner results say what happened to each entry, in the order given.
/// * Batches are atomic per entry, not as a whole.
/// * Parameters outside the [`Capabilities`] are refused, never clamped: use the `check_`
///   methods there.
/// * A future that is dropped leaves no message invisible that nobody holds.
pub trait Queue: fmt::Debug + Send + Sync + 'static {
    /// The name that the queue was opened with.
    fn name(&self) -> &QueueName;

    /// What the backend can do, and within which limits.
    fn capabilities(&self) -> &Capabilities;

    /// Stores messages. One whose id the queue already holds is not stored again, and succeeds;
    /// [`Sent::is_new`] tells the two apart.
    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>>;

    /// Delivers up to `request.max` ready messages and starts a lease on each.
    ///
    /// Returns as soon as there is one; waits for one no longer than `request.wait`.
    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>>;

    /// Ends or extends leases, each only if its receipt is the current one and still runs.
    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>>;

    /// Shows up to `max` messages without delivering them: the ready ones in order of delivery,
    /// then the others in the order in which they will become ready; from the first one, or from
    /// where an earlier page ended. Where the storage is damaged, a backend may show what it can read, in any
    /// order, and say what it cannot ([`PeekPage::unreadable`]).
    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>>;

    /// Counts the messages, and those ever stored where the backend keeps count of them.
    fn counts(&self) -> BoxFuture<'_, Result<Counts>>;

    /// Deletes all messages and says how many. Every receipt given before is dead.
    fn purge(&self) -> BoxFuture<'_, Result<u64>>;

    /// Closes this handle: waiting receives end, and every call from now on says
    /// [`Closed`](crate::Error::Closed). The messages stay, and so do other handles.
    fn close(&self) -> BoxFuture<'_, ()>;

    /// Whether this handle was closed.
    fn is_closed(&self) -> bool;
}

/// A place that holds queues.
pub trait Backend: fmt::Debug + Send + Sync + 'static {
    /// What the backend can do, and within which limits.
    fn capabilities(&self) -> &Capabilities;

    /// Opens a queue, which comes into being when first used.
    ///
    /// Touches no network and no disk: opening is cheap, and failing to reach a server is told
    /// by the first operation. [`Mailboxes`](crate::Mailboxes) has checked the name and the options
    /// against the capabilities.
    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>>;

    /// Opens the queue that a reply address names: by its name, unless the backend knows addresses of
    /// another form too, such as URLs.
    fn queue_at(&self, address: &str) -> Result<Arc<dyn Queue>> {
        let name = QueueName::new(address)?;
        self.capabilities().check_name(&name)?;
        self.queue(&name, QueueOptions::new())
    }

    /// Returns the name of the queue that dead letters of `source` go to by default: `{source}-dlq`.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`](crate::Error::InvalidParameter) if that is too long for a name.
    fn dead_letter_name(&self, source: &QueueName) -> Result<QueueName> {
        format!("{source}-dlq").parse()
    }

    /// Returns whether a queue is named like those that dead letters go to
    /// [by default](Self::dead_letter_name).
    fn is_dead_letter_name(&self, name: &QueueName) -> bool {
        name.as_str().ends_with("-dlq")
    }

    /// Lists the queues that hold messages, and others that the backend knows of, in order of
    /// name. Says [`Closed`](crate::Error::Closed) once the backend is closed.
    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>>;

    /// How many partitions a queue is spread over.
    ///
    /// A backend that keeps every queue whole needs not write this method nor the next one.
    fn partitions<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Partitions>> {
        let _ = queue;
        Box::pin(async { Ok(Partitions::WHOLE) })
    }

    /// Spreads a queue over so many partitions from now on, and says how it is spread then. It may be
    /// in use meanwhile. Messages stay where they are: when there are to be fewer partitions, those
    /// that are no longer sent to are received from until they are empty.
    fn set_partitions<'a>(
        &'a self,
        queue: &'a QueueName,
        partitions: u32,
    ) -> BoxFuture<'a, Result<Partitions>> {
        Box::pin(async move {
            self.capabilities().check_partitions(queue, partitions)?;
            self.partitions(queue).await
        })
    }

    /// Where the backend itself moves messages of a queue that were delivered too often, if it does.
    ///
    /// A backend without [`Capabilities::redrive`] needs not write this method nor the next one.
    fn redrive<'a>(&'a self, queue: &'a QueueName) -> BoxFuture<'a, Result<Option<Redrive>>> {
        let _ = queue;
        Box::pin(async { Ok(None) })
    }

    /// Has the backend move messages of a queue that were delivered too often, or leave them where they
    /// are.
    fn set_redrive<'a>(
        &'a self,
        queue: &'a QueueName,
        redrive: Option<Redrive>,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { self.capabilities().check_redrive(queue, redrive.as_ref()) })
    }

    /// Looks for everything that may be wrong, and puts right what it can if told to `repair`.
    ///
    /// May take long and read everything there is, but keeps nobody from working meanwhile except
    /// for the time of a repair. No repair deletes a message.
    ///
    /// A backend that has nothing to look at says [`Diagnosis::of`] its capabilities. Says
    /// [`Closed`](crate::Error::Closed) once the backend is closed.
    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>>;

    /// Closes every queue opened here.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// Where a backend itself moves messages that were delivered too often, without a worker's doing.
///
/// They arrive as they were sent: without an error, which only a worker knows of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Redrive {
    /// The queue: by its name here, or as the backend writes the address of one that is elsewhere.
    pub to: Box<str>,
    /// How often a message is delivered before it is moved.
    pub max_deliveries: u32,
}

impl Redrive {
    /// Moves messages that were delivered `max_deliveries` times.
    pub fn new(to: impl Into<Box<str>>, max_deliveries: u32) -> Self {
        Self { to: to.into(), max_deliveries }
    }
}

/// How a queue is spread over partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partitions {
    /// How many partitions messages are sent to.
    pub sent_to: u32,
    /// How many partitions may hold messages. More than [`sent_to`](Self::sent_to) while some are
    /// being drained because there shall be fewer.
    pub held_in: u32,
}

impl Partitions {
    /// A queue that is not spread.
    pub const WHOLE: Self = Self { sent_to: 1, held_in: 1 };

    /// Says how a queue is spread.
    pub const fn new(sent_to: u32, held_in: u32) -> Self {
        Self { sent_to, held_in }
    }
}

/// How a queue is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// The most messages, in whatever state, that sends through this handle may fill the queue
    /// up to. `None`: no limit.
    pub max_size: Option<u64>,
    /// The least number of parts that the queue is spread over, where the backend can do that. `None`:
    /// as many as it has.
    pub partitions: Option<u32>,
    /// Time without use after which the backend deletes the queue with its messages. `None`: what the
    /// backend was opened with, which is never unless it says so.
    pub default_ttl: Option<Duration>,
}

impl QueueOptions {
    /// The defaults.
    pub const fn new() -> Self {
        Self { max_size: None, partitions: None, default_ttl: None }
    }

    /// Refuses sends that would make the queue hold more than `max_size` messages.
    pub const fn max_size(mut self, max_size: u64) -> Self {
        self.max_size = Some(max_size);
        self
    }

    /// Spreads the queue over at least `partitions` parts, which may be on different servers. The
    /// order of messages is then kept within a part; those of one [group](Outgoing::group) are
    /// always in the same. The queue stays so for all who use it, until
    /// [`Backend::set_partitions`] says otherwise.
    ///
    /// A backend that keeps every queue whole
    /// ([`Capabilities::max_partitions`](crate::Capabilities::max_partitions) is 1) takes any number
    /// and keeps it whole: order is then kept for all.
    pub const fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Has the backend delete the queue, **with all its messages**, when nothing was sent, received or
    /// settled for this long. Defaults to what the backend was opened with.
    ///
    /// It belongs to the queue: all handles that this backend has of the queue keep to it, also those
    /// that do not name one. Of several that differ, the longest counts, until the last handle of the
    /// queue is gone. Use through another backend handle or process renews it only if that names one, too.
    ///
    /// Refused, and never ignored, where the backend cannot do it
    /// ([`Capabilities::default_ttl`]), and together with [`partitions`](Self::partitions).
    pub const fn default_ttl(mut self, time: Duration) -> Self {
        self.default_ttl = Some(time);
        self
    }
}

/// A message on its way into a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outgoing {
    /// Its identity. Sending the same one again changes nothing.
    pub id: MessageId,
    /// Its body.
    pub body: Bytes,
    /// Names and values beside the body.
    pub attributes: Attributes,
    /// Where an answer should go.
    pub reply_to: Option<Arc<str>>,
    /// How long it stays invisible at first.
    pub delay: Duration,
    /// When it was first sent, for a message that is moved from another queue. `None`: now, by
    /// the backend's clock.
    pub enqueued_at: Option<Timestamp>,
}

impl Outgoing {
    /// The attribute that holds a message's [group](Self::group).
    pub const GROUP: &str = "pillarbox.group";
    /// The attribute that says of which [kind](crate::SendOptions::kind) a message is.
    pub const KIND: &str = "pillarbox.kind";

    /// The attribute that holds a message's [deduplication id](Self::deduplication).
    pub const DEDUPLICATION: &str = "pillarbox.deduplication";

    /// Makes a message with a new id and nothing but a body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self::with_id(MessageId::new(), body)
    }

    /// Group of the message: in a queue that is spread over partitions, messages of one group are in the same
    /// one. It is the value of the attribute [`Outgoing::GROUP`], so it goes wherever the message goes.
    /// [`SendOptions::group`](crate::SendOptions::group) says what it does on which backend.
    pub fn group(&self) -> Option<&str> {
        self.attributes.get(Self::GROUP)
    }

    /// What the backend knows a repeated message by, in place of its id, where it has a window for that
    /// ([`Capabilities::deduplication`]). It is the value of the attribute
    /// [`Outgoing::DEDUPLICATION`].
    pub fn deduplication(&self) -> Option<&str> {
        self.attributes.get(Self::DEDUPLICATION)
    }

    /// Makes a message with the caller's id and nothing but a body.
    pub fn with_id(id: MessageId, body: impl Into<Bytes>) -> Self {
        Self {
            id,
            body: body.into(),
            attributes: Attributes::new(),
            reply_to: None,
            delay: Duration::ZERO,
            enqueued_at: None,
        }
    }
}

/// Answer to a message that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sent {
    /// Id of the message.
    pub id: MessageId,
    /// Whether this send stored the message. `false`: the queue held a message of that id, and nothing
    /// changed. It may be another message that has the same id, and whoever holds it may delete it: a
    /// copy elsewhere must not be deleted because of this answer alone. Always `true` where the backend
    /// does not [tell](crate::Capabilities::tells_duplicates).
    pub is_new: bool,
}

impl Sent {
    /// The message was stored.
    pub const fn stored(id: MessageId) -> Self {
        Self { id, is_new: true }
    }

    /// The queue held a message of that id already.
    pub const fn duplicate(id: MessageId) -> Self {
        Self { id, is_new: false }
    }
}

/// A message as a queue holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawMessage {
    /// Its identity.
    pub id: MessageId,
    /// Its body.
    pub body: Bytes,
    /// Names and values beside the body.
    pub attributes: Attributes,
    /// Where an answer should go.
    pub reply_to: Option<Arc<str>>,
    /// When it was sent, by the backend's clock.
    pub enqueued_at: Timestamp,
    /// How often it was delivered, this time included.
    pub delivery_count: u32,
    /// Number of earlier deliveries that were [started](SettleAction::Start) and whose lease expired
    /// before anybody settled them. A message that takes its receivers down is known by it. Always 0
    /// where the backend does not [count them](crate::Capabilities::counts_unsettled).
    pub unsettled: u32,
    /// Number of earlier deliveries that were no attempt at the work: they were
    /// [released](SettleAction::Release), or their lease expired before they were known to be
    /// [started](SettleAction::Start). Always 0 where the backend does not
    /// [count them](crate::Capabilities::counts_unsettled).
    pub uncounted: u32,
    /// When it was first delivered, by the backend's clock. `None` before that, and always where the
    /// backend does not [tell](crate::Capabilities::tells_first_received).
    pub first_received_at: Option<Timestamp>,
}

impl RawMessage {
    /// Makes a message that was never delivered and has nothing but a body. Its other fields are
    /// there to be set.
    pub fn new(id: MessageId, body: impl Into<Bytes>, enqueued_at: Timestamp) -> Self {
        Self {
            id,
            body: body.into(),
            attributes: Attributes::new(),
            reply_to: None,
            enqueued_at,
            delivery_count: 0,
            unsettled: 0,
            uncounted: 0,
            first_received_at: None,
        }
    }

    /// Number of this attempt at the work, from 1: [`delivery_count`](Self::delivery_count) without the
    /// [`uncounted`](Self::uncounted) deliveries.
    pub fn attempt(&self) -> u32 {
        self.delivery_count.saturating_sub(self.uncounted).max(1)
    }
}

/// One delivery of a message, with the receipt that settles it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The message.
    pub message: RawMessage,
    /// The right to settle this delivery.
    pub receipt: Receipt,
}

impl Delivery {
    /// Makes a delivery.
    pub const fn new(message: RawMessage, receipt: Receipt) -> Self {
        Self { message, receipt }
    }
}

/// A message that was looked at and not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Peeked {
    /// The message.
    pub message: RawMessage,
    /// What state it is in.
    pub state: MessageState,
}

impl Peeked {
    /// Makes a message that was looked at.
    pub const fn new(message: RawMessage, state: MessageState) -> Self {
        Self { message, state }
    }
}

/// Some of the messages of a queue, and where to look for more.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekPage {
    /// The messages, in order.
    pub messages: Vec<Peeked>,
    /// Where the next page begins. `None`: this was the last.
    pub next: Option<Cursor>,
    /// What is there and could not be read, in words for people. Empty unless the storage of the backend is
    /// damaged; a backend that cannot go on past the damage fails instead.
    pub unreadable: Vec<String>,
}

impl PeekPage {
    /// Makes a page.
    pub const fn new(messages: Vec<Peeked>, next: Option<Cursor>) -> Self {
        Self { messages, next, unreadable: Vec::new() }
    }

    /// The same page, with more that could not be read.
    #[must_use]
    pub fn with_unreadable(mut self, unreadable: Vec<String>) -> Self {
        self.unreadable.extend(unreadable);
        self
    }

    /// The same page, or [`Error::Connection`] if something of it could not be read: for those who cannot do
    /// with a part of a queue.
    pub fn whole(mut self, queue: &QueueName) -> Result<Self> {
        if self.unreadable.is_empty() {
            return Ok(self);
        }
        Err(Error::connection(Some(queue), "peek", self.unreadable.swap_remove(0)))
    }
}

/// Where a page of messages ended, in words of the backend that made it.
///
/// A queue does not stand still: a message that comes, goes or changes its state between two
/// pages may be missed or shown twice. What stays as it is, is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// Makes a cursor of the backend's own text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// The backend's own text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The state of a message that a queue holds. (The fourth state, deleted, holds no message.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageState {
    /// A receive would deliver it.
    Ready,
    /// It is delivered, and its lease runs until then.
    InFlight {
        /// When the lease ends.
        until: Timestamp,
    },
    /// It waits for its time, and nobody holds a receipt for it.
    Delayed {
        /// When it becomes ready.
        until: Timestamp,
    },
}

/// What to do with one delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settle {
    /// The delivery.
    pub receipt: Receipt,
    /// What to do with it.
    pub action: SettleAction,
}

impl Settle {
    /// Deletes the message: its work is done.
    pub const fn acknowledge(receipt: Receipt) -> Self {
        Self { receipt, action: SettleAction::Acknowledge }
    }

    /// Gives the message back, to be ready at once or after `delay`.
    pub const fn nack(receipt: Receipt, delay: Duration) -> Self {
        Self { receipt, action: SettleAction::Nack { delay } }
    }

    /// Gives the message back as [`nack`](Self::nack) does, where this delivery was no attempt.
    pub const fn release(receipt: Receipt, delay: Duration) -> Self {
        Self { receipt, action: SettleAction::Release { delay } }
    }

    /// Lets the lease run for `timeout` from now.
    pub const fn extend(receipt: Receipt, timeout: Duration) -> Self {
        Self { receipt, action: SettleAction::Extend { timeout } }
    }

    /// Records that the work on the message starts, and lets the lease run for `timeout` from now.
    pub const fn start(receipt: Receipt, timeout: Duration) -> Self {
        Self { receipt, action: SettleAction::Start { timeout } }
    }
}

/// What a receipt is presented for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettleAction {
    /// Delete the message.
    Acknowledge,
    /// Give the message back; the receipt dies.
    Nack {
        /// How long it stays invisible before it is ready.
        delay: Duration,
    },
    /// Give the message back as a nack does, and count this delivery as
    /// [no attempt](RawMessage::uncounted).
    Release {
        /// How long it stays invisible before it is ready.
        delay: Duration,
    },
    /// Let the lease run on; the receipt stays.
    Extend {
        /// How long from now.
        timeout: Duration,
    },
    /// Let the lease run on, and record that the work on the message starts. If the lease of a started
    /// delivery expires, it counts as [unsettled](RawMessage::unsettled); one that was not started
    /// counts as [no attempt](RawMessage::uncounted).
    Start {
        /// How long from now.
        timeout: Duration,
    },
}

impl SettleAction {
    /// Delay after which a message that is given back is ready. `None` for other actions.
    pub const fn delay(self) -> Option<Duration> {
        match self {
            Self::Nack { delay } | Self::Release { delay } => Some(delay),
            Self::Acknowledge | Self::Extend { .. } | Self::Start { .. } => None,
        }
    }

    /// Time from now until the lease expires. `None` for actions that end the lease.
    pub const fn timeout(self) -> Option<Duration> {
        match self {
            Self::Extend { timeout } | Self::Start { timeout } => Some(timeout),
            Self::Acknowledge | Self::Nack { .. } | Self::Release { .. } => None,
        }
    }
}

/// The results themselves, unless a broken backend gave too many or too few.
pub(crate) fn of_length<T>(results: Vec<Result<T>>, expected: usize) -> Result<Vec<Result<T>>> {
    if results.len() == expected {
        return Ok(results);
    }
    let problem = format!("it answered {expected} entries with {} results", results.len());
    Err(Error::connection(None, "use the backend", problem))
}
