//! Options of a send, a receive and a queue.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::message::Outgoing;
use crate::{Attributes, MessageId};

/// Options of a send.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::SendOptions;
///
/// let options = SendOptions::new()
///     .reply_to("client-7")
///     .delay(Duration::from_secs(1))
///     .attribute("tenant", "acme");
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct SendOptions {
    pub(crate) id: Option<MessageId>,
    pub(crate) reply_to: Option<Arc<str>>,
    pub(crate) delay: Duration,
    pub(crate) attributes: Attributes,
    pub(crate) enqueued_at: Option<Timestamp>,
}

impl SendOptions {
    /// Creates the default options: a new id, no reply address, no delay, no attributes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the id of the message. If the queue already holds this id, the send succeeds and stores nothing.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Sets the address for a reply: the name of a queue, or any address that the receiver's
    /// [`MailboxResolver`](crate::MailboxResolver) resolves.
    pub fn reply_to(mut self, address: impl Into<Arc<str>>) -> Self {
        self.reply_to = Some(address.into());
        self
    }

    /// Sets the time until the message becomes ready. Defaults to 0.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds an attribute.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name, value);
        self
    }

    /// Replaces all attributes.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Sets the group of the message. Messages of one group stay in order even if the queue as a whole does
    /// not. The effect depends on the backend:
    ///
    /// | queue | messages of one group |
    /// |---|---|
    /// | Redis, [spread over partitions](crate::QueueOptions::partitions) | are in the same partition, and so are delivered in the order in which they became ready |
    /// | SQS FIFO | are a message group of SQS: delivered in the order of sending, and none while an earlier one of the group is in flight |
    /// | any other | are delivered as all others: memory, SQLite and Redis without partitions deliver all messages in the order in which they became ready, an SQS standard queue guarantees no order |
    ///
    /// Except on SQS FIFO queues, two workers may handle messages of a group at the same time, and a message
    /// that is returned goes to the tail of the queue. The group is the value of the attribute
    /// [`Outgoing::GROUP`], so it travels with the message.
    pub fn group(self, group: impl Into<String>) -> Self {
        self.attribute(Outgoing::GROUP, group)
    }

    /// Sets the id by which a repeated message is recognized in place of its message id, if the backend has a
    /// [deduplication window](crate::Capabilities::deduplication) (SQS FIFO). On other backends it is a plain
    /// attribute; a repeated [`id`](Self::id) is enough there.
    pub fn deduplication(self, deduplication: impl Into<String>) -> Self {
        self.attribute(Outgoing::DEDUPLICATION, deduplication)
    }

    /// Sets the kind of the message, by which a worker's router chooses the handler. It is the value of the
    /// attribute [`Outgoing::KIND`].
    pub fn kind(self, kind: impl Into<String>) -> Self {
        self.attribute(Outgoing::KIND, kind)
    }

    /// Sets the time at which the message was first sent, for a message that is moved from another queue.
    /// Defaults to now, by the backend's clock.
    pub fn enqueued_at(mut self, at: Timestamp) -> Self {
        self.enqueued_at = Some(at);
        self
    }
}

/// Options of a receive.
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::Receive;
///
/// let request = Receive::up_to(10)
///     .visibility(Duration::from_secs(60))
///     .wait(Duration::from_secs(20));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Receive {
    /// Maximum number of messages to deliver. At least 1.
    pub max: usize,
    /// Length of the lease on each message: 0 to 43,200 s. Defaults to 30 s.
    pub visibility: Duration,
    /// Maximum time to wait for a first message. Defaults to 0: no wait.
    pub wait: Duration,
}

impl Receive {
    /// Default length of a lease.
    pub const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);

    /// Creates a receive of at most `max` messages, which does not wait for the batch to fill.
    ///
    /// A `max` above [`Capabilities::max_receive`](crate::Capabilities::max_receive), which is 10 on SQS and
    /// 1,000 on the other backends, is refused.
    pub const fn up_to(max: usize) -> Self {
        Self { max, visibility: Self::DEFAULT_VISIBILITY, wait: Duration::ZERO }
    }

    /// Creates a receive of one message.
    pub const fn one() -> Self {
        Self::up_to(1)
    }

    /// Sets the length of the lease on each message. Defaults to 30 s.
    pub const fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets the maximum time to wait for a first message (a long poll). Defaults to 0.
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }
}

impl Default for Receive {
    fn default() -> Self {
        Self::one()
    }
}

/// Options of an open queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Maximum number of messages, in any state, that sends through this handle may fill the queue up to.
    /// `None`: no limit.
    pub max_size: Option<u64>,
    /// Minimum number of partitions of the queue, if the backend supports partitions. `None`: as many as it
    /// has.
    pub partitions: Option<u32>,
    /// Time without use after which the backend deletes the queue with its messages. `None`: the default that
    /// the backend was opened with, which is never unless set.
    pub default_ttl: Option<Duration>,
}

impl QueueOptions {
    /// Creates the default options.
    pub const fn new() -> Self {
        Self { max_size: None, partitions: None, default_ttl: None }
    }

    /// Sets the maximum number of messages. Sends that would exceed it are refused. Defaults to no limit.
    pub const fn max_size(mut self, max_size: u64) -> Self {
        self.max_size = Some(max_size);
        self
    }

    /// Sets the minimum number of partitions, which may be on different servers. Order is then kept within a
    /// partition; messages of one [group](crate::Outgoing::group) are always in the same partition. The
    /// number applies to all users of the queue until
    /// [`Backend::set_partitions`](crate::Backend::set_partitions) changes it. Defaults to the number that the
    /// queue has, and at least the one that the backend was opened with.
    ///
    /// A backend without partitions ([`Capabilities::max_partitions`](crate::Capabilities::max_partitions)
    /// is 1) accepts any number and keeps all messages in order.
    pub const fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = Some(partitions);
        self
    }

    /// Sets the time without a send, receive or settle after which the backend deletes the queue, **with all
    /// its messages**. Defaults to the value that the backend was opened with.
    ///
    /// The time applies to all handles that this backend has of the queue, including those that set none. If
    /// several handles set different times, the longest applies, until the last handle of the queue is
    /// dropped. Use through another backend handle or process renews the time only if that sets one, too.
    ///
    /// Refused, and never ignored, if the backend cannot delete unused queues
    /// ([`Capabilities::default_ttl`](crate::Capabilities::default_ttl)), and together with
    /// [`partitions`](Self::partitions).
    pub const fn default_ttl(mut self, time: Duration) -> Self {
        self.default_ttl = Some(time);
        self
    }
}

/// Partitions of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Partitions {
    /// Number of partitions that messages are sent to.
    pub sent_to: u32,
    /// Number of partitions that may hold messages. Greater than [`sent_to`](Self::sent_to) after the number
    /// was reduced, until the surplus partitions are empty.
    pub received_from: u32,
}

impl Partitions {
    /// The single partition of a queue that is not spread.
    pub const SINGLE: Self = Self { sent_to: 1, received_from: 1 };

    /// Creates a description of the partitions of a queue.
    pub const fn new(sent_to: u32, received_from: u32) -> Self {
        Self { sent_to, received_from }
    }
}

/// Rule by which a backend itself moves messages to another queue after too many deliveries, without a worker.
///
/// They arrive as they were sent: without an error, which only a worker knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Redrive {
    /// Target queue: its name on this backend, or the backend's form of an address elsewhere.
    pub to: Box<str>,
    /// Number of deliveries after which a message is moved.
    pub max_deliveries: u32,
}

impl Redrive {
    /// Creates a policy that moves messages to the queue `to` after `max_deliveries` deliveries.
    pub fn new(to: impl Into<Box<str>>, max_deliveries: u32) -> Self {
        Self { to: to.into(), max_deliveries }
    }
}
