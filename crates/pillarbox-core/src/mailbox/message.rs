//! A received message.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::reply_mailbox;
use super::{BatchResults, Mailbox, MailboxResolver, settle_one};
use crate::error::Result;
use crate::message::Delivery;
use crate::queue::Queue;
use crate::settle::Settle;
use crate::{Attributes, Capabilities, MessageId, QueueName, Receipt, Timestamp};

/// A received message: its body, and the lease of this delivery.
///
/// Settling consumes the message, so using it afterwards does not compile:
///
/// ```compile_fail,E0382
/// # use pillarbox_core::{Message, Result};
/// # async fn handle(message: Message<String>) -> Result<()> {
/// message.acknowledge().await?;
/// message.acknowledge().await?;
/// # Ok(()) }
/// ```
///
/// ```compile_fail,E0382
/// # use pillarbox_core::{Message, Result};
/// # async fn handle(message: Message<String>) -> Result<()> {
/// message.nack(std::time::Duration::ZERO).await?;
/// message.extend_visibility(std::time::Duration::from_secs(30)).await?;
/// # Ok(()) }
/// ```
///
/// Dropping it settles nothing: the message is delivered again when its lease expires.
#[must_use = "a message that is not settled is delivered again when its lease expires"]
pub struct Message<T, R = ()> {
    pub(super) body: T,
    pub(super) delivery: Delivery,
    pub(super) queue: Arc<dyn Queue>,
    pub(super) replies: Arc<dyn MailboxResolver<R>>,
}

impl<T, R: 'static> Message<T, R> {
    /// Returns the id of the message, which is the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.delivery.message.id
    }

    /// Returns the body.
    pub fn body(&self) -> &T {
        &self.body
    }

    /// Returns the receipt of this delivery.
    pub fn receipt(&self) -> &Receipt {
        &self.delivery.receipt
    }

    /// Returns the number of deliveries, including this one: 1 at first.
    pub fn delivery_count(&self) -> u32 {
        self.delivery.message.delivery_count
    }

    /// Returns the number of earlier deliveries that were [started](crate::SettleAction::Start) and whose lease
    /// expired before they were settled. Always 0 if the backend does not
    /// [count them](crate::Capabilities::counts_unsettled).
    pub fn unsettled(&self) -> u32 {
        self.delivery.message.unsettled
    }

    /// Returns the number of earlier deliveries that do not count as attempts: they were
    /// [released](Self::release), or expired before they were [started](crate::SettleAction::Start). Always 0 if the
    /// backend does not [count them](crate::Capabilities::counts_unsettled).
    pub fn uncounted(&self) -> u32 {
        self.delivery.message.uncounted
    }

    /// Returns the time of the first delivery, by the backend's clock, if the backend
    /// [reports it](crate::Capabilities::reports_first_received).
    pub fn first_received_at(&self) -> Option<Timestamp> {
        self.delivery.message.first_received_at
    }

    /// Returns the time at which the message was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.delivery.message.enqueued_at
    }

    /// Returns the attributes of the message.
    pub fn attributes(&self) -> &Attributes {
        &self.delivery.message.attributes
    }

    /// Returns the address that the sender wants the reply at.
    pub fn reply_to(&self) -> Option<&str> {
        self.delivery.message.reply_to.as_deref()
    }

    /// Returns the name of the queue that delivered the message.
    pub fn queue_name(&self) -> &QueueName {
        self.queue.name()
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    /// Returns the delivery as it came from the queue, with the encoded body.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Splits the message into its body and its delivery. The receipt in the delivery still settles it, by
    /// [`Mailbox::acknowledge`] and similar methods.
    pub fn into_parts(self) -> (T, Delivery) {
        (self.body, self.delivery)
    }

    /// Deletes the message, because its work is done.
    ///
    /// Fails with [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has expired; another
    /// receiver may have the message then. After [`Connection`](crate::Error::Connection) it is unknown whether the
    /// message was deleted: keep a clone of the [`receipt`](Self::receipt) to try again by [`Mailbox::acknowledge`].
    pub async fn acknowledge(self) -> Result<()> {
        settle_one(&*self.queue, Settle::acknowledge(self.delivery.receipt)).await
    }

    /// Deletes the messages of one batch, whose number is at most what the backend delivers in one call.
    pub(super) async fn acknowledge_all(messages: Vec<Self>) -> Result<BatchResults<()>> {
        let Some(first) = messages.first() else { return Ok(BatchResults(Vec::new())) };
        let queue = first.queue.clone();
        let settle = |message: Self| Settle::acknowledge(message.delivery.receipt);
        queue.settle(messages.into_iter().map(settle).collect()).await.map(BatchResults)
    }

    /// Returns the message to the queue, to be delivered again at once or after `delay`. It goes to the tail of the
    /// queue when it becomes ready.
    pub async fn nack(self, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::nack(self.delivery.receipt, delay)).await
    }

    /// Returns the message to the queue as [`nack`](Self::nack) does, and counts this delivery as
    /// [no attempt](Self::uncounted): it came too early, or to a receiver that cannot handle it.
    pub async fn release(self, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::release(self.delivery.receipt, delay)).await
    }

    /// Sets the lease to expire `timeout` from now, whatever time it had left.
    pub async fn extend_visibility(&self, timeout: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::extend(self.delivery.receipt.clone(), timeout)).await
    }

    /// Returns the mailbox that the sender wants the reply in.
    ///
    /// Fails with [`ReplyMailboxUnavailable`](crate::Error::ReplyMailboxUnavailable) if the message has no reply
    /// address, or one that the mailbox's resolver does not accept. A send to it fails with the same error if the
    /// backend reports that the queue does not exist.
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        reply_mailbox(&*self.replies, self.queue_name(), &self.delivery.message)
    }
}

/// A delivery that a backend can acknowledge in a transaction of the program: a [`Message`], or the `Metadata` of a
/// worker's handler.
///
/// Used by backends with such transactions, as in `pillarbox_sqlite::transaction::acknowledge`.
pub trait Leased {
    /// Returns the name of the queue that delivered the message.
    fn queue_name(&self) -> &QueueName;

    /// Returns the capabilities and limits of the backend.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the receipt of this delivery.
    fn receipt(&self) -> &Receipt;

    /// Records that an uncommitted transaction acknowledges the delivery, and returns whether it may.
    ///
    /// A backend calls this last: the receipt is valid, and the transaction holds the locks that keep others from
    /// settling the delivery until it is committed or rolled back.
    ///
    /// Returns false if a worker has taken the delivery back because its handler has ended. The backend then removes
    /// the acknowledgement from the transaction and fails with
    /// [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired).
    fn acknowledging(&self) -> bool {
        true
    }
}

impl<T, R: 'static> Leased for Message<T, R> {
    fn queue_name(&self) -> &QueueName {
        self.queue.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    fn receipt(&self) -> &Receipt {
        &self.delivery.receipt
    }
}

impl<T: fmt::Debug, R: 'static> fmt::Debug for Message<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("queue", self.queue_name())
            .field("id", &self.id())
            .field("delivery_count", &self.delivery_count())
            .field("body", &self.body)
            .finish_non_exhaustive()
    }
}
