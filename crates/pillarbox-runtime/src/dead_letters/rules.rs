//! The rules by which a failed message becomes a dead letter.

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, RawMessage};

use super::destination::Destination;
use super::error_class::{Classifiers, ErrorClass, catch_panic};
use crate::outcome::{Failure, FailureKind};

/// Whether a rule applies to a failure.
pub(super) type Predicate = Arc<dyn Fn(&Failure) -> bool + Send + Sync>;

/// The rules of a policy.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    pub(super) decide: Option<Arc<dyn Decide>>,
    pub(super) include: Vec<Predicate>,
    pub(super) exclude: Vec<Predicate>,
    pub(super) include_permanent: bool,
    pub(super) exclude_retriable: bool,
    pub(crate) classifiers: Classifiers,
    pub(super) routes: Vec<(Predicate, Destination)>,
    /// For the default destination and then for each route, whether it is on another backend than the source.
    pub(super) is_on_other_backend: Vec<bool>,
    /// Types whose names are known, also in a box.
    pub(super) named: Vec<(Predicate, &'static str)>,
}

/// The result of [`Decide::decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The message becomes a dead letter now.
    DeadLetter,
    /// The message is retried, regardless of the number of its deliveries.
    Retry,
    /// The other rules decide.
    Default,
}

/// Decides whether a failed message becomes a dead letter. Implemented by every function from a
/// [`FailedDelivery`] to a [`Decision`].
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use pillarbox_runtime::dead_letters::{Decide, Decision, DlqPolicy, FailedDelivery};
///
/// /// Stops retrying once a number of deliveries have failed.
/// struct ErrorBudget { failed: AtomicU32, budget: u32 }
///
/// impl Decide for ErrorBudget {
///     fn decide(&self, _: &FailedDelivery<'_>) -> Decision {
///         let failed = self.failed.fetch_add(1, Ordering::Relaxed);
///         if failed > self.budget { Decision::DeadLetter } else { Decision::Default }
///     }
/// }
///
/// let by_trait = DlqPolicy::new().decide(ErrorBudget { failed: AtomicU32::new(0), budget: 100 });
/// let by_function = DlqPolicy::new().decide(|failed: &FailedDelivery<'_>| {
///     match failed.message().attributes.get("tenant") {
///         Some("trial") => Decision::DeadLetter,
///         _ => Decision::Default,
///     }
/// });
/// ```
pub trait Decide: Send + Sync + 'static {
    /// Decides what becomes of the message. If it panics, the other rules decide.
    fn decide(&self, failed: &FailedDelivery<'_>) -> Decision;
}

impl<F: Fn(&FailedDelivery<'_>) -> Decision + Send + Sync + 'static> Decide for F {
    fn decide(&self, failed: &FailedDelivery<'_>) -> Decision {
        self(failed)
    }
}

/// A failed delivery, as input of a [`Decide`].
///
/// The decision is reported to [`Worker::on_failure`](crate::Worker::on_failure), in a
/// [`FailedAttempt`](crate::FailedAttempt).
#[derive(Debug)]
pub struct FailedDelivery<'a> {
    pub(crate) message: &'a RawMessage,
    pub(crate) failure: &'a Failure,
    pub(crate) attempt: u32,
    pub(crate) max_deliveries: u32,
    pub(crate) classifiers: &'a Classifiers,
}

impl<'a> FailedDelivery<'a> {
    /// Returns the message, with its undecoded body.
    pub const fn message(&self) -> &'a RawMessage {
        self.message
    }

    /// Returns the body, if it is JSON that decodes to `T`.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.message.body).ok()
    }

    /// Returns the failure.
    pub const fn failure(&self) -> &'a Failure {
        self.failure
    }

    /// Returns the class of the error, also for types that are [registered](super::DlqPolicy::classify) with the
    /// policy.
    pub fn class(&self) -> ErrorClass {
        self.classifiers.class_of(self.failure)
    }

    /// Returns the number of this attempt, from 1. Deliveries that were not attempts do not count.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// Returns the number of attempts after which the message becomes a dead letter.
    pub const fn max_deliveries(&self) -> u32 {
        self.max_deliveries
    }
}

impl Rules {
    /// Whether a failed message becomes a dead letter now.
    pub(crate) fn is_dead(&self, failed: &FailedDelivery<'_>) -> bool {
        let decision = self.decide.as_ref().map_or(Decision::Default, |decide| {
            catch_panic(|| decide.decide(failed)).unwrap_or(Decision::Default)
        });
        match decision {
            Decision::DeadLetter => return true,
            Decision::Retry => return false,
            Decision::Default => {}
        }
        let failure = failed.failure;
        match failure.kind() {
            FailureKind::Rejected => true,
            _ if any_applies(&self.exclude, failure) => false,
            _ if any_applies(&self.include, failure) => true,
            kind => self.is_dead_by_class(failed).unwrap_or(
                kind == FailureKind::Undecodable || failed.attempt >= failed.max_deliveries,
            ),
        }
    }

    /// Whether the message becomes a dead letter by the class of its error. `None` if the class does not decide.
    fn is_dead_by_class(&self, failed: &FailedDelivery<'_>) -> Option<bool> {
        if !self.include_permanent && !self.exclude_retriable {
            return None;
        }
        match failed.class() {
            ErrorClass::Permanent if self.include_permanent => Some(true),
            class if class.is_retriable() && self.exclude_retriable => Some(false),
            _ => None,
        }
    }

    /// Returns the delay before the next attempt that the error of a failure asks for.
    pub(crate) fn retry_after(&self, failure: &Failure) -> Option<Duration> {
        match self.classifiers.class_of(failure) {
            ErrorClass::RateLimited { retry_after } => retry_after,
            _ => None,
        }
    }

    /// Returns the index of the destination of a failure: 0 for the default, then the routes.
    pub(crate) fn route_of(&self, failure: &Failure) -> usize {
        let applies = |(test, _): &(Predicate, _)| catch_panic(|| test(failure)).unwrap_or(false);
        self.routes.iter().position(applies).map_or(0, |route| route + 1)
    }

    /// Whether the destination of this index is on another backend than the source.
    pub(crate) fn is_on_other_backend(&self, destination: usize) -> bool {
        self.is_on_other_backend.get(destination).is_some_and(|is_other| *is_other)
    }

    /// Returns the name of the type of a failure's error, as exactly as it is known.
    pub(crate) fn type_of(&self, failure: &Failure) -> &'static str {
        if failure.kind() != FailureKind::Error {
            return failure.type_name();
        }
        let named =
            self.named.iter().find(|(test, _)| catch_panic(|| test(failure)).unwrap_or(false));
        named.map_or_else(|| well_known(failure), |(_, name)| name)
    }
}

/// Returns the error that a handler returned, if it is of this type. Other kinds of failure, such as a timeout,
/// have an error that no handler has returned.
pub(super) fn returned<E: StdError + Send + Sync + 'static>(failure: &Failure) -> Option<&E> {
    failure.downcast_ref().filter(|_| failure.kind() == FailureKind::Error)
}

fn any_applies(tests: &[Predicate], failure: &Failure) -> bool {
    tests.iter().any(|test| catch_panic(|| test(failure)).unwrap_or(false))
}

/// Returns the type of a boxed error, if it is one of some common types.
fn well_known(failure: &Failure) -> &'static str {
    macro_rules! first_of {
        ($($error:ty),* $(,)?) => {
            $(if failure.is::<$error>() { return type_name::<$error>(); })*
        };
    }
    first_of!(
        Error,
        std::io::Error,
        serde_json::Error,
        tokio::time::error::Elapsed,
        std::num::ParseIntError,
        std::num::ParseFloatError,
        std::str::Utf8Error,
        std::string::FromUtf8Error,
        std::net::AddrParseError,
        std::env::VarError,
    );
    failure.type_name()
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|(_, to)| to.queue.name()).collect();
        f.debug_struct("Rules")
            .field("decides", &self.decide.is_some())
            .field("include", &self.include.len())
            .field("exclude", &self.exclude.len())
            .field("include_permanent", &self.include_permanent)
            .field("exclude_retriable", &self.exclude_retriable)
            .field("routes", &routes)
            .finish_non_exhaustive()
    }
}
