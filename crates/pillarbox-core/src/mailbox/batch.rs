//! The messages of one receive.

use std::fmt;

use bytes::Bytes;

use super::{BatchResults, Message};
use crate::error::{Error, Result};

/// Messages of one receive, in order, with those whose bodies could not be decoded set apart.
///
/// Iterating yields the decoded messages. A body that cannot be decoded does not block the others and is not lost:
/// [`undecodable`](Self::undecodable) returns it, [`take_undecodable`](Self::take_undecodable) moves it out to be
/// settled, and if it is not settled, it is delivered again when its lease expires.
#[must_use = "messages that are not settled are delivered again when their leases expire"]
pub struct Batch<T, R = ()> {
    pub(super) messages: Vec<Message<T, R>>,
    pub(super) undecodable: Vec<Undecodable<R>>,
}

impl<T, R: 'static> Batch<T, R> {
    /// Returns the number of decoded messages.
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Returns whether nothing was delivered, neither decoded nor undecodable.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.undecodable.is_empty()
    }

    /// Returns the decoded messages.
    pub fn messages(&self) -> &[Message<T, R>] {
        &self.messages
    }

    /// Returns the messages whose bodies could not be decoded.
    pub fn undecodable(&self) -> &[Undecodable<R>] {
        &self.undecodable
    }

    /// Acknowledges all decoded messages in one call. Undecodable messages are not settled.
    pub async fn acknowledge(self) -> Result<BatchResults<()>> {
        Message::acknowledge_all(self.messages).await
    }

    /// Removes the messages whose bodies could not be decoded from the batch and returns them.
    pub fn take_undecodable(&mut self) -> Vec<Undecodable<R>> {
        std::mem::take(&mut self.undecodable)
    }
}

impl<T, R> IntoIterator for Batch<T, R> {
    type Item = Message<T, R>;
    type IntoIter = std::vec::IntoIter<Message<T, R>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.into_iter()
    }
}

impl<'a, T, R> IntoIterator for &'a Batch<T, R> {
    type Item = &'a Message<T, R>;
    type IntoIter = std::slice::Iter<'a, Message<T, R>>;

    fn into_iter(self) -> Self::IntoIter {
        self.messages.iter()
    }
}

impl<T: fmt::Debug, R: 'static> fmt::Debug for Batch<T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch")
            .field("messages", &self.messages)
            .field("undecodable", &self.undecodable)
            .finish()
    }
}

/// A delivered message whose body could not be decoded.
#[must_use = "a message that is not settled is delivered again when its lease expires"]
pub struct Undecodable<R = ()> {
    pub(super) message: Message<Bytes, R>,
    pub(super) error: Error,
}

impl<R: 'static> Undecodable<R> {
    /// Returns the error of the codec, with the queue and the message.
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the message with its body as raw bytes.
    pub fn message(&self) -> &Message<Bytes, R> {
        &self.message
    }

    /// Converts this into the message with its body as raw bytes, to be settled like any other.
    pub fn into_message(self) -> Message<Bytes, R> {
        self.message
    }

    /// Deletes the message.
    pub async fn acknowledge(self) -> Result<()> {
        self.message.acknowledge().await
    }
}

impl<R: 'static> fmt::Debug for Undecodable<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Undecodable")
            .field("message", &self.message)
            .field("error", &self.error)
            .finish()
    }
}
