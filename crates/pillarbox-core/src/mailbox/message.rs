//! A received message.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::resolver::reply_mailbox;
use super::{BatchResults, Mailbox, MailboxResolver, settle_one};
use crate::error::Result;
use crate::queue::{Delivery, Queue, Settle};
use crate::{Attributes, Capabilities, MessageId, QueueName, Receipt, Timestamp};

/// A received message: a body, and the right to settle this delivery of it.
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
/// Dropping it settles nothing: the message comes back when its lease ends.
#[must_use = "a message that is not settled is delivered again when its lease ends"]
pub struct Message<T, R = ()> {
    body: T,
    delivery: Delivery,
    queue: Arc<dyn Queue>,
    replies: Arc<dyn MailboxResolver<R>>,
}

impl<T, R: 'static> Message<T, R> {
    pub(super) fn new(
        body: T,
        delivery: Delivery,
        queue: Arc<dyn Queue>,
        replies: Arc<dyn MailboxResolver<R>>,
    ) -> Self {
        Self { body, delivery, queue, replies }
    }

    /// The identity of the message, the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.delivery.message.id
    }

    /// The body.
    pub fn body(&self) -> &T {
        &self.body
    }

    /// The receipt of this delivery.
    pub fn receipt(&self) -> &Receipt {
        &self.delivery.receipt
    }

    /// How often the message was delivered, this time included: 1 at first.
    pub fn delivery_count(&self) -> u32 {
        self.delivery.message.delivery_count
    }

    /// Number of earlier deliveries that were [started](crate::SettleAction::Start) and whose lease
    /// expired before anybody settled them. Always 0 where the backend does not
    /// [count them](crate::Capabilities::counts_unsettled).
    pub fn unsettled(&self) -> u32 {
        self.delivery.message.unsettled
    }

    /// Number of earlier deliveries that were no attempt at the work: [released](Self::release), or
    /// expired before they were known to be [started](crate::SettleAction::Start). Always 0 where the
    /// backend does not [count them](crate::Capabilities::counts_unsettled).
    pub fn uncounted(&self) -> u32 {
        self.delivery.message.uncounted
    }

    /// When it was first delivered, by the backend's clock, where that
    /// [tells](crate::Capabilities::tells_first_received).
    pub fn first_received_at(&self) -> Option<Timestamp> {
        self.delivery.message.first_received_at
    }

    /// When the message was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.delivery.message.enqueued_at
    }

    /// The attributes that it was sent with.
    pub fn attributes(&self) -> &Attributes {
        &self.delivery.message.attributes
    }

    /// Where the sender wants the answer.
    pub fn reply_to(&self) -> Option<&str> {
        self.delivery.message.reply_to.as_deref()
    }

    /// The queue that it came from.
    pub fn queue_name(&self) -> &QueueName {
        self.queue.name()
    }

    /// What the backend that it came from can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    /// The delivery as the queue made it, with the undecoded body.
    pub fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Takes the message apart. The receipt in the delivery still settles it, by
    /// [`Mailbox::acknowledge`] and its kin.
    pub fn into_parts(self) -> (T, Delivery) {
        (self.body, self.delivery)
    }

    /// Deletes the message: its work is done.
    ///
    /// Fails with [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) when the lease has
    /// ended; the message is then somebody else's. After
    /// [`Connection`](crate::Error::Connection) it is unknown whether the message was
    /// deleted: keep a clone of the [`receipt`](Self::receipt) to ask again by
    /// [`Mailbox::acknowledge`].
    pub async fn acknowledge(self) -> Result<()> {
        settle_one(&*self.queue, Settle::acknowledge(self.delivery.receipt)).await
    }

    /// Deletes the messages of one batch, which are no more than the backend delivers in a call.
    pub(super) async fn acknowledge_all(messages: Vec<Self>) -> Result<BatchResults<()>> {
        let Some(first) = messages.first() else { return Ok(BatchResults(Vec::new())) };
        let queue = first.queue.clone();
        let settles =
            messages.into_iter().map(|message| Settle::acknowledge(message.delivery.receipt));
        queue.settle(settles.collect()).await.map(BatchResults)
    }

    /// Gives the message back, to be delivered again at once or after `delay`. It joins the tail
    /// of the queue when it becomes ready.
    pub async fn nack(self, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::nack(self.delivery.receipt, delay)).await
    }

    /// Gives the message back as [`nack`](Self::nack) does, and counts this delivery as
    /// [no attempt](Self::uncounted) at the work: it came too early, or to somebody who cannot do it.
    pub async fn release(self, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::release(self.delivery.receipt, delay)).await
    }

    /// Lets the lease run for `timeout` from now, however long it had left.
    pub async fn extend_visibility(&self, timeout: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::extend(self.delivery.receipt.clone(), timeout)).await
    }

    /// The mailbox that the sender wants the answer in.
    ///
    /// Fails with [`ReplyMailboxUnavailable`](crate::Error::ReplyMailboxUnavailable) when the message has no reply address, or
    /// one that the resolver of the mailbox does not know. So does a send to it where the backend says that
    /// there is no such queue.
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        reply_mailbox(&*self.replies, self.queue_name(), &self.delivery.message)
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
