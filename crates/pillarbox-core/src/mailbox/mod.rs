//! What users hold: typed mailboxes and the messages that come out of them.

mod batch;
mod mailboxes;
mod message;
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

use crate::codec::Codec;
use crate::error::{Error, Result};
use crate::options::{Receive, SendOptions};
use crate::queue::{Delivery, Outgoing, Queue, RawMessage, Sent, Settle, of_length};
use crate::{Capabilities, Counts, MessageId, MessageState, QueueName, Receipt};

/// A mailbox: a queue of messages with bodies of type `T`, whose receivers reply with an `R`.
///
/// One type whatever the backend, and cheap to clone. Open one with
/// [`Mailboxes::mailbox`].
///
/// Delivery is at least once: a message that is received stays in the queue, invisible, until it
/// is acknowledged; if its lease ends first, it is delivered again. Handlers should therefore
/// bear being run twice for the same [`Message::id`].
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
    /// The message that is answered here, of a mailbox for replies.
    answered: Option<Answered>,
}

/// A message that is answered: its queue and its id.
#[derive(Debug, Clone)]
struct Answered {
    queue: QueueName,
    id: MessageId,
}

impl<T: 'static, R: 'static> Mailbox<T, R> {
    /// Makes a mailbox of a queue. Most callers use [`Mailboxes::mailbox`] instead.
    pub fn new(
        queue: Arc<dyn Queue>,
        codec: impl Codec<T>,
        replies: impl MailboxResolver<R>,
    ) -> Self {
        let (codec, replies) = (Arc::new(codec), Arc::new(replies));
        Self { queue, codec, replies, backend: None, answered: None }
    }

    /// The same mailbox, knowing the backend that its queue is on: for one that was made of a queue alone, so
    /// that [other mailboxes of the backend](Self::backend) are found, such as the mailbox for its dead letters.
    pub fn on(mut self, backend: Mailboxes) -> Self {
        self.backend = Some(backend);
        self
    }

    /// The same, as the one that the answer to a message goes to.
    fn answering(mut self, queue: &QueueName, id: MessageId) -> Self {
        self.answered = Some(Answered { queue: queue.clone(), id });
        self
    }

    /// What a send failed by. Where answers go to a queue that is not there, they have nowhere to go.
    fn unsent(&self, error: Error) -> Error {
        match (&self.answered, error) {
            (Some(Answered { queue, id }), error) if error.is_missing_queue() => {
                let cause = Arc::new(error);
                Error::ReplyMailboxUnavailable { queue: queue.clone(), id: *id, cause }
            }
            (_, error) => error,
        }
    }

    /// The same mailbox with another way to find the mailboxes that replies go to.
    pub fn with_replies(mut self, replies: impl MailboxResolver<R>) -> Self {
        self.replies = Arc::new(replies);
        self
    }

    /// The same queue as a mailbox of bodies of another type, or in another format.
    pub fn with_codec<U: 'static>(&self, codec: impl Codec<U>) -> Mailbox<U, R> {
        Mailbox {
            queue: self.queue.clone(),
            codec: Arc::new(codec),
            replies: self.replies.clone(),
            backend: self.backend.clone(),
            answered: self.answered.clone(),
        }
    }

    /// The backend that it was opened on, to find other mailboxes of the backend. `None` for one that was made of a
    /// [`Queue`] alone.
    pub const fn backend(&self) -> Option<&Mailboxes> {
        self.backend.as_ref()
    }

    /// The name of the queue.
    pub fn name(&self) -> &QueueName {
        self.queue.name()
    }

    /// What the backend can do, and within which limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    /// The queue underneath, which speaks bytes.
    pub fn queue(&self) -> &Arc<dyn Queue> {
        &self.queue
    }

    /// Sends a message and returns its id.
    pub async fn send(&self, body: &T) -> Result<MessageId> {
        self.send_with(body, SendOptions::new()).await
    }

    /// Sends a message with a reply address, a delay, attributes or an id of the caller's.
    ///
    /// A send that fails with [`Error::Connection`] may have been stored all the same. To repeat
    /// it without risking a second message, send it under the same id: the error
    /// [says](Error::message_id) which it was, or choose it yourself:
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
        let sent = only(self.queue.send(vec![message]).await);
        sent.map(|sent| sent.id).map_err(|error| self.unsent(error.about(Some(id))))
    }

    /// Sends messages and says of each, in order, whether it was stored.
    ///
    /// Any number is allowed: more than the backend takes in one call go in several. Fails as a
    /// whole where nothing is known of any of them; after [`Error::Connection`] some may be stored.
    /// To be able to repeat the call then, choose the ids yourself by
    /// [`send_batch_with`](Self::send_batch_with): new ids would make new messages.
    pub async fn send_batch<'a>(
        &self,
        bodies: impl IntoIterator<Item = &'a T>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        self.send_batch_with(bodies.into_iter().map(|body| (body, SendOptions::new()))).await
    }

    /// Sends messages, each with options of its own, and says of each whether it was stored.
    pub async fn send_batch_with<'a>(
        &self,
        messages: impl IntoIterator<Item = (&'a T, SendOptions)>,
    ) -> Result<BatchResults<MessageId>>
    where
        T: 'a,
    {
        let mut encoded = Vec::new();
        let mut unencodable = Vec::new();
        for (place, (body, options)) in messages.into_iter().enumerate() {
            match self.encode(body, options) {
                Ok(message) => encoded.push(message),
                Err(error) => unencodable.push((place, error)),
            }
        }
        let sent = self.in_batches(encoded, |batch| self.queue.send(batch)).await;
        let answer = |sent: Result<Sent>| sent.map(|sent| sent.id).map_err(|e| self.unsent(e));
        let mut results: Vec<_> =
            sent.map_err(|error| self.unsent(error))?.into_iter().map(answer).collect();
        for (place, error) in unencodable {
            results.insert(place, Err(error));
        }
        Ok(BatchResults(results))
    }

    /// Receives messages, each under a lease of its own.
    ///
    /// Returns as soon as one message is ready and never waits to fill the batch; returns an
    /// empty batch when none came within [`Receive::wait`]. Dropping the future strands nothing.
    ///
    /// Look at [`Batch::undecodable`] before the messages, or bodies that cannot be decoded come
    /// back unseen whenever their lease ends.
    pub async fn receive(&self, request: Receive) -> Result<Batch<T, R>> {
        let deliveries = self.queue.receive(request).await?;
        let mut batch = Batch::with_capacity(deliveries.len());
        for delivery in deliveries {
            match self.decode(&delivery.message) {
                Ok(body) => batch.push(self.message(body, delivery)),
                Err(error) => {
                    let raw = delivery.message.body.clone();
                    batch.push_undecodable(Undecodable::new(self.message(raw, delivery), error));
                }
            }
        }
        Ok(batch)
    }

    /// Looks at up to `max` messages without delivering them: first the ready ones in order of
    /// delivery, then the others in the order in which they will become ready. To look at more
    /// than the backend shows in a call, page through [`Queue::peek`].
    pub async fn peek(&self, max: usize) -> Result<Vec<Peek<T>>> {
        let page = self.queue.peek(max, None).await?.whole(self.queue.name())?;
        Ok(page
            .messages
            .into_iter()
            .map(|peeked| Peek {
                body: self.decode(&peeked.message),
                message: peeked.message,
                state: peeked.state,
            })
            .collect())
    }

    /// Acknowledges a delivery by its receipt: the message is deleted.
    ///
    /// For receipts that were kept or came from elsewhere; who holds the message itself calls
    /// [`Message::acknowledge`].
    pub async fn acknowledge(&self, receipt: &Receipt) -> Result<()> {
        settle_one(&*self.queue, Settle::acknowledge(receipt.clone())).await
    }

    /// Gives a message back by its receipt, to be ready at once or after `delay`.
    pub async fn nack(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::nack(receipt.clone(), delay)).await
    }

    /// Gives a message back by its receipt as [`nack`](Self::nack) does, where the delivery was no attempt
    /// at the work: see [`Message::release`].
    pub async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::release(receipt.clone(), delay)).await
    }

    /// Lets the lease of a delivery run for `timeout` from now.
    pub async fn extend_visibility(&self, receipt: &Receipt, timeout: Duration) -> Result<()> {
        settle_one(&*self.queue, Settle::extend(receipt.clone(), timeout)).await
    }

    /// Settles many deliveries at once and says of each, in order, how it went.
    ///
    /// Any number is allowed. Fails as a whole where nothing is known of any of them; after
    /// [`Error::Connection`] some may be settled.
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

    /// Counts the messages, whatever their state.
    pub async fn approximate_count(&self) -> Result<u64> {
        Ok(self.counts().await?.total())
    }

    /// Deletes all messages and says how many.
    pub async fn purge(&self) -> Result<u64> {
        self.queue.purge().await
    }

    /// Closes this mailbox and its clones: receives that wait end, and every later call says
    /// [`Error::Closed`]. The messages stay where they are.
    pub async fn close(&self) {
        self.queue.close().await;
    }

    /// Whether this mailbox was closed.
    pub fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Makes the message that [`send_with`](Self::send_with) would send, and does not send it: for
    /// backends that can take it in another way, such as inside a transaction of the caller's.
    pub fn encode(&self, body: &T, options: SendOptions) -> Result<Outgoing> {
        let id = options.id.unwrap_or_else(MessageId::new);
        let body = self.codec.encode(body).map_err(|cause| Error::Serialization {
            queue: self.queue.name().clone(),
            id,
            action: "encode",
            codec: self.codec.name(),
            cause: cause.into(),
        })?;
        let mut message = Outgoing::with_id(id, body);
        message.attributes = options.attributes;
        message.reply_to = options.reply_to;
        message.delay = options.delay;
        message.enqueued_at = options.enqueued_at;
        Ok(message)
    }

    /// Turns the body of a message into a `T`: for those who receive from the [queue](Self::queue)
    /// itself.
    pub fn decode(&self, message: &RawMessage) -> Result<T> {
        self.codec.decode(&message.body).map_err(|cause| Error::Serialization {
            queue: self.queue.name().clone(),
            id: message.id,
            action: "decode",
            codec: self.codec.name(),
            cause: cause.into(),
        })
    }

    /// The mailbox that the sender of a message wants the answer in: for those who receive from the
    /// [queue](Self::queue) itself; who holds the message calls [`Message::reply_mailbox`].
    pub fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>> {
        resolver::reply_mailbox(&*self.replies, self.name(), message)
    }

    /// The mailbox that a reply address names: for those who wait for answers there, and want them in the
    /// same format as those who answer.
    pub fn resolve_reply(&self, address: &str) -> Result<Mailbox<R>> {
        self.replies.resolve(address)
    }

    /// Lets go of what is kept of a reply address, when nobody waits there any more.
    pub fn forget_reply(&self, address: &str) {
        self.replies.forget(address);
    }

    fn message<B>(&self, body: B, delivery: Delivery) -> Message<B, R> {
        Message::new(body, delivery, self.queue.clone(), self.replies.clone())
    }

    /// Calls `operation` with as many entries at a time as the backend takes.
    ///
    /// When a later call fails as a whole, its entries and those after it carry the error, so
    /// that the results of the earlier ones are not lost.
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
            match operation(chunk).await.and_then(|more| of_length(more, expected)) {
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
            answered: self.answered.clone(),
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

/// A message that was looked at and not delivered.
#[derive(Debug)]
pub struct Peek<T> {
    /// The body, or why it cannot be decoded.
    pub body: Result<T>,
    /// The message as the queue holds it.
    pub message: RawMessage,
    /// What state it is in.
    pub state: MessageState,
}

async fn settle_one(queue: &dyn Queue, settle: Settle) -> Result<()> {
    let id = settle.receipt.message_id();
    only(queue.settle(vec![settle]).await).map_err(|error| error.about(id))
}

/// The one result of a batch of one.
fn only<T>(results: Result<Vec<Result<T>>>) -> Result<T> {
    let mut results = of_length(results?, 1)?;
    results.remove(0)
}
