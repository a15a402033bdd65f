//! An open backend, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Capabilities, Codec, Diagnosis, Error, Json, Partitions, QueueName, Redrive, Result,
};

use super::engine::Engine;
use super::mailbox::Mailbox;

/// An open backend: opens mailboxes by name. Cheap to clone. Made by [`open`](super::open).
#[derive(Clone)]
pub struct Mailboxes {
    engine: Arc<Engine>,
}

impl Mailboxes {
    pub(super) const fn new(engine: Arc<Engine>) -> Self {
        Self { engine }
    }

    /// Opens the mailbox `name` with JSON bodies.
    pub fn mailbox<T: 'static, R: 'static>(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Mailbox<T, R>>
    where
        Json: Codec<T> + Codec<R>,
    {
        self.typed(|backend| backend.mailbox(name))
    }

    /// Opens the mailbox `name` with another codec or with a limit: ends with
    /// [`open`](MailboxBuilder::open).
    pub fn builder<N>(&self, name: N) -> MailboxBuilder<N>
    where
        N: TryInto<QueueName, Error: Into<Error>>,
    {
        MailboxBuilder { builder: self.as_async().builder(name), backend: self.clone() }
    }

    /// Opens the mailbox that a reply address names, with JSON bodies.
    pub fn mailbox_at<T: 'static, R: 'static>(&self, address: &str) -> Result<Mailbox<T, R>>
    where
        Json: Codec<T> + Codec<R>,
    {
        self.typed(|backend| backend.mailbox_at(address))
    }

    /// Lists the queues of the backend, in order of name.
    pub fn queues(&self) -> Result<Vec<QueueName>> {
        self.engine.wait(None, self.as_async().queues())
    }

    /// Number of partitions that a queue is spread over.
    pub fn partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Partitions> {
        self.engine.wait(None, self.as_async().partitions(name))
    }

    /// Spreads a queue over this number of partitions from now on, while it is in use.
    pub fn set_partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        partitions: u32,
    ) -> Result<Partitions> {
        self.engine.wait(None, self.as_async().set_partitions(name, partitions))
    }

    /// Where the backend itself moves messages of a queue that were delivered too often. `None`: it does
    /// not.
    pub fn redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Option<Redrive>> {
        self.engine.wait(None, self.as_async().redrive(name))
    }

    /// Has the backend move messages of a queue that were delivered too often, or leave them where they
    /// are. Refused where it does no such thing ([`Capabilities::redrive`]).
    pub fn set_redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        redrive: Option<Redrive>,
    ) -> Result<()> {
        self.engine.wait(None, self.as_async().set_redrive(name, redrive))
    }

    /// Looks for everything that may be wrong with the backend, and fixes what it can if told to `repair`.
    /// No repair deletes a message.
    pub fn diagnose(&self, repair: bool) -> Result<Diagnosis> {
        self.engine.wait(None, self.as_async().diagnose(repair))
    }

    /// Whether this is the same opened backend, or a clone of it. One that was opened twice is two.
    pub fn is_same(&self, other: &Self) -> bool {
        self.as_async().is_same(other.as_async())
    }

    /// What the backend can do, and within which limits.
    pub fn capabilities(&self) -> &Capabilities {
        self.as_async().capabilities()
    }

    /// Closes every mailbox that was opened here: receives that wait end. The messages stay.
    ///
    /// Fails only on a thread that [must not wait](super#in-async-programs); then nothing is closed.
    pub fn close(&self) -> Result<()> {
        self.engine.wait(None, async {
            self.as_async().close().await;
            Ok(())
        })
    }

    /// The same backend for async code. It is closed when the last blocking handle goes.
    pub fn as_async(&self) -> &pillarbox_core::Mailboxes {
        &self.engine.backend
    }

    fn typed<T: 'static, R: 'static>(
        &self,
        open: impl FnOnce(&pillarbox_core::Mailboxes) -> Result<pillarbox_core::Mailbox<T, R>>,
    ) -> Result<Mailbox<T, R>> {
        Ok(Mailbox::new(self.engine.within(open)?, self.engine.clone()))
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Mailboxes").field(&self.capabilities().backend).finish()
    }
}

/// Opens a mailbox that differs from the default. Made by [`Mailboxes::builder`].
///
/// ```
/// use bytes::Bytes;
/// use pillarbox::Raw;
/// use pillarbox::blocking::{self, Mailbox};
///
/// let backend = blocking::open("memory:")?;
/// let frames: Mailbox<Bytes> = backend.builder("frames").codec(Raw).max_size(1_000).open()?;
/// # Ok::<(), pillarbox::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `open` is called"]
pub struct MailboxBuilder<N, C = Json> {
    builder: pillarbox_core::MailboxBuilder<N, C>,
    backend: Mailboxes,
}

impl<N, C> MailboxBuilder<N, C>
where
    N: TryInto<QueueName, Error: Into<Error>>,
{
    /// Encodes bodies, and those of replies, with `codec`. Defaults to JSON.
    pub fn codec<D>(self, codec: D) -> MailboxBuilder<N, D> {
        MailboxBuilder { builder: self.builder.codec(codec), backend: self.backend }
    }

    /// Lets replies to messages go to this address as well. See
    /// [`pillarbox::MailboxBuilder::allow_reply_to`](crate::MailboxBuilder::allow_reply_to).
    pub fn allow_reply_to(mut self, address: impl Into<Box<str>>) -> Self {
        self.builder = self.builder.allow_reply_to(address);
        self
    }

    /// Lets replies to messages go to any queue of the backend that they name: where all who may send are
    /// trusted with that.
    pub fn allow_reply_to_any(mut self) -> Self {
        self.builder = self.builder.allow_reply_to_any();
        self
    }

    /// Spreads the queue over at least this number of partitions, where the backend can do that.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.builder = self.builder.partitions(partitions);
        self
    }

    /// Refuses sends that would make the queue hold more than `max_size` messages.
    pub fn max_size(mut self, max_size: u64) -> Self {
        self.builder = self.builder.max_size(max_size);
        self
    }

    /// Has the backend delete the queue, with its messages, when nobody has used it for this time. See
    /// [`pillarbox::MailboxBuilder::default_ttl`](crate::MailboxBuilder::default_ttl).
    pub fn default_ttl(mut self, time: Duration) -> Self {
        self.builder = self.builder.default_ttl(time);
        self
    }

    /// Opens the mailbox.
    pub fn open<T: 'static, R: 'static>(self) -> Result<Mailbox<T, R>>
    where
        C: Codec<T> + Codec<R> + Clone,
    {
        let builder = self.builder;
        self.backend.typed(|_| builder.open())
    }
}
