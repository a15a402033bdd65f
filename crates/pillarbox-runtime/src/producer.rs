//! Sending from within handlers, and from anywhere else, through the dispatcher.

use std::fmt;
use std::sync::Arc;

use pillarbox_core::{Error, Mailbox, MessageId, Outgoing, Queue, Result, SendOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::trace::{TraceContext, Tracer};

/// Sends messages through the dispatcher, which puts together what many ask for at the same time.
///
/// Handlers take one as an argument; others get theirs from [`Control`](crate::Control). A send is
/// answered when the backend has stored the message. Messages that a handler sends belong to the trace
/// of the message that it handles. Where as many messages wait to be sent as
/// [`producer_buffer`](crate::Worker::producer_buffer) allows, a send waits until there is room; and before
/// the worker runs, until it does.
///
/// ```
/// use pillarbox_runtime::ProducerHandle;
///
/// async fn explore(depth: u32, producer: ProducerHandle<u32>) -> pillarbox_core::Result<()> {
///     if depth < 3 {
///         producer.send(&(depth + 1)).await?;
///     }
///     Ok(())
/// }
/// ```
pub struct ProducerHandle<T> {
    mailbox: Arc<dyn Encode<T>>,
    /// The kind of what is sent to the worker's own mailbox, where it has several.
    kind: Option<Arc<str>>,
    outlet: Outlet,
}

/// The way to the dispatcher.
#[derive(Clone)]
pub(crate) struct Outlet {
    pub(crate) sender: mpsc::Sender<ProducerMsg>,
    /// A permit for each message that may wait to be sent. None before the workers run; closed once they have
    /// ended.
    pub(crate) room: Arc<Semaphore>,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    /// The trace of the message that is being handled.
    pub(crate) trace: Option<TraceContext>,
}

/// What the dispatcher is asked to send.
pub(crate) struct ProducerMsg {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) message: Outgoing,
    pub(crate) answer: oneshot::Sender<Result<MessageId>>,
    /// Its place among those that wait to be sent.
    pub(crate) place: OwnedSemaphorePermit,
}

impl<T: 'static> ProducerHandle<T> {
    pub(crate) fn new(mailbox: Arc<dyn Encode<T>>, outlet: Outlet) -> Self {
        Self { mailbox, kind: None, outlet }
    }

    /// The same for bodies of one kind.
    pub(crate) fn for_kind<U: 'static>(
        &self,
        mailbox: Arc<dyn Encode<U>>,
        kind: &str,
    ) -> ProducerHandle<U> {
        ProducerHandle { mailbox, kind: Some(kind.into()), outlet: self.outlet.clone() }
    }

    /// Sends a message to the mailbox that the worker serves, and returns its id. From a handler of a
    /// [`Router`](crate::Router) it is of the handler's own kind, unless the options say another.
    ///
    /// A send that is dropped before it is answered may still be carried out.
    pub async fn send(&self, body: &T) -> Result<MessageId> {
        self.send_with(body, SendOptions::new()).await
    }

    /// The same with a reply address, a delay, attributes or an id of the caller's.
    pub async fn send_with(&self, body: &T, options: SendOptions) -> Result<MessageId> {
        let mut message = self.mailbox.encode(body, options)?;
        if let Some(kind) = &self.kind
            && message.attributes.get(Outgoing::KIND).is_none()
        {
            message.attributes.insert(Outgoing::KIND, &**kind);
        }
        self.outlet.send(self.mailbox.queue().clone(), message).await
    }

    /// Sends a message to another mailbox, on whatever backend.
    pub async fn send_to<U: 'static, S: 'static>(
        &self,
        mailbox: &Mailbox<U, S>,
        body: &U,
        options: SendOptions,
    ) -> Result<MessageId> {
        self.forward(mailbox.queue().clone(), mailbox.encode(body, options)?).await
    }

    /// Sends what is encoded already.
    pub(crate) async fn forward(
        &self,
        queue: Arc<dyn Queue>,
        message: Outgoing,
    ) -> Result<MessageId> {
        self.outlet.send(queue, message).await
    }
}

impl Outlet {
    async fn send(&self, queue: Arc<dyn Queue>, mut message: Outgoing) -> Result<MessageId> {
        let own = self.tracer.as_ref().and_then(|tracer| tracer.context(&tracing::Span::current()));
        if let Some(context) = own.as_ref().or(self.trace.as_ref()) {
            context.add_to(&mut message.attributes);
        }
        let closed = Error::Closed { queue: Some(queue.name().clone()) };
        let Ok(place) = self.room.clone().acquire_owned().await else { return Err(closed) };
        let (answer, answered) = oneshot::channel();
        // There is room: the channel holds as many as there can be permits.
        if self.sender.try_send(ProducerMsg { queue, message, answer, place }).is_err() {
            return Err(closed);
        }
        answered.await.unwrap_or(Err(closed))
    }
}

impl fmt::Debug for Outlet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outlet").field("trace", &self.trace).finish_non_exhaustive()
    }
}

impl<T> Clone for ProducerHandle<T> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone(), kind: self.kind.clone(), outlet: self.outlet.clone() }
    }
}

impl<T> fmt::Debug for ProducerHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProducerHandle").field(self.mailbox.queue().name()).finish()
    }
}

/// A mailbox whose type of replies does not matter.
pub(crate) trait Encode<T>: Send + Sync {
    fn encode(&self, body: &T, options: SendOptions) -> Result<Outgoing>;
    fn queue(&self) -> &Arc<dyn Queue>;
}

impl<T: 'static, R: 'static> Encode<T> for Mailbox<T, R> {
    fn encode(&self, body: &T, options: SendOptions) -> Result<Outgoing> {
        Mailbox::encode(self, body, options)
    }

    fn queue(&self) -> &Arc<dyn Queue> {
        Mailbox::queue(self)
    }
}
