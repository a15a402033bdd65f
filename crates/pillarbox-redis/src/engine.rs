//! What all queues of a backend share: the connection, the tasks, the ears.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::{Gate, Nonce, QueueName};
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
    hubs: Mutex<BTreeMap<QueueName, Registered>>,
    tasks: TaskTracker,
    runtime: Handle,
}

struct Registered {
    hub: Arc<Hub>,
    /// How many handles are open. Counted here, under the lock: of two handles that go at once,
    /// exactly one is the last.
    handles: usize,
}

/// How often the servers are asked anew by those who wait, all queues together, in case a wake-up was
/// lost. Asking is one call with six commands within it, and one that reads the layout.
const ASK_AGAIN: Duration = Duration::from_secs(10);

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
    pub(crate) fn open_hub(self: &Arc<Self>, name: &QueueName) -> Arc<Hub> {
        let mut hubs = self.hubs();
        let make = || {
            let hub = Arc::new(Hub::new(name.clone(), self.clone()));
            Registered { hub, handles: 0 }
        };
        let registered = hubs.entry(name.clone()).or_insert_with(make);
        registered.handles += 1;
        registered.hub.clone()
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
        let partitions = self.waited_at.load(Ordering::Relaxed) as u32;
        Patience { heard: ASK_AGAIN * partitions.max(1), deaf: ASK_DEAF }
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
        Ok(reply.await?.words())
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

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("link", &self.link).field("name", &self.name).finish()
    }
}
