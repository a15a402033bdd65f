//! Errors of the contract.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{MessageId, QueueName, Receipt};

/// A result whose error is of the contract.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What caused an error, shared so that one failure can answer every entry of a batch.
pub type Cause = Arc<dyn StdError + Send + Sync + 'static>;

/// Why an operation on a mailbox failed.
///
/// The same on every backend. Each text says what was tried, on which queue and message, and
/// where it helps, what to do about it.
///
/// `{:?}` is that text, too, with what caused it: a `main` that returns this error ends with a line that
/// people can read. `{:#?}` shows the fields.
///
/// ```
/// # use pillarbox_core::Error;
/// let error = Error::connection(None, "open", "nobody listens there");
/// assert_eq!(format!("{error:?}"), "cannot open: nobody listens there");
/// assert!(format!("{error:#?}").starts_with("Connection {"));
/// ```
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The receipt settles nothing any more: its deadline passed, or its message was settled,
    /// redelivered or purged. Whoever holds it must assume that somebody else has the message.
    #[error(
        "{} is no longer valid in queue '{queue}': its visibility timeout passed, or the message \
         was settled, redelivered or purged",
        DescribeReceipt(receipt)
    )]
    ReceiptHandleExpired {
        /// The queue.
        queue: QueueName,
        /// The receipt that was refused.
        receipt: Receipt,
    },

    /// The queue holds as many messages as it may, or as its server has memory for, and this one was not
    /// stored; or as many are in flight as may be, and none was delivered.
    #[error("queue '{queue}' is full{}{}", Limit(max_size), Refused(id))]
    MailboxFull {
        /// The queue.
        queue: QueueName,
        /// The message that was refused. `None`: no message was delivered, for too many are in flight.
        id: Option<MessageId>,
        /// How many messages the queue may hold, or have in flight. `None`: its server has no memory left.
        max_size: Option<u64>,
    },

    /// The queue was purged a short time ago, and cannot be purged again yet.
    #[error(
        "queue '{queue}' was purged less than {} s ago and cannot be purged again before; nothing was \
         deleted. Wait, or receive and acknowledge what is there",
        cooldown.as_secs()
    )]
    PurgeCooldown {
        /// The queue.
        queue: QueueName,
        /// How long there must be between two purges.
        cooldown: Duration,
    },

    /// A body could not be turned into bytes, or bytes into a body.
    #[error("cannot {action} message {id} of queue '{queue}' as {codec}: {cause}")]
    Serialization {
        /// The queue.
        queue: QueueName,
        /// The message.
        id: MessageId,
        /// `encode` or `decode`.
        action: &'static str,
        /// The name of the codec.
        codec: &'static str,
        /// What the codec said.
        #[source]
        cause: Cause,
    },

    /// The backend could not be reached, or failed to answer.
    ///
    /// A send that ends so may have been stored: repeat it under the same
    /// [id](Error::message_id). An acknowledgement or a nack that ends so may have been done:
    /// repeat it, and take [`Error::ReceiptHandleExpired`] for "done". An extension that ends so
    /// and is refused when repeated means that the lease is lost.
    #[error("cannot {action}{}: {cause}", Concerning(queue, id))]
    Connection {
        /// The queue, where one is concerned.
        queue: Option<QueueName>,
        /// The message, where one is concerned.
        id: Option<MessageId>,
        /// What was tried, such as `send`.
        action: &'static str,
        /// What the backend or the network said.
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
        /// Why: no reply address, an address that does not resolve, or a queue that is not there.
        #[source]
        cause: Cause,
    },

    /// A value is outside what the contract or the backend allows. Nothing was done.
    #[error("invalid {parameter}{}: {value}; allowed: {allowed}", Concerning(queue, id))]
    InvalidParameter {
        /// The queue, where one is concerned.
        queue: Option<QueueName>,
        /// The message, where one is concerned.
        id: Option<MessageId>,
        /// The name of the parameter. `queue`: the backend has no such queue, and makes none.
        parameter: &'static str,
        /// What was given.
        value: Box<str>,
        /// What is allowed.
        allowed: Box<str>,
    },

    /// The mailbox was closed, or the backend as a whole.
    #[error("the mailbox{} was closed", Concerning(queue, &None))]
    Closed {
        /// The queue, unless it is about the whole backend.
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

/// Not part of the interface: `Debug` of an error as `main` prints it, which is its text with its causes;
/// and its fields with `{:#?}`.
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

/// Not part of the interface: an error with what caused it, what caused that, and so on, each once. The text of
/// an error often has that of its cause in it.
#[doc(hidden)]
pub fn __fmt_error(error: &(dyn StdError + 'static), f: &mut fmt::Formatter<'_>) -> fmt::Result {
    // One that is its own cause would never end.
    const LONGEST_CHAIN: usize = 32;
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    for cause in causes.take(LONGEST_CHAIN).map(ToString::to_string) {
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    f.write_str(&text)
}

impl Error {
    /// Says that `parameter` has a value outside of what is `allowed`.
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

    /// Says that the backend failed while it was to do `action`.
    pub fn connection(
        queue: Option<&QueueName>,
        action: &'static str,
        cause: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self::Connection { queue: queue.cloned(), id: None, action, cause: cause.into().into() }
    }

    /// The same error, saying which message it is about where that was not said.
    #[must_use]
    pub fn about(mut self, message: Option<MessageId>) -> Self {
        if let Self::Connection { id, .. } | Self::InvalidParameter { id, .. } = &mut self {
            *id = id.or(message);
        }
        self
    }

    /// Whether the backend has no such queue, and makes none.
    pub(crate) fn is_missing_queue(&self) -> bool {
        matches!(self, Self::InvalidParameter { parameter: "queue", .. })
    }

    /// Whether the same call may succeed later without any change by the caller.
    pub const fn is_transient(&self) -> bool {
        matches!(
            self,
            Self::Connection { .. } | Self::MailboxFull { .. } | Self::PurgeCooldown { .. }
        )
    }

    /// The queue that the error is about.
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

    /// The message that the error is about.
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

/// ` on queue 'Q' for message M`, as far as they are known.
struct Concerning<'a>(&'a Option<QueueName>, &'a Option<MessageId>);

impl fmt::Display for Concerning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self(Some(queue), None) => write!(f, " on queue '{queue}'"),
            Self(Some(queue), Some(id)) => write!(f, " on queue '{queue}' for message {id}"),
            Self(None, Some(id)) => write!(f, " for message {id}"),
            Self(None, None) => Ok(()),
        }
    }
}

/// What a queue is full at.
struct Limit<'a>(&'a Option<u64>);

impl fmt::Display for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(max_size) => write!(f, " at {max_size} messages"),
            None => f.write_str(
                ": its server has no memory left. Give it more, or receive and settle to make room",
            ),
        }
    }
}

/// What could not be done with a queue that is full.
struct Refused<'a>(&'a Option<MessageId>);

impl fmt::Display for Refused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(id) => write!(f, "; message {id} was not stored"),
            None => f.write_str(" in flight; none was delivered. Settle those that are"),
        }
    }
}

/// Names the message and keeps the secret of the receipt out of logs.
struct DescribeReceipt<'a>(&'a Receipt);

impl fmt::Display for DescribeReceipt<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.message_id() {
            Some(id) => write!(f, "the receipt of message {id}"),
            None => f.write_str("the receipt"),
        }
    }
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
        let errors = [
            Error::MailboxFull { queue: queue(), id: Some(id), max_size: Some(3) },
            Error::MailboxFull { queue: queue(), id: Some(id), max_size: None },
            Error::Serialization {
                queue: queue(),
                id,
                action: "decode",
                codec: "JSON",
                cause: cause(),
            },
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
        assert_eq!(
            text(Error::connection(Some(&queue()), "send", "refused")),
            "cannot send on queue 'orders': refused"
        );
        assert_eq!(
            text(Error::MailboxFull { queue: queue(), id: None, max_size: Some(3) }),
            "queue 'orders' is full at 3 messages in flight; none was delivered. Settle those that are"
        );
        let cooldown = Duration::from_secs(60);
        let again = Error::PurgeCooldown { queue: queue(), cooldown };
        assert!(again.is_transient() && again.queue() == Some(&queue()));
        assert!(text(again).starts_with("queue 'orders' was purged less than 60 s ago"));
        assert_eq!(
            text(Error::Closed { queue: Some(queue()) }),
            "the mailbox on queue 'orders' was closed"
        );
    }

    #[test]
    fn an_error_does_not_tell_the_secret_of_a_receipt() {
        let nonce = Nonce::random();
        let receipt = Receipt::new(MessageId::new(), nonce);
        let error = Error::ReceiptHandleExpired { queue: queue(), receipt };
        for text in [error.to_string(), format!("{error:?}"), format!("{error:#?}")] {
            assert!(!text.contains(&nonce.to_string()), "{text}");
        }
    }

    /// An error that says what caused it, or leaves that to whoever asks.
    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Link {
        text: &'static str,
        #[source]
        cause: Option<Box<Link>>,
    }

    #[test]
    fn an_error_is_shown_as_its_text_with_each_cause_once_and_with_its_fields_where_asked() {
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
