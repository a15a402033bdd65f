//! Messages as bytes: on their way into a queue, held by it, delivered, and peeked at.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::{Attributes, MessageId, QueueName, Receipt};

/// A message on its way into a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outgoing {
    /// Id of the message. Sending the same id again changes nothing.
    pub id: MessageId,
    /// Body of the message.
    pub body: Bytes,
    /// Names and values beside the body.
    pub attributes: Attributes,
    /// Address that a reply should go to.
    pub reply_to: Option<Arc<str>>,
    /// Time until the message becomes ready.
    pub delay: Duration,
    /// Time at which the message was first sent, if it is moved from another queue. `None`: now, by the
    /// backend's clock.
    pub enqueued_at: Option<Timestamp>,
}

impl Outgoing {
    /// Attribute that holds the [group](Self::group) of a message.
    pub const GROUP: &str = "pillarbox.group";
    /// Attribute that holds the [kind](crate::SendOptions::kind) of a message.
    pub const KIND: &str = "pillarbox.kind";
    /// Attribute that holds the [deduplication id](Self::deduplication) of a message.
    pub const DEDUPLICATION: &str = "pillarbox.deduplication";

    /// Creates a message with a new id and nothing but a body.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self::with_id(MessageId::new(), body)
    }

    /// Creates a message with the caller's id and nothing but a body.
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

    /// Returns the group of the message. Messages of one group are in the same partition.
    ///
    /// The group is the value of the attribute [`Outgoing::GROUP`], so it travels with the message.
    /// [`SendOptions::group`](crate::SendOptions::group) describes its effect on each backend.
    pub fn group(&self) -> Option<&str> {
        self.attributes.get(Self::GROUP)
    }

    /// Returns the id by which the backend recognizes a repeated message in place of its message id, if the
    /// backend has a [deduplication window](crate::Capabilities::deduplication).
    ///
    /// It is the value of the attribute [`Outgoing::DEDUPLICATION`].
    pub fn deduplication(&self) -> Option<&str> {
        self.attributes.get(Self::DEDUPLICATION)
    }
}

/// Result of sending one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Sent {
    /// Id of the message.
    pub id: MessageId,
    /// Whether this send stored the message.
    ///
    /// `false`: the queue already held a message with this id, and nothing changed. That may be a different
    /// message with the same id, and its receiver may delete it at any time: do not delete another copy
    /// because of this result alone. Always `true` if the backend does not
    /// [report duplicates](crate::Capabilities::reports_duplicates).
    pub is_new: bool,
}

impl Sent {
    /// Creates the result of a send that stored the message.
    pub const fn stored(id: MessageId) -> Self {
        Self { id, is_new: true }
    }

    /// Creates the result of a send whose id the queue already held.
    pub const fn duplicate(id: MessageId) -> Self {
        Self { id, is_new: false }
    }
}

/// A message as a queue holds it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RawMessage {
    /// Id of the message.
    pub id: MessageId,
    /// Body of the message.
    pub body: Bytes,
    /// Names and values beside the body.
    pub attributes: Attributes,
    /// Address that a reply should go to.
    pub reply_to: Option<Arc<str>>,
    /// Time at which the message was sent, by the backend's clock.
    pub enqueued_at: Timestamp,
    /// Number of deliveries, including this one.
    pub delivery_count: u32,
    /// Number of earlier deliveries that were [started](crate::SettleAction::Start) and whose lease expired
    /// before they were settled. A high number identifies a message that crashes its receivers. Always 0
    /// if the backend does not [count them](crate::Capabilities::counts_unsettled).
    pub unsettled: u32,
    /// Number of earlier deliveries that do not count as attempts: they were
    /// [released](crate::SettleAction::Release), or their lease expired before they were
    /// [started](crate::SettleAction::Start). Always 0 if the backend does not
    /// [count them](crate::Capabilities::counts_unsettled).
    pub uncounted: u32,
    /// Time of the first delivery, by the backend's clock. `None` before that, and always if the backend
    /// does not [report it](crate::Capabilities::reports_first_received).
    pub first_received_at: Option<Timestamp>,
}

impl RawMessage {
    /// Creates a message that was never delivered and has nothing but a body. Set the other fields as needed.
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

    /// Returns the number of this attempt, from 1: [`delivery_count`](Self::delivery_count) without the
    /// [`uncounted`](Self::uncounted) deliveries.
    pub fn attempt(&self) -> u32 {
        self.delivery_count.saturating_sub(self.uncounted).max(1)
    }
}

/// One delivery of a message, with the receipt that settles it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Delivery {
    /// The delivered message.
    pub message: RawMessage,
    /// Receipt that settles this delivery.
    pub receipt: Receipt,
}

impl Delivery {
    /// Creates a delivery.
    pub const fn new(message: RawMessage, receipt: Receipt) -> Self {
        Self { message, receipt }
    }
}

/// State of a message that a queue holds. (The fourth state, deleted, holds no message.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MessageState {
    /// A receive would deliver the message.
    Ready,
    /// The message is delivered and leased.
    InFlight {
        /// Time at which the lease expires.
        until: Timestamp,
    },
    /// The message becomes ready later, and has no valid receipt.
    Delayed {
        /// Time at which the message becomes ready.
        until: Timestamp,
    },
}

/// A message that was peeked at and not delivered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Peeked {
    /// The message.
    pub message: RawMessage,
    /// State of the message.
    pub state: MessageState,
}

impl Peeked {
    /// Creates a message that was peeked at.
    pub const fn new(message: RawMessage, state: MessageState) -> Self {
        Self { message, state }
    }
}

/// Some of the messages of a queue, and the position of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekPage {
    /// The messages, in order.
    pub messages: Vec<Peeked>,
    /// Position of the next page. `None`: this is the last page.
    pub next: Option<Cursor>,
    /// Descriptions of stored data that could not be read. Empty unless the backend's storage is damaged; a
    /// backend that cannot read past the damage fails instead.
    pub unreadable: Vec<String>,
}

impl PeekPage {
    /// Creates a page.
    pub const fn new(messages: Vec<Peeked>, next: Option<Cursor>) -> Self {
        Self { messages, next, unreadable: Vec::new() }
    }

    /// Adds descriptions of data that could not be read.
    #[must_use]
    pub fn with_unreadable(mut self, unreadable: Vec<String>) -> Self {
        self.unreadable.extend(unreadable);
        self
    }

    /// Returns the page, or [`Error::Connection`] if a part of it could not be read.
    pub fn whole(mut self, queue: &QueueName) -> Result<Self> {
        if self.unreadable.is_empty() {
            return Ok(self);
        }
        Err(Error::connection(Some(queue), "peek", self.unreadable.swap_remove(0)))
    }
}

/// Position between two pages of a peek, in a format of the backend's own.
///
/// A queue changes between two pages: a message that is added, removed or changes its state may be missed or
/// shown twice. A message that does not change is shown once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Cursor(Box<str>);

impl Cursor {
    /// Creates a cursor from the backend's own text.
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self(text.into())
    }

    /// Returns the backend's own text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
