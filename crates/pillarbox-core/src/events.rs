//! Events within a process: typed publish and subscribe, without a queue.
//!
//! A [`Dispatcher`] calls every subscriber of an event's type on the thread that dispatches it. Nothing is
//! stored, nothing is acknowledged, and nobody outside of the process sees it. What must not be lost is a
//! message in a [`Mailbox`](crate::Mailbox).
//!
//! | | `Dispatcher` | `Mailbox` | `Control::events` of a worker |
//! |---|---|---|---|
//! | pattern | broadcast | point to point | broadcast |
//! | delivery | to all subscribers, before `dispatch` returns | to one consumer, at least once | to all listeners; a slow one misses the oldest |
//! | acknowledgement | none | required | none |
//! | durability | none | that of the backend | none |
//! | across processes | no | yes | no |
//! | order | that of subscription | that of the backend | as it happened |
//! | whose events | the program's own types | the program's own types | what workers do with messages |
//! | use it for | telemetry, notifications, coordination within a process | requests, work, whatever must survive a crash | watching workers, tests that wait |
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

/// Calls the subscribers of an event, by its type. Cheap to clone; clones share their subscribers.
///
/// No lock is held while subscribers run: a subscriber may subscribe, unsubscribe and dispatch. Each
/// dispatch calls those who were subscribed when it began.
#[derive(Clone, Default)]
pub struct Dispatcher {
    shared: Arc<Shared>,
}

impl Dispatcher {
    /// Makes a dispatcher without subscribers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `subscriber` with every event of type `E` until the subscription is dropped.
    ///
    /// The subscriber returns `()`, or a `Result` whose error goes into the [`Report`] under the
    /// subscriber's type name. It must not block for long: whoever dispatches waits for it.
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
        let id = self.shared.add(name.into(), call);
        Subscription { shared: Arc::downgrade(&self.shared), id, remove: Shared::remove::<E> }
    }

    /// Calls every subscriber of `E` with the event, on this thread, in the order in which they
    /// subscribed. One that fails or panics does not keep the others from being called.
    ///
    /// Where nobody subscribes, this is a look-up and allocates nothing.
    pub fn dispatch<E: 'static>(&self, event: &E) -> Report {
        let mut report = Report { event: type_name::<E>(), called: 0, errors: Vec::new() };
        for subscriber in self.shared.subscribers::<E>().iter().flat_map(|list| list.iter()) {
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
        f.debug_struct("Dispatcher").field("types", &self.shared.read().lists.len()).finish()
    }
}

/// Keeps a subscriber subscribed. Dropping it unsubscribes.
#[must_use = "dropping a subscription unsubscribes; `detach` keeps it"]
pub struct Subscription {
    shared: Weak<Shared>,
    id: u64,
    remove: fn(&Shared, u64),
}

impl Subscription {
    /// Keeps the subscriber for as long as the dispatcher is there.
    pub fn detach(mut self) {
        self.shared = Weak::new();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            (self.remove)(&shared, self.id);
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a subscriber may return: `()`, or a `Result` with any error.
pub trait IntoResult {
    /// Whether the subscriber has succeeded.
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

/// What became of one dispatch. May be ignored where nobody minds that a subscriber failed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The name of the event's type.
    pub event: &'static str,
    /// Number of subscribers that were called, those that failed included.
    pub called: usize,
    /// The failures, in the order of the calls.
    pub errors: Vec<SubscriberError>,
}

impl Report {
    /// Whether no subscriber failed.
    pub const fn is_ok(&self) -> bool {
        self.errors.is_empty()
    }

    /// Fails if a subscriber failed.
    pub fn into_result(self) -> Result<(), DispatchError> {
        if self.is_ok() { Ok(()) } else { Err(DispatchError { report: self }) }
    }
}

/// Why a subscriber failed.
#[derive(Clone, thiserror::Error)]
#[error("subscriber {subscriber} {}: {cause}", if *.is_panic { "panicked" } else { "failed" })]
#[non_exhaustive]
pub struct SubscriberError {
    /// The name of the subscriber: that of its type, unless it was given one.
    pub subscriber: Cow<'static, str>,
    /// Whether it panicked.
    pub is_panic: bool,
    /// The error that it returned, or the message of its panic.
    #[source]
    pub cause: Cause,
}

crate::__error_debug!(struct SubscriberError { subscriber, is_panic, cause });

/// A dispatch of which at least one subscriber failed. Its source is the first failure.
#[derive(Clone)]
pub struct DispatchError {
    report: Report,
}

crate::__error_debug!(struct DispatchError { report });

impl DispatchError {
    /// The report of the dispatch, with every failure.
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
        // What a panic leaves behind is the subscriber's, and it is called again at its own risk.
        match catch_unwind(AssertUnwindSafe(|| (self.call)(event))) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(cause)) => failed(false, cause),
            Err(payload) => failed(true, Arc::from(Box::from(panic_text(&*payload)))),
        }
    }
}

fn panic_text(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("the panic has no message")
}

/// The subscribers of one type of event. Replaced, never changed: a dispatch goes on with what it has.
type List<E> = Vec<Arc<Subscriber<E>>>;

#[derive(Default)]
struct Shared {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    /// By type of event, an `Arc<List<E>>` that is not empty.
    lists: HashMap<TypeId, Arc<dyn Any + Send + Sync>>,
}

impl State {
    fn list<E: 'static>(&self) -> Option<Arc<List<E>>> {
        self.lists.get(&TypeId::of::<E>())?.clone().downcast().ok()
    }

    /// Replaces the list of `E`, and returns what must be dropped once the lock is released: the drop of a
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

impl Shared {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn subscribers<E: 'static>(&self) -> Option<Arc<List<E>>> {
        self.read().list()
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

    /// What happened, in order.
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
    fn an_event_that_nobody_subscribes_to_is_reported_as_such() {
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
            assert!(error.to_string().starts_with("2 of 3 subscribers of "), "{error}");
            assert!(
                error.to_string().ends_with("; subscriber audit panicked: disk full"),
                "{error}"
            );
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
        // The dispatch that it was subscribed in does not call the new one.
        assert_eq!(events.dispatch(&Placed(7)).called, 1);
        assert_eq!(log.take(), ["once", "new 8"]);
        events.dispatch(&Placed(9));
        assert_eq!(log.take(), ["new 9"]);
    }

    #[test]
    fn what_a_subscriber_owns_may_use_the_dispatcher_when_it_is_dropped() {
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
    fn threads_may_dispatch_and_subscribe_at_the_same_time() {
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
