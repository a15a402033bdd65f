//! A mailbox that records what is sent.

use std::ops::Deref;

use pillarbox_core::{Codec, Json, Mailbox, Outgoing};

use super::fake::FakeMailbox;

/// A mailbox that records everything sent to it.
///
/// It also works as a mailbox: messages can be received, and stay recorded.
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
    /// Creates an empty mailbox called `collecting`.
    pub fn new() -> Self {
        Self::named("collecting")
    }

    /// Creates an empty mailbox of this name, such as the target of dead letters:
    /// `DlqPolicy::to(&collecting)`.
    ///
    /// # Panics
    ///
    /// If that is not a valid [name](pillarbox_core::QueueName).
    #[track_caller]
    pub fn named(name: &str) -> Self {
        Self { fake: FakeMailbox::named(name) }
    }

    /// Returns the bodies sent so far, in order.
    ///
    /// # Panics
    ///
    /// If a body that was sent as raw bytes cannot be decoded.
    pub fn sent(&self) -> Vec<T> {
        let decode = |message: Outgoing| Json.decode(&message.body).expect("a body of this type");
        self.fake.sent_messages().into_iter().map(decode).collect()
    }

    /// Returns the messages sent so far, in order, with ids, attributes, reply addresses and delays.
    pub fn sent_messages(&self) -> Vec<Outgoing> {
        self.fake.sent_messages()
    }

    /// Returns a handle for the code under test.
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
