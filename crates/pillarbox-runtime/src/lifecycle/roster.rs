//! The loops of a group, as all see them who have to do with them: those who control the group, the
//! supervisors, the watchdog, the probes.

use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::checks::Checks;
use super::health::{DeadLettersHealth, Phase, Readiness, Seen, Terms, readiness};
use super::lock;
use super::report::{GroupReport, LoopReport};
use super::systemd::Systemd;
use super::watchdog::{Sight, Stuck};
use crate::control::{Control, Stop};
use crate::runnable::LoopFailure;
use crate::stats::{MailboxStats, StatsSnapshot};

/// How long ago mailboxes may have answered, unless said otherwise.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// See the [module](self). What is locked is held for moments, and never across a call of somebody's code.
#[derive(Debug)]
pub(super) struct Roster {
    entries: Mutex<Vec<Entry>>,
    /// It only rises.
    wanted: watch::Sender<Option<Stop>>,
    stuck: Mutex<Vec<Stuck>>,
    terms: Mutex<Terms>,
    pub(super) checks: Checks,
    /// Where health is told.
    #[cfg(feature = "health")]
    pub(super) address: OnceLock<std::net::SocketAddr>,
    systemd: OnceLock<Systemd>,
}

/// A loop.
#[derive(Debug)]
struct Entry {
    name: String,
    /// That of its present life.
    control: Option<Control>,
    phase: Phase,
    restarts: u32,
    failure: Option<LoopFailure>,
    /// What it said at its end.
    last: Option<StatsSnapshot>,
    is_left_behind: bool,
}

impl Roster {
    pub(super) fn new() -> Self {
        Self {
            entries: Mutex::default(),
            wanted: watch::Sender::new(None),
            stuck: Mutex::default(),
            terms: Mutex::new(Terms { ready_within: READY_WITHIN, is_strict: false }),
            checks: Checks::new(),
            #[cfg(feature = "health")]
            address: OnceLock::new(),
            systemd: OnceLock::new(),
        }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        lock(&self.entries)
    }

    /// Adds a loop that has not begun.
    pub(super) fn add(&self, name: String, control: Option<Control>) {
        self.entries().push(Entry {
            name,
            control,
            phase: Phase::Alive,
            restarts: 0,
            failure: None,
            last: None,
            is_left_behind: false,
        });
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.entries().iter().map(|entry| entry.name.clone()).collect()
    }

    pub(super) fn control(&self, name: &str) -> Option<Control> {
        self.entries().iter().find(|entry| entry.name == name)?.control.clone()
    }

    /// A loop begins its life, or its next one. What was asked of the group counts for it.
    pub(super) fn begin(&self, index: usize, control: &Control, turn_within: Option<Duration>) {
        if let Some(turn_within) = turn_within {
            control.pulse().watch(turn_within);
        }
        let mut entries = self.entries();
        let entry = &mut entries[index];
        (entry.phase, entry.failure) = (Phase::Alive, None);
        entry.control = Some(control.clone());
        // Under the lock: a stop comes before or after, and not in between.
        if let Some(stop) = *self.wanted.borrow() {
            tell(control, stop);
        }
    }

    pub(super) fn ended(&self, index: usize, stats: StatsSnapshot) {
        let entry = &mut self.entries()[index];
        (entry.phase, entry.last) = (Phase::Ended, Some(stats));
        let has_left = |control: &Control| control.pulse().has_left_behind();
        entry.is_left_behind = entry.control.as_ref().is_some_and(has_left);
    }

    /// A loop has failed, and is about to be made anew or not.
    pub(super) fn failed(&self, index: usize, failure: LoopFailure, is_restarted: bool) -> u32 {
        let entry = &mut self.entries()[index];
        entry.failure = Some(failure);
        entry.restarts += u32::from(is_restarted);
        entry.phase = if is_restarted { Phase::Restarting } else { Phase::Failed };
        entry.restarts
    }

    /// Leaves those behind who have not ended, and names them.
    pub(super) fn leave_behind(&self) -> Vec<String> {
        let mut entries = self.entries();
        let left = entries.iter_mut().filter(|entry| entry.phase == Phase::Alive);
        left.map(|entry| {
            entry.is_left_behind = true;
            entry.name.clone()
        })
        .collect()
    }

    /// Tells all loops to stop.
    pub(super) fn stop(&self, stop: Stop) {
        // Before the loops hear of it: they may end at once.
        if let (false, Some(systemd)) = (self.is_stopping(), self.systemd()) {
            systemd.send("STOPPING=1\nSTATUS=finishing what is running");
        }
        let entries = self.entries();
        self.wanted.send_modify(|wanted| *wanted = (*wanted).max(Some(stop)));
        entries
            .iter()
            .filter_map(|entry| entry.control.as_ref())
            .for_each(|control| tell(control, stop));
    }

    pub(super) fn wanted(&self) -> watch::Receiver<Option<Stop>> {
        self.wanted.subscribe()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.wanted.borrow().is_some()
    }

    pub(super) fn set_ready_within(&self, within: Duration) {
        lock(&self.terms).ready_within = within;
    }

    pub(super) fn be_strict(&self) {
        lock(&self.terms).is_strict = true;
    }

    pub(super) fn tell_systemd(&self, systemd: Systemd) {
        // The first one counts; there is no other.
        let _ = self.systemd.set(systemd);
    }

    pub(super) fn systemd(&self) -> Option<&Systemd> {
        self.systemd.get()
    }

    pub(super) fn set_stuck(&self, stuck: Vec<Stuck>) {
        *lock(&self.stuck) = stuck;
    }

    pub(super) fn stuck(&self) -> Vec<Stuck> {
        lock(&self.stuck).clone()
    }

    /// Whether every mailbox of every loop has answered once.
    pub(super) fn have_all_polled(&self) -> bool {
        let answers = |mailbox: &MailboxStats| mailbox.answered_at.is_some();
        let has_polled = |entry: &Entry| match &entry.control {
            Some(control) => control.stats().borrow().mailboxes.iter().all(answers),
            None => false,
        };
        let is_over = |entry: &Entry| entry.phase == Phase::Ended;
        self.entries().iter().all(|entry| is_over(entry) || has_polled(entry))
    }

    /// Whether the group does its work, as those are told who are of the program.
    pub(super) async fn readiness(&self) -> Readiness {
        self.readiness_for(|seen| seen, |queue| queue).await
    }

    /// The same without what backends and networks say, which may name hosts.
    #[cfg(feature = "health")]
    pub(super) async fn readiness_for_strangers(&self) -> Readiness {
        self.readiness_for(Seen::for_strangers, DeadLettersHealth::for_strangers).await
    }

    async fn readiness_for(
        &self,
        loops: impl Fn(Seen) -> Seen,
        queues: impl Fn(DeadLettersHealth) -> DeadLettersHealth,
    ) -> Readiness {
        let dead_letters = self.checks.ask().await.into_iter().map(queues).collect();
        let seen: Vec<_> = self.entries().iter().map(Entry::seen).map(loops).collect();
        let terms = *lock(&self.terms);
        readiness(&seen, dead_letters, self.is_stopping(), terms, Instant::now())
    }

    /// What a watchdog sees.
    pub(super) fn sights(&self) -> Vec<Sight> {
        self.entries().iter().map(Entry::sight).collect()
    }

    pub(super) fn report(&self) -> GroupReport {
        GroupReport { loops: self.entries().iter().map(Entry::report).collect() }
    }
}

impl Entry {
    fn stats(&self) -> Option<StatsSnapshot> {
        let present = || self.control.as_ref().map(|control| control.stats().borrow().clone());
        self.last.clone().or_else(present)
    }

    fn seen(&self) -> Seen {
        Seen {
            name: self.name.clone(),
            phase: self.phase,
            restarts: self.restarts,
            failure: self.failure.as_ref().map(LoopFailure::to_string),
            stats: self.stats(),
        }
    }

    fn sight(&self) -> Sight {
        let pulse = self.control.as_ref().map(Control::pulse);
        // One that has ended is not stuck. What its handlers left behind is nobody's any more.
        let pulse = pulse.filter(|_| self.phase == Phase::Alive);
        let work = pulse.map(|pulse| pulse.work()).unwrap_or_default();
        let shown = work
            .into_iter()
            .map(|work| work.map(|work| (work.number, work.lease.beats(), work.about)));
        Sight {
            name: self.name.clone(),
            life: self.restarts,
            turns: pulse.and_then(|pulse| pulse.turns()),
            work: shown.collect(),
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

fn tell(control: &Control, stop: Stop) {
    match stop {
        Stop::Graceful => control.stop(),
        Stop::Now => control.stop_now(),
    }
}
