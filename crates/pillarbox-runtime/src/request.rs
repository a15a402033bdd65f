//! The request of a service: a delivery and what its handler may ask for.

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

/// One delivery on its way through the service stack, as every layer and the handler get it.
#[derive(Debug)]
#[non_exhaustive]
pub struct ServiceRequest<T, R = (), C = ()> {
    /// The message.
    pub message: Received<T, R>,
    /// The context of the workers. See [`Worker::context`](crate::Worker::context).
    pub context: Context<C>,
    /// Sends further messages.
    pub producer: ProducerHandle<T>,
    /// The lease of this delivery.
    pub heartbeat: Heartbeat,
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// The worker that handles it.
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

/// A message as its handler gets it. The runtime settles it by the [`Outcome`](crate::Outcome), unless the handler
/// acknowledges it in its own transaction, by its [`Metadata`].
pub struct Received<T, R = ()> {
    /// The body.
    pub body: T,
    metadata: Metadata,
    pub(crate) mailbox: Arc<Mailbox<T, R>>,
}

impl<T: 'static, R: 'static> Received<T, R> {
    pub(crate) fn new(body: T, metadata: Metadata, mailbox: Arc<Mailbox<T, R>>) -> Self {
        Self { body, metadata, mailbox }
    }

    /// Returns everything but the body.
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Returns the mailbox in which the sender wants the reply. Fails if the message has no reply address, or one
    /// that cannot be resolved.
    pub fn reply_mailbox(&self) -> Result<Mailbox<R>> {
        self.mailbox.reply_mailbox(&self.metadata.message)
    }

    /// Splits into the body, everything else, and the resolver of the reply address.
    pub(crate) fn into_body(self) -> (T, Metadata, Arc<dyn ResolveReplies<R>>) {
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
/// A handler can use it to acknowledge the message in its own transaction, if the backend supports that
/// ([`Leased`]): `pillarbox_sqlite::transaction::acknowledge(&transaction, &metadata)`. It then returns
/// [`Outcome::settled`](crate::Outcome::settled). After the handler has ended, this is refused.
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

    /// Creates metadata of a message that is in no queue, for tests of handlers: with a new id and an empty body, sent
    /// just now to a queue called `detached`, and delivered for the first time.
    ///
    /// ```
    /// use pillarbox_runtime::handler::Metadata;
    ///
    /// async fn greet(name: String, about: Metadata) -> String {
    ///     format!("{name}, delivery {}", about.delivery_count())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// assert_eq!(greet("Ada".to_owned(), Metadata::detached()).await, "Ada, delivery 1");
    /// # }
    /// ```
    pub fn detached() -> Self {
        // The contract allows this name.
        let queue = QueueName::new("detached").expect("a valid name");
        let mut message = RawMessage::new(MessageId::new(), Bytes::new(), Timestamp::now());
        message.delivery_count = 1;
        Self::detached_from(queue, message)
    }

    /// Creates metadata of this message, as if it had been received from `queue`, for tests of handlers. The message
    /// is a [`RawMessage`], or an `Injected` of `pillarbox-testing`.
    ///
    /// ```
    /// use pillarbox_core::{MessageId, RawMessage, Timestamp};
    /// use pillarbox_runtime::handler::Metadata;
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
        // A new memory backend accepts every name, and is not closed.
        let queue = queue.expect("a new queue in memory");
        Self::new(Arc::new(message), queue, receipt, Arc::default())
    }

    /// Returns the id of the message, which is the same at every delivery.
    pub fn id(&self) -> MessageId {
        self.message.id
    }

    /// Returns the id that it was first sent with. It differs from its [own](Self::id) if it was replayed from a
    /// [dead letter](crate::dead_letters::DeadLetter): each replay is a message with its own id.
    pub fn original_id(&self) -> MessageId {
        original_id(&self.message)
    }

    /// Returns the queue that it was received from.
    pub fn queue(&self) -> &QueueName {
        self.queue.name()
    }

    /// Returns its number of deliveries, including this one.
    pub fn delivery_count(&self) -> u32 {
        self.message.delivery_count
    }

    /// Returns the number of earlier deliveries that a handler had started on and that were never settled, because
    /// the process died or the lease was lost.
    pub fn unsettled(&self) -> u32 {
        self.message.unsettled
    }

    /// Returns the number of earlier deliveries that were no attempts: released, or expired before a handler is
    /// known to have started.
    pub fn uncounted(&self) -> u32 {
        self.message.uncounted
    }

    /// Returns when it was sent, by the backend's clock.
    pub fn enqueued_at(&self) -> Timestamp {
        self.message.enqueued_at
    }

    /// Returns the attributes that it was sent with.
    pub fn attributes(&self) -> &Attributes {
        &self.message.attributes
    }

    /// Returns the reply address.
    pub fn reply_to(&self) -> Option<&str> {
        self.message.reply_to.as_deref()
    }

    /// Returns the trace that it belongs to.
    pub fn trace(&self) -> Option<TraceContext> {
        TraceContext::of(&self.message.attributes)
    }

    /// Returns the message as the queue holds it, with the encoded body.
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

/// The value that all handlers of a worker pool share, such as a connection pool. A handler takes it as an
/// argument:
///
/// ```
/// use pillarbox_runtime::handler::Context;
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

/// Number of the attempt at a message, from 1. A handler takes it as an argument.
///
/// Deliveries that were released, or whose lease expired before a handler is known to have started, are no
/// attempts. [`Metadata::delivery_count`] counts all deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Attempt(pub u32);

/// Number of a worker in its pool, from 0. A handler takes it as an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WorkerId(pub usize);

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The reply address of a message. A handler takes it as an argument:
///
/// ```
/// use pillarbox_runtime::handler::Replies;
///
/// async fn double(n: u64, replies: Replies<u64>) -> pillarbox_core::Result<()> {
///     replies.mailbox()?.send(&(2 * n)).await.map(|_| ())
/// }
/// ```
pub struct Replies<R> {
    metadata: Metadata,
    resolver: Arc<dyn ResolveReplies<R>>,
}

impl<R> Replies<R> {
    pub(crate) fn new(metadata: &Metadata, resolver: &Arc<dyn ResolveReplies<R>>) -> Self {
        Self { metadata: metadata.clone(), resolver: resolver.clone() }
    }

    /// Returns the mailbox in which the sender wants the reply. Fails if the message has no reply address, or one
    /// that cannot be resolved.
    pub fn mailbox(&self) -> Result<Mailbox<R>> {
        self.resolver.reply_mailbox(&self.metadata.message)
    }

    /// Returns the address that the sender gave.
    pub fn address(&self) -> Option<&str> {
        self.metadata.reply_to()
    }
}

impl<R> Clone for Replies<R> {
    fn clone(&self) -> Self {
        Self { metadata: self.metadata.clone(), resolver: self.resolver.clone() }
    }
}

impl<R> fmt::Debug for Replies<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Replies").field(&self.address()).finish()
    }
}

/// Resolves reply addresses: a mailbox of any body type.
pub(crate) trait ResolveReplies<R>: Send + Sync {
    fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>>;
}

impl<T: 'static, R: 'static> ResolveReplies<R> for Mailbox<T, R> {
    fn reply_mailbox(&self, message: &RawMessage) -> Result<Mailbox<R>> {
        Mailbox::reply_mailbox(self, message)
    }
}
