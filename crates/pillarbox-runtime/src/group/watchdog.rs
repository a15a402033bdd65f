//! The watchdog: a thread, which no handler can block, that detects stuck loops and notifies systemd.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::registry::Registry;
use super::stuck::{Stuck, StuckDetector};

/// Exit code of a process whose loop is stuck.
pub(super) const EXIT_CODE: i32 = 70;
/// Time after which the process is aborted if the exit hangs.
const EXIT_WITHIN: Duration = Duration::from_secs(10);

/// Hook that is called for a stuck loop.
pub(super) type OnStuck = Arc<dyn Fn(&Stuck) + Send + Sync>;

/// Options of the watchdog.
pub(super) struct WatchdogOptions {
    /// Time without progress after which a handler or a loop is stuck. `None` watches nothing.
    pub(super) threshold: Option<Duration>,
    pub(super) on_stuck: Option<OnStuck>,
}

impl WatchdogOptions {
    /// Returns the maximum time between two turns of a loop.
    pub(super) fn turn_within(&self) -> Option<Duration> {
        self.threshold.map(|threshold| (threshold / 4).min(Duration::from_secs(60)))
    }

    /// Returns the interval at which the loops are checked.
    fn check_interval(&self) -> Option<Duration> {
        let (min, max) = (Duration::from_millis(5), Duration::from_secs(5));
        self.threshold.map(|threshold| (threshold / 20).clamp(min, max))
    }
}

/// The watchdog thread, which is joined on drop.
#[derive(Debug)]
pub(super) struct Watchdog {
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches the loops, and notifies systemd that they are alive if it expects that. `None` if there is nothing
    /// to do.
    pub(super) fn start(options: WatchdogOptions, registry: Arc<Registry>) -> Option<Self> {
        let ping_interval = registry.systemd.get().and_then(|systemd| systemd.ping_interval());
        let interval = options.check_interval().into_iter().chain(ping_interval).min()?;
        let (stop, stopped) = sync_channel(1);
        let watch = move || watch(options, &registry, interval, ping_interval, &stopped);
        match std::thread::Builder::new().name("pillarbox-watchdog".to_owned()).spawn(watch) {
            Ok(thread) => Some(Self { stop: Some(stop), thread: Some(thread) }),
            Err(error) => {
                tracing::error!(%error, "cannot start the watchdog: stuck loops go unnoticed");
                None
            }
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // It ends at once. A panic in it was reported by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Calls the hook on a separate thread, which is started by the first call and ends after the last. The
/// watchdog does not wait for it, so the hook may block.
struct HookThread {
    hook: OnStuck,
    thread: Option<Sender<Stuck>>,
}

impl HookThread {
    fn call(&mut self, stuck: Stuck) {
        if self.thread.is_none() {
            let (sender, received) = channel::<Stuck>();
            let hook = self.hook.clone();
            let listen = move || received.iter().for_each(|stuck| call_safely(&hook, &stuck));
            match std::thread::Builder::new().name("pillarbox-stuck".to_owned()).spawn(listen) {
                Ok(_) => self.thread = Some(sender),
                Err(error) => {
                    tracing::error!(%error, "cannot start a thread for the on_stuck hook");
                }
            }
        }
        if let Some(thread) = &self.thread {
            // The thread receives until this sender is dropped.
            let _ = thread.send(stuck);
        }
    }
}

fn call_safely(hook: &OnStuck, stuck: &Stuck) {
    if std::panic::catch_unwind(AssertUnwindSafe(|| hook(stuck))).is_err() {
        tracing::error!("the on_stuck hook panicked");
    }
}

fn watch(
    options: WatchdogOptions,
    registry: &Registry,
    interval: Duration,
    ping_interval: Option<Duration>,
    stopped: &Receiver<()>,
) {
    let mut detector = options.threshold.map(StuckDetector::new);
    let mut hook = options.on_stuck.map(|hook| HookThread { hook, thread: None });
    let mut checked_at = Instant::now();
    let mut ping_at = checked_at;
    while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(interval) {
        let now = Instant::now();
        // The time for which the process was suspended does not count.
        let elapsed = (now - checked_at).min(2 * interval);
        checked_at = now;
        if let Some(detector) = &mut detector {
            let found = detector.update(elapsed, &registry.progress());
            registry.set_stuck(found.iter().map(|(stuck, _)| stuck.clone()).collect());
            for (stuck, _) in found.iter().filter(|(_, is_new)| *is_new) {
                report(stuck, hook.as_mut(), registry);
            }
            if !found.is_empty() {
                continue;
            }
        }
        // Sent now if the next check would be too late.
        if let (Some(ping_interval), Some(systemd)) = (ping_interval, registry.systemd.get())
            && now + interval > ping_at
        {
            systemd.send("WATCHDOG=1");
            ping_at = now + ping_interval;
        }
    }
    registry.set_stuck(Vec::new());
}

/// Logs a stuck loop, notifies systemd, and calls the hook or ends the process.
fn report(stuck: &Stuck, hook: Option<&mut HookThread>, registry: &Registry) {
    if hook.is_none() {
        // The stuck thread may hold a lock that logging or exiting needs.
        let abort = || {
            std::thread::sleep(EXIT_WITHIN);
            std::process::abort();
        };
        let _ = std::thread::Builder::new().name("pillarbox-abort".to_owned()).spawn(abort);
    }
    let about = stuck.about.as_ref();
    tracing::error!(
        loop_name = stuck.loop_name,
        queue = about.map(|about| tracing::field::display(&about.queue)),
        message_id = about.map(|about| tracing::field::display(about.message_id)),
        attempt = about.map(|about| about.attempt),
        worker_id = about.and_then(|about| about.worker_id).map(|id| id.0),
        seconds = stuck.lasting.as_secs_f64(),
        "a loop is stuck"
    );
    if let Some(systemd) = registry.systemd.get() {
        systemd.send(&format!("STATUS=stuck: {stuck}"));
    }
    match hook {
        Some(hook) => hook.call(stuck.clone()),
        None => {
            tracing::error!(
                "the process ends; its messages are delivered again when their leases expire. See LoopGroup::watchdog"
            );
            std::process::exit(EXIT_CODE);
        }
    }
}
