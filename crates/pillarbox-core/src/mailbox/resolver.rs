//! Resolution of reply addresses to mailboxes.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};

use super::Mailbox;
use crate::QueueName;
use crate::error::{Error, Result};
use crate::internal::lock;
use crate::message::RawMessage;

/// Resolves a reply address to a mailbox.
///
/// A mailbox opened by [`Mailboxes`](super::Mailboxes) treats the address as the name of a queue on the same
/// backend, and accepts those that are [for replies](super::MailboxBuilder::allow_reply_to).
/// [`Mailbox::with_replies`] sets another resolver. The sender of a message chooses its reply address, so the
/// resolver decides which queues a sender can make a receiver write to. A closure
/// `Fn(&str) -> Result<Mailbox<R>>` is a resolver too, but does not cache its mailboxes: wrap it in a [`Factory`].
pub trait MailboxResolver<R>: Send + Sync + 'static {
    /// Returns the mailbox at `address`.
    fn resolve(&self, address: &str) -> Result<Mailbox<R>>;

    /// Drops the cached mailbox of `address`, which is not expected to be used again. Does nothing by default.
    fn forget(&self, address: &str) {
        let _ = address;
    }
}

impl<R, F> MailboxResolver<R> for F
where
    F: Fn(&str) -> Result<Mailbox<R>> + Send + Sync + 'static,
{
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        self(address)
    }
}

fn unknown_address(address: &str, allowed: &str) -> Error {
    Error::invalid(None, "reply address", format!("{address:?}"), allowed)
}

/// Resolver that refuses every address, for mailboxes without replies.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReplies;

impl<R> MailboxResolver<R> for NoReplies {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        Err(unknown_address(address, "none: this mailbox was opened without a way to reply"))
    }
}

/// Resolver with an explicit set of addresses.
///
/// ```
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend, Registry};
///
/// # fn main() -> pillarbox_core::Result<()> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let replies: Mailbox<String> = backend.mailbox("client-7")?;
/// let registry = Registry::new().with("client-7", replies);
/// let requests: Mailbox<u32, String> = backend.mailbox("requests")?.with_replies(registry);
/// # Ok(()) }
/// ```
pub struct Registry<R> {
    mailboxes: Mutex<HashMap<String, Mailbox<R>>>,
}

impl<R> Registry<R> {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Self { mailboxes: Mutex::default() }
    }

    /// Adds an address, builder style.
    #[must_use]
    pub fn with(self, address: impl Into<String>, mailbox: Mailbox<R>) -> Self {
        self.insert(address, mailbox);
        self
    }

    /// Adds an address, replacing its earlier mailbox.
    pub fn insert(&self, address: impl Into<String>, mailbox: Mailbox<R>) {
        lock(&self.mailboxes).insert(address.into(), mailbox);
    }

    /// Removes an address.
    pub fn remove(&self, address: &str) {
        lock(&self.mailboxes).remove(address);
    }

    /// Resolves the addresses that are not in the registry by `factory`.
    pub fn or_else(self, factory: Factory<R>) -> RegistryThenFactory<R> {
        RegistryThenFactory { registry: self, factory }
    }

    fn get(&self, address: &str) -> Option<Mailbox<R>> {
        lock(&self.mailboxes).get(address).cloned()
    }
}

impl<R> fmt::Debug for Registry<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registry").field(&lock(&self.mailboxes).keys()).finish()
    }
}

impl<R> Default for Registry<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: 'static> MailboxResolver<R> for Registry<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        self.get(address).ok_or_else(|| unknown_address(address, "an address that was registered"))
    }
}

/// Resolver that opens mailboxes by a function and caches them, so that many replies to one address open one
/// mailbox.
///
/// The cache is bounded and evicts the least recently used mailboxes, so that replies to a million clients do not
/// accumulate a million mailboxes. A mailbox that was closed is opened again.
pub struct Factory<R> {
    open: OpenFn<R>,
    cache: Mutex<Cache<Mailbox<R>>>,
}

type OpenFn<R> = Box<dyn Fn(&str) -> Result<Mailbox<R>> + Send + Sync>;

impl<R> Factory<R> {
    /// Default capacity of the cache.
    pub const DEFAULT_CAPACITY: usize = 1024;

    /// Creates a factory that caches at most 1,024 mailboxes.
    pub fn new(open: impl Fn(&str) -> Result<Mailbox<R>> + Send + Sync + 'static) -> Self {
        Self::with_capacity(Self::DEFAULT_CAPACITY, open)
    }

    /// Creates a factory that caches at most `capacity` mailboxes, and at least the last `capacity / 2` used.
    pub fn with_capacity(
        capacity: usize,
        open: impl Fn(&str) -> Result<Mailbox<R>> + Send + Sync + 'static,
    ) -> Self {
        Self { open: Box::new(open), cache: Mutex::new(Cache::new(capacity)) }
    }
}

impl<R> fmt::Debug for Factory<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").finish_non_exhaustive()
    }
}

impl<R: 'static> MailboxResolver<R> for Factory<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        // Opens under the lock, so that two callers do not open two mailboxes. Opening does no I/O.
        let mut cache = lock(&self.cache);
        if let Some(mailbox) = cache.get(address).filter(|mailbox| !mailbox.is_closed()) {
            return Ok(mailbox);
        }
        let mailbox = (self.open)(address)?;
        cache.insert(address.to_owned(), mailbox.clone());
        Ok(mailbox)
    }

    fn forget(&self, address: &str) {
        lock(&self.cache).remove(address);
    }
}

/// Resolver that looks into a registry first and uses a factory for other addresses.
#[derive(Debug)]
pub struct RegistryThenFactory<R> {
    registry: Registry<R>,
    factory: Factory<R>,
}

impl<R> RegistryThenFactory<R> {
    /// Returns the registry, to add addresses later.
    pub fn registry(&self) -> &Registry<R> {
        &self.registry
    }
}

impl<R: 'static> MailboxResolver<R> for RegistryThenFactory<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        match self.registry.get(address) {
            Some(mailbox) => Ok(mailbox),
            None => self.factory.resolve(address),
        }
    }

    fn forget(&self, address: &str) {
        self.factory.forget(address);
    }
}

/// Bounded cache in two generations: a value that is used moves to the young one; when that is full, it replaces the
/// old one, whose values are dropped.
struct Cache<V> {
    generation_len: usize,
    young: HashMap<String, V>,
    old: HashMap<String, V>,
}

impl<V: Clone> Cache<V> {
    fn new(capacity: usize) -> Self {
        let generation_len = (capacity / 2).max(1);
        Self { generation_len, young: HashMap::new(), old: HashMap::new() }
    }

    fn get(&mut self, key: &str) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    fn insert(&mut self, key: String, value: V) {
        if self.young.len() >= self.generation_len {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &str) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

/// Returns the mailbox that the sender of a message wants the reply in.
pub(super) fn reply_mailbox<R: 'static>(
    resolver: &dyn MailboxResolver<R>,
    queue: &QueueName,
    message: &RawMessage,
) -> Result<Mailbox<R>> {
    let unavailable =
        |cause| Error::ReplyMailboxUnavailable { queue: queue.clone(), id: message.id, cause };
    let Some(address) = message.reply_to.as_deref() else {
        return Err(unavailable(Arc::from(Box::from("it has no reply address"))));
    };
    let mailbox = resolver.resolve(address).map_err(|error| unavailable(Arc::new(error)))?;
    Ok(mailbox.replying_to(queue, message.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{Mailboxes, MemoryBackend};

    fn counting_factory(capacity: usize) -> (Factory<u32>, Arc<AtomicUsize>) {
        let opened = Arc::new(AtomicUsize::new(0));
        let backend = Mailboxes::new(MemoryBackend::new());
        let count = opened.clone();
        let factory = Factory::with_capacity(capacity, move |address| {
            count.fetch_add(1, Ordering::Relaxed);
            backend.mailbox(address)
        });
        (factory, opened)
    }

    #[test]
    fn a_factory_opens_one_mailbox_per_address() {
        let (factory, opened) = counting_factory(8);
        for _ in 0..100 {
            assert_eq!(factory.resolve("client-1").unwrap().name().as_str(), "client-1");
            factory.resolve("client-2").unwrap();
        }
        assert_eq!(opened.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_factory_caches_a_bounded_number_and_those_in_use() {
        let (factory, opened) = counting_factory(8);
        for client in 0..1000 {
            factory.resolve("busy").unwrap();
            factory.resolve(&format!("client-{client}")).unwrap();
        }
        let cache = lock(&factory.cache);
        assert!(cache.young.len() + cache.old.len() <= 8);
        assert_eq!(opened.load(Ordering::Relaxed), 1001);
    }

    #[tokio::test]
    async fn a_factory_does_not_reuse_a_closed_mailbox() {
        let (factory, opened) = counting_factory(8);
        factory.resolve("client-1").unwrap().close().await;
        factory.resolve("client-1").unwrap().send(&7).await.unwrap();
        assert_eq!(opened.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_registry_comes_before_the_factory() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let registry = Registry::new().with("known", backend.mailbox("registered").unwrap());
        let (factory, opened) = counting_factory(8);
        let resolver = registry.or_else(factory);
        assert_eq!(resolver.resolve("known").unwrap().name().as_str(), "registered");
        assert_eq!(resolver.resolve("other").unwrap().name().as_str(), "other");
        assert_eq!(opened.load(Ordering::Relaxed), 1);
        resolver.registry().remove("known");
        assert_eq!(resolver.resolve("known").unwrap().name().as_str(), "known");
    }

    #[test]
    fn an_unknown_address_is_an_error() {
        assert!(MailboxResolver::<u32>::resolve(&NoReplies, "x").is_err());
        assert!(Registry::<u32>::new().resolve("x").is_err());
        assert!(counting_factory(8).0.resolve("not a name").is_err());
    }
}
