//! Whether an error is worth another try.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use pillarbox_core::Error;

use super::policy::guarded;
use crate::outcome::{Failure, FailureKind};

/// Whether an error is worth another try, as far as can be told.
///
/// What follows from it, a [`DlqPolicy`](super::DlqPolicy) says:
/// [`include_permanent`](super::DlqPolicy::include_permanent) and
/// [`exclude_retriable`](super::DlqPolicy::exclude_retriable).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// It may pass by itself: the network, a limit, a time that ran out.
    Retriable,
    /// The callee limits the rate of calls. It is [retriable](Self::is_retriable).
    RateLimited {
        /// How long to wait before the next attempt, in place of the backoff, if that was said.
        retry_after: Option<Duration>,
    },
    /// It will be the same the next time: what was asked for is wrong, or not allowed.
    Permanent,
    /// It depends on what is meant: a panic, a body that another version may be able to read, something
    /// that is not found and may come.
    Ambiguous,
}

/// An error that says itself whether it is worth another try.
///
/// A [policy](super::DlqPolicy) asks errors of the types that were named to it by
/// [`classify`](super::DlqPolicy::classify):
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::{Classify, DlqPolicy, ErrorClass};
///
/// #[derive(Debug, thiserror::Error)]
/// enum BankError {
///     #[error("there is no such account")]
///     NoSuchAccount,
///     #[error("too many requests")]
///     TooMany { retry_after: Duration },
///     #[error("the bank does not answer")]
///     Silent(#[source] std::io::Error),
/// }
///
/// impl Classify for BankError {
///     fn class(&self) -> ErrorClass {
///         match self {
///             Self::NoSuchAccount => ErrorClass::Permanent,
///             Self::TooMany { retry_after } => ErrorClass::RateLimited { retry_after: Some(*retry_after) },
///             Self::Silent(_) => ErrorClass::Retriable,
///         }
///     }
/// }
///
/// let policy = DlqPolicy::new().classify::<BankError>().include_permanent().exclude_retriable();
/// ```
pub trait Classify: StdError + Send + Sync + 'static {
    /// The class of this error. One that panics is [ambiguous](ErrorClass::Ambiguous).
    fn class(&self) -> ErrorClass;
}

/// The types of a program's own errors that say their class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classes(Vec<Classifier>);

/// Asks an error for its class, if it is of one type.
#[derive(Debug, Clone, Copy)]
struct Classifier {
    /// Of what a handler returned, which may be under a context of `anyhow`.
    of_failure: fn(&Failure) -> Option<ErrorClass>,
    /// Of what that was caused by.
    of_cause: fn(&(dyn StdError + 'static)) -> Option<ErrorClass>,
}

impl Classes {
    pub(super) fn add<E: Classify>(&mut self) {
        self.0.push(Classifier {
            of_failure: |failure| failure.downcast_ref::<E>().map(E::class),
            of_cause: |cause| cause.downcast_ref::<E>().map(E::class),
        });
    }

    /// Classifies a failure: by its kind, or by the outermost error that is of a known type, which has seen
    /// the others.
    pub(super) fn of(&self, failure: &Failure) -> ErrorClass {
        let of_error = || {
            let said = self.0.iter().find_map(|one| (one.of_failure)(failure));
            said.or_else(|| failure.chain().find_map(|error| self.of_cause(error)))
                .unwrap_or(ErrorClass::Ambiguous)
        };
        match failure.kind() {
            FailureKind::Timeout | FailureKind::Overloaded | FailureKind::Cancelled => {
                ErrorClass::Retriable
            }
            FailureKind::Rejected => ErrorClass::Permanent,
            // The program's own code runs here.
            FailureKind::Error => guarded(of_error).unwrap_or(ErrorClass::Ambiguous),
            FailureKind::Panic
            | FailureKind::Undecodable
            | FailureKind::UnknownKind
            | FailureKind::Quarantined => ErrorClass::Ambiguous,
        }
    }

    fn of_cause(&self, error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
        let said = self.0.iter().find_map(|one| (one.of_cause)(error));
        said.or_else(|| ErrorClass::of_error(error))
    }
}

impl ErrorClass {
    /// Classifies a failure: by its kind, and by its error and what that was caused by, as far as they are
    /// of types that are known here: those of Pillarbox, [`io::Error`], `tokio::time::error::Elapsed` and
    /// `serde_json::Error`. All others are [ambiguous](Self::Ambiguous). A policy knows
    /// [more types](super::DlqPolicy::classify), and tells by [`FailedDelivery::class`](super::FailedDelivery::class).
    ///
    /// ```
    /// use pillarbox_runtime::{ErrorClass, Failure};
    ///
    /// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    /// assert_eq!(ErrorClass::of(&Failure::of(reset)), ErrorClass::Retriable);
    /// ```
    pub fn of(failure: &Failure) -> Self {
        Classes::default().of(failure)
    }

    /// Whether it may pass by itself: retriable, or rate limited.
    pub const fn is_retriable(self) -> bool {
        matches!(self, Self::Retriable | Self::RateLimited { .. })
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
        // Usually permanent, unless another version wrote it.
        let json = error.downcast_ref::<serde_json::Error>()?;
        Some(json.io_error_kind().map_or(Self::Ambiguous, Self::of_io))
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
            Kind::InvalidInput | Kind::InvalidData | Kind::Unsupported | Kind::PermissionDenied => {
                Self::Permanent
            }
            _ => Self::Ambiguous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::BoxError;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot call")]
    struct Call(#[source] io::Error);

    #[test]
    fn an_error_is_known_by_itself_or_by_its_cause() {
        let io = |kind| io::Error::from(kind);
        let invalid = Error::invalid(None, "weight", "0", "at least 1");
        let down = Error::connection(None, "send", "nobody answers");
        let json = || serde_json::from_str::<u32>("{").unwrap_err();
        for (failure, class) in [
            (Failure::of(io(io::ErrorKind::TimedOut)), ErrorClass::Retriable),
            (Failure::of(io(io::ErrorKind::InvalidData)), ErrorClass::Permanent),
            (Failure::of(io(io::ErrorKind::PermissionDenied)), ErrorClass::Permanent),
            (Failure::of(io(io::ErrorKind::NotFound)), ErrorClass::Ambiguous),
            (Failure::of(Call(io(io::ErrorKind::ConnectionReset))), ErrorClass::Retriable),
            (Failure::of(Error::Closed { queue: None }), ErrorClass::Retriable),
            (Failure::of(down), ErrorClass::Retriable),
            (Failure::of(invalid), ErrorClass::Permanent),
            (Failure::of(json()), ErrorClass::Ambiguous),
            (Failure::of("text"), ErrorClass::Ambiguous),
            (Failure::new(FailureKind::Timeout, "late"), ErrorClass::Retriable),
            (Failure::new(FailureKind::Rejected, "no"), ErrorClass::Permanent),
            (Failure::new(FailureKind::Panic, "oh"), ErrorClass::Ambiguous),
        ] {
            assert_eq!(ErrorClass::of(&failure), class, "{failure:?}");
        }
    }

    #[derive(Debug, thiserror::Error)]
    enum Bank {
        #[error("no such account")]
        NoAccount,
        #[error("slow down")]
        Busy,
        #[error("cannot call")]
        Silent(#[source] io::Error),
        #[error("odd")]
        Odd,
    }

    const BUSY: ErrorClass = ErrorClass::RateLimited { retry_after: Some(Duration::from_secs(7)) };

    impl Classify for Bank {
        fn class(&self) -> ErrorClass {
            match self {
                Self::NoAccount => ErrorClass::Permanent,
                Self::Busy => BUSY,
                // It knows better than its cause.
                Self::Silent(_) => ErrorClass::Retriable,
                Self::Odd => panic!("no idea"),
            }
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot charge")]
    struct Charge(#[source] Bank);

    #[test]
    fn an_error_of_the_program_says_its_class_also_in_a_box_and_as_a_cause() {
        let mut classes = Classes::default();
        classes.add::<Bank>();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let boxed = |error: Bank| Failure::of(BoxError::from(error));
        assert_eq!(classes.of(&Failure::of(Bank::NoAccount)), ErrorClass::Permanent);
        assert_eq!(classes.of(&boxed(Bank::NoAccount)), ErrorClass::Permanent);
        assert_eq!(classes.of(&Failure::of(Charge(Bank::Busy))), BUSY);
        assert_eq!(classes.of(&boxed(Bank::Silent(denied()))), ErrorClass::Retriable);
        assert_eq!(classes.of(&Failure::of(denied())), ErrorClass::Permanent, "known here");
        assert_eq!(classes.of(&Failure::of(Bank::Odd)), ErrorClass::Ambiguous, "it panicked");
        assert_eq!(ErrorClass::of(&Failure::of(Bank::NoAccount)), ErrorClass::Ambiguous);
        assert!(BUSY.is_retriable() && !ErrorClass::Permanent.is_retriable());
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn an_error_of_the_program_says_its_class_through_anyhow() {
        use anyhow::Context;
        let mut classes = Classes::default();
        classes.add::<Bank>();
        let failure = Failure::of(anyhow::Error::new(Bank::NoAccount));
        assert_eq!(classes.of(&failure), ErrorClass::Permanent);
        let told = Err::<(), _>(Charge(Bank::Busy)).context("order 7").unwrap_err();
        assert_eq!(classes.of(&Failure::of(told)), BUSY);
        let as_context = anyhow::anyhow!("404").context(Bank::NoAccount);
        assert_eq!(classes.of(&Failure::of(as_context)), ErrorClass::Permanent);
    }
}
