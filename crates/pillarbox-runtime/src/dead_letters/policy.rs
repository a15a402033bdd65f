//! The policy for dead letters: when a message becomes one, and which mailbox it is sent to.

use std::any::type_name;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, Mailboxes, Queue, QueueOptions, Result};

use super::dead_letter::DeadLetter;
use super::destination::Destination;
use super::error_class::Classify;
use super::rules::{Decide, Rules, returned};
use crate::outcome::{Failure, FailureKind};

/// Policy for dead letters: when a failed message becomes one, and which mailbox it is sent to.
///
/// By default, a message becomes a dead letter after 5 deliveries and is sent to the mailbox `{source}-dlq` on
/// the same backend.
///
/// ```
/// # use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{FailureKind, Worker};
/// use pillarbox_runtime::dead_letters::{DeadLetter, DlqPolicy};
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
///     // Dead letters at once, since a retry would fail again.
///     .include_where(|error: &OrderError| matches!(error, OrderError::NoCustomer))
///     .include::<Fraud>()
///     // Never dead letters, since a retry will succeed.
///     .exclude::<RateLimited>()
///     .exclude_kind(FailureKind::Timeout)
///     // Another mailbox for some, even on another backend.
///     .route::<Fraud>(&fraud);
/// let worker = Worker::new(orders).max_deliveries(3).dead_letters(policy).handler(|order: u32| async move {
///     if order == 0 { Err(OrderError::NoCustomer) } else { Ok(()) }
/// });
/// # drop(worker);
/// # Ok(()) }
/// ```
///
/// The first of these rules that applies decides:
///
/// 1. [`decide`](Self::decide), a function of the program;
/// 2. a message that the handler [rejected](crate::Outcome::reject) becomes a dead letter;
/// 3. an [excluded](Self::exclude) failure is retried, regardless of the number of deliveries;
/// 4. an [included](Self::include) failure makes a dead letter at once;
/// 5. the class of the error, if [`exclude_retriable`](Self::exclude_retriable) or
///    [`include_permanent`](Self::include_permanent) is set;
/// 6. a message that cannot be decoded becomes a dead letter at once;
/// 7. every other message is retried until it has had
///    [`max_deliveries`](crate::Worker::max_deliveries) attempts.
///
/// A message whose handler crashes the process is subject to
/// [`Worker::quarantine_after`](crate::Worker::quarantine_after) instead.
#[derive(Clone, Default)]
#[must_use = "a policy does nothing until a worker has it"]
pub struct DlqPolicy {
    to: Option<Destination>,
    pub(crate) retain_for: Option<Duration>,
    rules: Rules,
}

impl DlqPolicy {
    /// Creates a policy that sends dead letters to `{source}-dlq` on the backend of the source.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a policy that sends dead letters to this mailbox, which may be on any backend. If it is not that
    /// of the source, a replay must name the backend of the source:
    /// [`Dlq::sources_on`](super::Dlq::sources_on). A backend that was opened twice counts as two. Of a mailbox that
    /// was made of a [`Queue`] alone, only the kind of its backend is known.
    pub fn to<T: 'static, R: 'static>(mailbox: &Mailbox<DeadLetter<T>, R>) -> Self {
        Self { to: Some(Destination::of(mailbox)), ..Self::default() }
    }

    /// Makes errors of this type dead letters at once. The type is that of the error that the handler returned,
    /// not that of a cause; [`Failure`] documents what is known of a `Box<dyn Error>` or `anyhow::Error`.
    pub fn include<E: StdError + Send + Sync + 'static>(self) -> Self {
        self.names::<E>().include_if(|failure| returned::<E>(failure).is_some())
    }

    /// Makes some errors of a type dead letters at once, such as one variant.
    pub fn include_where<E: StdError + Send + Sync + 'static>(
        self,
        test: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.names::<E>().include_if(move |failure| returned(failure).is_some_and(&test))
    }

    /// Makes failures of a kind dead letters at once.
    pub fn include_kind(self, kind: FailureKind) -> Self {
        self.include_if(move |failure| failure.kind() == kind)
    }

    /// Makes failures for which a function returns `true` dead letters at once.
    pub fn include_if(mut self, test: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.rules.include.push(Arc::new(test));
        self
    }

    /// Makes [permanent](super::ErrorClass::Permanent) errors dead letters at once, unless another include or
    /// exclude rule applies.
    pub const fn include_permanent(mut self) -> Self {
        self.rules.include_permanent = true;
        self
    }

    /// Retries [retriable](super::ErrorClass::is_retriable) errors until they succeed, such as lost connections,
    /// timeouts and rate limits, unless another include or exclude rule applies.
    pub const fn exclude_retriable(mut self) -> Self {
        self.rules.exclude_retriable = true;
        self
    }

    /// Registers a type of errors that know their [class](Classify::class), also if a handler returns them in a
    /// `Box<dyn Error>` or as `anyhow::Error`, or as the cause of another error. [`Failure`] documents what is
    /// known of those.
    ///
    /// [`include_permanent`](Self::include_permanent), [`exclude_retriable`](Self::exclude_retriable) and
    /// [`decide`](Self::decide) act on the class. A rate limited error that is retried waits for the delay that
    /// it names.
    pub fn classify<E: Classify>(mut self) -> Self {
        self.rules.classifiers.add::<E>();
        self.names::<E>()
    }

    /// Retries errors of this type until they succeed, with the usual backoff.
    pub fn exclude<E: StdError + Send + Sync + 'static>(self) -> Self {
        self.names::<E>().exclude_if(|failure| returned::<E>(failure).is_some())
    }

    /// Retries some errors of a type until they succeed, such as one variant.
    pub fn exclude_where<E: StdError + Send + Sync + 'static>(
        self,
        test: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.names::<E>().exclude_if(move |failure| returned(failure).is_some_and(&test))
    }

    /// Retries failures of a kind until they succeed, such as timeouts.
    pub fn exclude_kind(self, kind: FailureKind) -> Self {
        self.exclude_if(move |failure| failure.kind() == kind)
    }

    /// Retries failures for which a function returns `true` until they succeed.
    pub fn exclude_if(mut self, test: impl Fn(&Failure) -> bool + Send + Sync + 'static) -> Self {
        self.rules.exclude.push(Arc::new(test));
        self
    }

    /// Sends dead letters for errors of this type to another mailbox, which may be on any backend (see
    /// [`to`](Self::to)). The first route that applies is taken. A route does not decide whether a message
    /// becomes a dead letter.
    pub fn route<E: StdError + Send + Sync + 'static>(
        self,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.names::<E>().route_if(|failure| returned::<E>(failure).is_some(), mailbox)
    }

    /// Sends dead letters for failures of a kind to another mailbox.
    pub fn route_kind(
        self,
        kind: FailureKind,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.route_if(move |failure| failure.kind() == kind, mailbox)
    }

    /// Sends dead letters for failures for which a function returns `true` to another mailbox.
    pub fn route_if(
        mut self,
        test: impl Fn(&Failure) -> bool + Send + Sync + 'static,
        mailbox: &Mailbox<DeadLetter<impl Sized + 'static>, impl Sized + 'static>,
    ) -> Self {
        self.rules.routes.push((Arc::new(test), Destination::of(mailbox)));
        self
    }

    /// Deletes dead letters that were sent to their queue at least this long ago, by the clock of the backend,
    /// from all mailboxes of this policy. The workers check once an hour while they run. Defaults to no limit.
    pub const fn retain_for(mut self, age: Duration) -> Self {
        self.retain_for = Some(age);
        self
    }

    /// Sets a function, or another [`Decide`], that decides before all other rules.
    pub fn decide(mut self, decide: impl Decide) -> Self {
        self.rules.decide = Some(Arc::new(decide));
        self
    }

    /// Registers a type whose name is stored in dead letters also if a handler returns it in a `Box<dyn Error>`
    /// or as `anyhow::Error`. Types of other rules are registered by them.
    pub fn names<E: StdError + Send + Sync + 'static>(mut self) -> Self {
        let name = type_name::<E>();
        if self.rules.named.iter().all(|(_, known)| *known != name) {
            self.rules.named.push((Arc::new(Failure::is::<E>), name));
        }
        self
    }

    /// Returns the rules and the dead-letter queues: the default one, then those of the routes.
    pub(crate) fn resolve(
        self,
        source: &Arc<dyn Queue>,
        backend: Option<&Mailboxes>,
    ) -> Result<(Rules, Vec<Arc<dyn Queue>>)> {
        let first = match (self.to, backend) {
            (Some(destination), _) => destination,
            (None, Some(backend)) => {
                let name = backend.dead_letter_name(source.name())?;
                let queue = backend.queue(&name, QueueOptions::new())?;
                Destination { queue, backend: Some(backend.clone()) }
            }
            (None, None) => {
                let allowed = "a mailbox: call DlqPolicy::to(&mailbox), since this one was not opened on a \
                     backend that has '{source}-dlq'";
                return Err(Error::invalid(Some(source.name()), "dead_letters", "none", allowed));
            }
        };
        let mut rules = self.rules;
        let destinations: Vec<_> =
            std::iter::once(first).chain(rules.routes.iter().map(|(_, to)| to.clone())).collect();
        for to in &destinations {
            to.check(&**source)?;
            rules.is_on_other_backend.push(to.is_on_other_backend(&**source, backend));
        }
        Ok((rules, destinations.into_iter().map(|to| to.queue).collect()))
    }
}

impl fmt::Debug for DlqPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DlqPolicy")
            .field("to", &self.to.as_ref().map(|to| to.queue.name()))
            .field("retain_for", &self.retain_for)
            .field("rules", &self.rules)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use pillarbox_core::{MemoryBackend, MessageId, RawMessage, Timestamp};

    use super::super::error_class::ErrorClass;
    use super::super::rules::{Decision, FailedDelivery};
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
        let (message, classifiers) = (&message, &policy.rules.classifiers);
        let failed = FailedDelivery { message, failure, attempt, max_deliveries: 5, classifiers };
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
    fn rules_by_type_apply_to_errors_that_a_handler_returned() {
        let error = || Error::invalid(None, "body", "odd", "even");
        let undecodable = Failure::new(FailureKind::Undecodable, error());
        assert!(undecodable.is::<Error>());
        let policy = DlqPolicy::new().exclude::<Error>().exclude_where(|_: &Error| true);
        assert!(is_dead(&policy, &undecodable, 1), "it would be retried forever");
        assert!(!is_dead(&policy, &Failure::of(error()), 99));
        let timeout = Failure::new(FailureKind::Timeout, error());
        let policy = DlqPolicy::new().include::<Error>().include_where(|_: &Error| true);
        assert!(!is_dead(&policy, &timeout, 1) && is_dead(&policy, &Failure::of(error()), 1));
    }

    #[test]
    fn rules_apply_to_variants_kinds_and_functions() {
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
    fn the_class_of_an_error_decides_if_it_is_enabled_and_no_other_rule_does() {
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
        // Rules for a type take precedence over its class.
        let policy = policy.include_where(|error: &Invalid| error.0 == 2).exclude_if(|failure| {
            failure.downcast_ref::<Invalid>().is_some_and(|error| error.0 == 0)
        });
        assert!(is_dead(&policy, &of(2), 1) && !is_dead(&policy, &of(0), 99));
        // The class of a type that is not registered is not known.
        let unregistered = DlqPolicy::new().include_permanent().exclude_retriable();
        assert!(!is_dead(&unregistered, &of(0), 4) && is_dead(&unregistered, &of(2), 5));
    }

    #[test]
    fn a_decide_function_has_the_class() {
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
    fn a_rejected_or_undecodable_message_is_dead_at_once() {
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
                _ => Decision::Default,
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
    fn errors_have_type_names_and_routes() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let [one, two] = ["one", "two"].map(|name| backend.mailbox::<DeadLetter<u32>, ()>(name));
        let (one, two) = (one.unwrap(), two.unwrap());
        let policy = DlqPolicy::to(&one)
            .route::<Invalid>(&two)
            .route_kind(FailureKind::Panic, &two)
            .names::<Limited>();
        let source = backend.queue("jobs", QueueOptions::new()).unwrap();
        let (rules, queues) = policy.resolve(&source, None).unwrap();
        let names: Vec<_> = queues.iter().map(|queue| queue.name().as_str()).collect();
        assert_eq!(names, ["one", "two", "two"]);
        let of = |failure: &Failure| (rules.route_of(failure), rules.type_of(failure));
        let boxed = |error: BoxError| Failure::of(error);
        let invalid = boxed(Box::new(Invalid(1)));
        assert_eq!(of(&invalid), (1, type_name::<Invalid>()));
        let limited = boxed(Box::new(Limited));
        assert_eq!(of(&limited), (0, type_name::<Limited>()));
        assert_eq!(rules.type_of(&boxed(Box::new(io::Error::other("?")))), "std::io::error::Error");
        let panic = Failure::new(FailureKind::Panic, "oh");
        assert_eq!(of(&panic), (2, "panic"));
    }

    #[test]
    fn the_default_mailbox_is_named_after_the_source() {
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

    #[test]
    fn the_source_is_refused_although_its_backend_was_opened_twice() {
        let open = || Mailboxes::new(MemoryBackend::named("opened twice"));
        let (first, second) = (open(), open());
        let source = first.queue("jobs", QueueOptions::new()).unwrap();
        let same: Mailbox<DeadLetter<u32>> = second.mailbox("jobs").unwrap();
        assert!(DlqPolicy::to(&same).resolve(&source, Some(&first)).is_err());
    }

    #[test]
    fn a_source_of_another_kind_is_on_another_backend_though_only_its_queue_is_known() {
        let backend = Mailboxes::new(MemoryBackend::new());
        let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("jobs-dlq").unwrap();
        let is_on_other = |source: &Arc<dyn Queue>| {
            DlqPolicy::to(&dead).resolve(source, None).unwrap().0.is_on_other_backend(0)
        };
        let null = pillarbox_testing::NullMailbox::new::<u32, ()>();
        assert!(is_on_other(null.queue()));
        assert!(!is_on_other(&backend.queue("jobs", QueueOptions::new()).unwrap()));
    }
}
