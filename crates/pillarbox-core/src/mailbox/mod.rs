//! Typed mailboxes and their messages.

mod batch;
mod mailboxes;
mod message;
mod reply_addresses;
mod resolver;
mod results;

pub use self::batch::{Batch, Undecodable};
pub use self::mailboxes::{MailboxBuilder, Mailboxes};
pub use self::message::{Leased, Message};
pub use self::resolver::{Factory, MailboxResolver, NoReplies, Registry, RegistryThenFactory};
pub use self::results::BatchResults;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::capabilities::expect_len;
use crate::codec::{Codec, CodecError};
use crate::error::{Error, Result};
use crate::message::{Delivery, MessageState, Outgoing, Peeked, RawMessage, Sent};
use crate::options::{Receive, SendOptions};
use crate::queue::Queue;
use crate::settle::Settle;
use crate::{Capabilities, Counts, MessageId, QueueName, Receipt};

/// A queue of messages with bodies of type `T`, whose receivers reply with bodies of type `R`.
///
/// The type is the same on every backend, and cheap to clone. Open one with [`Mailboxes::mailbox`].
///
/// Delivery is at least once: a received message stays in the queue, invisible to other receivers, until it is
/// acknowledged. If its lease expires first, it is delivered again. Handlers should therefore be idempotent for the
/// same [`Message::id`].
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Receive};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let jobs: Mailbox<String> = backend.mailbox("jobs")?;
/// jobs.send(&"sweep the floor".to_owned()).await?;
///
/// let batch = jobs.receive(Receive::up_to(10).wait(Duration::from_secs(20))).await?;
/// for message in batch {
///     println!("{}", message.body());
///     message.acknowledge().await?;
/// }
/// # Ok(()) }
/// ```
pub struct Mailbox<T, R = ()> {
    queue: Arc<dyn Queue>,
    codec: Arc<dyn Codec<T>>,
    replies: Arc<dyn MailboxResolver<R>>,
    backend: Option<Mailboxes>,
    /// The message that this mailbox receives the reply to, if it was resolved from a reply address.
    request: Option<Request>,
}

/// Queue and id of a message that is replied to.
#[derive(Debug, Clone)]
struct Request {
    queue: QueueName,
    id: MessageId,
}

impl<T: 'static, R: 'static> Mailbox<T, R> {
    /// Creates a mailbox from a queue. Most callers use [`Mailboxes::mailbox`] instead.
    pub fn new(
        queue: Arc<dyn Queue>,
        codec: impl Codec<T>,
        replies: impl MailboxResolver<R>,
    ) -> Self {
        let (codec, replies) = (Arc::new(codec), Arc::new(replies));
        Self { queue, codec, replies, backend: None, request: None }
    }

    /// Sets the [backend](Self::backend) of a mailbox that was created from a queue, so that other mailboxes of the
    /// backend can be opened, such as the mailbox of its dead letters.
    pub fn on(mut self, backend: Mailboxes) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Sets the message that this mailbox receives the reply to.
    fn replying_to(mut self, queue: &QueueName, id: MessageId) -> Self {
        self.request = Some(Request { queue: queue.clone(), id });
        self
    }

    /// Converts the error of a send: if the queue of a reply does not exist, the reply mailbox is unavailable.
    fn send_error(&self, error: Error) -> Error {
        match (&self.request, error) {
            (Some(Request { queue, id }), error) if error.is_missing_queue() => {
                let cause = Arc::new(error);
                Error::ReplyMailboxUnavailable { queue: queue.clone(), id: *id, cause }
            }
            (_, error) => error,
        }
    }

    /// Sets the resolver of reply addresses.
    pub fn with_replies(mut self, replies: impl MailboxResolver<R>) -> Self {
        self.replies = Arc::new(replies);
        self
    }

    /// Returns a mailbox of the same queue with another codec, for bodies of another type or format.
    pub fn with_codec<U: 'static>(&self, codec: impl Codec<U>) -> Mailbox<U, R> {
        Mailbox {
            queue: self.queue.clone(),
            codec: Arc::new(codec),
            replies: self.replies.clone(),
            backend: self.backend.clone(),
            request: self.request.clone(),
        }
    }

    /// Returns the backend of the mailbox. `None` if the mailbox was created from a [`Queue`] alone.
    pub const fn backend(&self) -> Option<&Mailboxes> {
        self.backend.as_ref()
    }

    /// Returns the name of the queue.
    pub fn name(&self) -> &QueueName {
        self.queue.name()
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    /// Returns the underlying queue of bytes.
    pub fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// Sends a message and returns its id.
    pub async fn send(&self, body: &T) -> Result<MessageId> {
        self.send_with(body, SendOptions::new()).await
    }

    /// Sends a message with options: a reply address, a delay, attributes or an id, and returns its id.
    ///
    /// The message may have been stored even if the send fails with [`Error::Connection`]. To repeat the send without
    /// creating a second message, use the same id: either the id in the [error](Error::message_id), or one that the
    /// caller chose:
    ///
    /// ```
    /// # use pillarbox_core::*;
    /// # async fn f(jobs: Mailbox<u32>) -> Result<()> {
    /// let id = MessageId::new();
    /// while let Err(error) = jobs.send_with(&7, SendOptions::new().id(id)).await {
    ///     if !error.is_transient() {
    ///         return Err(error);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn send_with(&self, body: &T, options: SendOptions) -> Result<MessageId> {
        let message = self.encode(body, options)?;
        let id = message.id;
        match self.queue.send_one(message).await {
            Ok(sent) => Ok(sent.id),
            Err(error) => Err(self.send_error(error.about(Some(id)))),
        }
    }

    /// Sends any number of messages and returns the result of each, in order.
    ///
    /// More messages than the backend accepts in one call are sent in several calls. Fails as a whole if nothing is
    /// known about any message; after [`Error::Connection`] some may be stored. To be able to repeat the call then,
    /// choose the ids with [`send_batch_with`](Self::send_batch_with): new ids would create new messages.
    pub async fn send_batch<'a>(
        &self,
        bodies: impl IntoIterator<Item = &'a T>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.send_batch_with(bodies.into_iter().map(|body| (body, SendOptions::new()))).await
    }

    /// Sends any number of messages, each with its own options, and returns the result of each, in order.
    pub async fn send_batch_with<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a T, SendOptions)>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        let mut encoded = Vec::new();
        let mut unencodable = Vec::new();
        for (index, (body, options)) in messages.into_iter().enumerate() {
            match self.encode(body, options) {
                Ok(message) => encoded.push(message),
                Err(error) => unencodable.push((index, error)),
            }
        }
        let sent = self.in_batches(encoded, |batch| self.queue.send(batch)).await;
        let to_id = |sent: Result<Sent>| sent.map(|sent| sent.id).map_err(|e| self.send_error(e));
        let mut results: Vec<_> =
            sent.map_err(|error| self.send_error(error))?.into_iter().map(to_id).collect();
        for (index, error) in unencodable {
            results.insert(index, Err(error));
        }
        Ok(BatchResults(results))
    }

    /// Receives messages, each under its own lease.
    ///
    /// Returns as soon as one message is ready, without waiting to fill the batch, and returns an empty batch if none
    /// is ready within [`Receive::wait`]. Dropping the future leaves no message in flight.
    ///
    /// Check [`Batch::undecodable`] first. Otherwise, bodies that cannot be decoded are delivered again unnoticed each
    /// time their lease expires.
    pub async fn receive(&self, request: Receive) -> Result<Batch<T, R>> {
        let deliveries = self.queue.receive(request).await?;
        let mut batch =
            Batch { messages: Vec::with_capacity(deliveries.len()), undecodable: Vec::new() };
        for delivery in deliveries {
            match self.decode(&delivery.message) {
                Ok(body) => batch.messages.push(self.message(body, delivery)),
                Err(error) => {
                    let message = self.message(delivery.message.body.clone(), delivery);
                    batch.undecodable.push(Undecodable { message, error });
                }
            }
        }
        Ok(batch)
    }

    /// Returns at most `max` messages without delivering them: first the ready ones in order of delivery, then the
    /// others in the order in which they will become ready. For more messages than the backend returns in one call,
    /// page through [`Queue::peek`].
    pub async fn peek(&self, max: usize) -> Result<Vec<Peek<T>>> {
        let page = self.queue.peek(max, None).await?.whole(self.queue.name())?;
        let decode =
            |Peeked { message, state }| Peek { body: self.decode(&message), message, state };
        Ok(page.messages.into_iter().map(decode).collect())
    }

    /// Deletes a message by the receipt of its delivery.
    ///
    /// For receipts that were stored or came from another process. To settle a received message, call
    /// [`Message::acknowledge`].
    pub async fn acknowledge(&self, receipt: &Receipt) -> Result<()> {
        settle_one(&*self.queue, Settle::acknowledge(receipt.clone())).await
    }

    /// Returns a message to the queue by its receipt, ready at once or after `delay`.
    pub async fn nack(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::nack(receipt.clone(), delay)).await
    }

    /// Returns a message to the queue by its receipt, without counting the delivery as an attempt. See
    /// [`Message::release`].
    pub async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::release(receipt.clone(), delay)).await
    }

    /// Sets the lease of a delivery to expire `timeout` from now.
    pub async fn extend_visibility(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::extend(receipt.clone(), timeout)).await
    }

    /// Settles any number of deliveries and returns the result of each, in order.
    ///
    /// Fails as a whole if nothing is known about any of them; after [`Error::Connection`] some may be settled.
    pub async fn settle(
        &self,
        settles: impl IntoIterator<Item = Settle>,
    ) -> Result<BatchResults<()>> {
        let settles = settles.into_iter().collect();
        self.in_batches(settles, |batch| self.queue.settle(batch)).await.map(BatchResults)
    }

    /// Counts the messages by state.
    pub async fn counts(&self) -> Result<Counts> {
        self.queue.counts().await
    }

    /// Returns the number of messages in any state.
    pub async fn approximate_count(&self) -> Result<u64> {
        Ok(self.counts().await?.total())
    }

    /// Deletes all messages and returns their number.
    pub async fn purge(&self) -> Result<u64> {
        self.queue.purge().await
    }

    /// Closes this mailbox and its clones: waiting receives end, and every later call fails with [`Error::Closed`].
    /// Messages are not affected.
    pub async fn close(&self) {
        self.queue.close().await;
    }

    /// Returns whether this mailbox is closed.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Creates the message that [`send_with`](Self::send_with) would send, without sending it. For backends that can
    /// store it in another way, such as in a transaction of the caller.
    pub fn encode(&self, body: &T, options: SendOptions) -> Result<Outgoing> {
        let id = options.id.unwrap_or_else(MessageId::new);
        let encoded = self.codec.encode(body);
        let body = encoded.map_err(|cause| self.codec_error(id, "encode", cause))?;
        let mut message = Outgoing::with_id(id, body);
        message.attributes = options.attributes;
        message.reply_to = options.reply_to;
        message.delay = options.delay;
        message.enqueued_at = options.enqueued_at;
        Ok(message)
    }

    /// Decodes the body of a message that was received from the [queue](Self::queue) itself.
    pub fn decode(&self, message: &RawMessage) -> Result<T> {
        let decoded = self.codec.decode(&message.body);
        decoded.map_err(|cause| self.codec_error(message.id, "decode", cause))
    }

    fn codec_error(&self, id: MessageId, action: &'static str, cause: CodecError) -> Error {
        let (queue, codec) = (self.queue.name().clone(), self.codec.name());
        Error::Serialization { queue, id, action, codec, cause: cause.into() }
    }

    /// Returns the mailbox that the sender of a message wants the reply in, for a message that was received from the
    /// [queue](Self::queue) itself. See [`Message::reply_mailbox`].
    pub fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>> {
        resolver::reply_mailbox(&*self.replies, self.name(), message)
    }

    /// Returns the mailbox at a reply address, to receive replies there with the codec that they are sent with.
    pub fn resolve_reply(&self, address: &str) -> Result<Mailbox<R>> {
        self.replies.resolve(address)
    }

    /// Drops the cached mailbox of a reply address at which no more replies are expected.
    pub fn forget_reply(&self, address: &str) {
        self.replies.forget(address);
    }

    fn message<B>(&self, body: B, delivery: Delivery) -> Message<B, R> {
        Message { body, delivery, queue: self.queue.clone(), replies: self.replies.clone() }
    }

    /// Calls `operation` with as many entries at a time as the backend accepts.
    ///
    /// If a later call fails as a whole, its entries and all after them get its error, so that the results of the
    /// earlier entries are not lost.
    async fn in_batches<'q, E, O, F>(
        &'q self,
        entries: Vec<E>,
        operation: impl Fn(Vec<E>) -> F,
    ) -> Result<Vec<Result<O>>>
    where
        F: Future<Output = Result<Vec<Result<O>>>> + 'q,
    {
        let max = self.capabilities().max_batch;
        if entries.len() <= max {
            return operation(entries).await;
        }
        let total = entries.len();
        let mut results = Vec::with_capacity(total);
        let mut entries = entries.into_iter();
        while results.len() < total {
            let chunk: Vec<_> = entries.by_ref().take(max).collect();
            let expected = chunk.len();
            match operation(chunk).await.and_then(|more| expect_len(more, expected)) {
                Ok(more) => results.extend(more),
                Err(error) if results.is_empty() => return Err(error),
                Err(error) => results.resize_with(total, || Err(error.clone())),
            }
        }
        Ok(results)
    }
}

impl<T, R> Clone for Mailbox<T, R> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            codec: self.codec.clone(),
            replies: self.replies.clone(),
            backend: self.backend.clone(),
            request: self.request.clone(),
        }
    }
}

impl<T: 'static, R: 'static> fmt::Debug for Mailbox<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox")
            .field("backend", &self.capabilities().backend)
            .field("name", self.name())
            .field("codec", &self.codec.name())
            .finish_non_exhaustive()
    }
}

/// A message that was peeked at and not delivered, with its decoded body.
#[derive(Debug)]
pub struct Peek<T> {
    /// The body, or the error of decoding it.
    pub body: Result<T>,
    /// The message as the queue holds it.
    pub message: RawMessage,
    /// State of the message.
    pub state: MessageState,
}

async fn settle_one(queue: &dyn Queue, settle: Settle) -> Result<()> {
    let id = settle.receipt.message_id();
    queue.settle_one(settle).await.map_err(|error| error.about(id))
}
