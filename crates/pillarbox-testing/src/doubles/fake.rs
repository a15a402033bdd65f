//! A mailbox whose clock, receipts and connection are in the hands of the test.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::internal::lock;
use pillarbox_core::{
    Attributes, Backend, BoxFuture, Capabilities, Clock, Codec, Counts, Cursor, Delivery,
    Diagnosis, Error, Json, Mailbox, MailboxResolver, Mailboxes, ManualClock, MemoryBackend,
    MessageId, NoReplies, Outgoing, PeekPage, Queue, QueueName, QueueOptions, RawMessage, Receipt,
    Receive, Result, Sent, Settle, SettleAction, Timestamp,
};
use tokio::sync::Notify;

use crate::forward_queue;

/// A working mailbox in memory, with everything that can go wrong in the hands of the test.
///
/// Its clock stands still until [`advance`](Self::advance) moves it: leases, delays and long
/// polls end by that clock. Use it as a mailbox directly, or hand out [`mailbox`](Self::mailbox).
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Error, Receive};
/// use pillarbox_testing::FakeMailbox;
///
/// # pillarbox_testing::block_on(async {
/// let mailbox: FakeMailbox<u32> = FakeMailbox::new();
/// mailbox.send(&7).await?;
/// let message = mailbox.receive(Receive::one()).await?.into_iter().next().unwrap();
///
/// mailbox.expire_handle(message.receipt());
/// let error = message.acknowledge().await.unwrap_err();
/// assert!(matches!(error, Error::ReceiptHandleExpired { .. }));
///
/// mailbox.set_connection_error("the server is down");
/// assert!(matches!(mailbox.send(&8).await, Err(Error::Connection { .. })));
/// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
/// ```
///
/// It has its own [backend](Self::backend), which also opens other mailboxes, such as the dead-letter mailbox of
/// a worker.
#[derive(Debug)]
pub struct FakeMailbox<T: 'static, R: 'static = ()> {
    mailbox: Mailbox<T, R>,
    queue: FakeQueue,
    clock: ManualClock,
    backend: Mailboxes,
}

impl<T: 'static, R: 'static> FakeMailbox<T, R>
where
    Json: Codec<T> + Codec<R>,
{
    /// Creates an empty mailbox called `fake`, whose messages cannot be replied to.
    pub fn new() -> Self {
        Self::with_replies(NoReplies)
    }
}

impl<T: 'static, R: 'static> FakeMailbox<T, R>
where
    Json: Codec<T>,
{
    /// Creates an empty mailbox of this name, whose messages cannot be replied to.
    ///
    /// # Panics
    ///
    /// If that is not a valid [name](QueueName).
    #[track_caller]
    pub fn named(name: &str) -> Self {
        Self::make(name, NoReplies)
    }

    /// Creates an empty mailbox called `fake` that finds reply mailboxes by `replies`.
    pub fn with_replies(replies: impl MailboxResolver<R>) -> Self {
        Self::make("fake", replies)
    }

    #[track_caller]
    fn make(name: &str, replies: impl MailboxResolver<R>) -> Self {
        let clock = ManualClock::new();
        let memory = MemoryBackend::with_clock(Arc::new(clock.clone()));
        let name = QueueName::new(name).unwrap_or_else(|error| panic!("{error}"));
        let backend = FakeBackend { memory, name, shared: Arc::default() };
        let queue = backend.fake(QueueOptions::new()).expect("a backend that is open");
        let backend = Mailboxes::new(backend);
        let mailbox = Mailbox::new(Arc::new(queue.clone()), Json, replies).on(backend.clone());
        Self { mailbox, queue, clock, backend }
    }
}

impl<T: 'static, R: 'static> FakeMailbox<T, R> {
    /// Returns a handle for the code under test.
    pub fn mailbox(&self) -> Mailbox<T, R> {
        self.mailbox.clone()
    }

    /// Returns the backend of the mailbox, with the same clock. A mailbox of the same name that is opened there
    /// is another handle of the fake; all others are plain mailboxes in memory.
    ///
    /// ```
    /// use pillarbox_core::Mailbox;
    /// use pillarbox_testing::FakeMailbox;
    ///
    /// # pillarbox_testing::block_on(async {
    /// let orders: FakeMailbox<u32> = FakeMailbox::named("orders");
    /// let packed: Mailbox<u32> = orders.backend().mailbox("packed")?;
    /// assert_eq!(packed.counts().await?.total(), 0);
    /// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
    /// ```
    pub fn backend(&self) -> &Mailboxes {
        &self.backend
    }

    /// Returns the clock of the mailbox.
    pub fn clock(&self) -> &ManualClock {
        &self.clock
    }

    /// Returns the time of the mailbox's clock.
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Advances the clock, which ends leases and delays.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Expires the lease of a receipt: the receipt is no longer valid, and its message is ready at the tail of
    /// the queue. Does nothing if the receipt has expired already.
    pub fn expire_handle(&self, receipt: &Receipt) {
        // A lease that is extended by zero expires. An error means that it has expired already.
        let end = Settle::extend(receipt.clone(), Duration::ZERO);
        let _ = now(self.queue.inner.settle(vec![end]));
    }

    /// Makes every call fail with [`Error::Connection`] and this cause, without effect; receives
    /// that wait fail at once.
    pub fn set_connection_error(&self, cause: impl Into<String>) {
        self.queue.lock().connection_error = Some(cause.into());
        self.queue.shared.broken.notify_waiters();
    }

    /// Ends [`set_connection_error`](Self::set_connection_error).
    pub fn clear_connection_error(&self) {
        self.queue.lock().connection_error = None;
    }

    /// Stores a message with a past: delivered before, sent long ago, or with an undecodable body. Works in
    /// spite of a connection error.
    ///
    /// # Panics
    ///
    /// If the mailbox is closed, or the message is not valid.
    pub fn inject(&self, message: Injected) -> MessageId {
        let Injected { outgoing, past } = message;
        let id = outgoing.id;
        self.queue.lock().pasts.insert(id, past);
        let results = now(self.queue.inner.send(vec![outgoing])).expect("the mailbox is open");
        for result in results {
            result.expect("a message within the limits");
        }
        id
    }

    /// Returns the messages sent so far, in order, without [injected](Self::inject) ones.
    pub fn sent_messages(&self) -> Vec<Outgoing> {
        self.queue.lock().sent.clone()
    }
}

impl<T: 'static, R: 'static> Default for FakeMailbox<T, R>
where
    Json: Codec<T> + Codec<R>,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<T: 'static, R: 'static> Deref for FakeMailbox<T, R> {
    type Target = Mailbox<T, R>;

    fn deref(&self) -> &Mailbox<T, R> {
        &self.mailbox
    }
}

/// A message with a past, for [`FakeMailbox::inject`]; or, as a [`RawMessage`], for `Metadata::detached_from` of the
/// runtime.
///
/// ```
/// use pillarbox_core::Receive;
/// use pillarbox_testing::{FakeMailbox, Injected};
///
/// # pillarbox_testing::block_on(async {
/// let mailbox: FakeMailbox<u32> = FakeMailbox::new();
/// mailbox.inject(Injected::json(&7).delivered(4).unsettled(3));
/// mailbox.inject(Injected::raw("not a number"));
/// let batch = mailbox.receive(Receive::up_to(10)).await?;
/// let message = &batch.messages()[0];
/// assert_eq!((message.delivery_count(), message.unsettled()), (5, 3));
/// assert_eq!(batch.undecodable().len(), 1);
/// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a message is injected by FakeMailbox::inject"]
pub struct Injected {
    outgoing: Outgoing,
    past: Past,
}

/// Earlier deliveries of an injected message.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    deliveries: u32,
    unsettled: u32,
    uncounted: u32,
}

impl Past {
    fn add_to(self, message: &mut RawMessage) {
        message.delivery_count = message.delivery_count.saturating_add(self.deliveries);
        message.unsettled = message.unsettled.saturating_add(self.unsettled);
        message.uncounted = message.uncounted.saturating_add(self.uncounted);
    }
}

impl Injected {
    /// Creates a message with a JSON body.
    ///
    /// # Panics
    ///
    /// If the body cannot be encoded.
    pub fn json<T>(body: &T) -> Self
    where
        Json: Codec<T>,
    {
        Self::raw(Json.encode(body).expect("a body that can be encoded"))
    }

    /// Creates a message with these bytes as its body.
    pub fn raw(body: impl Into<Bytes>) -> Self {
        Self { outgoing: Outgoing::new(body), past: Past::default() }
    }

    /// Sets the number of earlier deliveries.
    pub fn delivered(mut self, times: u32) -> Self {
        self.past.deliveries = times;
        self
    }

    /// Sets the number of earlier deliveries that were started and expired.
    pub fn unsettled(mut self, times: u32) -> Self {
        self.past.unsettled = times;
        self
    }

    /// Sets the number of earlier deliveries that were released, or expired before they were started.
    pub fn uncounted(mut self, times: u32) -> Self {
        self.past.uncounted = times;
        self
    }

    /// Sets its id.
    pub fn id(mut self, id: MessageId) -> Self {
        self.outgoing.id = id;
        self
    }

    /// Sets the time it was sent.
    pub fn enqueued_at(mut self, at: Timestamp) -> Self {
        self.outgoing.enqueued_at = Some(at);
        self
    }

    /// Sets the reply address.
    pub fn reply_to(mut self, address: &str) -> Self {
        self.outgoing.reply_to = Some(address.into());
        self
    }

    /// Sets its attributes.
    pub fn attributes(mut self, attributes: Attributes) -> Self {
        self.outgoing.attributes = attributes;
        self
    }
}

/// Runs a call on the memory backend that does not wait.
fn now<T>(call: BoxFuture<'_, T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(call).as_mut().poll(&mut context) {
        std::task::Poll::Ready(done) => done,
        std::task::Poll::Pending => unreachable!("sends and settles in memory do not wait"),
    }
}

impl From<Injected> for RawMessage {
    /// Returns the message as a receive would deliver it.
    fn from(injected: Injected) -> Self {
        let Injected { outgoing, past } = injected;
        let enqueued_at = outgoing.enqueued_at.unwrap_or_else(Timestamp::now);
        let mut message = Self::new(outgoing.id, outgoing.body, enqueued_at);
        message.attributes = outgoing.attributes;
        message.reply_to = outgoing.reply_to;
        message.delivery_count = 1;
        past.add_to(&mut message);
        message
    }
}

/// A memory backend with one fake queue.
#[derive(Debug)]
struct FakeBackend {
    memory: MemoryBackend,
    /// State of the fake queue.
    name: QueueName,
    shared: Arc<Shared>,
}

impl FakeBackend {
    fn fake(&self, options: QueueOptions) -> Result<FakeQueue> {
        let inner = self.memory.queue(&self.name, options)?;
        Ok(FakeQueue { inner, shared: self.shared.clone() })
    }
}

impl Backend for FakeBackend {
    fn capabilities(&self) -> &Capabilities {
        self.memory.capabilities()
    }

    fn queue(&self, name: &QueueName, options: QueueOptions) -> Result<Arc<dyn Queue>> {
        if *name == self.name {
            return Ok(Arc::new(self.fake(options)?));
        }
        self.memory.queue(name, options)
    }

    fn queues(&self) -> BoxFuture<'_, Result<Vec<QueueName>>> {
        self.memory.queues()
    }

    fn diagnose(&self, repair: bool) -> BoxFuture<'_, Result<Diagnosis>> {
        self.memory.diagnose(repair)
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.memory.close()
    }
}

/// A handle of the fake queue.
#[derive(Debug, Clone)]
struct FakeQueue {
    inner: Arc<dyn Queue>,
    shared: Arc<Shared>,
}

/// State shared by all handles of the fake queue.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<FakeState>,
    /// Notifies waiting receives of a connection error.
    broken: Notify,
}

#[derive(Debug, Default)]
struct FakeState {
    connection_error: Option<String>,
    pasts: HashMap<MessageId, Past>,
    sent: Vec<Outgoing>,
}

impl FakeQueue {
    fn lock(&self) -> MutexGuard<'_, FakeState> {
        lock(&self.shared.state)
    }

    /// Adds the earlier deliveries of an injected message.
    fn add_past(&self, message: &mut RawMessage) {
        self.lock().pasts.get(&message.id).copied().unwrap_or_default().add_to(message);
    }

    fn check(&self, action: &'static str) -> Result<()> {
        match &self.lock().connection_error {
            Some(cause) => Err(Error::connection(Some(self.name()), action, cause.clone())),
            None => Ok(()),
        }
    }
}

impl Queue for FakeQueue {
    forward_queue!(inner: name capabilities close is_closed);

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        Box::pin(async move {
            self.check("send")?;
            let copies = batch.clone();
            let results = self.inner.send(batch).await?;
            let stored = copies.into_iter().zip(&results).filter(|(_, result)| result.is_ok());
            self.lock().sent.extend(stored.map(|(message, _)| message));
            Ok(results)
        })
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(async move {
            let mut broken = std::pin::pin!(self.shared.broken.notified());
            broken.as_mut().enable();
            self.check("receive")?;
            let mut deliveries = tokio::select! {
                biased;
                () = broken => return self.check("receive").map(|()| Vec::new()),
                deliveries = self.inner.receive(request) => deliveries?,
            };
            deliveries.iter_mut().for_each(|delivery| self.add_past(&mut delivery.message));
            Ok(deliveries)
        })
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        Box::pin(async move {
            self.check("settle")?;
            let acknowledged = |settle: &Settle| match settle.action {
                SettleAction::Acknowledge => settle.receipt.message_id(),
                _ => None,
            };
            let gone: Vec<_> = batch.iter().map(acknowledged).collect();
            let results = self.inner.settle(batch).await?;
            let mut state = self.lock();
            for (id, _) in gone.iter().zip(&results).filter(|(_, result)| result.is_ok()) {
                id.and_then(|id| state.pasts.remove(&id));
            }
            drop(state);
            Ok(results)
        })
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        Box::pin(async move {
            self.check("peek")?;
            let mut page = self.inner.peek(max, after).await?;
            page.messages.iter_mut().for_each(|peeked| self.add_past(&mut peeked.message));
            Ok(page)
        })
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        Box::pin(async move {
            self.check("count")?;
            self.inner.counts().await
        })
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            self.check("purge")?;
            self.lock().pasts.clear();
            self.inner.purge().await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_error_ends_a_receive_that_waits() {
        let fake: FakeMailbox<u32> = FakeMailbox::new();
        let mailbox = fake.mailbox();
        let wait = Receive::one().wait(Duration::from_secs(60));
        let waiter = tokio::spawn(async move { mailbox.receive(wait).await });
        tokio::task::yield_now().await;
        fake.set_connection_error("the server is down");
        let error = waiter.await.unwrap().unwrap_err();
        assert!(matches!(error, Error::Connection { .. }), "{error}");

        fake.clear_connection_error();
        fake.send(&7).await.unwrap();
        assert_eq!(fake.receive(Receive::one()).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn the_deliveries_of_an_injected_message_end_with_it() {
        let fake: FakeMailbox<u32> = FakeMailbox::new();
        let id = fake.inject(Injected::json(&7).delivered(u32::MAX));
        for message in fake.receive(Receive::one()).await.unwrap() {
            assert_eq!(message.delivery_count(), u32::MAX);
            message.acknowledge().await.unwrap();
        }
        let options = pillarbox_core::SendOptions::new().id(id);
        fake.send_with(&7, options).await.unwrap();
        let batch = fake.receive(Receive::one()).await.unwrap();
        assert_eq!(batch.messages()[0].delivery_count(), 1);
    }

    #[tokio::test]
    async fn a_fake_has_a_name_a_backend_and_other_handles() {
        let fake: FakeMailbox<u32> = FakeMailbox::named("orders");
        assert_eq!(fake.name().as_str(), "orders");
        let other: Mailbox<u32> = fake.backend().mailbox("orders").unwrap();
        other.send(&7).await.unwrap();
        assert_eq!(fake.sent_messages().len(), 1);
        let neighbour: Mailbox<u32> = fake.backend().mailbox("orders-dlq").unwrap();
        fake.set_connection_error("the server is down");
        assert!(other.send(&8).await.is_err());
        neighbour.send(&9).await.unwrap();
        fake.clear_connection_error();
        let names = fake.backend().queues().await.unwrap();
        assert_eq!(
            names.iter().map(QueueName::as_str).collect::<Vec<_>>(),
            ["orders", "orders-dlq"]
        );
        assert!(fake.mailbox().backend().unwrap().is_same(fake.backend()));
        // They share one clock.
        let later = pillarbox_core::SendOptions::new().delay(Duration::from_secs(60));
        neighbour.send_with(&10, later).await.unwrap();
        fake.advance(Duration::from_secs(60));
        assert_eq!(neighbour.counts().await.unwrap().ready, 2);
    }

    #[test]
    fn an_injected_message_has_the_given_deliveries() {
        let id = MessageId::new();
        let injected = Injected::json(&7).id(id).delivered(2).unsettled(1).reply_to("answers");
        let message = RawMessage::from(injected);
        assert_eq!((message.id, &*message.body, message.delivery_count), (id, &b"7"[..], 3));
        assert_eq!((message.unsettled, message.reply_to.as_deref()), (1, Some("answers")));
    }

    #[tokio::test]
    async fn the_clock_of_the_mailbox_ends_leases_delays_and_waits() {
        let fake: FakeMailbox<u32> = FakeMailbox::new();
        let mailbox = fake.mailbox();
        let wait = Receive::one().wait(Duration::from_secs(60));
        let waiter = tokio::spawn(async move { mailbox.receive(wait).await.unwrap().len() });
        tokio::task::yield_now().await;
        fake.advance(Duration::from_secs(60));
        assert_eq!(waiter.await.unwrap(), 0);
    }
}
