//! Typed publish and subscribe within a process, without a queue.
//!
//! A [`Dispatcher`] calls every subscriber of an event's type on the thread that dispatches it. Events are neither
//! stored nor acknowledged, and are not visible outside the process. Send what must not be lost to a
//! [`Mailbox`](crate::Mailbox).
//!
//! | | `Dispatcher` | `Mailbox` | `Control::events` of a worker |
//! |---|---|---|---|
//! | pattern | broadcast | point to point | broadcast |
//! | delivery | to all subscribers, before `dispatch` returns | to one consumer, at least once | to all listeners; a slow one misses the oldest events |
//! | acknowledgement | none | required | none |
//! | durability | none | that of the backend | none |
//! | across processes | no | yes | no |
//! | order | order of subscription | order of the backend | order of occurrence |
//! | payload | types of the program | types of the program | events of the workers |
//! | use it for | telemetry, notifications, coordination within a process | requests, work, anything that must survive a crash | watching workers, tests that wait |
//!
//! ```
//! use pillarbox_core::events::Dispatcher;
//!
//! struct OrderPlaced { total: u64 }
//!
//! let events = Dispatcher::new();
//! let _log = events.subscribe(|order: &OrderPlaced| println!("an order of {}", order.total));
//! let _check = events.subscribe_named("check", |order: &OrderPlaced| match order.total {
//!     0 => Err("an order of nothing"),
//!     _ => Ok(()),
//! });
//!
//! assert!(events.dispatch(&OrderPlaced { total: 40 }).is_ok());
//!
//! let report = events.dispatch(&OrderPlaced { total: 0 });
//! assert_eq!((report.called, report.errors.len()), (2, 1));
//! assert_eq!(report.errors[0].to_string(), "subscriber check failed: an order of nothing");
//! ```

use std::any::{Any, TypeId, type_name};
use std::borrow::Cow;
use std::collections::HashMap;
use std::error::Error as StdError;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use crate::error::Cause;
use crate::internal::panic_text;

/// Dispatcher of events to subscribers by type. Cheap to clone; clones share their subscribers.
///
/// No lock is held while subscribers run, so a subscriber may subscribe, unsubscribe and dispatch. Each dispatch calls
/// those that were subscribed when it started.
#[derive(Clone, Default)]
pub struct Dispatcher {
    subscribers: Arc<Subscribers>,
}

impl Dispatcher {
    /// Creates a dispatcher without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `subscriber` with every event of type `E` until the subscription is dropped.
    ///
    /// The subscriber returns `()`, or a `Result` whose error goes into the [`Report`] under the subscriber's type
    /// name. It must not block for long, because `dispatch` waits for it.
    pub fn subscribe<E: 'static, O: IntoResult>(
        &self,
        subscriber: impl Fn(&E) -> O + Send + Sync + 'static,
    ) -> Subscription {
        fn name_of<F>(_: &F) -> &'static str {
            type_name::<F>()
        }
        let name = name_of(&subscriber);
        self.subscribe_named(name, subscriber)
    }

    /// Subscribes as [`subscribe`](Self::subscribe) does, under a name for the [`Report`].
    pub fn subscribe_named<E: 'static, O: IntoResult>(
        &self,
        name: impl Into<Cow<'static, str>>,
        subscriber: impl Fn(&E) -> O + Send + Sync + 'static,
    ) -> Subscription {
        let call: Box<Call<E>> = Box::new(move |event| subscriber(event).into_result());
        let id = self.subscribers.add(name.into(), call);
        let subscribers = Arc::downgrade(&self.subscribers);
        Subscription { subscribers, id, remove: Subscribers::remove::<E> }
    }

    /// Calls every subscriber of `E` with the event, on this thread, in the order of subscription. A subscriber that
    /// fails or panics does not affect the others.
    ///
    /// Without subscribers, this is a single lookup and allocates nothing.
    pub fn dispatch<E: 'static>(&self, event: &E) -> Report {
        let mut report = Report { event: type_name::<E>(), called: 0, errors: Vec::new() };
        let list = self.subscribers.read().list::<E>();
        for subscriber in list.iter().flat_map(|list| list.iter()) {
            report.called += 1;
            if let Err(error) = subscriber.call(event) {
                report.errors.push(error);
            }
        }
        report
    }
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("types", &self.subscribers.read().lists.len()).finish()
    }
}

/// Handle of a subscription. Dropping it unsubscribes.
#[must_use = "dropping a subscription unsubscribes; `detach` keeps it"]
pub struct Subscription {
    subscribers: Weak<Subscribers>,
    id: u64,
    remove: fn(&Subscribers, u64),
}

impl Subscription {
    /// Keeps the subscriber until the dispatcher is dropped.
    pub fn detach(mut self) {
        self.subscribers = Weak::new();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(subscribers) = self.subscribers.upgrade() {
            (self.remove)(&subscribers, self.id);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Return type of a subscriber: `()`, or a `Result` with any error.
pub trait IntoResult {
    /// Converts the return value into a result.
    fn into_result(self) -> Result<(), Cause>;
}

impl IntoResult for () {
    fn into_result(self) -> Result<(), Cause> {
        Ok(())
    }
}

impl<E: Into<Box<dyn StdError + Send + Sync>>> IntoResult for Result<(), E> {
    fn into_result(self) -> Result<(), Cause> {
        self.map_err(|error| error.into().into())
    }
}

/// Outcome of one dispatch. May be ignored if failures of subscribers do not matter.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// Name of the event's type.
    pub event: &'static str,
    /// Number of subscribers that were called, including those that failed.
    pub called: usize,
    /// Failures, in the order of the calls.
    pub errors: Vec<SubscriberError>,
}

impl Report {
    /// Returns whether no subscriber failed.
    pub const fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// Fails if a subscriber failed.
    pub fn into_result(self) -> Result<(), DispatchError> {
        if self.is_ok() { Ok(()) } else { Err(DispatchError { report: self }) }
    }
}

/// Failure of a subscriber.
#[derive(Clone, thiserror::Error)]
#[error("subscriber {subscriber} {}: {cause}", if *.is_panic { "panicked" } else { "failed" })]
#[non_exhaustive]
pub struct SubscriberError {
    /// Name of the subscriber. Defaults to the name of its type.
    pub subscriber: Cow<'static, str>,
    /// Whether the subscriber panicked.
    pub is_panic: bool,
    /// The error that the subscriber returned, or the message of its panic.
    #[source]
    pub cause: Cause,
}

crate::__error_debug!(struct SubscriberError { subscriber, is_panic, cause });

/// Error of a dispatch in which at least one subscriber failed. Its source is the first failure.
#[derive(Clone)]
pub struct DispatchError {
    report: Report,
}

crate::__error_debug!(struct DispatchError { report });

impl DispatchError {
    /// Returns the report of the dispatch, with every failure.
    pub const fn report(&self) -> &Report {
        &self.report
    }
}

impl fmt::Display for DispatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { event, called, errors } = &self.report;
        write!(f, "{} of {called} subscribers of {event} failed", errors.len())?;
        for (index, error) in errors.iter().enumerate() {
            write!(f, "{} {error}", if index == 0 { ":" } else { ";" })?;
        }
        Ok(())
    }
}

impl StdError for DispatchError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.report.errors.first().map(|error| error as _)
    }
}

type Call<E> = dyn Fn(&E) -> Result<(), Cause> + Send + Sync;

struct Subscriber<E> {
    id: u64,
    name: Cow<'static, str>,
    call: Box<Call<E>>,
}

impl<E> Subscriber<E> {
    fn call(&self, event: &E) -> Result<(), SubscriberError> {
        let failed = |is_panic, cause| {
            Err(SubscriberError { subscriber: self.name.clone(), is_panic, cause })
        };
        // Only the subscriber's own state can be inconsistent after a panic.
        match catch_unwind(AssertUnwindSafe(|| (self.call)(event))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => failed(false, cause),
            Err(payload) => failed(true, Arc::from(Box::from(panic_text(&*payload)))),
        }
    }
}

/// Subscribers of one event type. Replaced and never modified, so a dispatch continues with the list that it has.
type List<E> = Vec<Arc<Subscriber<E>>>;

#[derive(Default)]
struct Subscribers {
    state: RwLock<SubscriberLists>,
}

#[derive(Default)]
struct SubscriberLists {
    next_id: u64,
    /// An `Arc<List<E>>` for each event type with subscribers.
    lists: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl SubscriberLists {
    fn list<E: 'static>(&self) -> Option<Arc<List<E>>> {
        self.lists.get(&TypeId::of::<E>())?.clone().downcast().ok()
    }

    /// Replaces the list of `E`, and returns the old one, which must be dropped after the lock is released: dropping a
    /// subscriber may run code that uses the dispatcher.
    #[must_use]
    fn replace<E: 'static>(&mut self, list: List<E>) -> Option<Arc<dyn Any + Send + Sync>> {
        let event = TypeId::of::<E>();
        if list.is_empty() {
            self.lists.remove(&event)
        } else {
            self.lists.insert(event, Arc::new(list))
        }
    }
}

impl Subscribers {
    fn read(&self) -> RwLockReadGuard<'_, SubscriberLists> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, SubscriberLists> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn add<E: 'static>(&self, name: Cow<'static, str>, call: Box<Call<E>>) -> u64 {
        let mut state = self.write();
        let id = state.next_id;
        state.next_id += 1;
        let mut list = state.list::<E>().map_or_else(Vec::new, |list| list.to_vec());
        list.push(Arc::new(Subscriber { id, name, call }));
        let old = state.replace(list);
        drop(state);
        drop(old);
        id
    }

    fn remove<E: 'static>(&self, id: u64) {
        let mut state = self.write();
        let old = state.list::<E>();
        let list = old.iter().flat_map(|list| list.iter());
        let list: List<E> = list.filter(|subscriber| subscriber.id != id).cloned().collect();
        let replaced = state.replace(list);
        drop(state);
        drop((old, replaced));
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Placed(u64);
    struct Cancelled;

    /// Records the calls of subscribers, in order.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        fn note(&self, text: impl Into<String>) {
            self.0.lock().unwrap().push(text.into());
        }

        fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn refuse(_: &Placed) -> io::Result<()> {
        Err(io::Error::other("no paper"))
    }

    #[test]
    fn every_subscriber_of_the_type_is_called_in_the_order_of_subscription() {
        let (events, log) = (Dispatcher::new(), Log::default());
        let subscribe = |name: &'static str| {
            let log = log.clone();
            events.subscribe(move |placed: &Placed| log.note(format!("{name} {}", placed.0)))
        };
        let _subscribed = [subscribe("a"), subscribe("b"), subscribe("c")];
        let _other = events.clone().subscribe(|_: &Cancelled| -> () { panic!("of another type") });
        let report = events.dispatch(&Placed(7));
        assert_eq!(log.take(), ["a 7", "b 7", "c 7"]);
        assert!(report.is_ok() && report.called == 3 && report.event.ends_with("Placed"));
        assert!(report.into_result().is_ok());
    }

    #[test]
    fn an_event_without_subscribers_is_reported_as_such() {
        let report = Dispatcher::new().dispatch(&Placed(7));
        assert!(report.is_ok());
        assert_eq!((report.called, report.errors.capacity()), (0, 0));
    }

    #[test]
    fn a_subscriber_that_fails_or_panics_does_not_stop_the_others() {
        let (events, log) = (Dispatcher::new(), Log::default());
        events.subscribe(refuse).detach();
        events.subscribe_named("audit", |_: &Placed| -> () { panic!("disk {}", "full") }).detach();
        let noted = log.clone();
        events.subscribe(move |_: &Placed| noted.note("called")).detach();

        for _ in 0..2 {
            let report = events.dispatch(&Placed(7));
            assert_eq!(log.take(), ["called"]);
            assert_eq!((report.called, report.is_ok()), (3, false));
            let [refused, panicked] = &report.errors[..] else { panic!("{report:?}") };
            assert!(refused.subscriber.ends_with("refuse") && !refused.is_panic, "{refused}");
            assert!(refused.cause.downcast_ref::<io::Error>().is_some());
            assert!(panicked.is_panic);
            assert_eq!(panicked.to_string(), "subscriber audit panicked: disk full");

            let error = report.into_result().unwrap_err();
            let text = error.to_string();
            assert!(text.starts_with("2 of 3 subscribers of "), "{text}");
            assert!(text.ends_with("; subscriber audit panicked: disk full"), "{text}");
            let first = error.source().unwrap();
            assert_eq!(first.to_string(), error.report().errors[0].to_string());
        }
    }

    #[test]
    fn a_dropped_subscription_unsubscribes_and_a_detached_one_stays() {
        let (events, log) = (Dispatcher::new(), Log::default());
        let subscribe = |name: &'static str| {
            let log = log.clone();
            events.subscribe(move |_: &Placed| log.note(name))
        };
        let (first, second) = (subscribe("first"), subscribe("second"));
        subscribe("detached").detach();
        drop(first);
        events.dispatch(&Placed(7));
        assert_eq!(log.take(), ["second", "detached"]);
        drop(second);
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
        drop(subscribe("gone at once"));
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
    }

    #[test]
    fn a_subscription_may_outlive_its_dispatcher() {
        let events = Dispatcher::new();
        let subscription = events.subscribe(|_: &Placed| ());
        drop(events);
        drop(subscription);
    }

    #[test]
    fn a_subscriber_may_subscribe_unsubscribe_and_dispatch() {
        let (events, log) = (Dispatcher::new(), Log::default());
        let own: Arc<Mutex<Option<Subscription>>> = Arc::default();
        let (inner, kept, noted) = (events.clone(), own.clone(), log.clone());
        *own.lock().unwrap() = Some(events.subscribe(move |placed: &Placed| {
            noted.note("once");
            drop(kept.lock().unwrap().take());
            let noted = noted.clone();
            inner
                .subscribe(move |placed: &Placed| noted.note(format!("new {}", placed.0)))
                .detach();
            assert_eq!(inner.dispatch(&Placed(placed.0 + 1)).called, 1);
        }));
        // The current dispatch does not call a subscriber that was added during it.
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
        assert_eq!(log.take(), ["once", "new 8"]);
        events.dispatch(&Placed(9));
        assert_eq!(log.take(), ["new 9"]);
    }

    #[test]
    fn a_value_owned_by_a_subscriber_may_use_the_dispatcher_when_it_is_dropped() {
        struct DispatchOnDrop(Dispatcher);
        impl Drop for DispatchOnDrop {
            fn drop(&mut self) {
                self.0.dispatch(&Cancelled);
                self.0.subscribe(|_: &Placed| ()).detach();
            }
        }
        let (events, log) = (Dispatcher::new(), Log::default());
        let noted = log.clone();
        events.subscribe(move |_: &Cancelled| noted.note("dropped")).detach();
        let owned = DispatchOnDrop(events.clone());
        let subscription = events.subscribe(move |_: &Placed| {
            let _ = &owned;
        });
        drop(subscription);
        assert_eq!(log.take(), ["dropped"]);
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
    }

    #[test]
    fn threads_may_dispatch_and_subscribe_concurrently() {
        let (events, calls) = (Dispatcher::new(), Arc::new(AtomicUsize::new(0)));
        let counted = calls.clone();
        events
            .subscribe(move |_: &Placed| {
                counted.fetch_add(1, Ordering::Relaxed);
            })
            .detach();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for n in 0..100 {
                        let _short = events.subscribe(|_: &Placed| ());
                        assert!(events.dispatch(&Placed(n)).called >= 2);
                    }
                });
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 400);
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
    }
}
