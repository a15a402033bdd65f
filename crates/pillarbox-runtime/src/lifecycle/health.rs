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
    /// Why its mailbox cannot be received from or settled with now, or why it failed.
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
            Self::Restarting => "restarting",
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
            (LoopState::Restarting, Some(failure)) => {
                let reason = format!("loop '{name}' is being restarted: {failure}");
                is_wrong(GroupStatus::NotReady, reason);
            }
            (LoopState::Failed, Some(failure)) => {
                is_wrong(GroupStatus::NotReady, format!("loop '{name}' failed: {failure}"));
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
            let reason = format!("loop '{name}': {error}");
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pillarbox_core::QueueName;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const WITHIN: Duration = Duration::from_secs(60);

    /// A moment that has something before it.
    fn now() -> Instant {
        Instant::now() + 10_000 * SECOND
    }

    /// A loop that runs, and whose mailbox answered so many seconds ago.
    fn running(silence: u32, now: Instant) -> Seen {
        let queue: QueueName = "orders".try_into().unwrap();
        let mut stats = StatsSnapshot::new(std::iter::once((queue, 20 * SECOND)));
        (stats.state, stats.active_workers) = (State::Running, 4);
        stats.mailboxes[0].answered_at = Some(now - silence * SECOND);
        let name = "orders".to_owned();
        Seen { name, phase: Phase::Alive, restarts: 0, failure: None, stats: Some(stats) }
    }

    fn change(mut seen: Seen, change: impl FnOnce(&mut StatsSnapshot)) -> Seen {
        change(seen.stats.as_mut().unwrap());
        seen
    }

    #[track_caller]
    fn judged(seen: Seen, now: Instant, status: GroupStatus, reasons: &[&str]) {
        let verdict = readiness(&[seen], Vec::new(), false, WITHIN, now);
        assert_eq!(verdict.status, status);
        assert_eq!(verdict.reasons, reasons);
    }

    #[test]
    fn a_loop_that_runs_and_whose_mailbox_answers_is_ready() {
        let now = now();
        judged(running(0, now), now, GroupStatus::Ready, &[]);
        judged(running(60, now), now, GroupStatus::Ready, &[]);
        let verdict = readiness(&[running(3, now)], Vec::new(), false, WITHIN, now);
        assert!(verdict.is_ready());
        assert_eq!(verdict.loops[0].polled_seconds_ago, Some(3.0));
    }

    #[test]
    fn a_mailbox_that_has_been_silent_for_too_long_is_not() {
        let now = now();
        let silent = "loop 'orders' has had no answer of queue 'orders' for 61 s";
        judged(running(61, now), now, GroupStatus::NotReady, &[silent]);
        // A receive may wait for longer than that.
        let patient = change(running(61, now), |stats| stats.mailboxes[0].poll = 300 * SECOND);
        judged(patient, now, GroupStatus::Ready, &[]);
        // Nobody asks for more than there are hands for.
        let busy = change(running(61, now), |stats| stats.in_flight = 4);
        judged(busy, now, GroupStatus::Ready, &[]);
        let none = change(running(0, now), |stats| stats.mailboxes[0].answered_at = None);
        let reason = "loop 'orders' has had no answer of queue 'orders' yet";
        judged(none, now, GroupStatus::Starting, &[reason]);
    }

    #[test]
    fn one_that_cannot_receive_is_not_ready_however_lately_it_could() {
        let now = now();
        let failing = change(running(1, now), |stats| {
            stats.mailboxes[0].last_error = Some(Arc::from("cannot receive: gone"));
        });
        let verdict = readiness(std::slice::from_ref(&failing), Vec::new(), false, WITHIN, now);
        assert_eq!(verdict.loops[0].error.as_deref(), Some("cannot receive: gone"));
        let reason = "loop 'orders': cannot receive: gone";
        judged(failing, now, GroupStatus::NotReady, &[reason]);
    }

    #[test]
    fn a_loop_that_does_not_run_is_not_ready_and_says_why() {
        let now = now();
        let at = |state| change(running(0, now), |stats| stats.state = state);
        judged(at(State::Starting), now, GroupStatus::Starting, &["loop 'orders' is starting"]);
        judged(at(State::Paused), now, GroupStatus::NotReady, &["loop 'orders' is paused"]);
        judged(at(State::Draining), now, GroupStatus::NotReady, &["loop 'orders' is draining"]);
        judged(at(State::Stopped), now, GroupStatus::NotReady, &["loop 'orders' is stopped"]);
        let unborn = Seen { stats: None, ..running(0, now) };
        judged(unborn, now, GroupStatus::Starting, &["loop 'orders' is starting"]);
        let failed = |phase| Seen { phase, failure: Some("no".to_owned()), ..running(0, now) };
        let reason = "loop 'orders' is being restarted: no";
        judged(failed(Phase::Restarting), now, GroupStatus::NotReady, &[reason]);
        judged(failed(Phase::Failed), now, GroupStatus::NotReady, &["loop 'orders' failed: no"]);
    }

    #[test]
    fn what_is_wrong_counts_for_more_than_what_is_starting_and_a_stop_for_more_than_both() {
        let now = now();
        let starting = change(running(0, now), |stats| stats.state = State::Starting);
        let paused = change(running(0, now), |stats| stats.state = State::Paused);
        let loops = [starting.clone(), paused, starting];
        let verdict = readiness(&loops, Vec::new(), false, WITHIN, now);
        assert_eq!((verdict.status, verdict.reasons.len()), (GroupStatus::NotReady, 3));
        let verdict = readiness(&loops, Vec::new(), true, WITHIN, now);
        assert_eq!((verdict.status, verdict.reasons.len()), (GroupStatus::Draining, 4));
        assert_eq!(verdict.reasons[0], "the group is stopping");
    }

    #[test]
    fn dead_letters_are_few_and_young_and_can_be_counted() {
        let now = now();
        let letters = |status, depth, age| {
            DeadLettersHealth::Known(DlqHealth {
                status,
                name: "dead".try_into().unwrap(),
                depth,
                threshold: 100,
                oldest_age_seconds: Some(age),
                age_threshold_seconds: Some(60.0),
            })
        };
        let reasons =
            |queue| readiness(&[running(0, now)], vec![queue], false, WITHIN, now).reasons;
        assert!(reasons(letters(DlqStatus::Healthy, 99, 1.0)).is_empty());
        let many = reasons(letters(DlqStatus::Degraded, 100, 1.0));
        assert_eq!(many, ["'dead' holds 100 dead letters, and 100 are too many"]);
        let old = reasons(letters(DlqStatus::Degraded, 1, 61.0));
        assert_eq!(
            old,
            ["the oldest dead letter in 'dead' has waited for 61 s, which is too long"]
        );
        let unknown = DeadLettersHealth::Unknown { name: "dead".into(), error: "gone".into() };
        assert_eq!(reasons(unknown), ["the dead letters in 'dead' cannot be counted: gone"]);
    }

    #[test]
    fn it_is_written_as_probes_and_people_read_it() {
        let now = now();
        let known = DeadLettersHealth::Known(DlqHealth {
            status: DlqStatus::Healthy,
            name: "dead".try_into().unwrap(),
            depth: 3,
            threshold: 100,
            oldest_age_seconds: Some(1.5),
            age_threshold_seconds: None,
        });
        let verdict = readiness(&[running(2, now)], vec![known], false, WITHIN, now);
        let written = serde_json::to_value(&verdict).unwrap();
        let expected = serde_json::json!({
            "status": "ready",
            "reasons": [],
            "loops": [{
                "name": "orders", "state": "running", "in_flight": 0, "polled_seconds_ago": 2.0,
                "restarts": 0, "error": null
            }],
            "dead_letters": [{
                "status": "healthy", "name": "dead", "depth": 3, "threshold": 100,
                "oldest_age_seconds": 1.5, "age_threshold_seconds": null
            }]
        });
        assert_eq!(written, expected);
    }
}
