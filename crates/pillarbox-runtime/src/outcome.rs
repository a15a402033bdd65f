//! What a handler says of a delivery, and what went wrong where it could not say anything.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

/// An error of any kind, as Tower passes them.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// What is to become of a delivery: the verbs of a handler.
///
/// A handler that returns nothing, or `Ok(())`, has said [`done`](Self::done); one that returns an
/// error has failed, and its message is retried until the retries are used up.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Outcome(pub(crate) Verb);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verb {
    Done,
    Retry { delay: Option<Duration>, reason: Option<Box<str>> },
    Reject { reason: Box<str> },
    Release { delay: Duration },
    Settled,
}

impl Outcome {
    /// The work is done: the message is deleted.
    pub const fn done() -> Self {
        Self(Verb::Done)
    }

    /// The work failed and is to be tried again, after as long as the backoff says. Like an error, it
    /// uses up a retry.
    pub const fn retry() -> Self {
        Self(Verb::Retry { delay: None, reason: None })
    }

    /// The same after a delay of the handler's own, such as what a `Retry-After` said.
    pub const fn retry_after(delay: Duration) -> Self {
        Self(Verb::Retry { delay: Some(delay), reason: None })
    }

    /// Trying again is pointless: the message becomes a dead letter now. Where there is no place for
    /// dead letters it is [parked](crate::Worker::park_for).
    pub fn reject(reason: impl Into<Box<str>>) -> Self {
        Self(Verb::Reject { reason: reason.into() })
    }

    /// It is not this worker's turn: the message goes back at once, to whoever receives it next. This is
    /// no failure and uses up no retry, as far as this process knows: others see the delivery counted.
    pub const fn release() -> Self {
        Self::release_for(Duration::ZERO)
    }

    /// The same, invisible for `delay`.
    pub const fn release_for(delay: Duration) -> Self {
        Self(Verb::Release { delay })
    }

    /// The work is done, and the handler has acknowledged the message itself, by its
    /// [`Metadata`](crate::Metadata), in a transaction of its own that is committed: nothing more is settled. If the transaction
    /// was rolled back after all, the message comes back when its lease ends. Who has acknowledged nothing has failed.
    ///
    /// ```
    /// use std::path::PathBuf;
    /// use pillarbox_core::{Mailbox, Mailboxes};
    /// use pillarbox_runtime::{BoxError, Context, Metadata, Outcome, Runnable, Worker};
    /// use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
    /// use pillarbox_sqlite::{SqliteBackend, SqliteOptions, transaction};
    ///
    /// async fn book(amount: i64, about: Metadata, Context(file): Context<PathBuf>) -> Result<Outcome, BoxError> {
    ///     let mut bank = Connection::open(&*file)?;
    ///     let both = bank.transaction_with_behavior(TransactionBehavior::Immediate)?;
    ///     both.execute("UPDATE account SET balance = balance + ?1", [amount])?;
    ///     transaction::acknowledge(&both, &about)?;
    ///     both.commit()?;
    ///     Ok(Outcome::settled())
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), BoxError> {
    /// # let directory = tempfile::tempdir()?;
    /// # let file = directory.path().join("bank.db");
    /// let backend = Mailboxes::new(SqliteBackend::open(SqliteOptions::new(&file)).await?);
    /// # let bank = Connection::open(&file)?;
    /// # bank.execute_batch("CREATE TABLE account (balance INTEGER); INSERT INTO account VALUES (0)")?;
    /// let payments: Mailbox<i64> = backend.mailbox("payments")?;
    /// payments.send(&100).await?;
    /// Worker::new(payments).context(file).handler(book).run_until_empty().await?;
    /// # assert_eq!(bank.query_row("SELECT balance FROM account", [], |row| row.get::<_, i64>(0))?, 100);
    /// # Ok(()) }
    /// ```
    pub const fn settled() -> Self {
        Self(Verb::Settled)
    }

    /// Says why, where the outcome is a retry or a rejection.
    pub fn because(mut self, why: impl Into<Box<str>>) -> Self {
        match &mut self.0 {
            Verb::Retry { reason, .. } => *reason = Some(why.into()),
            Verb::Reject { reason } => *reason = why.into(),
            Verb::Done | Verb::Release { .. } | Verb::Settled => {}
        }
        self
    }

    /// Whether the work is done.
    pub const fn is_done(&self) -> bool {
        matches!(self.0, Verb::Done | Verb::Settled)
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::done()
    }
}

/// What a handler may return: nothing, an [`Outcome`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "this is no outcome of a handler",
    note = "a handler returns `()`, `Outcome`, `Result<(), E>` or `Result<Outcome, E>`, \
            where `E` is an error, an `anyhow::Error`, a `String` or a `&str`"
)]
pub trait IntoOutcome {
    /// The outcome, or the error by which the handler failed.
    fn into_outcome(self) -> Result<Outcome, BoxError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        Ok(Outcome::done())
    }
}

impl IntoOutcome for Outcome {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        Ok(self)
    }
}

impl<O, E> IntoOutcome for Result<O, E>
where
    O: Into<Outcome>,
    E: Into<BoxError> + 'static,
{
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        match self {
            Ok(outcome) => Ok(outcome.into()),
            Err(error) => Err(Box::new(Failure::of(error))),
        }
    }
}

/// Why a delivery failed.
///
/// What a handler returned keeps the name of its type, which a boxed error alone has lost. Middleware
/// sees a `Failure` as the error of the service and finds the handler's own by
/// [`error`](Self::error).
///
/// What is known of the type, by what the handler returns:
///
/// | `Result<_, E>` with `E` | [`is`](Self::is) and [`downcast_ref`](Self::downcast_ref) | [`type_name`](Self::type_name) |
/// |---|---|---|
/// | an error of its own | exact | exact |
/// | `Box<dyn Error + Send + Sync>` | exact | exact for types that a [policy](crate::DlqPolicy) names, and some of the standard library |
/// | `anyhow::Error`, with the feature `anyhow` | exact, also of what is under a `context` | the same |
/// | `anyhow::Error` without it, `eyre::Report` and the like | what is under a context only | that of the report |
/// | `String`, `&str` | never | that of the text |
pub struct Failure {
    kind: FailureKind,
    type_name: &'static str,
    error: Carried,
}

pillarbox_core::__error_debug!(struct Failure { kind, type_name, error });

/// The error of a failure, as it came.
#[derive(Debug)]
enum Carried {
    Boxed(BoxError),
    /// Boxed as others are, it would hide what it was made of.
    #[cfg(feature = "anyhow")]
    Anyhow(anyhow::Error),
}

impl Carried {
    fn new<E: Into<BoxError> + 'static>(error: E) -> Self {
        #[cfg(feature = "anyhow")]
        let error = {
            let mut error = Some(error);
            let any: &mut dyn Any = &mut error;
            let anyhow = any.downcast_mut::<Option<anyhow::Error>>().and_then(Option::take);
            match (anyhow, error) {
                (Some(error), _) => return Self::Anyhow(error),
                (None, Some(error)) => error,
                (None, None) => return Self::Boxed("an error that is gone".into()),
            }
        };
        Self::Boxed(error.into())
    }

    fn as_error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        match self {
            Self::Boxed(error) => &**error,
            #[cfg(feature = "anyhow")]
            Self::Anyhow(error) => error.as_ref(),
        }
    }

    fn downcast_ref<E: StdError + Send + Sync + 'static>(&self) -> Option<&E> {
        match self {
            Self::Boxed(error) => error.downcast_ref(),
            #[cfg(feature = "anyhow")]
            Self::Anyhow(error) => error.downcast_ref(),
        }
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> &str {
    payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("the panic has no message")
}

/// Truncates the text of an error to what is stored of it, so that no dead letter or reply is too long.
pub(crate) fn truncate_error(text: &str) -> String {
    text.chars().take(2_000).collect()
}

/// How many causes of an error are told.
const LONGEST_CHAIN: usize = 32;

/// What kind of failure it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler, or a layer around it, returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler took longer than it may.
    Timeout,
    /// The handler said that the message is to be dead-lettered.
    Rejected,
    /// The body could not be decoded.
    Undecodable,
    /// No handler is for this kind of message.
    UnknownKind,
    /// A limit was reached before the handler was called.
    Overloaded,
    /// The handler was stopped before it came to an end.
    Cancelled,
    /// It was delivered too often to be given to a handler once more.
    Quarantined,
}

impl FailureKind {
    const ALL: [Self; 9] = [
        Self::Error,
        Self::Panic,
        Self::Timeout,
        Self::Rejected,
        Self::Undecodable,
        Self::UnknownKind,
        Self::Overloaded,
        Self::Cancelled,
        Self::Quarantined,
    ];

    /// All there are.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.as_str() == name)
    }

    /// Its name, in snake case, for logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Panic => "panic",
            Self::Timeout => "timeout",
            Self::Rejected => "rejected",
            Self::Undecodable => "undecodable",
            Self::UnknownKind => "unknown_kind",
            Self::Overloaded => "overloaded",
            Self::Cancelled => "cancelled",
            Self::Quarantined => "quarantined",
        }
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Failure {
    /// A failure by an error of a known type. One that is a failure already, in a box, stays what it is.
    pub fn of<E: Into<BoxError> + 'static>(error: E) -> Self {
        let type_name = std::any::type_name::<E>();
        let error = match Carried::new(error) {
            Carried::Boxed(error) => match error.downcast::<Self>() {
                Ok(failure) => return *failure,
                Err(error) => Carried::Boxed(error),
            },
            #[cfg(feature = "anyhow")]
            anyhow => anyhow,
        };
        Self { kind: FailureKind::Error, type_name, error }
    }

    pub(crate) fn new(kind: FailureKind, error: impl Into<BoxError>) -> Self {
        Self { kind, type_name: kind.as_str(), error: Carried::Boxed(error.into()) }
    }

    /// A failure by what a panic left behind.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let said = panic_text(payload);
        Self::new(FailureKind::Panic, format!("the handler panicked: {said}"))
    }

    /// What a service stack returned, with what is known of it.
    pub(crate) fn from_service(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(failure) => *failure,
            Err(error) if error.is::<tower::timeout::error::Elapsed>() => {
                Self::new(FailureKind::Timeout, "the handler took longer than it may")
            }
            // A buffer that is closed is nobody's failure either: least of all that of the message.
            Err(error)
                if error.is::<tower::load_shed::error::Overloaded>()
                    || error.is::<tower::buffer::error::Closed>()
                    || error.is::<tower::buffer::error::ServiceError>() =>
            {
                Self::new(FailureKind::Overloaded, error)
            }
            // The layer's own type is lost in the box.
            Err(error) => Self {
                kind: FailureKind::Error,
                type_name: "dyn Error",
                error: Carried::Boxed(error),
            },
        }
    }

    /// What kind of failure it was.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// The name of the error's type, as the handler returned it: `shop::OutOfStock`. For a failure that
    /// no handler returned, its kind.
    pub const fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// The error itself.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.error.as_error()
    }

    /// The error as what it is, if it is of this type: also if the handler returned it in a box. Of
    /// `anyhow`, what is under a context counts as well. For what it was caused by, see
    /// [`chain`](Self::chain).
    pub fn downcast_ref<E: StdError + Send + Sync + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// Whether the error is of this type.
    pub fn is<E: StdError + Send + Sync + 'static>(&self) -> bool {
        self.downcast_ref::<E>().is_some()
    }

    /// The error, what it was caused by, what that was caused by, and so on.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first: &(dyn StdError + 'static) = self.error();
        // One that is its own cause would never end.
        std::iter::successors(Some(first), |&error| error.source()).take(LONGEST_CHAIN)
    }

    /// Whether the error, or anything that it was caused by, is of this type.
    pub fn is_caused_by<E: StdError + Send + Sync + 'static>(&self) -> bool {
        self.is::<E>() || self.chain().any(|error| error.is::<E>())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl StdError for Failure {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("out of {0}")]
    struct OutOf(&'static str);

    #[test]
    fn a_failure_keeps_the_type_of_the_error() {
        let error = Err::<(), _>(OutOf("lamps")).into_outcome().unwrap_err();
        let failure = Failure::from_service(error);
        assert_eq!(failure.to_string(), "out of lamps");
        assert!(failure.type_name().ends_with("::OutOf"), "{}", failure.type_name());
        assert!(failure.error().is::<OutOf>());
    }

    #[derive(Debug, thiserror::Error)]
    #[error("cannot pack")]
    struct Packing(#[source] OutOf);

    #[test]
    fn a_boxed_error_is_still_of_its_type_and_has_its_causes() {
        let boxed: BoxError = Box::new(Packing(OutOf("boxes")));
        let failure = Failure::of(boxed);
        assert!(failure.is::<Packing>() && !failure.is::<OutOf>());
        assert!(failure.is_caused_by::<OutOf>() && !failure.is_caused_by::<std::io::Error>());
        let chain: Vec<_> = failure.chain().map(ToString::to_string).collect();
        assert_eq!(chain, ["cannot pack", "out of boxes"]);
    }

    #[cfg(feature = "anyhow")]
    #[test]
    fn what_anyhow_was_made_of_is_found_under_its_contexts() {
        use anyhow::Context;
        let bare = Err::<(), _>(anyhow::Error::new(OutOf("tape"))).into_outcome();
        let failure = Failure::from_service(bare.unwrap_err());
        assert!(failure.is::<OutOf>() && failure.to_string() == "out of tape");
        let told = Err::<(), _>(Packing(OutOf("tape"))).context("order 7").into_outcome();
        let failure = Failure::from_service(told.unwrap_err());
        assert!(failure.is::<Packing>() && failure.is_caused_by::<OutOf>());
        let chain: Vec<_> = failure.chain().map(ToString::to_string).collect();
        assert_eq!(chain, ["order 7", "cannot pack", "out of tape"]);
    }

    #[test]
    fn text_is_an_error_too() {
        for error in
            [Err::<Outcome, _>("no").into_outcome(), Err::<(), _>("no".to_owned()).into_outcome()]
        {
            assert_eq!(error.unwrap_err().to_string(), "no");
        }
        assert_eq!(Ok::<_, OutOf>(Outcome::release()).into_outcome().unwrap(), Outcome::release());
    }

    #[test]
    fn a_panic_is_told_by_its_message() {
        let told = |payload: Box<dyn Any + Send>| Failure::panic(&*payload).to_string();
        assert_eq!(told(Box::new("static")), "the handler panicked: static");
        assert_eq!(told(Box::new("owned".to_owned())), "the handler panicked: owned");
        assert_eq!(told(Box::new(7)), "the handler panicked: the panic has no message");
    }
}
