//! The handle of an open backend, for plain threads.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Capabilities, Codec, Diagnosis, Error, Json, Partitions, QueueName, Redrive, Result,
};

use super::engine::Engine;
use super::mailbox::Mailbox;

/// An open backend, which opens mailboxes by name. Cheap to clone. Created by [`open`](super::open).
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

    /// Returns a builder for the mailbox `name`, to set a codec or limits before [`open`](MailboxBuilder::open).
    pub fn builder<N>(&self, name: N) -> MailboxBuilder<N>
    where
        N: TryInto<QueueName, Error: Into<Error>>,
    {
        MailboxBuilder { builder: self.as_async().builder(name), backend: self.clone() }
    }

    /// Opens the mailbox at a reply address, with JSON bodies.
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

    /// Returns the partitions of a queue.
    pub fn partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Partitions> {
        self.engine.wait(None, self.as_async().partitions(name))
    }

    /// Sets the number of partitions of a queue, which may be in use meanwhile.
    pub fn set_partitions(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        partitions: u32,
    ) -> Result<Partitions> {
        self.engine.wait(None, self.as_async().set_partitions(name, partitions))
    }

    /// Returns the rule by which the backend itself moves messages of a queue after too many deliveries. `None`: there
    /// is no such rule.
    pub fn redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
    ) -> Result<Option<Redrive>> {
        self.engine.wait(None, self.as_async().redrive(name))
    }

    /// Sets or removes the rule by which the backend itself moves messages of a queue after too many deliveries. Refused
    /// without [`Capabilities::redrive`].
    pub fn set_redrive(
        &self,
        name: impl TryInto<QueueName, Error: Into<Error>>,
        redrive: Option<Redrive>,
    ) -> Result<()> {
        self.engine.wait(None, self.as_async().set_redrive(name, redrive))
    }

    /// Looks for problems of the backend, and fixes those that it can if `repair` is set. No repair deletes a message.
    pub fn diagnose(&self, repair: bool) -> Result<Diagnosis> {
        self.engine.wait(None, self.as_async().diagnose(repair))
    }

    /// Returns whether `other` is a clone of this handle. A backend that is opened twice has two different handles.
    pub fn is_same(&self, other: &Self) -> bool {
        self.as_async().is_same(other.as_async())
    }

    /// Returns the capabilities and limits of the backend.
    pub fn capabilities(&self) -> &Capabilities {
        self.as_async().capabilities()
    }

    /// Closes every mailbox that was opened through this handle: waiting receives end. Messages are not affected.
    ///
    /// Fails only on a thread that [must not wait](super#in-async-programs), and closes nothing then.
    pub fn close(&self) -> Result<()> {
        self.engine.wait(None, async {
            self.as_async().close().await;
            Ok(())
        })
    }

    /// Returns the backend for async code. It is closed when the last blocking handle is dropped.
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

impl<T: 'static, R: 'static> Mailbox<T, R> {
    /// Returns the backend of the mailbox. `None` for a reply mailbox on another backend.
    pub fn backend(&self) -> Option<Mailboxes> {
        let backend = self.as_async().backend()?;
        backend.is_same(&self.engine.backend).then(|| Mailboxes::new(self.engine.clone()))
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("blocking::Mailboxes").field(&self.capabilities().backend).finish()
    }
}

/// Builder of a mailbox with options. Created by [`Mailboxes::builder`].
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
    /// Sets the codec of bodies and replies. Defaults to JSON.
    pub fn codec<D>(self, codec: D) -> MailboxBuilder<N, D> {
        MailboxBuilder { builder: self.builder.codec(codec), backend: self.backend }
    }

    /// Allows replies to this address. See
    /// [`pillarbox::MailboxBuilder::allow_reply_to`](crate::MailboxBuilder::allow_reply_to).
    pub fn allow_reply_to(mut self, address: impl Into<Box<str>>) -> Self {
        self.builder = self.builder.allow_reply_to(address);
        self
    }

    /// Allows replies to any queue of the backend. Use it only if all senders are trusted.
    pub fn allow_reply_to_any(mut self) -> Self {
        self.builder = self.builder.allow_reply_to_any();
        self
    }

    /// Sets the minimum number of partitions of the queue, if the backend supports partitions.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.builder = self.builder.partitions(partitions);
        self
    }

    /// Sets the maximum number of messages. Sends that would exceed it are refused. Defaults to no limit.
    pub fn max_size(mut self, max_size: u64) -> Self {
        self.builder = self.builder.max_size(max_size);
        self
    }

    /// Sets the time without use after which the backend deletes the queue, with its messages. See
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
