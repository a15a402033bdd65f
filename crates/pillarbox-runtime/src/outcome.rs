//! The outcome of a handler, and the failures of those that have none.

use std::any::Any;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::internal::panic_text;

/// An error of any kind, as Tower passes them.
pub type BoxError = Box<dyn StdError + Send + Sync + 'static>;

/// The result of a handler: what becomes of the message.
///
/// A handler that returns `()` or `Ok(())` is [`done`](Self::done). One that returns an error has failed, and its
/// message is retried until its [deliveries](crate::Worker::max_deliveries) are used up.
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
    /// The work is done, and the message is deleted.
    pub const fn done() -> Self {
        Self(Verb::Done)
    }

    /// The work failed and is retried after the [backoff](crate::Worker::retry). Like an error, it uses up an
    /// attempt.
    pub const fn retry() -> Self {
        Self(Verb::Retry { delay: None, reason: None })
    }

    /// The work failed and is retried after `delay`, such as that of a `Retry-After` header.
    pub const fn retry_after(delay: Duration) -> Self {
        Self(Verb::Retry { delay: Some(delay), reason: None })
    }

    /// The work cannot succeed: the message becomes a dead letter without a retry. Without a
    /// [policy](crate::Worker::dead_letters) for dead letters it is [parked](crate::Worker::park_for).
    pub fn reject(reason: impl Into<Box<str>>) -> Self {
        Self(Verb::Reject { reason: reason.into() })
    }

    /// The message goes back at once, to the next consumer that receives it. This is not a failure and uses up no
    /// attempt. On a backend that does not count such deliveries, only this process knows of it.
    pub const fn release() -> Self {
        Self::release_for(Duration::ZERO)
    }

    /// The message goes back, and is ready after `delay`. Like [`release`](Self::release), this is not a failure.
    pub const fn release_for(delay: Duration) -> Self {
        Self(Verb::Release { delay })
    }

    /// The work is done, and the handler has acknowledged the message itself: by its
    /// [`Metadata`](crate::handler::Metadata), in its own transaction, which is committed. The runtime settles nothing. If
    /// the transaction was rolled back after all, the message comes back when its lease expires. A handler that
    /// returns this without having acknowledged has failed.
    ///
    /// ```
    /// use std::path::PathBuf;
    /// use pillarbox_core::{Mailbox, Mailboxes};
    /// use pillarbox_runtime::{BoxError, Outcome, Runnable, Worker};
    /// use pillarbox_runtime::handler::{Context, Metadata};
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

    /// Sets the reason of a retry or a rejection.
    pub fn because(mut self, why: impl Into<Box<str>>) -> Self {
        match &mut self.0 {
            Verb::Retry { reason, .. } => *reason = Some(why.into()),
            Verb::Reject { reason } => *reason = why.into(),
            Verb::Done | Verb::Release { .. } | Verb::Settled => {}
        }
        self
    }

    /// Returns whether the work is done.
    pub const fn is_done(&self) -> bool {
        matches!(self.0, Verb::Done | Verb::Settled)
    }
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::done()
    }
}

/// A return value of a handler: `()`, an [`Outcome`], or a `Result` of either.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    label = "this is no outcome of a handler",
    note = "a handler returns `()`, `Outcome`, `Result<(), E>` or `Result<Outcome, E>`, \
            where `E` is an error, an `anyhow::Error`, a `String` or a `&str`"
)]
pub trait IntoOutcome {
    /// Converts into the outcome, or the error of the handler.
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

impl<O: Into<Outcome>, E: Into<BoxError> + 'static> IntoOutcome for Result<O, E> {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        self.map(Into::into).map_err(|error| Failure::of(error).into())
    }
}

/// The failure of an attempt.
///
/// It keeps the type name of the error that the handler returned, which a boxed error loses. Middleware gets a
/// `Failure` as the error of the service, and the handler's own error from [`error`](Self::error).
///
/// What is known of the type depends on what the handler returns:
///
/// | `Result<_, E>` with `E` | [`is`](Self::is) and [`downcast_ref`](Self::downcast_ref) | [`type_name`](Self::type_name) |
/// |---|---|---|
/// | a concrete error type | exact | exact |
/// | `Box<dyn Error + Send + Sync>` | exact | exact for types that a [policy](crate::dead_letters::DlqPolicy) names and for some of the standard library |
/// | `anyhow::Error`, with the feature `anyhow` | exact, including errors under a `context` | the same |
/// | `anyhow::Error` without it, `eyre::Report` and the like | errors under a context only | that of the report |
/// | `String`, `&str` | never | that of the text |
pub struct Failure {
    kind: FailureKind,
    type_name: &'static str,
    error: Carried,
}

pillarbox_core::__error_debug!(struct Failure { kind, type_name, error });

/// The error of a failure, as the handler returned it.
#[derive(Debug)]
enum Carried {
    Boxed(BoxError),
    /// Not boxed, since that would hide the errors under its contexts.
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

/// Truncates the text of an error to what is stored of it, so that no dead letter or reply is too long.
pub(crate) fn truncate_error(text: &str) -> String {
    text.chars().take(2_000).collect()
}

/// The largest number of causes of an error that are kept.
const MAX_CHAIN: usize = 32;

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureKind {
    /// The handler, or a layer around it, returned an error.
    Error,
    /// The handler panicked.
    Panic,
    /// The handler exceeded its timeout.
    Timeout,
    /// The handler rejected the message.
    Rejected,
    /// The body could not be decoded.
    Undecodable,
    /// There is no handler for this kind of message.
    UnknownKind,
    /// A limit was reached before the handler was called.
    Overloaded,
    /// The handler was cancelled.
    Cancelled,
    /// The message may crash the process, and is not given to a handler again.
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

    /// Returns all kinds.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter()
    }

    /// Returns the kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|kind| kind.as_str() == name)
    }

    /// Returns its name in snake case, for logs and metrics.
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
    /// Creates a failure with an error of a known type. A boxed `Failure` is returned as it is.
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

    /// Creates a failure from the payload of a panic.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = panic_text(payload);
        Self::new(FailureKind::Panic, format!("the handler panicked: {text}"))
    }

    /// Returns the failure of a service stack that returned this error.
    pub(crate) fn from_service(error: BoxError) -> Self {
        match error.downcast::<Self>() {
            Ok(failure) => *failure,
            Err(error) if error.is::<tower::timeout::error::Elapsed>() => {
                Self::new(FailureKind::Timeout, "the handler took longer than it may")
            }
            // A closed buffer is no failure of the message either.
            Err(error)
                if error.is::<tower::load_shed::error::Overloaded>()
                    || error.is::<tower::buffer::error::Closed>()
                    || error.is::<tower::buffer::error::ServiceError>() =>
            {
                Self::new(FailureKind::Overloaded, error)
            }
            // The type of a layer's error is lost in the box.
            Err(error) => Self {
                kind: FailureKind::Error,
                type_name: "dyn Error",
                error: Carried::Boxed(error),
            },
        }
    }

    /// Returns the kind of failure.
    pub const fn kind(&self) -> FailureKind {
        self.kind
    }

    /// Returns the type name of the error that the handler returned, such as `shop::OutOfStock`. For a failure
    /// that no handler returned, its kind.
    pub const fn type_name(&self) -> &'static str {
        self.type_name
    }

    /// Returns the error.
    pub fn error(&self) -> &(dyn StdError + Send + Sync + 'static) {
        self.error.as_error()
    }

    /// Returns the error if it is of this type, boxed or not. Errors under a context of `anyhow` count as well.
    /// For causes, see [`chain`](Self::chain).
    pub fn downcast_ref<E: StdError + Send + Sync + 'static>(&self) -> Option<&E> {
        self.error.downcast_ref()
    }

    /// Returns whether the error is of this type.
    pub fn is<E: StdError + Send + Sync + 'static>(&self) -> bool {
        self.downcast_ref::<E>().is_some()
    }

    /// Returns the error and its chain of causes.
    pub fn chain(&self) -> impl Iterator<Item = &(dyn StdError + 'static)> {
        let first: &(dyn StdError + 'static) = self.error();
        // Bounded, since an error may be its own cause.
        std::iter::successors(Some(first), |&error| error.source()).take(MAX_CHAIN)
    }

    /// Returns whether the error or one of its causes is of this type.
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

/// What is kept of a failure in dead letters, events and the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FailureDetails {
    pub(crate) kind: FailureKind,
    pub(crate) type_name: &'static str,
    pub(crate) text: Arc<str>,
    pub(crate) causes: Arc<[Box<str>]>,
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
    fn an_error_is_found_under_the_contexts_of_anyhow() {
        use anyhow::Context;
        let bare = Err::<(), _>(anyhow::Error::new(OutOf("tape"))).into_outcome();
        let failure = Failure::from_service(bare.unwrap_err());
        assert!(failure.is::<OutOf>() && failure.to_string() == "out of tape");
        let outcome = Err::<(), _>(Packing(OutOf("tape"))).context("order 7").into_outcome();
        let failure = Failure::from_service(outcome.unwrap_err());
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
    fn the_text_of_a_panic_is_its_message() {
        let text = |payload: Box<dyn Any + Send>| Failure::panic(&*payload).to_string();
        assert_eq!(text(Box::new("static")), "the handler panicked: static");
        assert_eq!(text(Box::new("owned".to_owned())), "the handler panicked: owned");
        assert_eq!(text(Box::new(7)), "the handler panicked: the panic has no message");
    }
}
