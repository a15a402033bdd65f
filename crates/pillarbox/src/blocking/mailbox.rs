//! A mailbox, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    BatchResults, Capabilities, Codec, Counts, MailboxResolver, MessageId, Peek, QueueName,
    Receipt, Receive, Result, SendOptions, Settle,
};

use super::engine::Engine;
use super::message::{Batch, Message};

/// A queue of messages with bodies of type `T`, whose receivers reply with bodies of type `R`. Its calls block.
///
/// Cheap to clone, and shared by any number of threads. The guarantees are those of
/// [`pillarbox::Mailbox`](crate::Mailbox). Open one with [`Mailboxes::mailbox`](super::Mailboxes::mailbox).
///
/// ```
/// use std::time::Duration;
/// use pillarbox::blocking::{self, Mailbox};
/// use pillarbox::{Receive, SendOptions};
///
/// # fn main() -> pillarbox::Result<()> {
/// let backend = blocking::open("memory:")?;
/// let requests: Mailbox<u64, String> = backend.builder("requests").allow_reply_to("client-7").open()?;
/// let replies: Mailbox<String> = backend.mailbox("client-7")?;
/// requests.send_with(&7, SendOptions::new().reply_to("client-7"))?;
///
/// for message in requests.receive(Receive::up_to(10).wait(Duration::from_secs(20)))? {
///     message.extend_visibility(Duration::from_secs(60))?;
///     message.reply_mailbox()?.send(&format!("{} is odd", message.body()))?;
///     message.acknowledge()?;
/// }
/// for reply in replies.receive(Receive::one())? {
///     assert_eq!(reply.body(), "7 is odd");
///     reply.acknowledge()?;
/// }
/// # Ok(()) }
/// ```
pub struct Mailbox<T, R = ()> {
    mailbox: pillarbox_core::Mailbox<T, R>,
    pub(super) engine: Arc<Engine>,
}

impl<T: 'static, R: 'static> Mailbox<T, R> {
    pub(super) const fn new(mailbox: pillarbox_core::Mailbox<T, R>, engine: Arc<Engine>) -> Self {
        Self { mailbox, engine }
    }

    /// Sets the resolver of reply addresses. A [`Registry`](crate::Registry) contains [async](Self::as_async)
    /// mailboxes.
    pub fn with_replies(mut self, replies: impl MailboxResolver<R>) -> Self {
        self.mailbox = self.mailbox.with_replies(replies);
        self
    }

    /// Returns a mailbox of the same queue with another codec, for bodies of another type or format.
    pub fn with_codec<U: 'static>(&self, codec: impl Codec<U>) -> Mailbox<U, R> {
        Mailbox::new(self.mailbox.with_codec(codec), self.engine.clone())
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &QueueName {
        self.mailbox.name()
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.mailbox.capabilities()
    }

    /// Sends a message and returns its id.
    pub fn send(&self, body: &T) -> Result<MessageId> {
        self.wait(self.mailbox.send(body))
    }

    /// Sends a message with options: a reply address, a delay, attributes or an id, and returns its id. See
    /// [`pillarbox::Mailbox::send_with`](crate::Mailbox::send_with) for how to repeat a send that failed.
    pub fn send_with(&self, body: &T, options: SendOptions) -> Result<MessageId> {
        self.wait(self.mailbox.send_with(body, options))
    }

    /// Sends any number of messages and returns the result of each, in order.
    pub fn send_batch<'a>(
        &self,
        bodies: impl IntoIterator<Item = &'a T>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.wait(self.mailbox.send_batch(bodies))
    }

    /// Sends any number of messages, each with its own options, and returns the result of each, in order.
    pub fn send_batch_with<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a T, SendOptions)>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.wait(self.mailbox.send_batch_with(messages))
    }

    /// Receives messages, each under its own lease.
    ///
    /// Returns as soon as one message is ready, without waiting to fill the batch, and returns an empty batch if none
    /// is ready within [`Receive::wait`]. Fails with [`Error::Closed`](crate::Error::Closed) if another thread closes
    /// the mailbox meanwhile.
    pub fn receive(&self, request: Receive) -> Result<Batch<T, R>> {
        let batch = self.wait(self.mailbox.receive(request))?;
        Ok(Batch::new(batch, self.mailbox.clone(), self.engine.clone()))
    }

    /// Returns at most `max` messages without delivering them: first the ready ones in order of delivery, then the
    /// others in the order in which they will become ready.
    pub fn peek(&self, max: usize) -> Result<Vec<Peek<T>>> {
        self.wait(self.mailbox.peek(max))
    }

    /// Deletes a message by the receipt of its delivery.
    pub fn acknowledge(&self, receipt: &Receipt) -> Result<()> {
        self.wait(self.mailbox.acknowledge(receipt))
    }

    /// Returns a message to the queue by its receipt, ready at once or after `delay`.
    pub fn nack(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.wait(self.mailbox.nack(receipt, delay))
    }

    /// Returns a message to the queue by its receipt, without counting the delivery as an attempt.
    pub fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.wait(self.mailbox.release(receipt, delay))
    }

    /// Sets the lease of a delivery to expire `timeout` from now.
    pub fn extend_visibility(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        self.wait(self.mailbox.extend_visibility(receipt, timeout))
    }

    /// Settles any number of deliveries and returns the result of each, in order.
    pub fn settle(&self, settles: impl IntoIterator<Item = Settle>) -> Result<BatchResults<()>> {
        self.wait(self.mailbox.settle(settles))
    }

    /// Counts the messages by state.
    pub fn counts(&self) -> Result<Counts> {
        self.wait(self.mailbox.counts())
    }

    /// Returns the number of messages in any state.
    pub fn approximate_count(&self) -> Result<u64> {
        self.wait(self.mailbox.approximate_count())
    }

    /// Deletes all messages and returns their number.
    pub fn purge(&self) -> Result<u64> {
        self.wait(self.mailbox.purge())
    }

    /// Closes this mailbox and its clones: waiting receives of other threads end, and every later call fails with
    /// [`Error::Closed`](crate::Error::Closed). Messages are not affected.
    ///
    /// Fails only on a thread that [must not wait](super#in-async-programs), and closes nothing then.
    pub fn close(&self) -> Result<()> {
        self.wait(async {
            self.mailbox.close().await;
            Ok(())
        })
    }

    /// Returns whether this mailbox is closed.
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Returns the mailbox for async code. It is closed when the last blocking handle of its backend is dropped.
    pub const fn as_async(&self) -> &pillarbox_core::Mailbox<T, R> {
        &self.mailbox
    }

    fn wait<O>(&self, call: impl Future<Output = Result<O>>) -> Result<O> {
        self.engine.wait(Some(self.mailbox.name()), call)
    }
}

impl<T, R: 'static> Message<T, R> {
    /// Returns the mailbox that the sender wants the reply in.
    ///
    /// Fails with [`ReplyMailboxUnavailable`](crate::Error::ReplyMailboxUnavailable) if the message has no reply
    /// address, or one that the mailbox [does not allow](crate::MailboxBuilder::allow_reply_to).
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        let mailbox = self.engine.within(|_| self.as_async().reply_mailbox())?;
        Ok(Mailbox::new(mailbox, self.engine.clone()))
    }
}

impl<T, R> Clone for Mailbox<T, R> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone(), engine: self.engine.clone() }
    }
}

impl<T: 'static, R: 'static> fmt::Debug for Mailbox<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Mailbox").field(&self.mailbox).finish()
    }
}
