//! What a service is called with.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use pillarbox_core::{
    Attributes, Backend, Capabilities, Leased, Mailbox, MemoryBackend, MessageId, Nonce, Queue,
    QueueName, QueueOptions, RawMessage, Receipt, Result, Timestamp,
};

use crate::attributes::original_id;
use crate::lease::{Heartbeat, Lease};
use crate::producer::ProducerHandle;
use crate::trace::TraceContext;

/// One delivery on its way through the service stack: what every layer and the handler get.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceRequest<T, R = (), C = ()> {
    /// The message.
    pub message: Received<T, R>,
    /// What the workers share; see [`Worker::context`](crate::Worker::context).
    pub context: Context<C>,
    /// Sends further messages.
    pub producer: ProducerHandle<T>,
    /// The lease of this delivery.
    pub heartbeat: Heartbeat,
    /// Which delivery of the message this is: 1 at first.
    pub attempt: u32,
    /// Which worker has it.
    pub worker_id: WorkerId,
}

impl<T: Clone, R, C> Clone for ServiceRequest<T, R, C> {
    fn clone(&self) -> Self {
        Self {
            message: self.message.clone(),
            context: self.context.clone(),
            producer: self.producer.clone(),
            heartbeat: self.heartbeat.clone(),
            attempt: self.attempt,
            worker_id: self.worker_id,
        }
    }
}

/// A message as a handler sees it. The right to settle it stays with the dispatcher, which does what the
/// [`Outcome`](crate::Outcome) says; unless the handler acknowledges it in a transaction of its own, by its
/// [`Metadata`].
pub struct Received<T, R = ()> {
    /// The body.
    pub body: T,
    metadata: Metadata,
    mailbox: Arc<Mailbox<T, R>>,
}

impl<T: 'static, R: 'static> Received<T, R> {
    pub(crate) fn new(body: T, metadata: Metadata, mailbox: Arc<Mailbox<T, R>>) -> Self {
        Self { body, metadata, mailbox }
    }

    /// Everything but the body.
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The mailbox that the sender wants the answer in. Fails where the message has no reply address, or
    /// one that leads nowhere.
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        self.mailbox.reply_mailbox(&self.metadata.message)
    }

    pub(crate) const fn mailbox(&self) -> &Arc<Mailbox<T, R>> {
        &self.mailbox
    }

    /// The body, everything else, and what knows where answers go.
    pub(crate) fn into_body(self) -> (T, Metadata, Arc<dyn Replying<R>>) {
        (self.body, self.metadata, self.mailbox)
    }
}

impl<T: Clone, R> Clone for Received<T, R> {
    fn clone(&self) -> Self {
        Self {
            body: self.body.clone(),
            metadata: self.metadata.clone(),
            mailbox: self.mailbox.clone(),
        }
    }
}

impl<T: fmt::Debug, R> fmt::Debug for Received<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received")
            .field("body", &self.body)
            .field("metadata", &self.metadata)
            .finish_non_exhaustive()
    }
}

/// Everything about a message but its body. Cheap to clone.
///
/// By it, a handler can acknowledge the message in a transaction of its own, where the backend can do that
/// ([`Leased`]): `pillarbox_sqlite::transaction::acknowledge(&transaction, &metadata)`. It then returns
/// [`Outcome::settled`](crate::Outcome::settled). Once the handler has ended, that is refused.
#[derive(Clone)]
pub struct Metadata {
    message: Arc<RawMessage>,
    queue: Arc<dyn Queue>,
    receipt: Receipt,
    lease: Arc<Lease>,
}

impl Metadata {
    pub(crate) const fn new(
        message: Arc<RawMessage>,
        queue: Arc<dyn Queue>,
        receipt: Receipt,
        lease: Arc<Lease>,
    ) -> Self {
        Self { message, queue, receipt, lease }
    }

    /// That of a message that is in no queue, to test a handler with: one with a new id and an empty body,
    /// sent just now to a queue called `detached`, and delivered for the first time.
    ///
    /// ```
    /// use pillarbox_runtime::Metadata;
    ///
    /// async fn greet(name: String, about: Metadata) -> String {
    ///     format!("{name}, for the {}. time", about.delivery_count())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// assert_eq!(greet("Ada".to_owned(), Metadata::detached()).await, "Ada, for the 1. time");
    /// # }
    /// ```
    pub fn detached() -> Self {
        // It is one of the names that the contract allows.
        let queue = QueueName::new("detached").expect("a good name");
        let mut message = RawMessage::new(MessageId::new(), Bytes::new(), Timestamp::now());
        message.delivery_count = 1;
        Self::detached_from(queue, message)
    }

    /// That of this message, as if it had been received from a queue, to test a handler with. The message is
    /// a [`RawMessage`], or an `Injected` of `pillarbox-testing`.
    ///
    /// ```
    /// use pillarbox_core::{MessageId, RawMessage, Timestamp};
    /// use pillarbox_runtime::Metadata;
    ///
    /// # fn main() -> pillarbox_core::Result<()> {
    /// let mut message = RawMessage::new(MessageId::new(), "{}", Timestamp::now());
    /// message.delivery_count = 3;
    /// message.reply_to = Some("answers".into());
    /// let about = Metadata::detached_from("orders".try_into()?, message);
    /// assert_eq!((about.queue().as_str(), about.delivery_count()), ("orders", 3));
    /// # Ok(()) }
    /// ```
    pub fn detached_from(queue: QueueName, message: impl Into<RawMessage>) -> Self {
        let message = message.into();
        let receipt = Receipt::new(message.id, Nonce::random());
        let queue = MemoryBackend::new().queue(&queue, QueueOptions::new());
        // A queue in memory takes every name, and is not closed.
        let queue = queue.expect("a new queue in memory");
        Self::new(Arc::new(message), queue, receipt, Arc::default())
    }

    /// The identity of the message, the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.message.id
    }

    /// The id that it was first sent under. Another than its [own](Self::id) if it was a
    /// [dead letter](crate::DeadLetter) and was replayed: each replay is a message with an id of its own.
    pub fn original_id(&self) -> MessageId {
        original_id(&self.message)
    }

    /// The queue that it came from.
    pub fn queue(&self) -> &QueueName {
        self.queue.name()
    }

    /// How often it was delivered, this time included: 1 at first.
    pub fn delivery_count(&self) -> u32 {
        self.message.delivery_count
    }

    /// Number of its earlier deliveries that a handler had started on and that were never settled, because
    /// the process died or the lease was lost.
    pub fn unsettled(&self) -> u32 {
        self.message.unsettled
    }

    /// Number of its earlier deliveries that were no attempt: released, or expired before a handler is known
    /// to have started.
    pub fn uncounted(&self) -> u32 {
        self.message.uncounted
    }

    /// When it was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.message.enqueued_at
    }

    /// The attributes that it was sent with.
    pub fn attributes(&self) -> &Attributes {
        &self.message.attributes
    }

    /// Where the sender wants the answer.
    pub fn reply_to(&self) -> Option<&str> {
        self.message.reply_to.as_deref()
    }

    /// The trace that it belongs to.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(&self.message.attributes)
    }

    /// The message as the queue holds it, with the undecoded body.
    pub fn raw(&self) -> &RawMessage {
        &self.message
    }
}

impl Leased for Metadata {
    fn queue_name(&self) -> &QueueName {
        self.queue.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    fn receipt(&self) -> &Receipt {
        &self.receipt
    }

    fn acknowledging(&self) -> bool {
        self.lease.acknowledge()
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metadata")
            .field("message", &self.message)
            .field("queue", self.queue())
            .finish_non_exhaustive()
    }
}

/// What all handlers of a worker share, such as a pool of connections. A handler takes it as an
/// argument:
///
/// ```
/// use pillarbox_runtime::Context;
///
/// struct Shop { open: bool }
///
/// async fn sell(item: String, Context(shop): Context<Shop>) -> Result<(), &'static str> {
///     if shop.open { Ok(()) } else { Err("closed") }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Context<C>(pub Arc<C>);

impl<C> Clone for Context<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> Deref for Context<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

/// Number of this attempt at a message: 1 at first. A handler takes it as an argument.
///
/// Deliveries that were released, or whose lease expired before a handler is known to have started, are no
/// attempts. [`Metadata::delivery_count`] counts all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

/// Which worker of a group it is, from 0. A handler takes it as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub usize);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Where answers to a message go. A handler takes it as an argument:
///
/// ```
/// use pillarbox_runtime::Replies;
///
/// async fn double(n: u64, replies: Replies<u64>) -> pillarbox_core::Result<()> {
///     replies.mailbox()?.send(&(2 * n)).await.map(|_| ())
/// }
/// ```
pub struct Replies<R> {
    of: Metadata,
    mailbox: Arc<dyn Replying<R>>,
}

impl<R> Replies<R> {
    pub(crate) fn new(of: &Metadata, mailbox: &Arc<dyn Replying<R>>) -> Self {
        Self { of: of.clone(), mailbox: mailbox.clone() }
    }

    /// The mailbox that the sender wants the answer in. Fails where the message has no reply address, or
    /// one that leads nowhere.
    pub fn mailbox(&self) -> Result<Mailbox<R>> {
        self.mailbox.reply_mailbox(&self.of.message)
    }

    /// The address that the sender gave.
    pub fn address(&self) -> Option<&str> {
        self.of.reply_to()
    }
}

impl<R> Clone for Replies<R> {
    fn clone(&self) -> Self {
        Self { of: self.of.clone(), mailbox: self.mailbox.clone() }
    }
}

impl<R> fmt::Debug for Replies<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replies").field(&self.address()).finish()
    }
}

/// A mailbox whose type of bodies does not matter any more.
pub(crate) trait Replying<R>: Send + Sync {
    fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>>;
}

impl<T: 'static, R: 'static> Replying<R> for Mailbox<T, R> {
    fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>> {
        Mailbox::reply_mailbox(self, message)
    }
}
