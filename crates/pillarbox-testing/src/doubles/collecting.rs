//! A mailbox that keeps what is sent, to be looked at.

use std::ops::Deref;

use pillarbox_core::{Codec, Json, Mailbox};

use super::fake::FakeMailbox;

/// A mailbox that keeps a record of everything that was sent to it.
///
/// It is a working mailbox besides: what was sent can be received, and stays on record.
///
/// ```
/// use pillarbox_testing::CollectingMailbox;
///
/// # pillarbox_testing::block_on(async {
/// let mailbox: CollectingMailbox<String> = CollectingMailbox::new();
/// mailbox.send(&"a".to_owned()).await?;
/// mailbox.send(&"b".to_owned()).await?;
/// assert_eq!(mailbox.sent(), ["a", "b"]);
/// # Ok::<(), pillarbox_core::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct CollectingMailbox<T: 'static, R: 'static = ()> {
    fake: FakeMailbox<T, R>,
}

impl<T: 'static, R: 'static> CollectingMailbox<T, R>
where
    Json: Codec<T>,
{
    /// Makes an empty mailbox called `collecting`.
    pub fn new() -> Self {
        Self::named("collecting")
    }

    /// Makes an empty mailbox of this name, such as the one that dead letters are expected in:
    /// `DlqPolicy::to(&collecting)`.
    ///
    /// # Panics
    ///
    /// When that is no [name](pillarbox_core::QueueName) for a queue.
    #[track_caller]
    pub fn named(name: &str) -> Self {
        Self { fake: FakeMailbox::named(name) }
    }

    /// The bodies sent so far, in order.
    ///
    /// # Panics
    ///
    /// When a body that was sent as raw bytes, past the types, cannot be decoded.
    pub fn sent(&self) -> Vec<T> {
        let sent = self.fake.sent_messages();
        sent.iter()
            .map(|message| Json.decode(&message.body).expect("a body of this type"))
            .collect()
    }

    /// The messages sent so far, in order, as they went out: with ids, attributes, reply
    /// addresses and delays.
    pub fn sent_messages(&self) -> Vec<pillarbox_core::Outgoing> {
        self.fake.sent_messages()
    }

    /// A handle for the code under test.
    pub fn mailbox(&self) -> Mailbox<T, R> {
        self.fake.mailbox()
    }
}

impl<T: 'static, R: 'static> Default for CollectingMailbox<T, R>
where
    Json: Codec<T>,
{
    fn default() -> Self {
        Self::new()
    }
}

impl<T: 'static, R: 'static> Deref for CollectingMailbox<T, R> {
    type Target = Mailbox<T, R>;

    fn deref(&self) -> &Mailbox<T, R> {
        &self.fake
    }
}
