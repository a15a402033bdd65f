//! What callers say about a send or a receive.

use std::sync::Arc;
use std::time::Duration;

use crate::{Attributes, MessageId, Timestamp};

/// How a message is sent.
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
    /// No reply address, no delay, no attributes, a new id.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends under this id. If the queue already holds it, the send succeeds and stores nothing.
    pub fn id(mut self, id: MessageId) -> Self {
        self.id = Some(id);
        self
    }

    /// Says where an answer should go: the name of a queue, or what the receiver's
    /// [`MailboxResolver`](crate::MailboxResolver) understands.
    pub fn reply_to(mut self, address: impl Into<Arc<str>>) -> Self {
        self.reply_to = Some(address.into());
        self
    }

    /// Keeps the message invisible for this long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = delay;
        self
    }

    /// Adds an attribute.
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.attributes.insert(name, value);
        self
    }

    /// Sets all attributes at once, in place of those there were.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.attributes = attributes;
        self
    }

    /// Names the group of the message, which keeps its order with others of the same group where the queue as
    /// a whole has none. What it does depends on the backend:
    ///
    /// | queue | messages of one group |
    /// |---|---|
    /// | Redis, [spread over partitions](crate::QueueOptions::partitions) | are in the same partition, and so are delivered in the order in which they became ready |
    /// | SQS FIFO | are a message group of SQS: delivered in the order of sending, and none while an earlier one of the group is in flight |
    /// | any other | as all others: a queue of memory, SQLite or Redis that is whole delivers all messages in the order in which they became ready, an SQS standard queue promises no order |
    ///
    /// Except on SQS FIFO queues, it does not keep two workers from handling messages of a group at the
    /// same time, and a message that is given back lines up behind the others. It is the value of the
    /// attribute [`Outgoing::GROUP`](crate::Outgoing::GROUP), so it goes wherever the message goes.
    pub fn group(self, group: impl Into<String>) -> Self {
        self.attribute(crate::Outgoing::GROUP, group)
    }

    /// Says what the message is known by if it is sent again, in place of its id, where the backend has a
    /// window for that ([`Capabilities::deduplication`](crate::Capabilities::deduplication)): SQS FIFO.
    /// Elsewhere it is an attribute and nothing more; a repeated [`id`](Self::id) is enough there.
    pub fn deduplication(self, deduplication: impl Into<String>) -> Self {
        self.attribute(crate::Outgoing::DEDUPLICATION, deduplication)
    }

    /// Says of which kind the message is, for a mailbox that carries several: a worker's router
    /// finds the handler by it. It is the value of the attribute
    /// [`Outgoing::KIND`](crate::Outgoing::KIND).
    pub fn kind(self, kind: impl Into<String>) -> Self {
        self.attribute(crate::Outgoing::KIND, kind)
    }

    /// Keeps the time at which the message was first sent, when it is moved from another queue.
    pub fn enqueued_at(mut self, at: Timestamp) -> Self {
        self.enqueued_at = Some(at);
        self
    }
}

/// How messages are received.
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
    /// The most messages to deliver. At least 1.
    pub max: usize,
    /// How long the lease on each message runs. 0 to 43,200 s, 30 s by default.
    pub visibility: Duration,
    /// How long to wait for a first message. 0 by default: not at all.
    pub wait: Duration,
}

impl Receive {
    /// The lease that a receive starts unless told otherwise.
    pub const DEFAULT_VISIBILITY: Duration = Duration::from_secs(30);

    /// Receives up to `max` messages, without waiting for the batch to fill.
    ///
    /// At most [`Capabilities::max_receive`](crate::Capabilities::max_receive): 10 on SQS, 1,000
    /// elsewhere. More is refused.
    pub const fn up_to(max: usize) -> Self {
        Self { max, visibility: Self::DEFAULT_VISIBILITY, wait: Duration::ZERO }
    }

    /// Receives one message.
    pub const fn one() -> Self {
        Self::up_to(1)
    }

    /// Sets how long the lease on each message runs.
    pub const fn visibility(mut self, visibility: Duration) -> Self {
        self.visibility = visibility;
        self
    }

    /// Sets how long to wait for a first message (a long poll).
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
