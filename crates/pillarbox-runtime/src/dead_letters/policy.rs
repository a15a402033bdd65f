//! When a message becomes a dead letter, and where it goes.

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Mailboxes, Queue, QueueOptions, RawMessage, Result};

use super::DeadLetter;
use super::class::{Classes, Classify, ErrorClass};
use crate::outcome::{Failure, FailureKind};

/// When a message that failed becomes a dead letter, and where it goes.
///
/// Without further words: after 5 deliveries, to the mailbox `{source}-dlq` on the same backend.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{DeadLetter, DlqPolicy, FailureKind, Worker};
///
/// #[derive(Debug, thiserror::Error)]
/// enum OrderError {
///     #[error("no such customer")]
///     NoCustomer,
///     #[error("the shop is closed")]
///     Closed,
/// }
/// #[derive(Debug, thiserror::Error)]
/// #[error("slow down")]
/// struct RateLimited;
/// #[derive(Debug, thiserror::Error)]
/// #[error("this looks like fraud")]
/// struct Fraud;
///
/// # fn main() -> pillarbox_core::Result<()> {
/// # let backend = Mailboxes::new(MemoryBackend::new());
/// # let elsewhere = Mailboxes::new(MemoryBackend::new());
/// let orders: Mailbox<u32> = backend.mailbox("orders")?;
/// let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("dead-orders")?;
/// let fraud: Mailbox<DeadLetter<u32>> = elsewhere.mailbox("fraud")?;
/// let policy = DlqPolicy::to(&dead)
///     // At once: trying again is pointless.
///     .include_where(|error: &OrderError| matches!(error, OrderError::NoCustomer))
///     .include::<Fraud>()
///     // Never: it passes.
///     .exclude::<RateLimited>()
///     .exclude_kind(FailureKind::Timeout)
///     // Some go elsewhere, even to another backend.
///     .route::<Fraud>(&fraud);
/// let worker = Worker::new(orders).max_deliveries(3).dead_letters(policy).handler(|order: u32| async move {
///     if order == 0 { Err(OrderError::NoCustomer) } else { Ok(()) }
/// });
/// # drop(worker);
/// # Ok(()) }
/// ```
///
/// In what order it is decided, by the first that has something to say:
///
/// 1. [`decide`](Self::decide), a function of the program's own;
/// 2. what the handler [rejected](crate::Outcome::reject) is a dead letter;
/// 3. what is [excluded](Self::exclude) is tried again, however often it has failed;
/// 4. what is [included](Self::include) is a dead letter at once;
/// 5. the class of the error, where [`exclude_retriable`](Self::exclude_retriable) or
///    [`include_permanent`](Self::include_permanent) was said;
/// 6. what cannot be decoded is a dead letter at once;
/// 7. the rest is tried again until it was delivered
///    [`max_deliveries`](crate::Worker::max_deliveries) times.
///
/// A message whose handler takes the whole process down never comes so far: see
/// [`Worker::quarantine_after`](crate::Worker::quarantine_after).
#[derive(Clone, Default)]
#[must_use = "a policy does nothing until a worker has it"]
pub struct DlqPolicy {
    to: Option<Place>,
    retain_for: Option<Duration>,
    rules: Rules,
}

/// Where dead letters go, and the backend that it was opened on, if it was.
#[derive(Clone)]
struct Place {
    queue: Arc<dyn Queue>,
    backend: Option<Mailboxes>,
}

impl Place {
    fn of<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        Self { queue: mailbox.queue().clone(), backend: mailbox.backend().cloned() }
    }

    /// Whether a queue is on another backend than this, as far as is known: of a mailbox that was made of a
    /// queue alone, only the kind is.
    fn is_elsewhere(&self, source: &Arc<dyn Queue>, backend: Option<&Mailboxes>) -> bool {
        self.backend.as_ref().zip(backend).is_some_and(|(own, other)| !own.is_same(other))
            || self.queue.capabilities().backend != source.capabilities().backend
    }
}

/// Whether a rule is for a failure.
type Test = Arc<dyn Fn(&Failure) -> bool + Send + Sync>;

/// What a policy says, but for where dead letters go by default.
#[derive(Clone, Default)]
pub(crate) struct Rules {
    decide: Option<Arc<dyn Decide>>,
    include: Vec<Test>,
    exclude: Vec<Test>,
    include_permanent: bool,
    exclude_retriable: bool,
    classes: Classes,
    routes: Vec<(Test, Place)>,
    /// Of each place, whether it is on another backend than the source.
    elsewhere: Vec<bool>,
    /// Types that can be told by name, also in a box.
    named: Vec<(Test, &'static str)>,
}

impl DlqPolicy {
    /// Dead letters go to `{source}-dlq` on the backend of the source.
    pub fn new() -> Self {
        Self::default()
    }

    /// Dead letters go to this mailbox, on whatever backend. Where that is another than the source's, a
    /// replay has to be told where the sources are: [`Dlq::sources_on`](super::Dlq::sources_on). A backend
    /// that was opened twice is two; of a mailbox that was made of a [`Queue`] alone, only the kind of its
    /// backend is known.
    pub fn to<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        Self { to: Some(Place::of(mailbox)), ..Self::default() }
    }

    /// Errors of this type make a dead letter at once, whatever the count. The type is that of the error
    /// that the handler returned, not of what that was caused by; [`Failure`] says what can be told
    /// through a `Box<dyn Error>` or `anyhow`.
    pub fn include<E: StdError + Send + Sync + 'static>(self) -> Self {
        self.names::<E>().include_if(|failure| returned::<E>(failure).is_some())
    }

    /// The same for some errors of a type, such as one variant.
    pub fn include_where<E: StdError + Send + Sync + 'static>(
        self,
        test: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.names::<E>().include_if(move |failure| returned(failure).is_some_and(&test))
    }

    /// The same for failures of a kind.
    pub fn include_kind(self, kind: FailureKind) -> Self {
        self.include_if(move |failure| failure.kind() == kind)
    }

    /// The same for whatever a function says.
    pub fn include_if(mut self, test: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.rules.include.push(Arc::new(test));
        self
    }

    /// Errors that are known to be [permanent](ErrorClass::Permanent) make a dead letter at once, unless a rule
    /// for their type, kind or text says otherwise.
    pub const fn include_permanent(mut self) -> Self {
        self.rules.include_permanent = true;
        self
    }

    /// Errors that are known to be [retriable](ErrorClass::is_retriable) never make a dead letter, unless a
    /// rule for their type, kind or text says otherwise: connections that fail, timeouts, limits. They are
    /// tried again for as long as it takes.
    pub const fn exclude_retriable(mut self) -> Self {
        self.rules.exclude_retriable = true;
        self
    }

    /// Lets errors of this type say their [class](Classify::class), also where a handler returns them in a
    /// `Box<dyn Error>` or as `anyhow::Error`, or they are the cause of what it returns. [`Failure`] says what
    /// can be told through those.
    ///
    /// What follows from a class is for [`include_permanent`](Self::include_permanent),
    /// [`exclude_retriable`](Self::exclude_retriable) and [`decide`](Self::decide) to say; but an error that
    /// is rate limited and is tried again waits for as long as it says.
    pub fn classify<E: Classify>(mut self) -> Self {
        self.rules.classes.add::<E>();
        self.names::<E>()
    }

    /// Errors of this type never make a dead letter: they are tried again for as long as it takes, with
    /// the usual backoff.
    pub fn exclude<E: StdError + Send + Sync + 'static>(self) -> Self {
        self.names::<E>().exclude_if(|failure| returned::<E>(failure).is_some())
    }

    /// The same for some errors of a type, such as one variant.
    pub fn exclude_where<E: StdError + Send + Sync + 'static>(
        self,
        test: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.names::<E>().exclude_if(move |failure| returned(failure).is_some_and(&test))
    }

    /// The same for failures of a kind, such as timeouts.
    pub fn exclude_kind(self, kind: FailureKind) -> Self {
        self.exclude_if(move |failure| failure.kind() == kind)
    }

    /// The same for whatever a function says.
    pub fn exclude_if(mut self, test: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.rules.exclude.push(Arc::new(test));
        self
    }

    /// Dead letters for errors of this type go to another mailbox, on whatever backend: see
    /// [`to`](Self::to) for how they are replayed from there. The first route that fits counts. This says
    /// where, not when.
    pub fn route<E: StdError + Send + Sync + 'static>(
        self,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.names::<E>().route_if(|failure| returned::<E>(failure).is_some(), mailbox)
    }

    /// The same for failures of a kind.
    pub fn route_kind(
        self,
        kind: FailureKind,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.route_if(move |failure| failure.kind() == kind, mailbox)
    }

    /// The same for whatever a function says.
    pub fn route_if(
        mut self,
        test: impl Fn(&Failure) -> bool + Send + Sync + 'static,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.rules.routes.push((Arc::new(test), Place::of(mailbox)));
        self
    }

    /// Deletes dead letters that came to their queue longer ago than this, by the clock of the backend and not by
    /// that of a worker, wherever this policy sends some: the workers look
    /// once an hour, as long as they run. For ever unless said otherwise.
    pub const fn retain_for(mut self, age: Duration) -> Self {
        self.retain_for = Some(age);
        self
    }

    /// Decides by a function, or whatever else implements [`Decide`], before all other rules.
    pub fn decide(mut self, decide: impl Decide) -> Self {
        self.rules.decide = Some(Arc::new(decide));
        self
    }

    /// Lets errors of this type be told by name in dead letters, also where a handler returns them in a
    /// `Box<dyn Error>` or as `anyhow::Error`. Types that other rules name are known already.
    pub fn names<E: StdError + Send + Sync + 'static>(mut self) -> Self {
        let name = type_name::<E>();
        if self.rules.named.iter().all(|(_, known)| *known != name) {
            self.rules.named.push((Arc::new(Failure::is::<E>), name));
        }
        self
    }

    pub(crate) const fn retention(&self) -> Option<Duration> {
        self.retain_for
    }

    /// The rules, and the queues that dead letters go to: the first by default, the others by route.
    pub(crate) fn resolve(
        self,
        source: &Arc<dyn Queue>,
        backend: Option<&Mailboxes>,
    ) -> Result<(Rules, Vec<Arc<dyn Queue>>)> {
        let first = match (self.to, backend) {
            (Some(place), _) => place,
            (None, Some(backend)) => {
                let name = backend.dead_letter_name(source.name())?;
                let queue = backend.queue(&name, QueueOptions::new())?;
                Place { queue, backend: Some(backend.clone()) }
            }
            (None, None) => {
                let allowed = "a mailbox: say DlqPolicy::to(&mailbox), for this one was not opened on a \
                     backend where '{source}-dlq' could be found";
                return Err(Error::invalid(Some(source.name()), "dead_letters", "none", allowed));
            }
        };
        let mut rules = self.rules;
        let places: Vec<_> = std::iter::once(first)
            .chain(rules.routes.iter().map(|(_, place)| place.clone()))
            .collect();
        for place in &places {
            check_source(&place.queue, source)?;
        }
        rules.elsewhere = places.iter().map(|place| place.is_elsewhere(source, backend)).collect();
        Ok((rules, places.into_iter().map(|place| place.queue).collect()))
    }
}

/// Refuses to send the dead letters of a queue to that very queue, where they would be received again.
fn check_source(queue: &Arc<dyn Queue>, source: &Arc<dyn Queue>) -> Result<()> {
    let is_same = Arc::ptr_eq(source, queue)
        || (source.name() == queue.name()
            && source.capabilities().backend == queue.capabilities().backend);
    if is_same {
        let value = format!("'{}', where they come from", queue.name());
        let allowed = "a mailbox of another name";
        return Err(Error::invalid(Some(source.name()), "dead_letters", value, allowed));
    }
    Ok(())
}

/// What a function of the program's own says of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The message becomes a dead letter now.
    DeadLetter,
    /// It is tried again, however often it has failed.
    Retry,
    /// The other rules decide.
    Usual,
}

/// Decides whether a message that failed becomes a dead letter. Any function of a [`FailedDelivery`] that
/// gives a [`Decision`] does.
///
/// ```
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use pillarbox_runtime::{Decide, Decision, DlqPolicy, FailedDelivery};
///
/// /// Gives up early while more fails than should.
/// struct ErrorBudget { failed: AtomicU32, budget: u32 }
///
/// impl Decide for ErrorBudget {
///     fn decide(&self, _: &FailedDelivery<'_>) -> Decision {
///         let failed = self.failed.fetch_add(1, Ordering::Relaxed);
///         if failed > self.budget { Decision::DeadLetter } else { Decision::Usual }
///     }
/// }
///
/// let by_trait = DlqPolicy::new().decide(ErrorBudget { failed: AtomicU32::new(0), budget: 100 });
/// let by_function = DlqPolicy::new().decide(|failed: &FailedDelivery<'_>| {
///     match failed.message().attributes.get("tenant") {
///         Some("trial") => Decision::DeadLetter,
///         _ => Decision::Usual,
///     }
/// });
/// ```
pub trait Decide: Send + Sync + 'static {
    /// Decides. One that panics has nothing to say.
    fn decide(&self, failed: &FailedDelivery<'_>) -> Decision;
}

impl<F: Fn(&FailedDelivery<'_>) -> Decision + Send + Sync + 'static> Decide for F {
    fn decide(&self, failed: &FailedDelivery<'_>) -> Decision {
        self(failed)
    }
}

/// A delivery whose handler failed, for a policy to decide what becomes of it.
///
/// What was decided is reported to [`Worker::on_failure`](crate::Worker::on_failure), in a
/// [`FailedAttempt`](crate::FailedAttempt).
#[derive(Debug)]
pub struct FailedDelivery<'a> {
    pub(crate) message: &'a RawMessage,
    pub(crate) failure: &'a Failure,
    pub(crate) attempt: u32,
    pub(crate) max_deliveries: u32,
    pub(crate) classes: &'a Classes,
}

impl<'a> FailedDelivery<'a> {
    /// The message, with its undecoded body.
    pub const fn message(&self) -> &'a RawMessage {
        self.message
    }

    /// The body, if it is JSON that is as expected.
    pub fn json<T: serde::de::DeserializeOwned>(&self) -> Option<T> {
        serde_json::from_slice(&self.message.body).ok()
    }

    /// Why it failed.
    pub const fn failure(&self) -> &'a Failure {
        self.failure
    }

    /// Whether it is worth another try, by what the policy [knows](DlqPolicy::classify) of its error.
    pub fn class(&self) -> ErrorClass {
        self.classes.of(self.failure)
    }

    /// Which attempt this was: the number of its deliveries, but for those that were nobody's failure.
    pub const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The number of attempts after which the message becomes a dead letter.
    pub const fn max_deliveries(&self) -> u32 {
        self.max_deliveries
    }
}

impl Rules {
    /// Whether a message that failed is a dead letter now.
    pub(crate) fn is_dead(&self, failed: &FailedDelivery<'_>) -> bool {
        let decision = self.decide.as_ref().map_or(Decision::Usual, |decide| {
            guarded(|| decide.decide(failed)).unwrap_or(Decision::Usual)
        });
        match decision {
            Decision::DeadLetter => return true,
            Decision::Retry => return false,
            Decision::Usual => {}
        }
        let failure = failed.failure;
        match failure.kind() {
            FailureKind::Rejected => true,
            _ if fits(&self.exclude, failure) => false,
            _ if fits(&self.include, failure) => true,
            kind => self.is_dead_by_class(failed).unwrap_or(
                kind == FailureKind::Undecodable || failed.attempt >= failed.max_deliveries,
            ),
        }
    }

    /// Whether the class of the error decides, and how.
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

    /// The types of errors that say their class.
    pub(crate) const fn classes(&self) -> &Classes {
        &self.classes
    }

    /// How long the error of a failure asks to wait before the next attempt, if it does.
    pub(crate) fn retry_after(&self, failure: &Failure) -> Option<Duration> {
        match self.classes.of(failure) {
            ErrorClass::RateLimited { retry_after } => retry_after,
            _ => None,
        }
    }

    /// Which of the queues the dead letter of a failure goes to.
    pub(crate) fn route_of(&self, failure: &Failure) -> usize {
        let fits = |(test, _): &(Test, _)| guarded(|| test(failure)).unwrap_or(false);
        self.routes.iter().position(fits).map_or(0, |route| route + 1)
    }

    /// Whether dead letters of this route go to another backend than that of their source.
    pub(crate) fn is_elsewhere(&self, route: usize) -> bool {
        self.elsewhere.get(route).is_some_and(|elsewhere| *elsewhere)
    }

    /// The name of the type of a failure's error, as exactly as it is known.
    pub(crate) fn type_of(&self, failure: &Failure) -> &'static str {
        if failure.kind() != FailureKind::Error {
            return failure.type_name();
        }
        let named = self.named.iter().find(|(test, _)| guarded(|| test(failure)).unwrap_or(false));
        named.map_or_else(|| well_known(failure), |(_, name)| name)
    }
}

/// A function of the program's own that panics must not cost the message.
pub(super) fn guarded<T>(function: impl FnOnce() -> T) -> Option<T> {
    std::panic::catch_unwind(AssertUnwindSafe(function)).ok()
}

/// The error that a handler returned, if it is of this type. What cannot be decoded, or takes too long, has
/// an error as well, but no handler has returned it.
fn returned<E: StdError + Send + Sync + 'static>(failure: &Failure) -> Option<&E> {
    failure.downcast_ref().filter(|_| failure.kind() == FailureKind::Error)
}

fn fits(tests: &[Test], failure: &Failure) -> bool {
    tests.iter().any(|test| guarded(|| test(failure)).unwrap_or(false))
}

/// The type of an error that came in a box, if it is one that everybody has.
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

impl fmt::Debug for DlqPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqPolicy")
            .field("to", &self.to.as_ref().map(|place| place.queue.name()))
            .field("retain_for", &self.retain_for)
            .field("rules", &self.rules)
            .finish()
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes: Vec<_> = self.routes.iter().map(|(_, place)| place.queue.name()).collect();
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

#[cfg(test)]
mod tests {
    use std::io;

    use pillarbox_core::{MemoryBackend, MessageId, Timestamp};

    use super::*;
    use crate::outcome::BoxError;

    #[derive(Debug, thiserror::Error)]
    #[error("invalid: {0}")]
    struct Invalid(u32);
    #[derive(Debug, thiserror::Error)]
    #[error("limited")]
    struct Limited;

    fn is_dead(policy: &DlqPolicy, failure: &Failure, attempt: u32) -> bool {
        let now = Timestamp::from_secs(0);
        let message = RawMessage::new(MessageId::new(), "{\"tenant\":\"trial\"}", now);
        let (message, classes) = (&message, policy.rules.classes());
        let failed = FailedDelivery { message, failure, attempt, max_deliveries: 5, classes };
        policy.rules.is_dead(&failed)
    }

    #[test]
    fn a_count_decides_unless_the_error_does() {
        let policy = DlqPolicy::new().include::<Invalid>().exclude::<Limited>();
        let other = Failure::of(io::Error::other("?"));
        assert!(!is_dead(&policy, &other, 4) && is_dead(&policy, &other, 5));
        assert!(is_dead(&policy, &Failure::of(Invalid(1)), 1));
        assert!(!is_dead(&policy, &Failure::of(Limited), 5_000));
        let boxed: BoxError = Box::new(Invalid(1));
        assert!(is_dead(&policy, &Failure::of(boxed), 1));
    }

    #[test]
    fn types_are_those_of_what_a_handler_returned() {
        let error = || Error::invalid(None, "body", "odd", "even");
        let undecodable = Failure::new(FailureKind::Undecodable, error());
        assert!(undecodable.is::<Error>());
        let policy = DlqPolicy::new().exclude::<Error>().exclude_where(|_: &Error| true);
        assert!(is_dead(&policy, &undecodable, 1), "it would be tried for ever");
        assert!(!is_dead(&policy, &Failure::of(error()), 99));
        let timeout = Failure::new(FailureKind::Timeout, error());
        let policy = DlqPolicy::new().include::<Error>().include_where(|_: &Error| true);
        assert!(!is_dead(&policy, &timeout, 1) && is_dead(&policy, &Failure::of(error()), 1));
    }

    #[test]
    fn variants_kinds_and_functions_are_rules_too() {
        let policy = DlqPolicy::new()
            .include_where(|error: &Invalid| error.0 > 7)
            .exclude_kind(FailureKind::Timeout)
            .include_if(|failure| failure.to_string().contains("teapot"))
            .include_permanent();
        assert!(!is_dead(&policy, &Failure::of(Invalid(7)), 1));
        assert!(is_dead(&policy, &Failure::of(Invalid(8)), 1));
        assert!(!is_dead(&policy, &Failure::new(FailureKind::Timeout, "late"), 99));
        assert!(is_dead(&policy, &Failure::of("I am a teapot"), 1));
        let data = Failure::of(io::Error::from(io::ErrorKind::InvalidData));
        assert!(is_dead(&policy, &data, 1));
    }

    impl Classify for Invalid {
        fn class(&self) -> ErrorClass {
            match self.0 {
                0 => ErrorClass::Permanent,
                1 => ErrorClass::RateLimited { retry_after: Some(Duration::from_secs(7)) },
                2 => ErrorClass::Retriable,
                _ => ErrorClass::Ambiguous,
            }
        }
    }

    #[test]
    fn the_class_of_an_error_decides_where_it_is_said_so_and_no_other_rule_does() {
        let of = |n| Failure::of(Invalid(n));
        let policy = DlqPolicy::new().classify::<Invalid>();
        assert!(!is_dead(&policy, &of(0), 4) && is_dead(&policy, &of(2), 5), "the count decides");
        let policy = policy.include_permanent().exclude_retriable();
        assert!(is_dead(&policy, &of(0), 1));
        assert!(!is_dead(&policy, &of(1), 99) && !is_dead(&policy, &of(2), 99));
        assert!(!is_dead(&policy, &of(3), 4) && is_dead(&policy, &of(3), 5));
        assert!(!is_dead(&policy, &Failure::new(FailureKind::Timeout, "late"), 99));
        assert!(is_dead(&policy, &Failure::new(FailureKind::Undecodable, "?"), 1));
        assert!(is_dead(&policy, &Failure::new(FailureKind::Rejected, "no"), 1));
        // What is said of a type is said of it in particular.
        let policy = policy.include_where(|error: &Invalid| error.0 == 2).exclude_if(|failure| {
            failure.downcast_ref::<Invalid>().is_some_and(|error| error.0 == 0)
        });
        assert!(is_dead(&policy, &of(2), 1) && !is_dead(&policy, &of(0), 99));
        // Of an error that was not named nothing is known.
        let deaf = DlqPolicy::new().include_permanent().exclude_retriable();
        assert!(!is_dead(&deaf, &of(0), 4) && is_dead(&deaf, &of(2), 5));
    }

    #[test]
    fn a_function_that_decides_knows_the_class() {
        let policy = DlqPolicy::new().classify::<Invalid>().decide(
            |failed: &FailedDelivery<'_>| match failed.class() {
                ErrorClass::Permanent => Decision::DeadLetter,
                _ => Decision::Retry,
            },
        );
        assert!(is_dead(&policy, &Failure::of(Invalid(0)), 1));
        assert!(!is_dead(&policy, &Failure::of(Invalid(3)), 99));
    }

    #[test]
    fn what_is_rejected_or_cannot_be_decoded_is_dead_at_once() {
        let policy = DlqPolicy::new().exclude_if(|_| true);
        let rejected = Failure::new(FailureKind::Rejected, "no");
        let undecodable = Failure::new(FailureKind::Undecodable, "?");
        assert!(is_dead(&policy, &rejected, 1), "the handler said so");
        assert!(!is_dead(&policy, &undecodable, 1), "another version may be able to");
        assert!(is_dead(&DlqPolicy::new(), &undecodable, 1));
    }

    #[test]
    fn a_function_decides_before_all_others_and_may_panic() {
        #[derive(serde::Deserialize)]
        struct Body {
            tenant: String,
        }
        let policy = DlqPolicy::new().exclude::<Limited>().decide(|failed: &FailedDelivery<'_>| {
            let body: Body = failed.json().unwrap();
            match failed.attempt() {
                1 if body.tenant == "trial" => Decision::DeadLetter,
                2 => Decision::Retry,
                3 => panic!("no idea"),
                _ => Decision::Usual,
            }
        });
        let limited = Failure::of(Limited);
        let dead = [1, 2, 3, 4].map(|attempt| is_dead(&policy, &limited, attempt));
        assert_eq!(dead, [true, false, false, false]);
        let rejected = Failure::new(FailureKind::Rejected, "no");
        assert!(!is_dead(&policy, &rejected, 2));
        let panics = DlqPolicy::new().include_if(|_| panic!("no")).exclude_if(|_| panic!("no"));
        assert!(!is_dead(&panics, &limited, 4) && is_dead(&panics, &limited, 5));
    }

    #[test]
    fn errors_have_their_types_and_their_ways() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let [one, two] = ["one", "two"].map(|name| backend.mailbox::<DeadLetter<u32>, ()>(name));
        let (one, two) = (one.unwrap(), two.unwrap());
        let policy = DlqPolicy::to(&one)
            .route::<Invalid>(&two)
            .route_kind(FailureKind::Panic, &two)
            .names::<Limited>();
        let source = backend.queue("jobs", QueueOptions::new()).unwrap();
        let (rules, queues) = policy.resolve(&source, None).unwrap();
        assert_eq!(
            queues.iter().map(|queue| queue.name().as_str()).collect::<Vec<_>>(),
            ["one", "two", "two"]
        );
        let boxed = |error: BoxError| Failure::of(error);
        let invalid = boxed(Box::new(Invalid(1)));
        assert_eq!(
            (rules.route_of(&invalid), rules.type_of(&invalid)),
            (1, type_name::<Invalid>())
        );
        let limited = boxed(Box::new(Limited));
        assert_eq!(
            (rules.route_of(&limited), rules.type_of(&limited)),
            (0, type_name::<Limited>())
        );
        assert_eq!(rules.type_of(&boxed(Box::new(io::Error::other("?")))), "std::io::error::Error");
        let panic = Failure::new(FailureKind::Panic, "oh");
        assert_eq!((rules.route_of(&panic), rules.type_of(&panic)), (2, "panic"));
    }

    #[test]
    fn the_default_place_is_named_after_the_source() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let source = backend.queue("jobs", QueueOptions::new()).unwrap();
        let (_, queues) = DlqPolicy::new().resolve(&source, Some(&backend)).unwrap();
        assert_eq!(queues[0].name().as_str(), "jobs-dlq");
        let error = DlqPolicy::new().resolve(&source, None).unwrap_err().to_string();
        assert!(error.contains("DlqPolicy::to"), "{error}");
        let long = backend.queue("x".repeat(78).as_str(), QueueOptions::new()).unwrap();
        assert!(DlqPolicy::new().resolve(&long, Some(&backend)).is_err());
        let same: Mailbox<DeadLetter<u32>> = backend.mailbox("jobs").unwrap();
        assert!(DlqPolicy::to(&same).resolve(&source, Some(&backend)).is_err());
    }
}
