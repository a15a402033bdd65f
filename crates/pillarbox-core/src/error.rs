//! Errors of the contract.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{MessageId, QueueName, Receipt};

/// Result with an [`Error`] of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Cause of an error, shared so that one failure can be the result of every entry of a batch.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

/// Error of an operation on a mailbox, the same on every backend.
///
/// Its text states what was tried, on which queue and message, and if useful, what to do about it.
///
/// `{:?}` prints the same text with its causes, so that a `main` that returns this error ends with a readable
/// line. `{:#?}` shows the fields.
///
/// ```
/// # use pillarbox_core::Error;
/// let error = Error::connection(None, "open", "connection refused");
/// assert_eq!(format!("{error:?}"), "cannot open: connection refused");
/// assert!(format!("{error:#?}").starts_with("Connection {"));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The receipt is no longer valid: its lease expired, or its message was settled, redelivered or purged.
    /// Its holder must assume that another receiver has the message.
    #[error(
        "{} is no longer valid in queue '{queue}': its lease expired, or the message \
         was settled, redelivered or purged",
        describe(receipt)
    )]
    ReceiptHandleExpired {
        /// The queue.
        queue: QueueName,
        /// The receipt that was refused.
        receipt: Receipt,
    },

    /// The queue is full or its server is out of memory, and the message was not stored; or the maximum number
    /// of messages is in flight, and none was delivered.
    #[error("queue '{queue}' is full{}{}", limit(max_size), refused(id))]
    MailboxFull {
        /// The queue.
        queue: QueueName,
        /// The message that was refused. `None`: no message was delivered, because too many are in flight.
        id: Option<MessageId>,
        /// Maximum number of messages in the queue, or in flight. `None`: the server has no memory left.
        max_size: Option<u64>,
    },

    /// The queue was purged recently and cannot be purged again yet.
    #[error(
        "queue '{queue}' was purged less than {} s ago and cannot be purged again yet; nothing was \
         deleted. Wait, or receive and acknowledge the messages",
        cooldown.as_secs()
    )]
    PurgeCooldown {
        /// The queue.
        queue: QueueName,
        /// Minimum interval between two purges.
        cooldown: Duration,
    },

    /// A body could not be encoded or decoded.
    #[error("cannot {action} message {id} of queue '{queue}' as {codec}: {cause}")]
    Serialization {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: MessageId,
        /// `encode` or `decode`.
        action: &'static str,
        /// Name of the codec.
        codec: &'static str,
        /// Error of the codec.
        #[source]
        cause: Cause,
    },

    /// The backend is unreachable or did not answer.
    ///
    /// The operation may have taken effect. Repeat a send under the same [id](Error::message_id). Repeat an
    /// acknowledgement or a nack, and treat [`Error::ReceiptHandleExpired`] as success. If a repeated extension
    /// is refused, the lease is lost.
    #[error("cannot {action}{}: {cause}", subject(queue, id))]
    Connection {
        /// The queue, if the error is about one.
        queue: Option<QueueName>,
        /// The message, if the error is about one.
        id: Option<MessageId>,
        /// The operation, such as `send`.
        action: &'static str,
        /// Error of the backend or the network.
        #[source]
        cause: Cause,
    },

    /// There is no mailbox to reply to, or its queue does not exist.
    #[error("cannot reply to message {id} of queue '{queue}': {cause}")]
    ReplyMailboxUnavailable {
        /// The queue that the message came from.
        queue: QueueName,
        /// The message.
        id: MessageId,
        /// Reason: no reply address, an address that does not resolve, or a queue that does not exist.
        #[source]
        cause: Cause,
    },

    /// A value is outside the range that the contract or the backend allows. Nothing was done.
    #[error("invalid {parameter}{}: {value}; allowed: {allowed}", subject(queue, id))]
    InvalidParameter {
        /// The queue, if the error is about one.
        queue: Option<QueueName>,
        /// The message, if the error is about one.
        id: Option<MessageId>,
        /// Name of the parameter. `queue`: the queue does not exist, and the backend does not create it.
        parameter: &'static str,
        /// The value given.
        value: Box<str>,
        /// Description of the allowed values.
        allowed: Box<str>,
    },

    /// The mailbox or its backend was closed.
    #[error("the mailbox{} was closed", subject(queue, &None))]
    Closed {
        /// The queue. `None`: the whole backend.
        queue: Option<QueueName>,
    },
}

crate::__error_debug!(enum Error {
    ReceiptHandleExpired { queue, receipt },
    MailboxFull { queue, id, max_size },
    PurgeCooldown { queue, cooldown },
    Serialization { queue, id, action, codec, cause },
    Connection { queue, id, action, cause },
    ReplyMailboxUnavailable { queue, id, cause },
    InvalidParameter { queue, id, parameter, value, allowed },
    Closed { queue },
});

/// Implements `Debug` of an error for the output of `main`: its text and causes with `{:?}`, its fields with
/// `{:#?}`. Not part of the public API.
#[doc(hidden)]
#[macro_export]
macro_rules! __error_debug {
    (enum $error:ident { $($variant:ident $({ $($field:ident),+ })? $(($cause:ident))?,)+ }) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                if !f.alternate() {
                    return $crate::__fmt_error(self, f);
                }
                match self {
                    $(Self::$variant $({ $($field),+ })? $(($cause))? => f
                        .debug_struct(stringify!($variant))
                        $($(.field(stringify!($field), $field))+)?
                        $(.field(stringify!($cause), $cause))?
                        .finish(),)+
                }
            }
        }
    };
    (struct $error:ident { $($field:ident),* }) => {
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                if !f.alternate() {
                    return $crate::__fmt_error(self, f);
                }
                let Self { $($field),* } = self;
                f.debug_struct(stringify!($error))$(.field(stringify!($field), $field))*.finish()
            }
        }
    };
}

/// Writes an error and its chain of causes. Omits a cause whose text is already included, as many errors include
/// the text of their cause. Not part of the public API.
#[doc(hidden)]
pub fn __fmt_error(error: &(dyn StdError + 'static), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // Ends the loop for an error that is its own cause.
    const MAX_CAUSES: usize = 32;
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    for cause in causes.take(MAX_CAUSES).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    f.write_str(&text)
}

impl Error {
    /// Creates an [`Error::InvalidParameter`].
    pub fn invalid(
        queue: Option<&QueueName>,
        parameter: &'static str,
        value: impl Into<String>,
        allowed: impl Into<String>,
    ) -> Self {
        Self::InvalidParameter {
            queue: queue.cloned(),
            id: None,
            parameter,
            value: value.into().into(),
            allowed: allowed.into().into(),
        }
    }

    /// Creates an [`Error::Connection`]: the backend failed to do `action`.
    pub fn connection(
        queue: Option<&QueueName>,
        action: &'static str,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::Connection { queue: queue.cloned(), id: None, action, cause: cause.into().into() }
    }

    /// Sets the message that the error is about, unless it is set.
    #[must_use]
    pub fn about(mut self, message: Option<MessageId>) -> Self {
        if let Self::Connection { id, .. } | Self::InvalidParameter { id, .. } = &mut self {
            *id = id.or(message);
        }
        self
    }

    /// Returns whether the queue does not exist and the backend does not create it.
    pub(crate) fn is_missing_queue(&self) -> bool {
        matches!(self, Self::InvalidParameter { parameter: "queue", .. })
    }

    /// Returns whether the same call may succeed later without any change by the caller.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Connection { .. } | Self::MailboxFull { .. } | Self::PurgeCooldown { .. }
        )
    }

    /// Returns the queue that the error is about.
    pub const fn queue(&self) -> Option<&QueueName> {
        match self {
            Self::ReceiptHandleExpired { queue, .. }
            | Self::MailboxFull { queue, .. }
            | Self::PurgeCooldown { queue, .. }
            | Self::Serialization { queue, .. }
            | Self::ReplyMailboxUnavailable { queue, .. } => Some(queue),
            Self::Connection { queue, .. }
            | Self::InvalidParameter { queue, .. }
            | Self::Closed { queue } => queue.as_ref(),
        }
    }

    /// Returns the message that the error is about.
    pub const fn message_id(&self) -> Option<MessageId> {
        match self {
            Self::ReceiptHandleExpired { receipt, .. } => receipt.message_id(),
            Self::Serialization { id, .. } | Self::ReplyMailboxUnavailable { id, .. } => Some(*id),
            Self::MailboxFull { id, .. }
            | Self::Connection { id, .. }
            | Self::InvalidParameter { id, .. } => *id,
            Self::PurgeCooldown { .. } | Self::Closed { .. } => None,
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

/// Returns ` on queue 'Q' for message M`, as far as they are known.
fn subject(queue: &Option<QueueName>, id: &Option<MessageId>) -> String {
    match (queue, id) {
        (Some(queue), None) => format!(" on queue '{queue}'"),
        (Some(queue), Some(id)) => format!(" on queue '{queue}' for message {id}"),
        (None, Some(id)) => format!(" for message {id}"),
        (None, None) => String::new(),
    }
}

/// Returns the limit that a full queue has reached.
fn limit(max_size: &Option<u64>) -> String {
    let no_memory =
        ": its server has no memory left. Give it more, or receive and settle to make room";
    max_size.map_or_else(|| no_memory.to_owned(), |max_size| format!(" at {max_size} messages"))
}

/// Returns what a full queue refused.
fn refused(id: &Option<MessageId>) -> String {
    let none = " in flight; none was delivered. Settle some of them first";
    id.map_or_else(|| none.to_owned(), |id| format!("; message {id} was not stored"))
}

/// Returns the message of a receipt, and keeps its secret out of logs.
fn describe(receipt: &Receipt) -> String {
    let id = receipt.message_id();
    id.map_or_else(|| "the receipt".to_owned(), |id| format!("the receipt of message {id}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nonce;

    fn queue() -> QueueName {
        "orders".parse().unwrap()
    }

    #[test]
    fn every_text_names_queue_message_and_cause() {
        let id = MessageId::from_key("k");
        let receipt = Receipt::new(id, Nonce::from_bytes([1; 12]));
        let cause = || -> Cause { Arc::from(Box::<dyn StdError + Send + Sync>::from("because")) };
        let (action, codec) = ("decode", "JSON");
        let errors = [
            Error::MailboxFull { queue: queue(), id: Some(id), max_size: Some(3) },
            Error::MailboxFull { queue: queue(), id: Some(id), max_size: None },
            Error::Serialization { queue: queue(), id, action, codec, cause: cause() },
            Error::ReplyMailboxUnavailable { queue: queue(), id, cause: cause() },
            Error::ReceiptHandleExpired { queue: queue(), receipt },
            Error::connection(Some(&queue()), "send", "because").about(Some(id)),
            Error::invalid(Some(&queue()), "delay", "1 h", "0 to 900 s").about(Some(id)),
        ];
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("orders") && text.contains(&id.to_string()), "{text}");
            assert_eq!(text.contains("because"), StdError::source(&error).is_some(), "{text}");
            assert_eq!((error.queue(), error.message_id()), (Some(&queue()), Some(id)));
        }
        let text = |error: Error| error.to_string();
        let refused = Error::connection(Some(&queue()), "send", "refused");
        assert_eq!(text(refused), "cannot send on queue 'orders': refused");
        assert_eq!(
            text(Error::MailboxFull { queue: queue(), id: None, max_size: Some(3) }),
            "queue 'orders' is full at 3 messages in flight; none was delivered. Settle some of them first"
        );
        let cooldown = Duration::from_secs(60);
        let again = Error::PurgeCooldown { queue: queue(), cooldown };
        assert!(again.is_transient() && again.queue() == Some(&queue()));
        assert!(text(again).starts_with("queue 'orders' was purged less than 60 s ago"));
        let closed = Error::Closed { queue: Some(queue()) };
        assert_eq!(text(closed), "the mailbox on queue 'orders' was closed");
    }

    #[test]
    fn an_error_does_not_reveal_the_secret_of_a_receipt() {
        let nonce = Nonce::random();
        let receipt = Receipt::new(MessageId::new(), nonce);
        let error = Error::ReceiptHandleExpired { queue: queue(), receipt };
        for text in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
            assert!(!text.contains(&nonce.to_string()), "{text}");
        }
    }

    /// An error with an optional cause.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    #[test]
    fn debug_prints_the_text_with_each_cause_once_and_alternate_debug_the_fields() {
        let chain = ["the server is down: no answer", "no answer", "cable cut"];
        let mut cause = None;
        for text in chain.into_iter().rev() {
            cause = Some(Box::new(Link { text, cause }));
        }
        let error = Error::connection(Some(&queue()), "send", cause.unwrap());
        let text = "cannot send on queue 'orders': the server is down: no answer";
        assert_eq!(error.to_string(), text);
        assert_eq!(format!("{error:?}"), format!("{text}: cable cut"));
        let fields = format!("{error:#?}");
        for part in ["Connection {", "action: \"send\"", "queue: Some(", "text: \"cable cut\""] {
            assert!(fields.contains(part), "{part} in {fields}");
        }
        let closed: Result<()> = Err(Error::Closed { queue: None });
        assert_eq!(format!("{closed:?}"), "Err(the mailbox was closed)");
    }

    #[test]
    fn an_error_stays_small_enough_to_return() {
        assert!(size_of::<Error>() <= 96, "{}", size_of::<Error>());
    }
}
