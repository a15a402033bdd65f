//! The builder of a group of loops.

use std::collections::HashSet;
use std::fmt;
#[cfg(feature = "health")]
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::internal::lock;
use pillarbox_core::{Error, Mailbox};

use super::control::GroupControl;
use super::registry::Registry;
use super::report::{GroupError, GroupReport};
use super::restart::{Restart, Restarts};
use super::running::{Group, RunningGroup};
use super::stuck::Stuck;
use super::supervisor::{Origin, Supervisor};
use super::systemd::Systemd;
use super::watchdog::{EXIT_CODE, Watchdog, WatchdogOptions};
use crate::dead_letters::{DeadLetter, Dlq, DlqLimits};
use crate::runnable::Runnable;
use crate::signals::Signals;

/// Runs several loops in one process: [`Worker`](crate::Worker)s, [`MainLoop`](crate::loops::MainLoop)s,
/// [`DlqConsumer`](crate::DlqConsumer)s, [`Task`](super::Task)s, and whatever else is [`Runnable`].
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{DlqConsumer, Runnable, Worker};
/// use pillarbox_runtime::dead_letters::{DeadLetter, DlqLimits, DlqPolicy};
/// use pillarbox_runtime::group::{LoopGroup, Restart};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let backend = Mailboxes::new(MemoryBackend::new());
/// let orders: Mailbox<u64> = backend.mailbox("orders")?;
/// let reports: Mailbox<String> = backend.mailbox("reports")?;
/// let dead: Mailbox<DeadLetter<u64>> = backend.mailbox("orders-dlq")?;
/// let group = LoopGroup::new()
///     .add(
///         Worker::new(orders)
///             .dead_letters(DlqPolicy::new())
///             .handler(|order: u64| async move { println!("order {order}") }),
///     )
///     .add(DlqConsumer::new(dead.clone(), |letter: DeadLetter<u64>| async move { println!("{letter:?}") }))
///     // A loop that is made by a function is restarted when it fails.
///     .add_with("reports", move || {
///         Worker::new(reports.clone()).handler(|report: String| async move { println!("{report}") })
///     })
///     .restart(Restart::on_failure().at_most(5, Duration::from_secs(60)))
///     .dead_letters(&dead, DlqLimits::default().depth(100))
///     .drain_for(Duration::from_secs(60));
/// # group.control().stop();
/// let report = group.run().await?;
/// println!("{} orders", report.get("orders").map_or(0, |orders| orders.stats.succeeded));
/// # Ok(()) }
/// ```
///
/// * The first SIGTERM or SIGINT stops all loops at the same time, and each finishes what is running. The second
///   cancels what is running, and the third ends the process.
/// * When a loop ends without an error, the others go on. When a loop fails, it is restarted if it can be;
///   otherwise the others are drained, and [`run`](Self::run) returns its failure.
/// * A [watchdog](Self::watchdog) detects stuck loops.
/// * Under systemd with `Type=notify`, it is notified when the loops are ready, when they stop, and that they are
///   alive.
#[must_use = "loops do nothing until they are run"]
pub struct LoopGroup {
    members: Vec<(String, Origin)>,
    registry: Arc<Registry>,
    restart: Restart,
    drain: Duration,
    watchdog: WatchdogOptions,
    obeys_signals: bool,
    #[cfg(feature = "health")]
    health: Option<SocketAddr>,
    #[cfg(feature = "health")]
    metrics: Option<super::PrometheusHandle>,
}

impl LoopGroup {
    /// Exit code of a process with a [stuck](Self::watchdog) loop.
    pub const STUCK_EXIT_CODE: i32 = EXIT_CODE;

    /// Creates a group without loops. At least one must be added.
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            registry: Arc::new(Registry::new()),
            restart: Restart::default(),
            drain: Duration::from_secs(60),
            watchdog: WatchdogOptions { threshold: Some(Duration::from_secs(720)), on_stuck: None },
            obeys_signals: true,
            #[cfg(feature = "health")]
            health: None,
            #[cfg(feature = "health")]
            metrics: None,
        }
    }

    /// Adds a loop under its [name](Runnable::name), which must be unique (see
    /// [`Worker::named`](crate::Worker::named)). When it fails, the group ends.
    #[expect(clippy::should_implement_trait, reason = "a group is no number")]
    pub fn add(mut self, runnable: impl Runnable) -> Self {
        self.registry.add(runnable.name(), Some(runnable.control()));
        self.members.push((runnable.name(), Origin::Given(Some(Box::new(runnable)))));
        self
    }

    /// Adds a loop that is made by a function, when the group starts and at each [restart](Self::restart).
    pub fn add_with<L: Runnable>(
        mut self,
        name: impl Into<String>,
        mut make: impl FnMut() -> L + Send + 'static,
    ) -> Self {
        let name = name.into();
        self.registry.add(name.clone(), None);
        self.members.push((name, Origin::Made(Box::new(move || Box::new(make())))));
        self
    }

    /// Sets the policy by which loops that are [made by a function](Self::add_with) are restarted when they fail.
    /// Defaults to at most 5 times within a minute. A loop fails if it ends with an error or panics; a failed
    /// handler or an unreachable backend does not make it fail.
    pub fn restart(mut self, policy: Restart) -> Self {
        self.restart = policy;
        self
    }

    /// Sets the maximum time of a stop. Defaults to 60 seconds. Each loop has its own
    /// [drain time](crate::Worker::drain_for) within it. After it, what is running is cancelled and its messages are
    /// released. A loop that has not ended 5 seconds later is left behind, as is a handler that blocks its thread.
    pub fn drain_for(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }

    /// Sets the time without a [heartbeat](crate::handler::Heartbeat::beat) after which a handler is stuck, and without any
    /// activity after which a loop is. Defaults to 720 seconds, and must be at least 20 milliseconds.
    ///
    /// A stuck handler or loop is logged. Then [`on_stuck`](Self::on_stuck) is called; without it, the process ends
    /// with the exit code [70](Self::STUCK_EXIT_CODE), so that it is started again, and its messages are delivered
    /// again when their leases expire. The watchdog has a thread of its own, so that handlers cannot block it.
    ///
    /// A handler that takes longer than this calls [`beat`](crate::handler::Heartbeat::beat) as it makes progress.
    pub fn watchdog(mut self, threshold: Duration) -> Self {
        self.watchdog.threshold = Some(threshold);
        self
    }

    /// Disables the watchdog. Then the process is live, for probes and systemd, whatever the state of its loops.
    pub fn without_watchdog(mut self) -> Self {
        self.watchdog.threshold = None;
        self
    }

    /// Sets a hook that is called for what is stuck, instead of ending the process. It is called once for each stuck
    /// delivery or loop, one call at a time, on a thread of its own: it may block, and may
    /// [stop](GroupControl::stop) the group and wait for its end. The group does not wait for it.
    ///
    /// While something is stuck, `/health/live` fails and systemd gets no `WATCHDOG=1`, so that Kubernetes or systemd
    /// may end the process.
    pub fn on_stuck(mut self, hook: impl Fn(&Stuck) + Send + Sync + 'static) -> Self {
        self.watchdog.on_stuck = Some(Arc::new(hook));
        self
    }

    /// Counts the dead letters in a mailbox for [readiness](GroupControl::readiness), at most once in 2 seconds. If a
    /// limit is reached, or they cannot be counted, the group is [degraded](super::GroupStatus::Degraded) and still
    /// ready. Can be called for several mailboxes.
    pub fn dead_letters<T: 'static, R: 'static>(
        self,
        mailbox: &Mailbox<DeadLetter<T>, R>,
        limits: DlqLimits,
    ) -> Self {
        self.registry.dead_letters.add(Dlq::of(mailbox), limits);
        self
    }

    /// Makes a [degraded](super::GroupStatus::Degraded) group not ready, so that `/health/ready` returns 503. By
    /// default it is ready, since dead letters should not prevent the rollout of a version that may fix them.
    pub fn unready_when_degraded(self) -> Self {
        lock(&self.registry.options).is_strict = true;
        self
    }

    /// Sets the maximum time since each mailbox last answered for the group to be
    /// [ready](GroupControl::readiness). Defaults to 60 seconds; it is never less than the
    /// [wait](crate::Worker::poll) of a receive plus 10 seconds.
    pub fn ready_within(self, time: Duration) -> Self {
        lock(&self.registry.options).ready_within = time;
        self
    }

    /// Serves health and metrics over HTTP on this port of 127.0.0.1. For probes of Kubernetes, use
    /// [`health_addr`](Self::health_addr).
    #[cfg(feature = "health")]
    pub fn health_port(self, port: u16) -> Self {
        self.health_addr(([127, 0, 0, 1], port))
    }

    /// Serves health and metrics over HTTP on this address: `/health/live`, `/health/ready` and `/metrics`. With
    /// port 0 the system chooses one, which [`GroupControl::health_addr`] returns. `([0, 0, 0, 0], 8080)` is port
    /// 8080 of all addresses.
    ///
    /// There is no authentication. Requests from other machines, or through a proxy, get the reasons why the group is
    /// not ready without the causes of errors, which may name hosts. The causes are in the log, and in responses to
    /// the machine itself.
    #[cfg(feature = "health")]
    pub fn health_addr(mut self, address: impl Into<SocketAddr>) -> Self {
        self.health = Some(address.into());
        self
    }

    /// Sets the Prometheus recorder that `/metrics` renders, if the program has installed one. By default the group
    /// installs one.
    #[cfg(feature = "health")]
    pub fn prometheus(mut self, handle: super::PrometheusHandle) -> Self {
        self.metrics = Some(handle);
        self
    }

    /// Leaves signals alone. By default [`run`](Self::run) handles SIGTERM and SIGINT.
    pub fn without_signals(mut self) -> Self {
        self.obeys_signals = false;
        self
    }

    /// Returns a handle that controls the loops. Works before they run as well.
    pub fn control(&self) -> GroupControl {
        GroupControl::new(self.registry.clone())
    }

    /// Runs until all loops have ended, by a signal, by [`GroupControl::stop`] or by themselves, and returns the
    /// result of each.
    ///
    /// Dropping the future ends everything at once: messages in flight are delivered again when their leases
    /// expire.
    ///
    /// # Errors
    ///
    /// Before anything is started: [`GroupError::Invalid`] if there is no loop, two have the same name, or an option
    /// is invalid, and [`GroupError::Listen`] if the health server cannot listen. Later: [`GroupError::Failed`] if a
    /// loop failed and was not restarted, and [`GroupError::LeftBehind`] if a loop, or a handler that blocks its
    /// thread, did not end.
    ///
    /// A program whose `main` returns the error may not end, since Tokio waits forever for a blocked thread when its
    /// runtime is dropped. After an error, end the program by [`std::process::exit`] (or
    /// `Runtime::shutdown_background`).
    ///
    /// ```
    /// # use pillarbox_runtime::group::LoopGroup;
    /// # async fn end(group: LoopGroup) {
    /// if let Err(error) = group.run().await {
    ///     eprintln!("{error}");
    ///     std::process::exit(1);
    /// }
    /// # }
    /// ```
    pub async fn run(self) -> Result<GroupReport, GroupError> {
        let (registry, obeys_signals) = (self.registry.clone(), self.obeys_signals);
        let group = self.prepare()?;
        let _signals = obeys_signals.then(|| Signals::listen(move |stop| registry.stop(stop)));
        group.run().await
    }

    /// Runs until `stop` completes, and then drains. Leaves signals alone.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> Result<GroupReport, GroupError> {
        let control = self.control();
        let mut run = std::pin::pin!(self.prepare()?.run());
        tokio::select! {
            biased;
            ended = &mut run => return ended,
            () = stop => control.stop(),
        }
        run.await
    }

    /// Runs in a separate task. Leaves signals alone.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run) before anything is started.
    pub fn start(self) -> Result<RunningGroup, GroupError> {
        let control = self.control();
        let group = self.prepare()?;
        Ok(RunningGroup { control, task: Some(tokio::spawn(group.run())) })
    }

    /// Validates the options, and starts everything but the loops.
    fn prepare(self) -> Result<Group, GroupError> {
        self.validate().map_err(GroupError::Invalid)?;
        if let Some(systemd) = Systemd::from_environment() {
            let _ = self.registry.systemd.set(systemd);
        }
        #[cfg(feature = "health")]
        let server = match self.health {
            Some(address) => {
                // Before the loops, which look up their instruments when they start.
                let metrics = self.metrics.or_else(super::prometheus::install);
                let server = super::http::Server::start(address, self.registry.clone(), metrics);
                Some(server.map_err(|cause| GroupError::Listen { address, cause })?)
            }
            None => None,
        };
        let turn_within = self.watchdog.turn_within();
        let watchdog = Watchdog::start(self.watchdog, self.registry.clone());
        let supervisors = self.members.into_iter().enumerate();
        let supervisors = supervisors.map(|(index, (name, origin))| Supervisor {
            index,
            name,
            origin,
            restarts: Restarts::new(self.restart.clone()),
            turn_within,
            registry: self.registry.clone(),
        });
        Ok(Group {
            supervisors: supervisors.collect(),
            registry: self.registry,
            drain: self.drain,
            _watchdog: watchdog,
            #[cfg(feature = "health")]
            _server: server,
        })
    }

    fn validate(&self) -> Result<(), Error> {
        if self.members.is_empty() {
            return Err(Error::invalid(None, "loops", "none", "at least one: see LoopGroup::add"));
        }
        let mut names = HashSet::new();
        if let Some((name, _)) = self.members.iter().find(|(name, _)| !names.insert(name)) {
            let value = format!("two with the name '{name}'");
            let allowed = "unique names: see Worker::named";
            return Err(Error::invalid(None, "loops", value, allowed));
        }
        let min = Duration::from_millis(20);
        match self.watchdog.threshold {
            Some(threshold) if threshold < min => {
                let value = format!("{threshold:?}");
                Err(Error::invalid(None, "watchdog", value, "at least 20 ms, or without_watchdog"))
            }
            _ => Ok(()),
        }
    }
}

impl Default for LoopGroup {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for LoopGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.members.iter().map(|(name, _)| name).collect();
        f.debug_struct("LoopGroup").field("loops", &names).finish_non_exhaustive()
    }
}
