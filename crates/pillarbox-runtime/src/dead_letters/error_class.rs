//! Classification of errors: whether a retry may succeed.

use std::error::Error as StdError;
use std::io;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use pillarbox_core::Error;

use crate::outcome::{Failure, FailureKind};

/// Whether a retry after an error may succeed.
///
/// A [`DlqPolicy`](super::DlqPolicy) acts on it with
/// [`include_permanent`](super::DlqPolicy::include_permanent) and
/// [`exclude_retriable`](super::DlqPolicy::exclude_retriable).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// The error may pass by itself, such as a network failure or a timeout.
    Retriable,
    /// The callee limits the rate of calls. It is [retriable](Self::is_retriable).
    RateLimited {
        /// Delay before the next attempt, in place of the backoff, if the callee named one.
        retry_after: Option<Duration>,
    },
    /// A retry would fail in the same way: the request is invalid or not allowed.
    Permanent,
    /// Not known: a panic, a body that another version may be able to decode, something that is not found
    /// and may appear later.
    Ambiguous,
}

/// An error that knows its own [class](ErrorClass).
///
/// A [policy](super::DlqPolicy) uses it for the types that are registered by
/// [`classify`](super::DlqPolicy::classify):
///
/// ```
/// use std::time::Duration;
/// use pillarbox_runtime::dead_letters::{Classify, DlqPolicy, ErrorClass};
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
    /// Returns the class of this error. If it panics, the error is [ambiguous](ErrorClass::Ambiguous).
    fn class(&self) -> ErrorClass;
}

/// The registered error types that know their class.
#[derive(Debug, Clone, Default)]
pub(crate) struct Classifiers(Vec<Classifier>);

/// Returns the class of an error if it is of one registered type.
#[derive(Debug, Clone, Copy)]
struct Classifier {
    /// For the error that a handler returned, which may be under a context of `anyhow`.
    of_failure: fn(&Failure) -> Option<ErrorClass>,
    /// For the causes of that error.
    of_cause: fn(&(dyn StdError + 'static)) -> Option<ErrorClass>,
}

impl Classifiers {
    pub(super) fn add<E: Classify>(&mut self) {
        self.0.push(Classifier {
            of_failure: |failure| failure.downcast_ref::<E>().map(E::class),
            of_cause: |cause| cause.downcast_ref::<E>().map(E::class),
        });
    }

    /// Classifies a failure by its kind, or by the outermost error of a known type, since that one knows its
    /// causes.
    pub(super) fn class_of(&self, failure: &Failure) -> ErrorClass {
        let of_error = || {
            let class = self.0.iter().find_map(|one| (one.of_failure)(failure));
            class
                .or_else(|| failure.chain().find_map(|error| self.of_cause(error)))
                .unwrap_or(ErrorClass::Ambiguous)
        };
        match failure.kind() {
            FailureKind::Timeout | FailureKind::Overloaded | FailureKind::Cancelled => {
                ErrorClass::Retriable
            }
            FailureKind::Rejected => ErrorClass::Permanent,
            // This calls code of the program.
            FailureKind::Error => catch_panic(of_error).unwrap_or(ErrorClass::Ambiguous),
            FailureKind::Panic
            | FailureKind::Undecodable
            | FailureKind::UnknownKind
            | FailureKind::Quarantined => ErrorClass::Ambiguous,
        }
    }

    fn of_cause(&self, error: &(dyn StdError + 'static)) -> Option<ErrorClass> {
        let class = self.0.iter().find_map(|one| (one.of_cause)(error));
        class.or_else(|| ErrorClass::of_error(error))
    }
}

impl ErrorClass {
    /// Classifies a failure by its kind, or by its error and the causes of that, if they are of these types:
    /// those of Pillarbox, [`io::Error`], `tokio::time::error::Elapsed` and `serde_json::Error`. All others are
    /// [ambiguous](Self::Ambiguous). [`FailedDelivery::class`](super::FailedDelivery::class) also knows the
    /// types that are [registered](super::DlqPolicy::classify) with a policy.
    ///
    /// ```
    /// use pillarbox_runtime::Failure;
    /// use pillarbox_runtime::dead_letters::ErrorClass;
    ///
    /// let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    /// assert_eq!(ErrorClass::of(&Failure::of(reset)), ErrorClass::Retriable);
    /// ```
    pub fn of(failure: &Failure) -> Self {
        Classifiers::default().class_of(failure)
    }

    /// Whether a retry may succeed: retriable or rate limited.
    pub const fn is_retriable(self) -> bool {
        matches!(self, Self::Retriable | Self::RateLimited { .. })
    }

    /// Classifies an error of one of the built-in types.
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
        // Usually permanent, but another version may be able to decode it.
        let json = error.downcast_ref::<serde_json::Error>()?;
        Some(json.io_error_kind().map_or(Self::Ambiguous, Self::of_io))
    }

    fn of_mailbox(error: &Error) -> Self {
        match error {
            Error::InvalidParameter { .. } => Self::Permanent,
            // Usually permanent, but another version may be able to decode it.
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

/// Calls a function of the program. `None` if it panics, which must not cost the message.
pub(super) fn catch_panic<T>(function: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(function)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::BoxError;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot call")]
    struct Call(#[source] io::Error);

    #[test]
    fn an_error_is_classified_by_its_own_type_or_by_its_cause() {
        let io = |kind| io::Error::from(kind);
        let invalid = Error::invalid(None, "weight", "0", "at least 1");
        let down = Error::connection(None, "send", "connection refused");
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
                // Takes precedence over the class of its cause.
                Self::Silent(_) => ErrorClass::Retriable,
                Self::Odd => panic!("no idea"),
            }
        }
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot charge")]
    struct Charge(#[source] Bank);

    #[test]
    fn a_registered_error_is_classified_also_in_a_box_and_as_a_cause() {
        let mut classifiers = Classifiers::default();
        classifiers.add::<Bank>();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        let boxed = |error: Bank| Failure::of(BoxError::from(error));
        assert_eq!(classifiers.class_of(&Failure::of(Bank::NoAccount)), ErrorClass::Permanent);
        assert_eq!(classifiers.class_of(&boxed(Bank::NoAccount)), ErrorClass::Permanent);
        assert_eq!(classifiers.class_of(&Failure::of(Charge(Bank::Busy))), BUSY);
        assert_eq!(classifiers.class_of(&boxed(Bank::Silent(denied()))), ErrorClass::Retriable);
        let built_in = classifiers.class_of(&Failure::of(denied()));
        assert_eq!(built_in, ErrorClass::Permanent);
        let panicked = classifiers.class_of(&Failure::of(Bank::Odd));
        assert_eq!(panicked, ErrorClass::Ambiguous);
        assert_eq!(ErrorClass::of(&Failure::of(Bank::NoAccount)), ErrorClass::Ambiguous);
        assert!(BUSY.is_retriable() && !ErrorClass::Permanent.is_retriable());
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn a_registered_error_is_classified_through_anyhow() {
        use anyhow::Context;
        let mut classifiers = Classifiers::default();
        classifiers.add::<Bank>();
        let failure = Failure::of(anyhow::Error::new(Bank::NoAccount));
        assert_eq!(classifiers.class_of(&failure), ErrorClass::Permanent);
        let with_context = Err::<(), _>(Charge(Bank::Busy)).context("order 7").unwrap_err();
        assert_eq!(classifiers.class_of(&Failure::of(with_context)), BUSY);
        let as_context = anyhow::anyhow!("404").context(Bank::NoAccount);
        assert_eq!(classifiers.class_of(&Failure::of(as_context)), ErrorClass::Permanent);
    }
}
