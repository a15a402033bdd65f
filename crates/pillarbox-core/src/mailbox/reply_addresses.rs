//! The addresses that a mailbox replies to.

use super::{Factory, Mailbox, MailboxResolver};
use crate::QueueName;
use crate::error::{Error, Result};

/// Prefix of the names of reply mailboxes, such as those of the runtime's clients.
pub(super) const REPLY_PREFIX: &str = "pillarbox-replies-";
/// Prefix of the names of mailboxes for the results of an eval run.
pub(super) const EVAL_PREFIX: &str = "eval-";

/// Addresses that a mailbox replies to.
#[derive(Debug, Clone, Default)]
pub(super) struct ReplyAddresses {
    pub(super) allows_any: bool,
    pub(super) allowed: Vec<Box<str>>,
}

impl ReplyAddresses {
    /// Refuses an address that replies to messages of `queue` must not go to.
    fn check(&self, queue: &QueueName, address: &str) -> Result<()> {
        let is_allowed = || self.allowed.iter().any(|allowed| **allowed == *address);
        // A queue that replies to itself would receive its own replies.
        let is_for_replies = || {
            [REPLY_PREFIX, EVAL_PREFIX].iter().any(|prefix| address.starts_with(prefix))
                && address != queue.as_str()
        };
        if self.allows_any || is_allowed() || is_for_replies() {
            return Ok(());
        }
        let allowed = "a reply mailbox (pillarbox-replies-…, eval-…): to reply to other queues, open the \
             mailbox with allow_reply_to(name) or allow_reply_to_any(), or give it a Registry";
        Err(Error::invalid(Some(queue), "reply address", format!("{address:?}"), allowed))
    }
}

/// Resolver that refuses the addresses that replies must not go to.
pub(super) struct CheckedResolver<R> {
    pub(super) queue: QueueName,
    pub(super) addresses: ReplyAddresses,
    pub(super) factory: Factory<R>,
}

impl<R: 'static> MailboxResolver<R> for CheckedResolver<R> {
    fn resolve(&self, address: &str) -> Result<Mailbox<R>> {
        self.addresses.check(&self.queue, address)?;
        self.factory.resolve(address)
    }

    fn forget(&self, address: &str) {
        self.factory.forget(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Json, Mailboxes, MemoryBackend, QueueOptions, Receive, Registry, SendOptions};

    /// Sends a message with this reply address, and returns the name of its reply mailbox.
    async fn replied_to(requests: &Mailbox<u32, u32>, address: &str) -> Result<String> {
        requests.send_with(&7, SendOptions::new().reply_to(address)).await?;
        let batch = requests.receive(Receive::one()).await?;
        let message = batch.into_iter().next().expect("a message");
        let mailbox = message.reply_mailbox().map(|mailbox| mailbox.name().to_string());
        message.acknowledge().await?;
        mailbox
    }

    #[tokio::test]
    async fn a_message_cannot_choose_any_queue_for_its_reply() {
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
        let payments = backend.queue("payments", QueueOptions::new()).unwrap();
        assert_eq!(payments.counts().await.unwrap().sent, Some(0));
        // Not even its own name, if that looks like one for replies.
        let runs = backend.mailbox("eval-requests").unwrap();
        assert!(replied_to(&runs, "eval-requests").await.is_err());
    }

    #[tokio::test]
    async fn a_program_can_allow_other_reply_addresses() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let named = backend.builder("requests").allow_reply_to("answers").allow_reply_to("audit");
        let named = named.open().unwrap();
        for address in ["answers", "audit", "pillarbox-replies-7"] {
            assert_eq!(replied_to(&named, address).await.unwrap(), address);
        }
        assert!(replied_to(&named, "payments").await.is_err());
        let any = backend.builder("requests").codec(Json).allow_reply_to_any().open().unwrap();
        assert_eq!(replied_to(&any, "payments").await.unwrap(), "payments");
        assert!(replied_to(&any, "no name").await.is_err());
        let registry = Registry::new().with("payments", backend.mailbox("elsewhere").unwrap());
        let registered = named.with_replies(registry);
        assert_eq!(replied_to(&registered, "payments").await.unwrap(), "elsewhere");
    }

    #[tokio::test]
    async fn a_bounded_number_of_reply_queues_is_kept_open() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let requests: Mailbox<u32, u32> = backend.mailbox("requests").unwrap();
        for client in 0..5_000 {
            requests.resolve_reply(&format!("pillarbox-replies-{client}")).unwrap();
        }
        // A queue that is empty and not open is forgotten.
        let open = backend.queues().await.unwrap().len();
        assert!(open <= Factory::<u32>::DEFAULT_CAPACITY + 1, "{open}");
    }
}
