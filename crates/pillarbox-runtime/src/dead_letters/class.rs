//! Whether an error is worth another try.

use std::error::Error as StdError;
use std::io;

use pillarbox_core::Error;

use crate::outcome::{Failure, FailureKind};

/// Whether an error is worth another try, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// It may pass by itself: the network, a limit, a time that ran out.
    Retriable,
    /// It will be the same the next time: what was asked for is wrong.
    Permanent,
    /// It depends on what is meant: a panic, a body that another version may be able to read, something
    /// that is not found and may come.
    Ambiguous,
}

impl ErrorClass {
    /// Classifies a failure: by its kind, and by its error and what that was caused by, as far as they are
    /// of types that are known here: those of Pillarbox, [`io::Error`], `tokio::time::error::Elapsed` and
    /// `serde_json::Error`. All others are [ambiguous](Self::Ambiguous).
    ///
    /// ```
    /// use pillarbox_runtime::{ErrorClass, Failure};
    ///
    /// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    /// assert_eq!(ErrorClass::of(&Failure::of(reset)), ErrorClass::Retriable);
    /// ```
    pub fn of(failure: &Failure) -> Self {
        match failure.kind() {
            FailureKind::Timeout | FailureKind::Overloaded | FailureKind::Cancelled => {
                Self::Retriable
            }
            FailureKind::Rejected => Self::Permanent,
            FailureKind::Error => {
                // The outermost that is known decides: it has seen the others.
                failure.chain().find_map(Self::of_error).unwrap_or(Self::Ambiguous)
            }
            FailureKind::Panic
            | FailureKind::Undecodable
            | FailureKind::UnknownKind
            | FailureKind::Quarantined => Self::Ambiguous,
        }
    }

    /// Classifies an error, if its type is known here.
    fn of_error(error: &(dyn StdError + 'static)) -> Option<Self> {
        if let Some(error) = error.downcast_ref::<Error>() {
            return Some(Self::of_mailbox(error));
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(Self::of_io(error.kind()));
        }
        if error.is::<tokio::time::error::Elapsed>() {
            return Some(Self::Retriable);
        }
        error.is::<serde_json::Error>().then_some(Self::Permanent)
    }

    fn of_mailbox(error: &Error) -> Self {
        match error {
            Error::InvalidParameter { .. } => Self::Permanent,
            // Usually permanent, unless another version wrote it.
            Error::Serialization { .. } | Error::ReplyMailboxUnavailable { .. } => Self::Ambiguous,
            _ => Self::Retriable,
        }
    }

    const fn of_io(kind: io::ErrorKind) -> Self {
        use io::ErrorKind as Kind;
        match kind {
            Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::NetworkDown
            | Kind::TimedOut
            | Kind::Interrupted
            | Kind::WouldBlock
            | Kind::ResourceBusy
            | Kind::UnexpectedEof => Self::Retriable,
            Kind::InvalidInput | Kind::InvalidData | Kind::Unsupported => Self::Permanent,
            _ => Self::Ambiguous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot call")]
    struct Call(#[source] io::Error);

    #[test]
    fn an_error_is_known_by_itself_or_by_its_cause() {
        let io = |kind| io::Error::from(kind);
        let invalid = Error::invalid(None, "weight", "0", "at least 1");
        for (failure, class) in [
            (Failure::of(io(io::ErrorKind::TimedOut)), ErrorClass::Retriable),
            (Failure::of(io(io::ErrorKind::InvalidData)), ErrorClass::Permanent),
            (Failure::of(io(io::ErrorKind::NotFound)), ErrorClass::Ambiguous),
            (Failure::of(Call(io(io::ErrorKind::ConnectionReset))), ErrorClass::Retriable),
            (Failure::of(Error::Closed { queue: None }), ErrorClass::Retriable),
            (Failure::of(invalid), ErrorClass::Permanent),
            (Failure::of("text"), ErrorClass::Ambiguous),
            (Failure::new(FailureKind::Timeout, "late"), ErrorClass::Retriable),
            (Failure::new(FailureKind::Rejected, "no"), ErrorClass::Permanent),
            (Failure::new(FailureKind::Panic, "oh"), ErrorClass::Ambiguous),
        ] {
            assert_eq!(ErrorClass::of(&failure), class, "{failure:?}");
        }
    }
}
