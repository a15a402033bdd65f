//! What a receive delivered, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    Attributes, BatchResults, Capabilities, Delivery, Error, Leased, MessageId, QueueName, Receipt,
    Result, Settle, Timestamp,
};

use super::engine::Engine;
use super::mailbox::Mailbox;

/// A received message: a body, and the right to settle this delivery of it.
///
/// Settling consumes the message, so using it afterwards does not compile:
///
/// ```compile_fail,E0382
/// # fn handle(message: pillarbox::blocking::Message<String>) -> pillarbox::Result<()> {
/// message.acknowledge()?;
/// message.acknowledge()?;
/// # Ok(()) }
/// ```
///
/// Dropping it settles nothing: the message comes back when its lease ends.
#[must_use = "a message that is not settled is delivered again when its lease ends"]
pub struct Message<T, R = ()> {
    message: pillarbox_core::Message<T, R>,
    engine: Arc<Engine>,
}

impl<T, R: 'static> Message<T, R> {
    /// The identity of the message, the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.message.id()
    }

    /// The body.
    pub fn body(&self) -> &T {
        self.message.body()
    }

    /// The receipt of this delivery.
    pub fn receipt(&self) -> &Receipt {
        self.message.receipt()
    }

    /// Number of deliveries of the message, this one included: 1 at first.
    pub fn delivery_count(&self) -> u32 {
        self.message.delivery_count()
    }

    /// Number of earlier deliveries that were [started](crate::SettleAction::Start) and whose lease expired
    /// before anybody settled them.
    pub fn unsettled(&self) -> u32 {
        self.message.unsettled()
    }

    /// Number of earlier deliveries that were no attempt at the work: [released](Self::release), or expired
    /// before they were known to be started.
    pub fn uncounted(&self) -> u32 {
        self.message.uncounted()
    }

    /// When it was first delivered, where the backend tells.
    pub fn first_received_at(&self) -> Option<Timestamp> {
        self.message.first_received_at()
    }

    /// When the message was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.message.enqueued_at()
    }

    /// The attributes that it was sent with.
    pub fn attributes(&self) -> &Attributes {
        self.message.attributes()
    }

    /// Where the sender wants the answer.
    pub fn reply_to(&self) -> Option<&str> {
        self.message.reply_to()
    }

    /// The queue that it came from.
    pub fn queue_name(&self) -> &QueueName {
        self.message.queue_name()
    }

    /// What the backend that it came from can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.message.capabilities()
    }

    /// The delivery as the queue made it, with the undecoded body.
    pub fn delivery(&self) -> &Delivery {
        self.message.delivery()
    }

    /// Takes the message apart. The receipt in the delivery still settles it, by
    /// [`Mailbox::acknowledge`] and its kin.
    pub fn into_parts(self) -> (T, Delivery) {
        self.message.into_parts()
    }

    /// Deletes the message: its work is done.
    ///
    /// Fails with [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) when the lease has ended; the
    /// message is then somebody else's. After [`Connection`](crate::Error::Connection) it is unknown
    /// whether the message was deleted: keep a clone of the [`receipt`](Self::receipt) to ask again by
    /// [`Mailbox::acknowledge`].
    pub fn acknowledge(self) -> Result<()> {
        self.settle(|message| message.acknowledge())
    }

    /// Gives the message back, to be delivered again at once or after `delay`. It joins the tail of the
    /// queue when it becomes ready.
    pub fn nack(self, delay: Duration) -> Result<()> {
        self.settle(|message| message.nack(delay))
    }

    /// Gives the message back as [`nack`](Self::nack) does, and counts this delivery as
    /// [no attempt](Self::uncounted) at the work.
    pub fn release(self, delay: Duration) -> Result<()> {
        self.settle(|message| message.release(delay))
    }

    /// Lets the lease run for `timeout` from now, however long it had left.
    pub fn extend_visibility(&self, timeout: Duration) -> Result<()> {
        self.engine.wait(Some(self.queue_name()), self.message.extend_visibility(timeout))
    }

    /// The mailbox that the sender wants the answer in.
    ///
    /// Fails with [`ReplyMailboxUnavailable`](crate::Error::ReplyMailboxUnavailable) when the message has no
    /// reply address, or one that the mailbox [does not reply to](crate::MailboxBuilder::allow_reply_to).
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        let mailbox = self.engine.within(|_| self.message.reply_mailbox())?;
        Ok(Mailbox::new(mailbox, self.engine.clone()))
    }

    /// The same message for async code, such as a transaction of the SQLite backend.
    pub const fn as_async(&self) -> &pillarbox_core::Message<T, R> {
        &self.message
    }

    fn settle<F>(self, settle: impl FnOnce(pillarbox_core::Message<T, R>) -> F) -> Result<()>
    where
        F: Future<Output = Result<()>>,
    {
        let queue = self.queue_name().clone();
        self.engine.wait(Some(&queue), settle(self.message))
    }
}

impl<T, R: 'static> Leased for Message<T, R> {
    fn queue_name(&self) -> &QueueName {
        Leased::queue_name(&self.message)
    }

    fn capabilities(&self) -> &Capabilities {
        Leased::capabilities(&self.message)
    }

    fn receipt(&self) -> &Receipt {
        Leased::receipt(&self.message)
    }
}

impl<T: fmt::Debug, R: 'static> fmt::Debug for Message<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Message").field(&self.message).finish()
    }
}

/// What one receive delivered: the messages in order, and apart from them those whose bodies could not be
/// decoded.
///
/// Iterating gives the decoded messages. Look at [`undecodable`](Self::undecodable) first, or bodies that
/// cannot be decoded come back unseen whenever their lease ends.
#[must_use = "messages that are not settled are delivered again when their leases end"]
pub struct Batch<T, R = ()> {
    messages: Vec<Message<T, R>>,
    undecodable: Vec<Undecodable<R>>,
    mailbox: Mailbox<T, R>,
}

impl<T: 'static, R: 'static> Batch<T, R> {
    pub(super) fn new(mut batch: pillarbox_core::Batch<T, R>, mailbox: &Mailbox<T, R>) -> Self {
        let engine = mailbox.engine();
        let undecodable = batch.take_undecodable().into_iter().map(|undecodable| {
            let error = undecodable.error().clone();
            let message = undecodable.into_message();
            Undecodable { message: Message { message, engine: engine.clone() }, error }
        });
        let undecodable = undecodable.collect();
        let messages = batch.into_iter();
        let messages = messages.map(|message| Message { message, engine: engine.clone() });
        Self { messages: messages.collect(), undecodable, mailbox: mailbox.clone() }
    }

    /// Number of decoded messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether nothing was delivered, neither decoded nor undecodable.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.undecodable.is_empty()
    }

    /// The decoded messages.
    pub fn messages(&self) -> &[Message<T, R>] {
        &self.messages
    }

    /// The messages whose bodies could not be decoded.
    pub fn undecodable(&self) -> &[Undecodable<R>] {
        &self.undecodable
    }

    /// Takes the messages whose bodies could not be decoded out of the batch.
    pub fn take_undecodable(&mut self) -> Vec<Undecodable<R>> {
        std::mem::take(&mut self.undecodable)
    }

    /// Acknowledges all decoded messages in one call. Undecodable ones are left as they are.
    pub fn acknowledge(self) -> Result<BatchResults<()>> {
        let receipts = self.messages.iter().map(|message| message.receipt().clone());
        self.mailbox.settle(receipts.map(Settle::acknowledge))
    }
}

impl<T, R> IntoIterator for Batch<T, R> {
    type Item = Message<T, R>;
    type IntoIter = std::vec::IntoIter<Message<T, R>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.into_iter()
    }
}

impl<'a, T, R> IntoIterator for &'a Batch<T, R> {
    type Item = &'a Message<T, R>;
    type IntoIter = std::slice::Iter<'a, Message<T, R>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.iter()
    }
}

impl<T: fmt::Debug, R: 'static> fmt::Debug for Batch<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("blocking::Batch")
            .field("messages", &self.messages)
            .field("undecodable", &self.undecodable)
            .finish_non_exhaustive()
    }
}

/// A delivered message whose body could not be decoded.
#[must_use = "a message that is not settled is delivered again when its lease ends"]
pub struct Undecodable<R = ()> {
    message: Message<Bytes, R>,
    error: Error,
}

impl<R: 'static> Undecodable<R> {
    /// Why the body could not be decoded.
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// The message with its body as raw bytes.
    pub const fn message(&self) -> &Message<Bytes, R> {
        &self.message
    }

    /// Gives out the message with its body as raw bytes, to be settled like any other.
    pub fn into_message(self) -> Message<Bytes, R> {
        self.message
    }

    /// Deletes the message.
    pub fn acknowledge(self) -> Result<()> {
        self.message.acknowledge()
    }
}

impl<R: 'static> fmt::Debug for Undecodable<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("blocking::Undecodable")
            .field("message", &self.message)
            .field("error", &self.error)
            .finish()
    }
}
