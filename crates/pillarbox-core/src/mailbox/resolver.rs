//! From the reply address of a message to the mailbox it names.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use super::{Mailbox, Mailboxes};
use crate::QueueName;
use crate::error::{Error, Result};
use crate::queue::RawMessage;

/// Finds the mailbox that a reply address names.
///
/// A mailbox opened by [`Mailboxes`](super::Mailboxes) takes the address for the name of a queue
/// on the same backend, of those that [are for replies](super::MailboxBuilder::allow_reply_to). Others are
/// set by [`Mailbox::with_replies`]. An address comes with a message, from whoever may send one: a
/// resolver decides to which queues a receiver can be made to write. A closure
/// `Fn(&str) -> Result<Mailbox<R>>` is one too, but what it makes is not kept: wrap it in a
/// [`Factory`].
pub trait MailboxResolver<R>: Send + Sync + 'static {
    /// Finds the mailbox that `address` names.
    fn resolve(&self, address: &str) -> Result<Mailbox<R>>;

    /// Lets go of what is kept of `address`, which will hardly be asked for again. Nothing unless said
    /// otherwise.
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

fn unknown(address: &str, allowed: &str) -> Error {
    Error::invalid(None, "reply address", format!("{address:?}"), allowed)
}

/// Resolves nothing, for mailboxes that nobody replies to.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReplies;

impl<R> MailboxResolver<R> for NoReplies {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        Err(unknown(address, "none: this mailbox was opened without a way to reply"))
    }
}

/// Resolves the addresses it was told, and no others.
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
    known: RwLock<HashMap<String, Mailbox<R>>>,
}

impl<R> Registry<R> {
    /// Makes a registry that knows no address.
    pub fn new() -> Self {
        Self { known: RwLock::default() }
    }

    /// Adds an address while the registry is built.
    #[must_use]
    pub fn with(self, address: impl Into<String>, mailbox: Mailbox<R>) -> Self {
        self.insert(address, mailbox);
        self
    }

    /// Adds an address, in place of what it named before.
    pub fn insert(&self, address: impl Into<String>, mailbox: Mailbox<R>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.insert(address.into(), mailbox);
    }

    /// Forgets an address.
    pub fn remove(&self, address: &str) {
        self.known.write().unwrap_or_else(PoisonError::into_inner).remove(address);
    }

    /// Asks `factory` for the addresses that are not in the registry.
    pub fn or_else(self, factory: Factory<R>) -> RegistryThenFactory<R> {
        RegistryThenFactory { registry: self, factory }
    }

    fn get(&self, address: &str) -> Option<Mailbox<R>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(address).cloned()
    }
}

impl<R> fmt::Debug for Registry<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_tuple("Registry").field(&known.keys()).finish()
    }
}

impl<R> Default for Registry<R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<R: 'static> MailboxResolver<R> for Registry<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        self.get(address).ok_or_else(|| unknown(address, "an address that was registered"))
    }
}

/// Makes mailboxes by a function and keeps them, so that many replies to one address open one
/// mailbox.
///
/// It keeps a bounded number, those used last: a million clients that are replied to once each do
/// not pile up a million mailboxes. One that somebody closed is made anew.
pub struct Factory<R> {
    make: Make<R>,
    kept: Mutex<Kept<Mailbox<R>>>,
}

type Make<R> = Box<dyn Fn(&str) -> Result<Mailbox<R>> + Send + Sync>;

impl<R> Factory<R> {
    /// How many mailboxes a factory keeps unless told otherwise.
    pub const DEFAULT_CAPACITY: usize = 1024;

    /// Makes a factory that keeps the last 1,024 mailboxes used, or a few less.
    pub fn new(make: impl Fn(&str) -> Result<Mailbox<R>> + Send + Sync + 'static) -> Self {
        Self::with_capacity(Self::DEFAULT_CAPACITY, make)
    }

    /// Makes a factory that keeps at most `capacity` mailboxes, and always half of those.
    pub fn with_capacity(
        capacity: usize,
        make: impl Fn(&str) -> Result<Mailbox<R>> + Send + Sync + 'static,
    ) -> Self {
        Self { make: Box::new(make), kept: Mutex::new(Kept::new(capacity)) }
    }
}

impl<R> fmt::Debug for Factory<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Factory").finish_non_exhaustive()
    }
}

impl<R: 'static> MailboxResolver<R> for Factory<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        // Making a mailbox under the lock is what keeps two callers from making two: opening is
        // cheap and touches no network.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(mailbox) = kept.get(address).filter(|mailbox| !mailbox.is_closed()) {
            return Ok(mailbox);
        }
        let mailbox = (self.make)(address)?;
        kept.insert(address.to_owned(), mailbox.clone());
        Ok(mailbox)
    }

    fn forget(&self, address: &str) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).remove(address);
    }
}

/// Resolves what is registered, and makes the rest.
#[derive(Debug)]
pub struct RegistryThenFactory<R> {
    registry: Registry<R>,
    factory: Factory<R>,
}

impl<R> RegistryThenFactory<R> {
    /// The registry, to add to it later.
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

/// Which addresses a mailbox replies to.
#[derive(Debug, Clone, Default)]
pub(super) struct Addresses {
    is_any: bool,
    named: Vec<Box<str>>,
}

impl Addresses {
    /// How the names of queues begin that are there for replies: those of clients, and of eval runs.
    const PREFIXES: [&str; 2] = [Mailboxes::REPLY_PREFIX, Mailboxes::EVAL_PREFIX];

    pub(super) fn allow(&mut self, address: impl Into<Box<str>>) {
        self.named.push(address.into());
    }

    pub(super) const fn allow_any(&mut self) {
        self.is_any = true;
    }

    /// Refuses an address that messages of this queue are not replied to.
    pub(super) fn check(&self, queue: &QueueName, address: &str) -> Result<()> {
        let is_named = || self.named.iter().any(|named| **named == *address);
        // A queue that answers into itself would receive its own answers.
        let is_for_replies = || {
            Self::PREFIXES.iter().any(|prefix| address.starts_with(prefix))
                && address != queue.as_str()
        };
        if self.is_any || is_named() || is_for_replies() {
            return Ok(());
        }
        let allowed = "a reply mailbox (pillarbox-replies-…, eval-…): to reply to other queues, open the \
             mailbox with allow_reply_to(name) or allow_reply_to_any(), or give it a Registry";
        Err(Error::invalid(Some(queue), "reply address", format!("{address:?}"), allowed))
    }
}

/// Resolves those addresses that replies may go to, and refuses the others.
pub(super) struct Checked<R> {
    pub(super) queue: QueueName,
    pub(super) addresses: Addresses,
    pub(super) factory: Factory<R>,
}

impl<R: 'static> MailboxResolver<R> for Checked<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        self.addresses.check(&self.queue, address)?;
        self.factory.resolve(address)
    }

    fn forget(&self, address: &str) {
        self.factory.forget(address);
    }
}

/// Keeps the values used last, at most `capacity` of them, in two generations: what is used moves
/// to the young one, and when that is full the old one is dropped and the young one is the old.
struct Kept<V> {
    half: usize,
    young: HashMap<String, V>,
    old: HashMap<String, V>,
}

impl<V: Clone> Kept<V> {
    fn new(capacity: usize) -> Self {
        Self { half: (capacity / 2).max(1), young: HashMap::new(), old: HashMap::new() }
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
        if self.young.len() >= self.half {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    fn remove(&mut self, key: &str) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

/// The mailbox that the sender of a message wants the answer in.
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
    Ok(mailbox.answering(queue, message.id))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::{MemoryBackend, QueueOptions, Receive, SendOptions};

    fn counting_factory(capacity: usize) -> (Factory<u32>, Arc<AtomicUsize>) {
        let made = Arc::new(AtomicUsize::new(0));
        let backend = Mailboxes::new(MemoryBackend::new());
        let count = made.clone();
        let factory = Factory::with_capacity(capacity, move |address| {
            count.fetch_add(1, Ordering::Relaxed);
            backend.mailbox(address)
        });
        (factory, made)
    }

    #[test]
    fn a_factory_makes_one_mailbox_per_address() {
        let (factory, made) = counting_factory(8);
        for _ in 0..100 {
            assert_eq!(factory.resolve("client-1").unwrap().name().as_str(), "client-1");
            factory.resolve("client-2").unwrap();
        }
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_factory_keeps_a_bounded_number_and_the_ones_in_use() {
        let (factory, made) = counting_factory(8);
        for client in 0..1000 {
            factory.resolve("busy").unwrap();
            factory.resolve(&format!("client-{client}")).unwrap();
        }
        let kept = factory.kept.lock().unwrap();
        assert!(kept.young.len() + kept.old.len() <= 8);
        assert_eq!(made.load(Ordering::Relaxed), 1001);
    }

    #[tokio::test]
    async fn a_factory_does_not_keep_a_mailbox_that_was_closed() {
        let (factory, made) = counting_factory(8);
        factory.resolve("client-1").unwrap().close().await;
        factory.resolve("client-1").unwrap().send(&7).await.unwrap();
        assert_eq!(made.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_registry_comes_before_the_factory() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let registry = Registry::new().with("known", backend.mailbox("registered").unwrap());
        let (factory, made) = counting_factory(8);
        let resolver = registry.or_else(factory);
        assert_eq!(resolver.resolve("known").unwrap().name().as_str(), "registered");
        assert_eq!(resolver.resolve("other").unwrap().name().as_str(), "other");
        assert_eq!(made.load(Ordering::Relaxed), 1);
        resolver.registry().remove("known");
        assert_eq!(resolver.resolve("known").unwrap().name().as_str(), "known");
    }

    #[test]
    fn an_address_that_names_nothing_is_an_error() {
        assert!(MailboxResolver::<u32>::resolve(&NoReplies, "x").is_err());
        assert!(Registry::<u32>::new().resolve("x").is_err());
        assert!(counting_factory(8).0.resolve("not a name").is_err());
    }

    /// Where a message that was sent with this address is answered, or why not.
    async fn replied_to(requests: &Mailbox<u32, u32>, address: &str) -> Result<String> {
        requests.send_with(&7, SendOptions::new().reply_to(address)).await?;
        let batch = requests.receive(Receive::one()).await?;
        let message = batch.into_iter().next().expect("a message");
        let mailbox = message.reply_mailbox().map(|mailbox| mailbox.name().to_string());
        message.acknowledge().await?;
        mailbox
    }

    #[tokio::test]
    async fn a_message_cannot_name_any_queue_for_its_reply() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let requests = backend.mailbox("requests").unwrap();
        for address in ["pillarbox-replies-0193b1f4", "eval-nightly"] {
            assert_eq!(replied_to(&requests, address).await.unwrap(), address);
        }
        for address in ["payments", "requests", "my-pillarbox-replies-7", "https://x/eval-7"] {
            let error = replied_to(&requests, address).await.unwrap_err();
            assert!(matches!(error, Error::ReplyMailboxUnavailable { .. }), "{error}");
            assert!(error.to_string().contains("allow_reply_to"), "{error}");
        }
        assert_eq!(
            backend.queue("payments", QueueOptions::new()).unwrap().counts().await.unwrap().sent,
            Some(0)
        );
        // Not even by its own name, where that looks like one for replies.
        let runs = backend.mailbox("eval-requests").unwrap();
        assert!(replied_to(&runs, "eval-requests").await.is_err());
    }

    #[tokio::test]
    async fn a_program_says_which_other_queues_are_replied_to() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let named = backend.builder("requests").allow_reply_to("answers").allow_reply_to("audit");
        let named = named.open().unwrap();
        for address in ["answers", "audit", "pillarbox-replies-7"] {
            assert_eq!(replied_to(&named, address).await.unwrap(), address);
        }
        assert!(replied_to(&named, "payments").await.is_err());
        let any =
            backend.builder("requests").codec(crate::Json).allow_reply_to_any().open().unwrap();
        assert_eq!(replied_to(&any, "payments").await.unwrap(), "payments");
        assert!(replied_to(&any, "no name").await.is_err());
        let registry = Registry::new().with("payments", backend.mailbox("elsewhere").unwrap());
        let registered = named.with_replies(registry);
        assert_eq!(replied_to(&registered, "payments").await.unwrap(), "elsewhere");
    }

    #[tokio::test]
    async fn however_many_addresses_messages_name_a_bounded_number_of_queues_is_kept_open() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let requests: Mailbox<u32, u32> = backend.mailbox("requests").unwrap();
        for client in 0..5_000 {
            requests.resolve_reply(&format!("pillarbox-replies-{client}")).unwrap();
        }
        // One that is empty and that nobody has open is forgotten.
        let open = backend.queues().await.unwrap().len();
        assert!(open <= Factory::<u32>::DEFAULT_CAPACITY + 1, "{open}");
    }
}
