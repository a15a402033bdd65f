//! Sending through the worker pool, from handlers and from anywhere else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, MessageId, Outgoing, Queue, Result, SendOptions};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::call_timeout::in_time;
use crate::metrics::PoolMetrics;
use crate::trace::{TraceContext, Tracer};

/// Sends messages through the worker pool, which batches concurrent sends.
///
/// Handlers take one as an argument; other code gets one from [`Control`](crate::Control). A send returns when
/// the backend has stored the message. Messages that a handler sends belong to the trace of the message that it
/// handles. If [`producer_buffer`](crate::Worker::producer_buffer) messages wait to be sent, a send waits until
/// there is room. Sends made before the worker runs wait until it does.
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
    /// The kind of messages to the worker's own mailbox, if it has several.
    kind: Option<Arc<str>>,
    sends: SendChannel,
}

/// The way of messages to the driver, from within one delivery or from anywhere else.
#[derive(Clone)]
pub(crate) struct SendChannel {
    pub(crate) pool: Arc<PoolSends>,
    /// The trace of the message that is being handled.
    pub(crate) trace: Option<TraceContext>,
}

/// The channel through which messages reach the driver.
pub(crate) struct PoolSends {
    pub(crate) sender: mpsc::Sender<SendRequest>,
    /// One permit for each message that may wait to be sent. Empty before the workers run; closed once they have
    /// ended.
    pub(crate) permits: Arc<Semaphore>,
    pub(crate) tracer: Option<Arc<dyn Tracer>>,
    /// How a worker sends without the driver. `None` outside of workers.
    pub(crate) direct: Option<DirectSends>,
}

/// The settings of sends that do not pass through the driver.
pub(crate) struct DirectSends {
    pub(crate) call_timeout: Duration,
    pub(crate) metrics: PoolMetrics,
}

/// A message that the driver is to send.
pub(crate) struct SendRequest {
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) message: Outgoing,
    pub(crate) reply: oneshot::Sender<Result<MessageId>>,
    pub(crate) permit: OwnedSemaphorePermit,
}

impl<T: 'static> ProducerHandle<T> {
    pub(crate) fn new(mailbox: Arc<dyn Encode<T>>, sends: SendChannel) -> Self {
        Self { mailbox, kind: None, sends }
    }

    /// Returns a handle for bodies of one kind.
    pub(crate) fn for_kind<U: 'static>(
        &self,
        mailbox: Arc<dyn Encode<U>>,
        kind: &str,
    ) -> ProducerHandle<U> {
        ProducerHandle { mailbox, kind: Some(kind.into()), sends: self.sends.clone() }
    }

    /// Sends a message to the mailbox that the worker serves, and returns its id. From a handler of a
    /// [`Router`](crate::Router), the message has the handler's kind unless the options set another.
    ///
    /// A send that is dropped before it returns may still take effect.
    pub async fn send(&self, body: &T) -> Result<MessageId> {
        self.send_with(body, SendOptions::new()).await
    }

    /// Sends a message with a reply address, a delay, attributes or an id of its own.
    pub async fn send_with(&self, body: &T, options: SendOptions) -> Result<MessageId> {
        let mut message = self.mailbox.encode(body, options)?;
        if let Some(kind) = &self.kind
            && message.attributes.get(Outgoing::KIND).is_none()
        {
            message.attributes.insert(Outgoing::KIND, &**kind);
        }
        self.sends.send(self.mailbox.queue().clone(), message).await
    }

    /// Sends a message to another mailbox, which may be on another backend.
    pub async fn send_to<U: 'static, S: 'static>(
        &self,
        mailbox: &Mailbox<U, S>,
        body: &U,
        options: SendOptions,
    ) -> Result<MessageId> {
        self.sends.send(mailbox.queue().clone(), mailbox.encode(body, options)?).await
    }

    /// Sends an encoded message for a handler that waits for it. If the backend coalesces concurrent sends, the
    /// message takes no way through the driver, which would only collect some of them.
    pub(crate) async fn send_for_handler(
        &self,
        queue: Arc<dyn Queue>,
        message: Outgoing,
    ) -> Result<MessageId> {
        match &self.sends.pool.direct {
            Some(direct) if queue.capabilities().coalesces => {
                self.sends.send_directly(direct, &*queue, message).await
            }
            _ => self.sends.send(queue, message).await,
        }
    }
}

impl SendChannel {
    async fn send(&self, queue: Arc<dyn Queue>, mut message: Outgoing) -> Result<MessageId> {
        self.add_trace(&mut message);
        let closed = Error::Closed { queue: Some(queue.name().clone()) };
        let Ok(permit) = self.pool.permits.clone().acquire_owned().await else {
            return Err(closed);
        };
        let (reply, sent) = oneshot::channel();
        // There is room: the channel holds as many as there can be permits.
        if self.pool.sender.try_send(SendRequest { queue, message, reply, permit }).is_err() {
            return Err(closed);
        }
        sent.await.unwrap_or(Err(closed))
    }

    async fn send_directly(
        &self,
        direct: &DirectSends,
        queue: &dyn Queue,
        mut message: Outgoing,
    ) -> Result<MessageId> {
        self.add_trace(&mut message);
        let sent = in_time(direct.call_timeout, queue, "send", queue.send_one(message)).await?;
        direct.metrics.sent(1);
        Ok(sent.id)
    }

    fn add_trace(&self, message: &mut Outgoing) {
        let current =
            self.pool.tracer.as_ref().and_then(|tracer| tracer.context(&tracing::Span::current()));
        if let Some(context) = current.as_ref().or(self.trace.as_ref()) {
            context.add_to(&mut message.attributes);
        }
    }
}

impl fmt::Debug for SendChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendChannel").field("trace", &self.trace).finish_non_exhaustive()
    }
}

impl<T> Clone for ProducerHandle<T> {
    fn clone(&self) -> Self {
        Self { mailbox: self.mailbox.clone(), kind: self.kind.clone(), sends: self.sends.clone() }
    }
}

impl<T> fmt::Debug for ProducerHandle<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ProducerHandle").field(self.mailbox.queue().name()).finish()
    }
}

/// A mailbox of any reply type.
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

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use pillarbox_core::{Capabilities, Mailboxes, MemoryBackend, QueueOptions};
    use pillarbox_testing::forward_queue;

    use super::*;

    /// A queue of a backend that does not coalesce concurrent calls.
    #[derive(Debug)]
    struct Uncoalesced {
        inner: Arc<dyn Queue>,
        capabilities: Capabilities,
    }

    impl Queue for Uncoalesced {
        forward_queue!(inner: name send receive settle peek counts purge close is_closed);

        fn capabilities(&self) -> &Capabilities {
            &self.capabilities
        }
    }

    #[tokio::test]
    async fn a_reply_takes_the_way_through_the_driver_only_if_the_backend_does_not_coalesce() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let mailbox: Mailbox<u32> = backend.mailbox("jobs").unwrap();
        let replies = backend.queue("replies", QueueOptions::new()).unwrap();
        let (sender, mut requests) = mpsc::channel(1);
        let metrics = PoolMetrics::new("jobs");
        let direct = DirectSends { call_timeout: Duration::from_secs(1), metrics };
        let pool = PoolSends {
            sender,
            permits: Arc::new(Semaphore::new(1)),
            tracer: None,
            direct: Some(direct),
        };
        let sends = SendChannel { pool: Arc::new(pool), trace: None };
        let producer = ProducerHandle::new(Arc::new(mailbox), sends);

        producer.send_for_handler(replies.clone(), Outgoing::new("one")).await.unwrap();
        assert!(requests.try_recv().is_err());
        assert_eq!(replies.counts().await.unwrap().ready, 1);

        let mut capabilities = replies.capabilities().clone();
        capabilities.coalesces = false;
        let uncoalesced = Arc::new(Uncoalesced { inner: replies.clone(), capabilities });
        let sent = producer.send_for_handler(uncoalesced, Outgoing::new("two")).now_or_never();
        assert!(sent.is_none() && requests.try_recv().is_ok());
        assert_eq!(replies.counts().await.unwrap().ready, 1);
    }
}
