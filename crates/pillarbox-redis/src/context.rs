//! What all queues of a backend share: the client, the subscriptions, the tasks.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use pillarbox_core::{Gate, Nonce, QueueName};
use redis::Cmd;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::confirmations::Confirmations;
use crate::failure::{Failure, Result};
use crate::format::REGISTRY;
use crate::reply::ReplyReader;
use crate::retrying_client::RetryingClient;
use crate::script_call::ScriptCall;
use crate::scripts::{self, Script};
use crate::servers::{Route, slot};
use crate::waiting::{POLL_INTERVAL, Subscriptions, WaitedPartitions};

/// Route to the server that has the list of queues.
pub(crate) static REGISTRY_ROUTE: LazyLock<Route<'static>> =
    LazyLock::new(|| Route::Slot(slot(REGISTRY)));

/// State shared by all queues of a backend.
pub(crate) struct BackendContext {
    pub(crate) client: Arc<RetryingClient>,
    pub(crate) confirmations: Confirmations,
    pub(crate) gate: Arc<Gate>,
    pub(crate) subscriptions: Subscriptions,
    pub(crate) waited_partitions: Arc<WaitedPartitions>,
    /// Unique name of this backend among all that use the server.
    name: String,
    /// Number of caller names given out.
    callers: AtomicU64,
    has_warned_of_publish: AtomicBool,
    tasks: TaskTracker,
    runtime: Handle,
}

/// Time that closing waits for running operations.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl BackendContext {
    pub(crate) fn new(client: RetryingClient, runtime: Handle) -> Arc<Self> {
        let gate = Arc::new(Gate::new());
        let tasks = TaskTracker::new();
        let client = Arc::new(client);
        let subscriptions = Subscriptions::open(&client, &gate, &tasks, &runtime);
        // 48 random bits are enough for the processes that use a server within some minutes.
        let name = Nonce::random().to_string()[..8].to_owned();
        Arc::new(Self {
            confirmations: Confirmations::new(client.clone(), tasks.clone(), runtime.clone()),
            client,
            gate,
            subscriptions,
            waited_partitions: Arc::default(),
            name,
            callers: AtomicU64::new(0),
            has_warned_of_publish: AtomicBool::new(false),
            tasks,
            runtime,
        })
    }

    /// Returns a name that no other caller has or had: the server remembers callers for some minutes.
    pub(crate) fn new_caller_name(&self) -> String {
        format!("{}-{}", self.name, self.callers.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a task to its end, which closing waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.runtime);
    }

    /// Returns a token that closing waits for.
    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.tasks.token()
    }

    /// Warns, once, that the user may not publish wake-ups, for a queue or for any.
    pub(crate) fn warn_of_publish(&self, queue: Option<&QueueName>) {
        if !self.has_warned_of_publish.swap(true, Ordering::Relaxed) {
            let (endpoint, queue) = (self.client.endpoint(), queue.map(QueueName::as_str));
            tracing::warn!(%endpoint, queue, "{}; {PUBLISH_ADVICE}", publish_problem());
        }
    }

    /// Puts a queue on the list of queues.
    pub(crate) async fn register(&self, queue: &QueueName) -> Result<()> {
        self.run_on_registry(&scripts::REGISTER, &[queue.as_str()]).await.map(|_| ())
    }

    /// Runs a script on the list of queues.
    pub(crate) async fn run_on_registry(
        &self,
        script: &Script,
        arguments: &[&str],
    ) -> Result<ReplyReader> {
        let add = |command: &mut Cmd| {
            command.arg(arguments);
        };
        let call = ScriptCall::with_own_keys(script, &[REGISTRY], add);
        match self.client.run(&self.gate, *REGISTRY_ROUTE, call).await {
            Ok(reply) => Ok(reply.into_reader()),
            Err(failure) => Err(self.explain_registry(failure).await),
        }
    }

    /// Closes the gate, which wakes all waiters; waits for running operations and then for `last`; and
    /// disconnects.
    pub(crate) async fn close(&self, last: impl Future<Output = ()>) {
        if self.gate.is_closed() {
            return;
        }
        self.gate.close();
        self.tasks.close();
        let end = async {
            self.tasks.wait().await;
            last.await;
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, end).await.is_err() {
            let endpoint = self.client.endpoint();
            tracing::warn!(%endpoint, "closed while operations were running");
        }
        self.client.servers.disconnect();
    }

    /// Returns a failure for each of these keys, all of one slot, that has another type than expected.
    pub(crate) async fn foreign_keys(
        &self,
        slot: u16,
        keys: &[(&str, &'static str)],
    ) -> Result<Vec<Failure>> {
        let mut foreign = Vec::new();
        for (key, expected) in keys {
            let mut command = redis::cmd("TYPE");
            let reply = self.client.query(&self.gate, Route::Slot(slot), command.arg(key)).await;
            let found: String = reply?.parsed()?;
            if found != *expected && found != "none" {
                foreign.push(Failure::ForeignKey { key: (*key).to_owned(), found, expected });
            }
        }
        Ok(foreign)
    }

    /// Returns the failure that names the key of another type if that is the cause, or else `failure`.
    pub(crate) async fn explain(
        &self,
        failure: Failure,
        slot: u16,
        keys: &[(&str, &'static str)],
    ) -> Failure {
        if !failure.is_wrong_type() {
            return failure;
        }
        match self.foreign_keys(slot, keys).await {
            Ok(mut foreign) if !foreign.is_empty() => foreign.remove(0),
            _ => failure,
        }
    }

    /// [`explain`](Self::explain) for the list of queues.
    pub(crate) async fn explain_registry(&self, failure: Failure) -> Failure {
        self.explain(failure, slot(REGISTRY), &[(REGISTRY, "zset")]).await
    }
}

/// Describes that a user may not publish wake-ups.
pub(crate) fn publish_problem() -> String {
    format!(
        "this user may not publish wake-ups: waiting receivers find a message up to {} s later",
        POLL_INTERVAL.as_secs()
    )
}

/// Advice for it.
pub(crate) const PUBLISH_ADVICE: &str =
    "give the user the commands spublish and publish, and channels {queue:*";

impl fmt::Debug for BackendContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendContext")
            .field("client", &self.client)
            .field("name", &self.name)
            .finish()
    }
}
