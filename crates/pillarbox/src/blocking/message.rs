//! The messages of a receive, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    Attributes, BatchResults, Capabilities, Delivery, Error, Leased, MessageId, QueueName, Receipt,
    Result, Settle, Timestamp,
};

use super::engine::Engine;

/// A received message: its body, and the lease of this delivery.
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
/// Dropping it settles nothing: the message is delivered again when its lease expires.
#[must_use = "a message that is not settled is delivered again when its lease expires"]
pub struct Message<T, R = ()> {
    message: pillarbox_core::Message<T, R>,
    pub(super) engine: Arc<Engine>,
}

impl<T, R: 'static> Message<T, R> {
    /// Returns the id of the message, which is the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.message.id()
    }

    /// Returns the body.
    pub fn body(&self) -> &T {
        self.message.body()
    }

    /// Returns the receipt of this delivery.
    pub fn receipt(&self) -> &Receipt {
        self.message.receipt()
    }

    /// Returns the number of deliveries, including this one: 1 at first.
    pub fn delivery_count(&self) -> u32 {
        self.message.delivery_count()
    }

    /// Returns the number of earlier deliveries that were [started](crate::SettleAction::Start) and whose lease
    /// expired before they were settled.
    pub fn unsettled(&self) -> u32 {
        self.message.unsettled()
    }

    /// Returns the number of earlier deliveries that do not count as attempts: they were
    /// [released](Self::release), or expired before they were started.
    pub fn uncounted(&self) -> u32 {
        self.message.uncounted()
    }

    /// Returns the time of the first delivery, if the backend reports it.
    pub fn first_received_at(&self) -> Option<Timestamp> {
        self.message.first_received_at()
    }

    /// Returns the time at which the message was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.message.enqueued_at()
    }

    /// Returns the attributes of the message.
    pub fn attributes(&self) -> &Attributes {
        self.message.attributes()
    }

    /// Returns the address that the sender wants the reply at.
    pub fn reply_to(&self) -> Option<&str> {
        self.message.reply_to()
    }

    /// Returns the name of the queue that delivered the message.
    pub fn queue_name(&self) -> &QueueName {
        self.message.queue_name()
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.message.capabilities()
    }

    /// Returns the delivery as it came from the queue, with the encoded body.
    pub fn delivery(&self) -> &Delivery {
        self.message.delivery()
    }

    /// Splits the message into its body and its delivery. The receipt in the delivery still settles it, by
    /// [`Mailbox::acknowledge`](super::Mailbox::acknowledge) and similar methods.
    pub fn into_parts(self) -> (T, Delivery) {
        self.message.into_parts()
    }

    /// Deletes the message, because its work is done.
    ///
    /// Fails with [`ReceiptHandleExpired`](crate::Error::ReceiptHandleExpired) if the lease has expired; another
    /// receiver may have the message then. After [`Connection`](crate::Error::Connection) it is unknown whether the
    /// message was deleted: keep a clone of the [`receipt`](Self::receipt) to try again by
    /// [`Mailbox::acknowledge`](super::Mailbox::acknowledge).
    pub fn acknowledge(self) -> Result<()> {
        self.settle(|message| message.acknowledge())
    }

    /// Returns the message to the queue, to be delivered again at once or after `delay`. It goes to the tail of the
    /// queue when it becomes ready.
    pub fn nack(self, delay: Duration) -> Result<()> {
        self.settle(|message| message.nack(delay))
    }

    /// Returns the message to the queue as [`nack`](Self::nack) does, and counts this delivery as
    /// [no attempt](Self::uncounted).
    pub fn release(self, delay: Duration) -> Result<()> {
        self.settle(|message| message.release(delay))
    }

    /// Sets the lease to expire `timeout` from now, whatever time it had left.
    pub fn extend_visibility(&self, timeout: Duration) -> Result<()> {
        self.engine.wait(Some(self.queue_name()), self.message.extend_visibility(timeout))
    }

    /// Returns the message for async code, such as a transaction of the SQLite backend.
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

/// Messages of one receive, in order, with those whose bodies could not be decoded set apart.
///
/// Iterating yields the decoded messages. Check [`undecodable`](Self::undecodable) first. Otherwise, bodies that cannot
/// be decoded are delivered again unnoticed each time their lease expires.
#[must_use = "messages that are not settled are delivered again when their leases expire"]
pub struct Batch<T, R = ()> {
    messages: Vec<Message<T, R>>,
    undecodable: Vec<Undecodable<R>>,
    mailbox: pillarbox_core::Mailbox<T, R>,
    engine: Arc<Engine>,
}

impl<T: 'static, R: 'static> Batch<T, R> {
    pub(super) fn new(
        mut batch: pillarbox_core::Batch<T, R>,
        mailbox: pillarbox_core::Mailbox<T, R>,
        engine: Arc<Engine>,
    ) -> Self {
        let undecodable = batch.take_undecodable().into_iter().map(|undecodable| {
            let error = undecodable.error().clone();
            let message = undecodable.into_message();
            Undecodable { message: Message { message, engine: engine.clone() }, error }
        });
        let undecodable = undecodable.collect();
        let messages = batch.into_iter();
        let messages = messages.map(|message| Message { message, engine: engine.clone() });
        Self { messages: messages.collect(), undecodable, mailbox, engine }
    }

    /// Returns the number of decoded messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether nothing was delivered, neither decoded nor undecodable.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.undecodable.is_empty()
    }

    /// Returns the decoded messages.
    pub fn messages(&self) -> &[Message<T, R>] {
        &self.messages
    }

    /// Returns the messages whose bodies could not be decoded.
    pub fn undecodable(&self) -> &[Undecodable<R>] {
        &self.undecodable
    }

    /// Removes the messages whose bodies could not be decoded from the batch and returns them.
    pub fn take_undecodable(&mut self) -> Vec<Undecodable<R>> {
        std::mem::take(&mut self.undecodable)
    }

    /// Acknowledges all decoded messages in one call. Undecodable messages are not settled.
    pub fn acknowledge(self) -> Result<BatchResults<()>> {
        let receipts = self.messages.iter().map(|message| message.receipt().clone());
        let settle = self.mailbox.settle(receipts.map(Settle::acknowledge));
        self.engine.wait(Some(self.mailbox.name()), settle)
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
#[must_use = "a message that is not settled is delivered again when its lease expires"]
pub struct Undecodable<R = ()> {
    message: Message<Bytes, R>,
    error: Error,
}

impl<R: 'static> Undecodable<R> {
    /// Returns the error of the codec, with the queue and the message.
    pub const fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the message with its body as raw bytes.
    pub const fn message(&self) -> &Message<Bytes, R> {
        &self.message
    }

    /// Converts this into the message with its body as raw bytes, to be settled like any other.
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
