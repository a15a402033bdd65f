//! A mailbox, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    BatchResults, Capabilities, Codec, Counts, MailboxResolver, MessageId, Peek, QueueName,
    Receipt, Receive, Result, SendOptions, Settle,
};

use super::Mailboxes;
use super::engine::Engine;
use super::message::Batch;

/// A mailbox whose calls wait: a queue of messages with bodies of type `T`, whose receivers reply with an
/// `R`. Cheap to clone, and shared by any number of threads.
///
/// See [`pillarbox::Mailbox`](crate::Mailbox) for what is promised; it is the same here. Open one with
/// [`Mailboxes::mailbox`].
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
    engine: Arc<Engine>,
}

impl<T: 'static, R: 'static> Mailbox<T, R> {
    pub(super) const fn new(mailbox: pillarbox_core::Mailbox<T, R>, engine: Arc<Engine>) -> Self {
        Self { mailbox, engine }
    }

    /// The same mailbox with another way to find the mailboxes that replies go to. A
    /// [`Registry`](crate::Registry) takes the [async](Self::as_async) ones.
    pub fn with_replies(mut self, replies: impl MailboxResolver<R>) -> Self {
        self.mailbox = self.mailbox.with_replies(replies);
        self
    }

    /// The same queue as a mailbox of bodies of another type, or in another format.
    pub fn with_codec<U: 'static>(&self, codec: impl Codec<U>) -> Mailbox<U, R> {
        Mailbox::new(self.mailbox.with_codec(codec), self.engine.clone())
    }

    /// The backend that it was opened on, to find other mailboxes of the backend. `None` for a mailbox for
    /// replies that is on another one.
    pub fn backend(&self) -> Option<Mailboxes> {
        let backend = self.mailbox.backend()?;
        backend.is_same(&self.engine.backend).then(|| Mailboxes::new(self.engine.clone()))
    }

    /// The name of the queue.
    pub fn name(&self) -> &QueueName {
        self.mailbox.name()
    }

    /// What the backend can do, and within which limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.mailbox.capabilities()
    }

    /// Sends a message and returns its id.
    pub fn send(&self, body: &T) -> Result<MessageId> {
        self.wait(self.mailbox.send(body))
    }

    /// Sends a message with a reply address, a delay, attributes or an id of the caller's. See
    /// [`pillarbox::Mailbox::send_with`](crate::Mailbox::send_with) for how to repeat a send that failed.
    pub fn send_with(&self, body: &T, options: SendOptions) -> Result<MessageId> {
        self.wait(self.mailbox.send_with(body, options))
    }

    /// Sends any number of messages and reports of each, in order, whether it was stored.
    pub fn send_batch<'a>(
        &self,
        bodies: impl IntoIterator<Item = &'a T>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.wait(self.mailbox.send_batch(bodies))
    }

    /// Sends messages, each with options of its own, and reports of each whether it was stored.
    pub fn send_batch_with<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a T, SendOptions)>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.wait(self.mailbox.send_batch_with(messages))
    }

    /// Receives messages, each under a lease of its own.
    ///
    /// Returns as soon as one message is ready and never waits to fill the batch; returns an empty batch
    /// when none came within [`Receive::wait`]. Fails with [`Error::Closed`](crate::Error::Closed) when the
    /// mailbox is closed meanwhile, by another thread.
    pub fn receive(&self, request: Receive) -> Result<Batch<T, R>> {
        let batch = self.wait(self.mailbox.receive(request))?;
        Ok(Batch::new(batch, self))
    }

    /// Looks at up to `max` messages without delivering them: first the ready ones in order of delivery, then
    /// the others in the order in which they become ready.
    pub fn peek(&self, max: usize) -> Result<Vec<Peek<T>>> {
        self.wait(self.mailbox.peek(max))
    }

    /// Acknowledges a delivery by its receipt: the message is deleted.
    pub fn acknowledge(&self, receipt: &Receipt) -> Result<()> {
        self.wait(self.mailbox.acknowledge(receipt))
    }

    /// Gives a message back by its receipt, to be ready at once or after `delay`.
    pub fn nack(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.wait(self.mailbox.nack(receipt, delay))
    }

    /// Gives a message back by its receipt as [`nack`](Self::nack) does, where the delivery was no attempt at
    /// the work.
    pub fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        self.wait(self.mailbox.release(receipt, delay))
    }

    /// Lets the lease of a delivery run for `timeout` from now.
    pub fn extend_visibility(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        self.wait(self.mailbox.extend_visibility(receipt, timeout))
    }

    /// Settles any number of deliveries at once and reports of each, in order, how it went.
    pub fn settle(&self, settles: impl IntoIterator<Item = Settle>) -> Result<BatchResults<()>> {
        self.wait(self.mailbox.settle(settles))
    }

    /// Counts the messages by state.
    pub fn counts(&self) -> Result<Counts> {
        self.wait(self.mailbox.counts())
    }

    /// Counts the messages, whatever their state.
    pub fn approximate_count(&self) -> Result<u64> {
        self.wait(self.mailbox.approximate_count())
    }

    /// Deletes all messages and returns their number.
    pub fn purge(&self) -> Result<u64> {
        self.wait(self.mailbox.purge())
    }

    /// Closes this mailbox and its clones: receives that wait in other threads end, and every later call
    /// fails with [`Error::Closed`](crate::Error::Closed). The messages stay where they are.
    ///
    /// Fails only on a thread that [must not wait](super#in-async-programs); then nothing is closed.
    pub fn close(&self) -> Result<()> {
        self.wait(async {
            self.mailbox.close().await;
            Ok(())
        })
    }

    /// Whether this mailbox was closed.
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// The same mailbox for async code. It is closed when the last blocking handle of its backend goes.
    pub const fn as_async(&self) -> &pillarbox_core::Mailbox<T, R> {
        &self.mailbox
    }

    pub(super) const fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    fn wait<O>(&self, call: impl Future<Output = Result<O>>) -> Result<O> {
        self.engine.wait(Some(self.mailbox.name()), call)
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
