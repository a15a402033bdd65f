//! The shared state of a group: its loops, as seen by controls, supervisors, the watchdog and health probes.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pillarbox_core::internal::lock;
use tokio::sync::watch;
use tokio::time::Instant;

use super::dead_letter_checks::DeadLetterChecks;
use super::health::{DeadLettersHealth, LoopStatus, Phase, Readiness, ReadinessOptions, readiness};
use super::report::{GroupReport, LoopReport};
use super::stuck::{LoopProgress, Stuck};
use super::systemd::Systemd;
use crate::control::Control;
use crate::desired_state::Stop;
use crate::runnable::LoopFailure;
use crate::stats::{MailboxStats, StatsSnapshot};

/// Maximum time since the last answer of a mailbox, by default.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The loops of a group. Locks are held briefly, and never while code of the program runs.
#[derive(Debug)]
pub(super) struct Registry {
    entries: Mutex<Vec<LoopEntry>>,
    /// Only ever raised: from none to graceful to now.
    requested_stop: watch::Sender<Option<Stop>>,
    stuck: Mutex<Vec<Stuck>>,
    pub(super) options: Mutex<ReadinessOptions>,
    pub(super) dead_letters: DeadLetterChecks,
    /// The address of the health server.
    #[cfg(feature = "health")]
    pub(super) address: OnceLock<std::net::SocketAddr>,
    /// Set once, when the group starts.
    pub(super) systemd: OnceLock<Systemd>,
}

#[derive(Debug)]
struct LoopEntry {
    name: String,
    /// The control of the running instance; a restarted loop has a new one.
    control: Option<Control>,
    phase: Phase,
    restarts: u32,
    failure: Option<LoopFailure>,
    /// The statistics at its end.
    final_stats: Option<StatsSnapshot>,
    is_left_behind: bool,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::default(),
            requested_stop: watch::Sender::new(None),
            stuck: Mutex::default(),
            options: Mutex::new(ReadinessOptions { ready_within: READY_WITHIN, is_strict: false }),
            dead_letters: DeadLetterChecks::new(),
            #[cfg(feature = "health")]
            address: OnceLock::new(),
            systemd: OnceLock::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<LoopEntry>> {
        lock(&self.entries)
    }

    /// Adds a loop that is not started yet.
    pub(super) fn add(&self, name: String, control: Option<Control>) {
        self.entries().push(LoopEntry {
            name,
            control,
            phase: Phase::Alive,
            restarts: 0,
            failure: None,
            final_stats: None,
            is_left_behind: false,
        });
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.entries().iter().map(|entry| entry.name.clone()).collect()
    }

    pub(super) fn control(&self, name: &str) -> Option<Control> {
        self.entries().iter().find(|entry| entry.name == name)?.control.clone()
    }

    /// Records that a loop was started or restarted. A stop that was requested before applies to it.
    pub(super) fn started(&self, index: usize, control: &Control, turn_within: Option<Duration>) {
        if let Some(turn_within) = turn_within {
            control.pulse().watch(turn_within);
        }
        let mut entries = self.entries();
        let entry = &mut entries[index];
        (entry.phase, entry.failure) = (Phase::Alive, None);
        entry.control = Some(control.clone());
        // Under the lock, so that a concurrent stop is not missed.
        if let Some(stop) = *self.requested_stop.borrow() {
            control.request_stop(stop);
        }
    }

    pub(super) fn ended(&self, index: usize, stats: StatsSnapshot) {
        let entry = &mut self.entries()[index];
        (entry.phase, entry.final_stats) = (Phase::Ended, Some(stats));
        let has_left = |control: &Control| control.pulse().has_left_behind();
        entry.is_left_behind = entry.control.as_ref().is_some_and(has_left);
    }

    /// Records that a loop failed, and returns the number of its restarts.
    pub(super) fn failed(&self, index: usize, failure: LoopFailure, is_restarted: bool) -> u32 {
        let entry = &mut self.entries()[index];
        entry.failure = Some(failure);
        entry.restarts += u32::from(is_restarted);
        entry.phase = if is_restarted { Phase::Restarting } else { Phase::Failed };
        entry.restarts
    }

    /// Marks the loops that have not ended as left behind, and returns their names.
    pub(super) fn leave_behind(&self) -> Vec<String> {
        let mut entries = self.entries();
        let left = entries.iter_mut().filter(|entry| entry.phase == Phase::Alive);
        left.map(|entry| {
            entry.is_left_behind = true;
            entry.name.clone()
        })
        .collect()
    }

    /// Stops all loops.
    pub(super) fn stop(&self, stop: Stop) {
        // Before the loops are stopped, since they may end at once.
        if let (false, Some(systemd)) = (self.is_stopping(), self.systemd.get()) {
            systemd.send("STOPPING=1\nSTATUS=finishing what is running");
        }
        let entries = self.entries();
        self.requested_stop.send_modify(|requested| *requested = (*requested).max(Some(stop)));
        entries
            .iter()
            .filter_map(|entry| entry.control.as_ref())
            .for_each(|control| control.request_stop(stop));
    }

    pub(super) fn requested_stop(&self) -> watch::Receiver<Option<Stop>> {
        self.requested_stop.subscribe()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.requested_stop.borrow().is_some()
    }

    pub(super) fn set_stuck(&self, stuck: Vec<Stuck>) {
        *lock(&self.stuck) = stuck;
    }

    pub(super) fn stuck(&self) -> Vec<Stuck> {
        lock(&self.stuck).clone()
    }

    /// Whether every mailbox of every loop has answered at least once.
    pub(super) fn have_all_polled(&self) -> bool {
        let has_answered = |mailbox: &MailboxStats| mailbox.answered_at.is_some();
        let has_polled = |entry: &LoopEntry| match &entry.control {
            Some(control) => control.stats().borrow().mailboxes.iter().all(has_answered),
            None => false,
        };
        let is_over = |entry: &LoopEntry| entry.phase == Phase::Ended;
        self.entries().iter().all(|entry| is_over(entry) || has_polled(entry))
    }

    /// Returns the readiness of the group, with full error texts.
    pub(super) async fn readiness(&self) -> Readiness {
        self.readiness_with(|status| status, |queue| queue).await
    }

    /// Returns the readiness without the causes of errors, which may name hosts.
    #[cfg(feature = "health")]
    pub(super) async fn redacted_readiness(&self) -> Readiness {
        self.readiness_with(LoopStatus::redacted, DeadLettersHealth::redacted).await
    }

    async fn readiness_with(
        &self,
        loops: impl Fn(LoopStatus) -> LoopStatus,
        queues: impl Fn(DeadLettersHealth) -> DeadLettersHealth,
    ) -> Readiness {
        let dead_letters = self.dead_letters.health().await.into_iter().map(queues).collect();
        let loops: Vec<_> = self.entries().iter().map(LoopEntry::status).map(loops).collect();
        let options = *lock(&self.options);
        readiness(&loops, dead_letters, self.is_stopping(), options, Instant::now())
    }

    /// Returns the progress of each loop, for the watchdog.
    pub(super) fn progress(&self) -> Vec<LoopProgress> {
        self.entries().iter().map(LoopEntry::progress).collect()
    }

    pub(super) fn report(&self) -> GroupReport {
        GroupReport { loops: self.entries().iter().map(LoopEntry::report).collect() }
    }
}

impl LoopEntry {
    fn stats(&self) -> Option<StatsSnapshot> {
        let current = || self.control.as_ref().map(|control| control.stats().borrow().clone());
        self.final_stats.clone().or_else(current)
    }

    fn status(&self) -> LoopStatus {
        LoopStatus {
            name: self.name.clone(),
            phase: self.phase,
            restarts: self.restarts,
            failure: self.failure.as_ref().map(LoopFailure::to_string),
            stats: self.stats(),
        }
    }

    fn progress(&self) -> LoopProgress {
        let pulse = self.control.as_ref().map(Control::pulse);
        // A loop that has ended is not stuck, even if it left handlers behind.
        let pulse = pulse.filter(|_| self.phase == Phase::Alive);
        let work = pulse.map(|pulse| pulse.work()).unwrap_or_default();
        let work = work
            .into_iter()
            .map(|work| work.map(|work| (work.number, work.lease.beats(), work.about)));
        LoopProgress {
            name: self.name.clone(),
            restarts: self.restarts,
            turns: pulse.and_then(|pulse| pulse.turns()),
            work: work.collect(),
        }
    }

    fn report(&self) -> LoopReport {
        LoopReport {
            name: self.name.clone(),
            stats: self.stats().unwrap_or_else(|| StatsSnapshot::new(std::iter::empty())),
            restarts: self.restarts,
            failure: self.failure.clone(),
            is_left_behind: self.is_left_behind,
        }
    }
}
