//! What all queues of a backend share: the connection, the tasks, the ears.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::{Error, Gate, Nonce, QueueName, QueueOptions};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::confirm::Confirmations;
use crate::ears::Ears;
use crate::failure::Failure;
use crate::format::REGISTRY;
use crate::hub::Hub;
use crate::line::Patience;
use crate::link::Link;
use crate::reply::Words;
use crate::scripts::{self, Script};
use crate::servers::{Route, slot};

/// Where the list of queues is.
pub(crate) static LIST_ROUTE: LazyLock<Route<'static>> =
    LazyLock::new(|| Route::Slot(slot(REGISTRY)));

/// What all queues of a backend share.
pub(crate) struct Engine {
    pub(crate) link: Arc<Link>,
    pub(crate) confirmations: Confirmations,
    pub(crate) gate: Arc<Gate>,
    pub(crate) ears: Ears,
    /// Tells this backend from all others that use the server.
    name: String,
    /// How many callers have got a name.
    callers: AtomicU64,
    /// How many partitions somebody waits at.
    pub(crate) waited_at: AtomicUsize,
    has_warned_unheard: AtomicBool,
    hubs: Mutex<BTreeMap<QueueName, Registered>>,
    tasks: TaskTracker,
    runtime: Handle,
}

struct Registered {
    hub: Arc<Hub>,
    /// How many handles are open. Counted here, under the lock: of two handles that go at once,
    /// exactly one is the last.
    handles: usize,
    /// Whether a handle was opened to spread the queue.
    wants_partitions: bool,
}

/// How often a partition is asked anew by those who wait, in case a wake-up was lost, or a sender may not
/// publish any. Asking is one call with six commands within it, and one that reads the layout.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// How many partitions are asked so often. Of more, each is asked less often, but not less than this.
const ASKED_OFTEN: u32 = 100;
const ASK_AGAIN_AT_LEAST: Duration = Duration::from_secs(60);

/// How often a queue is asked for when nothing can be heard.
const ASK_DEAF: Duration = Duration::from_millis(500);

/// How long closing waits for what is under way.
const CLOSE_WITHIN: Duration = Duration::from_secs(5);

impl Engine {
    pub(crate) fn new(link: Link, runtime: Handle) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let tasks = TaskTracker::new();
        let link = Arc::new(link);
        let ears = Ears::open(&link, &gate, &tasks, &runtime);
        // 48 random bits: enough to tell the processes that use a server within some minutes.
        let name = Nonce::random().to_string()[..8].to_owned();
        Arc::new(Self {
            link,
            confirmations: Confirmations::default(),
            gate,
            ears,
            name,
            callers: AtomicU64::new(0),
            waited_at: AtomicUsize::new(0),
            has_warned_unheard: AtomicBool::new(false),
            hubs: Mutex::default(),
            tasks,
            runtime,
        })
    }

    /// A name that no other caller has, or had: the server remembers callers for some minutes.
    pub(crate) fn caller_name(&self) -> String {
        format!("{}-{}", self.name, self.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs something to its end, which closing waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Something that closing waits for.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// What all handles of a queue share, for one more handle.
    ///
    /// Refuses a handle that wants a time to live beside one that wants partitions: keys of a queue that is
    /// spread are not used together, and the server would delete some of them.
    pub(crate) fn open_hub(
        self: &Arc<Self>,
        name: &QueueName,
        options: &QueueOptions,
    ) -> Result<Arc<Hub>, Error> {
        let mut hubs = self.hubs();
        let open = hubs.get(name);
        let partitions = options.partitions.unwrap_or(1).max(self.link.usage.partitions);
        let ttl = options.default_ttl.or(self.link.usage.default_ttl);
        let ttl = ttl.or_else(|| open?.hub.state.named_ttl());
        if partitions > 1 && ttl.is_some() {
            let allowed = "1 where there is a default_ttl";
            return Err(Error::invalid(Some(name), "partitions", partitions.to_string(), allowed));
        }
        let is_spread =
            |open: &Registered| open.wants_partitions || open.hub.state.known_layout().held_in > 1;
        if let Some(ttl) = options.default_ttl
            && open.is_some_and(is_spread)
        {
            let allowed = "none where a queue is spread over partitions";
            return Err(Error::invalid(Some(name), "default_ttl", format!("{ttl:?}"), allowed));
        }
        let make = || {
            let hub = Arc::new(Hub::new(name.clone(), self.clone()));
            Registered { hub, handles: 0, wants_partitions: false }
        };
        let registered = hubs.entry(name.clone()).or_insert_with(make);
        registered.handles += 1;
        registered.wants_partitions |= partitions > 1;
        if let Some(ttl) = options.default_ttl {
            registered.hub.state.name_ttl(ttl);
        }
        Ok(registered.hub.clone())
    }

    /// Longest `default_ttl` that an open handle of a queue has named.
    pub(crate) fn named_ttl(&self, queue: &QueueName) -> Option<Duration> {
        self.hubs().get(queue)?.hub.state.named_ttl()
    }

    /// One handle less. With the last one, the queue may be forgotten.
    pub(crate) fn close_handle(&self, name: &QueueName) {
        let mut hubs = self.hubs();
        let Some(registered) = hubs.get_mut(name) else { return };
        registered.handles -= 1;
        if registered.handles == 0
            && let Some(Registered { hub, .. }) = hubs.remove(name)
            && !self.gate.is_closed()
        {
            self.spawn(async move { hub.forget().await });
        }
    }

    /// Held for moments, never across an await.
    fn hubs(&self) -> MutexGuard<'_, BTreeMap<QueueName, Registered>> {
        self.hubs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long those who wait may go without asking a server.
    pub(crate) fn patience(&self) -> Patience {
        patience(self.waited_at.load(Ordering::Relaxed))
    }

    /// Warns, once, of a user who may not wake those who wait, at a queue or at any.
    pub(crate) fn warn_unheard(&self, queue: Option<&QueueName>) {
        if !self.has_warned_unheard.swap(true, Ordering::Relaxed) {
            let (place, queue) = (self.link.place(), queue.map(QueueName::as_str));
            tracing::warn!(%place, queue, "{}; {UNHEARD_ADVICE}", unheard());
        }
    }

    /// Puts a queue on the list of queues.
    pub(crate) async fn list(&self, queue: &QueueName) -> Result<(), Failure> {
        self.run_on_list(&scripts::LIST, &[queue.as_str()]).await.map(|_| ())
    }

    /// Runs a script on the list of queues.
    pub(crate) async fn run_on_list(
        &self,
        script: &Script,
        arguments: &[&str],
    ) -> Result<Words, Failure> {
        let reply = self.link.run(&self.gate, *LIST_ROUTE, script, false, |command, _| {
            command.arg(1).arg(REGISTRY).arg(arguments);
        });
        match reply.await {
            Ok(reply) => Ok(reply.words()),
            Err(failure) => Err(foreign_list(self, failure).await),
        }
    }

    /// Wakes all who wait, lets what is under way end, and disconnects.
    pub(crate) async fn close(&self) {
        if self.gate.is_closed() {
            return;
        }
        self.gate.close();
        self.tasks.close();
        let hubs: Vec<_> = self.hubs().values().map(|registered| registered.hub.clone()).collect();
        let end = async {
            self.tasks.wait().await;
            join_all(hubs.iter().map(|hub| hub.forget())).await;
        };
        if tokio::time::timeout(CLOSE_WITHIN, end).await.is_err() {
            tracing::warn!(place = %self.link.place(), "closed while operations were under way");
        }
        self.link.disconnect();
    }
}

/// How long those who wait at so many partitions may go without asking a server.
fn patience(partitions: usize) -> Patience {
    let partitions = u32::try_from(partitions).unwrap_or(u32::MAX).max(ASKED_OFTEN);
    let heard = ASK_AGAIN.saturating_mul(partitions) / ASKED_OFTEN;
    Patience { heard: heard.min(ASK_AGAIN_AT_LEAST), deaf: ASK_DEAF }
}

/// That a user may not wake those who wait.
pub(crate) fn unheard() -> String {
    format!(
        "this user may not publish that there is a message: receivers that wait find it up to {} s later",
        ASK_AGAIN.as_secs()
    )
}

/// What to do about it.
pub(crate) const UNHEARD_ADVICE: &str =
    "give the user the commands spublish and publish, and channels {queue:*";

/// Which of these keys, of one slot, are of another type than they should be.
pub(crate) async fn foreign_keys(
    engine: &Engine,
    slot: u16,
    keys: &[(&str, &'static str)],
) -> Result<Vec<Failure>, Failure> {
    let mut foreign = Vec::new();
    for (key, expected) in keys {
        let mut command = redis::cmd("TYPE");
        let answer = engine.link.ask(&engine.gate, Route::Slot(slot), command.arg(key)).await;
        let found: String = answer?.parsed()?;
        if found != *expected && found != "none" {
            foreign.push(Failure::ForeignKey { key: (*key).to_owned(), found, expected });
        }
    }
    Ok(foreign)
}

/// The failure that names the list of queues, if that is of another type.
pub(crate) async fn foreign_list(engine: &Engine, failure: Failure) -> Failure {
    if !failure.is_wrong_type() {
        return failure;
    }
    match foreign_keys(engine, slot(REGISTRY), &[(REGISTRY, "zset")]).await {
        Ok(mut foreign) if !foreign.is_empty() => foreign.remove(0),
        _ => failure,
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("link", &self.link).field("name", &self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_wait_at_many_queues_do_not_wait_for_ever_for_a_wake_up_that_never_comes() {
        let heard = |partitions| patience(partitions).heard.as_secs();
        for partitions in [0, 1, 20, 100] {
            assert_eq!(heard(partitions), 10, "{partitions}");
        }
        assert_eq!((heard(300), heard(600), heard(5000), heard(usize::MAX)), (30, 60, 60, 60));
    }
}
