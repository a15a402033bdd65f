//! Whether a group of loops does its work, pure: from what is known of each to a verdict with reasons.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::dead_letters::{DlqHealth, DlqStatus};
use crate::stats::{MailboxStats, State, StatsSnapshot};

/// Whether a group of loops does its work. Written as JSON by `/health/ready`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Readiness {
    /// The verdict.
    pub status: GroupStatus,
    /// Why it is not ready, each in a sentence. None if it is.
    pub reasons: Vec<String>,
    /// Each loop.
    pub loops: Vec<LoopHealth>,
    /// Each queue of dead letters that is looked at.
    pub dead_letters: Vec<DeadLettersHealth>,
}

impl Readiness {
    /// Whether it does its work.
    pub fn is_ready(&self) -> bool {
        self.status == GroupStatus::Ready
    }
}

/// What a group of loops is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupStatus {
    /// Every loop works, and every mailbox answers.
    Ready,
    /// Some mailboxes have not answered for the first time, and nothing is wrong.
    Starting,
    /// Something is wrong, or somebody has paused a loop.
    NotReady,
    /// Finishing what is running.
    Draining,
}

/// How a loop is.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LoopHealth {
    /// What it is called.
    pub name: String,
    /// What it is at.
    pub state: LoopState,
    /// Messages that it holds.
    pub in_flight: usize,
    /// How long ago its mailbox last answered: of several, the one that has been silent for longest.
    pub polled_seconds_ago: Option<f64>,
    /// How often it was made anew.
    pub restarts: u32,
    /// Why it cannot receive now, or why it failed.
    pub error: Option<String>,
}

/// What a loop is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LoopState {
    /// Not begun.
    Starting,
    /// Fetching and working.
    Running,
    /// Not fetching.
    Paused,
    /// Finishing what is running.
    Draining,
    /// Over.
    Stopped,
    /// It failed, and is about to be made anew.
    Restarting,
    /// It failed, for good.
    Failed,
}

impl fmt::Display for LoopState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Draining => "draining",
            Self::Stopped => "stopped",
            Self::Restarting => "being restarted",
            Self::Failed => "failed",
        })
    }
}

/// How a queue of dead letters is, or why that is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum DeadLettersHealth {
    /// It was counted.
    Known(DlqHealth),
    /// It could not be.
    #[non_exhaustive]
    Unknown {
        /// The name of the queue.
        name: String,
        /// Why.
        error: String,
    },
}

/// What is known of a loop.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) restarts: u32,
    pub(super) failure: Option<String>,
    /// What it says itself, if it is there.
    pub(super) stats: Option<StatsSnapshot>,
}

/// Where the group has a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Its own state counts.
    Alive,
    Restarting,
    Ended,
    Failed,
}

/// What an idle receive may take beyond the time for which it waits.
const MARGIN: Duration = Duration::from_secs(10);

/// Judges what is known, at this moment.
pub(super) fn readiness(
    loops: &[Seen],
    dead_letters: Vec<DeadLettersHealth>,
    is_stopping: bool,
    ready_within: Duration,
    now: Instant,
) -> Readiness {
    let mut reasons = Vec::new();
    let mut status = GroupStatus::Ready;
    let mut is_wrong = |what: GroupStatus, reason: String| {
        // What is wrong counts for more than what has not begun.
        if status != GroupStatus::NotReady {
            status = what;
        }
        reasons.push(reason);
    };
    let shown = loops.iter().map(|seen| seen.judge(ready_within, now, &mut is_wrong)).collect();
    for queue in &dead_letters {
        if let Some(reason) = judge_dead_letters(queue) {
            is_wrong(GroupStatus::NotReady, reason);
        }
    }
    if is_stopping {
        status = GroupStatus::Draining;
        reasons.insert(0, "the group is stopping".to_owned());
    }
    Readiness { status, reasons, loops: shown, dead_letters }
}

impl Seen {
    fn state(&self) -> LoopState {
        match (self.phase, self.stats.as_ref().map(|stats| stats.state)) {
            (Phase::Restarting, _) => LoopState::Restarting,
            (Phase::Failed, _) => LoopState::Failed,
            (Phase::Ended, _) | (_, Some(State::Stopped)) => LoopState::Stopped,
            (_, None | Some(State::Starting)) => LoopState::Starting,
            (_, Some(State::Running)) => LoopState::Running,
            (_, Some(State::Paused)) => LoopState::Paused,
            (_, Some(State::Draining)) => LoopState::Draining,
        }
    }

    fn judge(
        &self,
        ready_within: Duration,
        now: Instant,
        is_wrong: &mut impl FnMut(GroupStatus, String),
    ) -> LoopHealth {
        let (name, state) = (&self.name, self.state());
        match (state, &self.failure) {
            (LoopState::Running, _) => {}
            (LoopState::Starting, _) => {
                is_wrong(GroupStatus::Starting, format!("loop '{name}' is starting"));
            }
            (LoopState::Restarting | LoopState::Failed, Some(failure)) => {
                is_wrong(GroupStatus::NotReady, format!("loop '{name}' is {state}: {failure}"));
            }
            _ => is_wrong(GroupStatus::NotReady, format!("loop '{name}' is {state}")),
        }
        let mailboxes = self.stats.as_ref().map_or(&[][..], |stats| &stats.mailboxes);
        if state == LoopState::Running {
            for mailbox in mailboxes {
                if let Some((what, reason)) = self.judge_mailbox(mailbox, ready_within, now) {
                    is_wrong(what, reason);
                }
            }
        }
        let silence = |mailbox: &MailboxStats| mailbox.answered_at.map(|at| since(at, now));
        let silences: Option<Vec<_>> = mailboxes.iter().map(silence).collect();
        let failing = mailboxes.iter().find_map(|mailbox| mailbox.last_error.as_deref());
        LoopHealth {
            name: name.clone(),
            state,
            in_flight: self.stats.as_ref().map_or(0, |stats| stats.in_flight),
            polled_seconds_ago: silences
                .and_then(|silences| silences.into_iter().max())
                .map(|silence| (silence.as_secs_f64() * 1e3).round() / 1e3),
            restarts: self.restarts,
            error: self.failure.clone().or_else(|| failing.map(str::to_owned)),
        }
    }

    fn judge_mailbox(
        &self,
        mailbox: &MailboxStats,
        ready_within: Duration,
        now: Instant,
    ) -> Option<(GroupStatus, String)> {
        let (name, queue) = (&self.name, &mailbox.queue);
        if let Some(error) = &mailbox.last_error {
            let reason = format!("loop '{name}' cannot receive: {error}");
            return Some((GroupStatus::NotReady, reason));
        }
        let Some(answered) = mailbox.answered_at else {
            let reason = format!("loop '{name}' has had no answer of queue '{queue}' yet");
            return Some((GroupStatus::Starting, reason));
        };
        let limit = ready_within.max(mailbox.poll.saturating_add(MARGIN));
        let silence = since(answered, now);
        if silence <= limit || self.has_its_hands_full() {
            return None;
        }
        let reason = format!(
            "loop '{name}' has had no answer of queue '{queue}' for {} s",
            silence.as_secs()
        );
        Some((GroupStatus::NotReady, reason))
    }

    /// Whether it has no worker that could take another message: then it asks for none.
    fn has_its_hands_full(&self) -> bool {
        let full = |stats: &StatsSnapshot| {
            stats.active_workers > 0 && stats.in_flight >= stats.active_workers
        };
        self.stats.as_ref().is_some_and(full)
    }
}

fn judge_dead_letters(queue: &DeadLettersHealth) -> Option<String> {
    match queue {
        DeadLettersHealth::Unknown { name, error } => {
            Some(format!("the dead letters in '{name}' cannot be counted: {error}"))
        }
        DeadLettersHealth::Known(health) if health.status == DlqStatus::Healthy => None,
        DeadLettersHealth::Known(DlqHealth { name, depth, threshold, .. })
            if depth >= threshold =>
        {
            Some(format!("'{name}' holds {depth} dead letters, and {threshold} are too many"))
        }
        DeadLettersHealth::Known(DlqHealth { name, oldest_age_seconds, .. }) => {
            let age = oldest_age_seconds.unwrap_or_default();
            Some(format!(
                "the oldest dead letter in '{name}' has waited for {age:.0} s, which is too long"
            ))
        }
    }
}

fn since(then: Instant, now: Instant) -> Duration {
    now.saturating_duration_since(then)
}
