//! Several loops in one process.

use std::collections::HashSet;
use std::fmt;
#[cfg(feature = "health")]
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use pillarbox_core::clock::later;
use pillarbox_core::{Error, Mailbox};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::control::GroupControl;
use super::report::{GroupError, GroupReport};
use super::restart::{Restart, Restarts};
use super::roster::Roster;
use super::supervisor::{Origin, Supervisor};
use super::systemd::Systemd;
use super::watchdog::{EXIT_CODE, Orders, Stuck, Watchdog};
use crate::control::Stop;
use crate::dead_letters::{DeadLetter, Dlq, DlqLimits};
use crate::runnable::{LoopFailure, Runnable};
use crate::signals::Signals;

/// How long loops have to end once what they are at was cancelled.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// How often is looked whether all loops have polled, until they have.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs several loops in one process: [`Worker`](crate::Worker)s,
/// [`DlqConsumer`](crate::DlqConsumer)s, [`Task`](super::Task)s of the program's own, whatever is [`Runnable`].
///
/// ```
/// use std::time::Duration;
/// use pillarbox_core::{Mailbox, Mailboxes, MemoryBackend};
/// use pillarbox_runtime::{DeadLetter, DlqConsumer, DlqLimits, DlqPolicy, LoopGroup, Restart, Runnable, Worker};
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
///     // Made by a function, it can be made anew when it fails.
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
/// What holds:
///
/// * The first SIGTERM or SIGINT stops all loops at the same time, and each finishes what is running; the
///   second cancels that, the third ends the process.
/// * A loop that ends well leaves the others running. One that fails is made anew, if it can be; otherwise the
///   others are drained, and [`run`](Self::run) says which it was and why.
/// * A loop that is stuck does not go unnoticed: see [`watchdog`](Self::watchdog).
/// * Under systemd, with `Type=notify`, it is told when the loops are ready, when they stop, and that they are
///   alive.
#[must_use = "loops do nothing until they are run"]
pub struct LoopGroup {
    members: Vec<(String, Origin)>,
    roster: Arc<Roster>,
    restart: Restart,
    drain: Duration,
    orders: Orders,
    has_signals: bool,
    #[cfg(feature = "health")]
    health: Option<SocketAddr>,
    #[cfg(feature = "health")]
    metrics: Option<super::PrometheusHandle>,
}

impl LoopGroup {
    /// How a process ends that is [stuck](Self::watchdog): with this exit code.
    pub const STUCK_EXIT_CODE: i32 = EXIT_CODE;

    /// A group without loops. One must be added.
    pub fn new() -> Self {
        Self {
            members: Vec::new(),
            roster: Arc::new(Roster::new()),
            restart: Restart::default(),
            drain: Duration::from_secs(60),
            orders: Orders { threshold: Some(Duration::from_secs(720)), on_stuck: None },
            has_signals: true,
            #[cfg(feature = "health")]
            health: None,
            #[cfg(feature = "health")]
            metrics: None,
        }
    }

    /// Adds a loop, under [its name](Runnable::name). No two may have the same: see
    /// [`Worker::name`](crate::Worker::name). When it fails, the group ends.
    #[expect(clippy::should_implement_trait, reason = "a group is no number")]
    pub fn add(mut self, runnable: impl Runnable) -> Self {
        self.roster.add(runnable.name(), Some(runnable.control()));
        self.members.push((runnable.name(), Origin::Given(Some(Box::new(runnable)))));
        self
    }

    /// Adds a loop that is made by a function, when the group begins and whenever it has failed and is to be
    /// [made anew](Self::restart).
    pub fn add_with<L: Runnable>(
        mut self,
        name: impl Into<String>,
        mut make: impl FnMut() -> L + Send + 'static,
    ) -> Self {
        let name = name.into();
        self.roster.add(name.clone(), None);
        self.members.push((name, Origin::Made(Box::new(move || Box::new(make())))));
        self
    }

    /// Whether loops that are [made by a function](Self::add_with) are made anew when they fail: 5 times
    /// within a minute unless said otherwise. A loop has failed if it ended with an error, or panicked; a
    /// handler that fails is no such failure, and a backend that is out of reach is waited for.
    pub fn restart(mut self, policy: Restart) -> Self {
        self.restart = policy;
        self
    }

    /// How long a stop may take in all, 60 seconds unless said otherwise. Each loop has its
    /// [own time](crate::Worker::drain_for) within it. After it, what is running is cancelled and given back;
    /// a loop that has not ended 5 seconds later is left behind. So is a handler that blocks its thread.
    pub fn drain_for(mut self, time: Duration) -> Self {
        self.drain = time;
        self
    }

    /// How long a handler may run without a [heartbeat](crate::Heartbeat::beat), and a loop without doing
    /// anything, until it counts as stuck. 720 seconds unless said otherwise; at least 20 milliseconds.
    ///
    /// What is stuck is logged. Then [`on_stuck`](Self::on_stuck) is called; without it the process ends, with
    /// the exit code [70](Self::STUCK_EXIT_CODE): somebody will start it again, and what it held comes back
    /// when its leases end. A thread of its own watches, so that it notices even where handlers block
    /// every other.
    ///
    /// Handlers that take longer than this call [`beat`](crate::Heartbeat::beat) as they go on.
    pub fn watchdog(mut self, threshold: Duration) -> Self {
        self.orders.threshold = Some(threshold);
        self
    }

    /// Watches nothing. That the process is live, for probes and for systemd, means then that it is there, and
    /// says nothing of its loops.
    pub fn without_watchdog(mut self) -> Self {
        self.orders.threshold = None;
        self
    }

    /// Does this about what is stuck, and the process goes on as far as the group is concerned. It is called
    /// once for each delivery, or loop, that is stuck, one after the other on a thread of its own: it may block,
    /// and [stop](GroupControl::stop) the group and wait for its end. Nobody waits for it; a call may last longer
    /// than the group.
    ///
    /// What is stuck is stuck all the same: `/health/live` says so, and systemd gets no `WATCHDOG=1` until it goes
    /// on. Where they are asked, Kubernetes or systemd end the process then.
    pub fn on_stuck(mut self, hook: impl Fn(&Stuck) + Send + Sync + 'static) -> Self {
        self.orders.on_stuck = Some(Arc::new(hook));
        self
    }

    /// Counts the dead letters in a mailbox when somebody asks for
    /// [readiness](GroupControl::readiness), at most once in 2 seconds. Where there are as many as these limits
    /// say, or they cannot be counted, the group is [degraded](super::GroupStatus::Degraded), which is to be
    /// looked at, and ready all the same. Several mailboxes can be named.
    pub fn dead_letters<T: 'static, R: 'static>(
        self,
        mailbox: &Mailbox<DeadLetter<T>, R>,
        limits: DlqLimits,
    ) -> Self {
        self.roster.checks.add(Dlq::of(mailbox), limits);
        self
    }

    /// Takes a group that is [degraded](super::GroupStatus::Degraded) for one that is not ready, so that
    /// `/health/ready` answers 503. Without it dead letters leave a group ready: they are no reason to
    /// keep the next version, which may be the one that fixes them, from being rolled out.
    pub fn unready_when_degraded(self) -> Self {
        self.roster.be_strict();
        self
    }

    /// How long ago each mailbox must have answered for the group to be
    /// [ready](GroupControl::readiness): 60 seconds unless said otherwise, and never less than one receive
    /// [waits](crate::Worker::poll) and 10 seconds.
    pub fn ready_within(self, time: Duration) -> Self {
        self.roster.set_ready_within(time);
        self
    }

    /// Tells health and metrics over HTTP at this port of the machine itself (127.0.0.1): see
    /// [`health_addr`](Self::health_addr) for other addresses, such as those at which Kubernetes asks.
    #[cfg(feature = "health")]
    pub fn health_port(self, port: u16) -> Self {
        self.health_addr(([127, 0, 0, 1], port))
    }

    /// Tells health and metrics over HTTP at this address: `/health/live`, `/health/ready` and `/metrics`. With
    /// port 0 the system chooses one, and [`GroupControl::health_addr`] says which. `([0, 0, 0, 0], 8080)` is
    /// port 8080 of all addresses.
    ///
    /// Whoever can reach it is answered. Those who ask from elsewhere, or through a proxy, learn what is wrong
    /// with which loop and queue, and not what the backend or the network said of it, which may name hosts: that
    /// is in the log, and told to those who ask from the machine itself.
    #[cfg(feature = "health")]
    pub fn health_addr(mut self, address: impl Into<SocketAddr>) -> Self {
        self.health = Some(address.into());
        self
    }

    /// What `/metrics` tells, where the program has installed a recorder for Prometheus itself. Otherwise the
    /// group installs one.
    #[cfg(feature = "health")]
    pub fn prometheus(mut self, handle: super::PrometheusHandle) -> Self {
        self.metrics = Some(handle);
        self
    }

    /// Leaves signals alone. Otherwise [`run`](Self::run) takes SIGTERM and SIGINT.
    pub fn without_signals(mut self) -> Self {
        self.has_signals = false;
        self
    }

    /// Controls the loops, also before they run.
    pub fn control(&self) -> GroupControl {
        GroupControl::new(self.roster.clone())
    }

    /// Runs until all loops have ended: because of a signal, of [`GroupControl::stop`], or by themselves. Says
    /// how each went.
    ///
    /// Dropping the future ends everything at once: what was held comes back when its leases end.
    ///
    /// # Errors
    ///
    /// Before anything has begun, [`GroupError::Invalid`] where there is no loop, two have the same name, or an
    /// option is out of range, and [`GroupError::Listen`] where somebody else has the port.
    /// [`GroupError::Failed`] where a loop failed for good, [`GroupError::LeftBehind`] where one did not end, or
    /// a handler that blocks its thread.
    ///
    /// A program whose `main` returned such an error would not end: when Tokio's runtime is dropped, it waits for
    /// a blocked thread, for ever. After an error, a program ends by [`std::process::exit`] (or
    /// `Runtime::shutdown_background`).
    ///
    /// ```
    /// # use pillarbox_runtime::LoopGroup;
    /// # async fn end(group: LoopGroup) {
    /// if let Err(error) = group.run().await {
    ///     eprintln!("{error}");
    ///     std::process::exit(1);
    /// }
    /// # }
    /// ```
    pub async fn run(self) -> Result<GroupReport, GroupError> {
        let (control, has_signals) = (self.control(), self.has_signals);
        let group = self.begin()?;
        let _signals = has_signals.then(|| Signals::obey(control));
        group.run().await
    }

    /// Runs until `stop` comes, and then lets what is running come to an end. Leaves signals alone.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> Result<GroupReport, GroupError> {
        let control = self.control();
        let mut run = std::pin::pin!(self.begin()?.run());
        tokio::select! {
            biased;
            ended = &mut run => return ended,
            () = stop => control.stop(),
        }
        run.await
    }

    /// Runs in a task of its own, and leaves signals alone.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run) that come before anything has begun.
    pub fn start(self) -> Result<RunningGroup, GroupError> {
        let control = self.control();
        let group = self.begin()?;
        Ok(RunningGroup { control, task: Some(tokio::spawn(group.run())) })
    }

    /// Refuses what cannot work, and begins all but the loops.
    fn begin(self) -> Result<Group, GroupError> {
        self.check().map_err(GroupError::Invalid)?;
        if let Some(systemd) = Systemd::from_environment() {
            self.roster.tell_systemd(systemd);
        }
        #[cfg(feature = "health")]
        let server = match self.health {
            Some(address) => {
                // Before the loops, which look their instruments up when they begin.
                let metrics = self.metrics.or_else(super::prometheus::install);
                let server = super::http::Server::start(address, self.roster.clone(), metrics);
                Some(server.map_err(|cause| GroupError::Listen { address, cause })?)
            }
            None => None,
        };
        let turn_within = self.orders.turn_within();
        let watchdog = Watchdog::start(self.orders, self.roster.clone());
        let supervisors = self.members.into_iter().enumerate();
        let supervisors = supervisors.map(|(index, (name, origin))| Supervisor {
            index,
            name,
            origin,
            restarts: Restarts::new(self.restart.clone()),
            turn_within,
            roster: self.roster.clone(),
        });
        Ok(Group {
            supervisors: supervisors.collect(),
            roster: self.roster,
            drain: self.drain,
            _watchdog: watchdog,
            #[cfg(feature = "health")]
            _server: server,
        })
    }

    fn check(&self) -> Result<(), Error> {
        if self.members.is_empty() {
            return Err(Error::invalid(None, "loops", "none", "at least one: see LoopGroup::add"));
        }
        let mut names = HashSet::new();
        if let Some((name, _)) = self.members.iter().find(|(name, _)| !names.insert(name)) {
            let value = format!("two of the name '{name}'");
            let allowed = "names that differ: see Worker::name";
            return Err(Error::invalid(None, "loops", value, allowed));
        }
        let least = Duration::from_millis(20);
        match self.orders.threshold {
            Some(threshold) if threshold < least => {
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

/// A group that has begun.
struct Group {
    supervisors: Vec<Supervisor>,
    roster: Arc<Roster>,
    drain: Duration,
    // Probes and the watchdog see the loops until the last has ended.
    _watchdog: Option<Watchdog>,
    #[cfg(feature = "health")]
    _server: Option<super::http::Server>,
}

impl Group {
    async fn run(mut self) -> Result<GroupReport, GroupError> {
        let roster = &*self.roster;
        tracing::info!(loops = ?roster.names(), "the loops begin");
        let supervisors = std::mem::take(&mut self.supervisors);
        let mut loops: FuturesUnordered<_> = supervisors.into_iter().map(Supervisor::run).collect();
        let mut beside =
            std::pin::pin!(async { tokio::join!(roster.checks.run(), say_ready(roster)) });
        let mut wanted = roster.wanted();
        let mut stop: Option<Stop> = None;
        let mut deadline = Instant::now();
        let mut failed: Option<(String, LoopFailure)> = None;
        loop {
            tokio::select! {
                biased;
                ended = loops.next() => match ended {
                    None => break,
                    Some(Ok(())) => {}
                    Some(Err(failure)) => {
                        failed.get_or_insert(failure);
                        roster.stop(Stop::Graceful);
                    }
                },
                Ok(now_wanted) = wanted.wait_for(|wanted| *wanted > stop) => {
                    stop = *now_wanted;
                    let time = if stop == Some(Stop::Now) { LAST_WORDS } else { self.drain };
                    deadline = later(Instant::now(), time);
                }
                () = tokio::time::sleep_until(deadline), if stop.is_some() => {
                    if stop == Some(Stop::Now) {
                        let names = roster.leave_behind();
                        tracing::error!(loops = ?names, "some loops do not end; they are left behind");
                        break;
                    }
                    tracing::warn!("draining takes too long: what is running is cancelled and given back");
                    roster.stop(Stop::Now);
                }
                _ = &mut beside => {}
            }
        }
        // Those that are left behind end at their next await.
        drop(loops);
        if let Some(systemd) = roster.systemd() {
            systemd.send("STATUS=the loops have ended");
        }
        let report = roster.report();
        let is_left_behind = report.loops.iter().any(|one| one.is_left_behind);
        match failed {
            Some((name, cause)) => {
                Err(GroupError::Failed { name, cause, report: Box::new(report) })
            }
            None if is_left_behind => Err(GroupError::LeftBehind { report: Box::new(report) }),
            None => Ok(report),
        }
    }
}

/// Tells systemd when every mailbox of every loop has answered. Never ends.
async fn say_ready(roster: &Roster) {
    if let Some(systemd) = roster.systemd() {
        systemd.send("STATUS=starting");
        let mut tick = tokio::time::interval(LOOK_EVERY);
        while !roster.have_all_polled() {
            tick.tick().await;
        }
        if !roster.is_stopping() {
            systemd.send(&format!("READY=1\nSTATUS=running {}", roster.names().join(", ")));
        }
    }
    std::future::pending::<()>().await;
}

/// A group that runs in a task of its own. When it is dropped, all loops are told to stop now.
#[derive(Debug)]
pub struct RunningGroup {
    control: GroupControl,
    task: Option<JoinHandle<Result<GroupReport, GroupError>>>,
}

impl RunningGroup {
    /// Controls the loops.
    pub const fn control(&self) -> &GroupControl {
        &self.control
    }

    /// Stops, lets what is running come to an end, and says how it went.
    ///
    /// # Errors
    ///
    /// Those of [`LoopGroup::run`].
    pub async fn stop(self) -> Result<GroupReport, GroupError> {
        self.control.stop();
        self.join().await
    }

    /// Waits for the end, and says how it went.
    ///
    /// # Errors
    ///
    /// Those of [`LoopGroup::run`], and [`GroupError::ShutDown`] where the Tokio runtime was shut down.
    ///
    /// # Panics
    ///
    /// Where the group itself panicked, which would be a bug.
    pub async fn join(mut self) -> Result<GroupReport, GroupError> {
        let Some(task) = self.task.take() else { return Err(GroupError::ShutDown) };
        match task.await {
            Ok(ended) => ended,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(GroupError::ShutDown),
        }
    }
}

impl Drop for RunningGroup {
    fn drop(&mut self) {
        if self.task.is_some() {
            self.control.stop_now();
        }
    }
}
