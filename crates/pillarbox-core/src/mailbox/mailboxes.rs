//! The typed handle of an open backend.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::reply_addresses::{self, CheckedResolver, ReplyAddresses};
use super::{Factory, Mailbox, NoReplies};
use crate::codec::{Codec, Json};
use crate::error::{Error, Result};
use crate::options::{Partitions, QueueOptions, Redrive};
use crate::queue::{Backend, Queue};
use crate::{Capabilities, Diagnosis, QueueName};

/// An open backend, which opens mailboxes by name. Cheap to clone.
///
/// Returned by `pillarbox::open(url)`, or created by [`Mailboxes::new`] from a backend that was set up by hand.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let requests: Mailbox<u64, String> = backend.mailbox("requests")?;
/// let bounded: Mailbox<u64> = backend.builder("bounded").max_size(100).open()?;
/// assert_eq!(backend.queues().await?.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mailboxes {
    backend: Arc<dyn Backend>,
}

impl Mailboxes {
    /// Prefix of the names of reply mailboxes, such as those of the runtime's clients.
    pub const REPLY_PREFIX: &str = reply_addresses::REPLY_PREFIX;
    /// Prefix of the names of mailboxes for the results of an eval run.
    pub const EVAL_PREFIX: &str = reply_addresses::EVAL_PREFIX;

    /// Creates a handle of an open backend.
    pub fn new(backend: impl Backend) -> Self {
        Self { backend: Arc::new(backend) }
    }

    /// Opens the mailbox `name` with JSON bodies.
    ///
    /// Replies to its messages go to the queue on the same backend that their reply address names, if that queue is
    /// [for replies](MailboxBuilder::allow_reply_to).
    pub fn mailbox<T: 'static, R: 'static>(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Mailbox<T, R>>
    where
        Json: Codec<T> + Codec<R>,
    {
        self.builder(name).open()
    }

    /// Returns a builder for the mailbox `name`, to set a codec or limits before [`open`](MailboxBuilder::open).
    pub fn builder<N>(&self, name: N) -> MailboxBuilder<N>
    where
        N: TryInto<QueueName, Error: Into<Error>>,
    {
        let (backend, options) = (self.clone(), QueueOptions::new());
        MailboxBuilder { backend, name, codec: Json, options, addresses: ReplyAddresses::default() }
    }

    /// Opens a queue of bytes, without types.
    pub fn queue(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        options: QueueOptions,
    ) -> Result<Arc<dyn Queue>> {
        let name = name.try_into().map_err(Into::into)?;
        self.capabilities().check_name(&name)?;
        self.capabilities().check_options(&name, &options)?;
        self.backend.queue(&name, options)
    }

    /// Opens the queue at a reply address: its name, or another form of the backend, such as the URL of an SQS queue.
    pub fn queue_at(&self, address: &str) -> Result<Arc<dyn Queue>> {
        self.backend.queue_at(address)
    }

    /// Opens the mailbox at a reply address, with JSON bodies. See [`queue_at`](Self::queue_at).
    pub fn mailbox_at<T: 'static, R: 'static>(&self, address: &str) -> Result<Mailbox<T, R>>
    where
        Json: Codec<T> + Codec<R>,
    {
        Ok(self.typed(self.queue_at(address)?, Json, ReplyAddresses::default()))
    }

    /// Lists the queues of the backend, in order of name.
    pub async fn queues(&self) -> Result<Vec<QueueName>> {
        self.backend.queues().await
    }

    /// Returns the partitions of a queue.
    pub async fn partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Partitions> {
        self.backend.partitions(&name.try_into().map_err(Into::into)?).await
    }

    /// Sets the number of partitions of a queue, which may be in use meanwhile. See [`Backend::set_partitions`].
    pub async fn set_partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        partitions: u32,
    ) -> Result<Partitions> {
        self.backend.set_partitions(&name.try_into().map_err(Into::into)?, partitions).await
    }

    /// Returns the rule by which the backend itself moves messages of a queue after too many deliveries. `None`: there
    /// is no such rule.
    pub async fn redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Option<Redrive>> {
        self.backend.redrive(&name.try_into().map_err(Into::into)?).await
    }

    /// Sets or removes the rule by which the backend itself moves messages of a queue after too many deliveries. Refused
    /// without [`Capabilities::redrive`].
    pub async fn set_redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        redrive: Option<Redrive>,
    ) -> Result<()> {
        self.backend.set_redrive(&name.try_into().map_err(Into::into)?, redrive).await
    }

    /// Looks for problems of the backend, and fixes those that it can if `repair` is set. No repair deletes a message.
    ///
    /// ```
    /// # use pillarbox_core::{Mailboxes, MemoryBackend};
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// let backend = Mailboxes::new(MemoryBackend::new());
    /// let diagnosis = backend.diagnose(false).await?;
    /// assert_eq!(diagnosis.promise, "messages are gone when this process ends");
    /// assert_eq!(diagnosis.problems().count(), 0);
    /// # Ok(()) }
    /// ```
    pub async fn diagnose(&self, repair: bool) -> Result<Diagnosis> {
        self.backend.diagnose(repair).await
    }

    /// Returns the name of the queue that dead letters of `source` go to by default: `{source}-dlq`, or as
    /// the backend names it.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidParameter`] if that is too long for a name.
    pub fn dead_letter_name(&self, source: &QueueName) -> Result<QueueName> {
        self.backend.dead_letter_name(source)
    }

    /// Returns whether a queue is named like those that dead letters go to
    /// [by default](Self::dead_letter_name).
    pub fn is_dead_letter_name(&self, name: &QueueName) -> bool {
        self.backend.is_dead_letter_name(name)
    }

    /// Returns whether `other` is a clone of this handle. A backend that is opened twice has two different handles.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.backend, &other.backend)
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.backend.capabilities()
    }

    /// Closes every mailbox that was opened through this handle. Messages are not affected.
    pub async fn close(&self) {
        self.backend.close().await;
    }

    /// Creates the mailbox of a queue of this backend, whose replies go to allowed queues of this backend.
    fn typed<T: 'static, R: 'static, C>(
        &self,
        queue: Arc<dyn Queue>,
        codec: C,
        addresses: ReplyAddresses,
    ) -> Mailbox<T, R>
    where
        C: Codec<T> + Codec<R> + Clone,
    {
        let (backend, reply_codec) = (self.clone(), codec.clone());
        let factory = Factory::new(move |address| {
            let queue = backend.queue_at(address)?;
            Ok(Mailbox::new(queue, reply_codec.clone(), NoReplies).on(backend.clone()))
        });
        let replies = CheckedResolver { queue: queue.name().clone(), addresses, factory };
        Mailbox::new(queue, codec, replies).on(self.clone())
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Mailboxes").field(&self.capabilities().backend).finish()
    }
}

impl From<Arc<dyn Backend>> for Mailboxes {
    fn from(backend: Arc<dyn Backend>) -> Self {
        Self { backend }
    }
}

/// Builder of a mailbox with options. Created by [`Mailboxes::builder`].
///
/// ```
/// use bytes::Bytes;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Raw};
///
/// # fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let frames: Mailbox<Bytes> = backend.builder("frames").codec(Raw).max_size(1_000).open()?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct MailboxBuilder<N, C = Json> {
    backend: Mailboxes,
    name: N,
    codec: C,
    options: QueueOptions,
    addresses: ReplyAddresses,
}

impl<N, C> MailboxBuilder<N, C>
where
    N: TryInto<QueueName, Error: Into<Error>>,
{
    /// Sets the codec of bodies and replies. Defaults to [`Json`].
    pub fn codec<D>(self, codec: D) -> MailboxBuilder<N, D> {
        let Self { backend, name, options, addresses, .. } = self;
        MailboxBuilder { backend, name, codec, options, addresses }
    }

    /// Allows replies to this address: the name of a queue, or another form of address of the backend, such as the URL
    /// of an SQS queue. May be called several times.
    ///
    /// By default, replies go only to queues whose names start with `pillarbox-replies-` or `eval-`, so that the
    /// sender of a message cannot make its receiver write to any other queue of the backend.
    ///
    /// ```
    /// use pillarbox_core::{Error, Mailbox, Mailboxes, MemoryBackend, Receive, SendOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> pillarbox_core::Result<()> {
    /// let backend = Mailboxes::new(MemoryBackend::new());
    /// let requests: Mailbox<u32, String> = backend.builder("requests").allow_reply_to("client-7").open()?;
    /// requests.send_with(&7, SendOptions::new().reply_to("client-7")).await?;
    /// requests.send_with(&8, SendOptions::new().reply_to("payments")).await?;
    ///
    /// let batch = requests.receive(Receive::up_to(2)).await?;
    /// let [seven, eight] = batch.messages() else { panic!("two messages") };
    /// seven.reply_mailbox()?.send(&"seven".to_owned()).await?;
    /// assert!(matches!(eight.reply_mailbox(), Err(Error::ReplyMailboxUnavailable { .. })));
    /// # Ok(()) }
    /// ```
    pub fn allow_reply_to(mut self, address: impl Into<Box<str>>) -> Self {
        self.addresses.allowed.push(address.into());
        self
    }

    /// Allows replies to any queue of the backend. Use it only if all senders are trusted.
    pub fn allow_reply_to_any(mut self) -> Self {
        self.addresses.allows_any = true;
        self
    }

    /// Sets the minimum number of partitions of the queue, if the backend supports partitions. See
    /// [`QueueOptions::partitions`].
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.options.partitions = Some(partitions);
        self
    }

    /// Sets the maximum number of messages. Sends that would exceed it are refused. Defaults to no limit.
    pub fn max_size(mut self, max_size: u64) -> Self {
        self.options.max_size = Some(max_size);
        self
    }

    /// Sets the time without use after which the backend deletes the queue, **with all its messages**, if it can
    /// ([`Capabilities::default_ttl`]). Defaults to the value that the backend was opened with. See
    /// [`QueueOptions::default_ttl`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailbox, Mailboxes, Result};
    /// # fn f(backend: Mailboxes) -> Result<()> {
    /// const DAY: Duration = Duration::from_secs(24 * 3600);
    /// let requests: Mailbox<u32> = backend.builder("requests").default_ttl(3 * DAY).open()?;
    /// let dead: Mailbox<String> = backend.builder("requests-dlq").default_ttl(30 * DAY).open()?;
    /// # Ok(()) }
    /// ```
    pub fn default_ttl(mut self, time: Duration) -> Self {
        self.options.default_ttl = Some(time);
        self
    }

    /// Opens the mailbox.
    pub fn open<T: 'static, R: 'static>(self) -> Result<Mailbox<T, R>>
    where
        C: Codec<T> + Codec<R> + Clone,
    {
        let queue = self.backend.queue(self.name, self.options)?;
        Ok(self.backend.typed(queue, self.codec, self.addresses))
    }
}
