//! Readiness of a group, pure: derived from the state of each loop and dead-letter queue, with reasons.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::dead_letters::{DlqHealth, DlqStatus};
use crate::stats::{MailboxStats, State, StatsSnapshot};

/// Readiness of a group of loops. `/health/ready` returns it as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Readiness {
    /// The status of the group.
    pub status: GroupStatus,
    /// The reasons why the group is not healthy, one sentence each. Empty if it is.
    pub reasons: Vec<String>,
    /// The health of each loop.
    pub loops: Vec<LoopHealth>,
    /// The first dead-letter queue that is degraded, else the first of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq: Option<DlqDepth>,
    /// The health of each dead-letter queue.
    pub dead_letters: Vec<DeadLettersHealth>,
    /// Whether a degraded group is not ready.
    #[serde(skip)]
    is_strict: bool,
}

impl Readiness {
    /// Whether the group is ready, so that `/health/ready` returns 200. A degraded group is, unless
    /// [`unready_when_degraded`](super::LoopGroup::unready_when_degraded) is set.
    pub fn is_ready(&self) -> bool {
        match self.status {
            GroupStatus::Healthy => true,
            GroupStatus::Degraded => !self.is_strict,
            GroupStatus::Starting | GroupStatus::NotReady | GroupStatus::Draining => false,
        }
    }
}

/// The number of dead letters in a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DlqDepth {
    /// The name of the queue.
    pub name: String,
    /// Number of dead letters. `None` if they could not be counted.
    pub depth: Option<u64>,
    /// Number of dead letters from which the group is degraded.
    pub threshold: u64,
}

/// The status of a group of loops.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupStatus {
    /// Every loop runs, and every mailbox answers.
    Healthy,
    /// Every loop runs and every mailbox answers, but dead letters are too many, too old, or cannot be counted.
    Degraded,
    /// Some mailboxes have not answered yet, and nothing has failed.
    Starting,
    /// A loop failed, is paused or has ended, or a mailbox does not answer.
    NotReady,
    /// Finishing what is running.
    Draining,
}

/// The health of a loop.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LoopHealth {
    /// The name of the loop.
    pub name: String,
    /// The state of the loop.
    pub state: LoopState,
    /// Number of messages that the loop has in flight.
    pub in_flight: usize,
    /// Time since its mailbox last answered; of several mailboxes, the longest.
    pub polled_seconds_ago: Option<f64>,
    /// Number of restarts.
    pub restarts: u32,
    /// Why the loop failed, or why calls to its mailbox fail now.
    pub error: Option<String>,
}

/// The state of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LoopState {
    /// Not started.
    Starting,
    /// Receiving and handling messages.
    Running,
    /// Not receiving messages.
    Paused,
    /// Finishing what is running.
    Draining,
    /// Ended.
    Stopped,
    /// Failed, and about to be restarted.
    Restarting,
    /// Failed, and not restarted.
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

/// The health of a dead-letter queue, or why it is unknown.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum DeadLettersHealth {
    /// The dead letters were counted.
    Known(DlqHealth),
    /// The dead letters could not be counted.
    #[non_exhaustive]
    Unknown {
        /// The name of the queue.
        name: String,
        /// Number of dead letters from which the queue is degraded.
        threshold: u64,
        /// The error of the count.
        error: String,
    },
}

impl DeadLettersHealth {
    fn depth(&self) -> DlqDepth {
        match self {
            Self::Known(DlqHealth { name, depth, threshold, .. }) => {
                DlqDepth { name: name.to_string(), depth: Some(*depth), threshold: *threshold }
            }
            Self::Unknown { name, threshold, .. } => {
                DlqDepth { name: name.clone(), depth: None, threshold: *threshold }
            }
        }
    }

    /// Removes the causes of errors.
    #[cfg(feature = "health")]
    pub(super) fn redacted(mut self) -> Self {
        if let Self::Unknown { error, .. } = &mut self {
            *error = without_cause(error).to_owned();
        }
        self
    }
}

/// Returns an error text without its cause, which follows the first colon and may name hosts and files.
#[cfg(feature = "health")]
fn without_cause(error: &str) -> &str {
    error.split_once(": ").map_or(error, |(tried, _)| tried)
}

/// The known state of a loop.
#[derive(Debug, Clone)]
pub(super) struct LoopStatus {
    pub(super) name: String,
    pub(super) phase: Phase,
    pub(super) restarts: u32,
    pub(super) failure: Option<String>,
    /// Its own statistics, if it was started.
    pub(super) stats: Option<StatsSnapshot>,
}

impl LoopStatus {
    /// Removes the causes of errors.
    #[cfg(feature = "health")]
    pub(super) fn redacted(mut self) -> Self {
        self.failure = self.failure.map(|failure| without_cause(&failure).to_owned());
        for mailbox in self.stats.iter_mut().flat_map(|stats| &mut stats.mailboxes) {
            mailbox.last_error =
                mailbox.last_error.take().map(|error| without_cause(&error).into());
        }
        self
    }
}

/// The state of a loop from the view of its supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Started: its own state counts.
    Alive,
    Restarting,
    Ended,
    Failed,
}

/// Additional time that an idle receive may take beyond its wait.
const MARGIN: Duration = Duration::from_secs(10);

/// Derives the readiness of a group.
pub(super) fn readiness(
    loops: &[LoopStatus],
    dead_letters: Vec<DeadLettersHealth>,
    is_stopping: bool,
    options: ReadinessOptions,
    now: Instant,
) -> Readiness {
    let mut reasons = Vec::new();
    let mut status = GroupStatus::Healthy;
    let mut report = |one: GroupStatus, reason: String| {
        status = status.or(one);
        reasons.push(reason);
    };
    let health = |one: &LoopStatus| one.health(options.ready_within, now, &mut report);
    let loops = loops.iter().map(health).collect();
    let mut dlq = None;
    for queue in &dead_letters {
        if let Some(reason) = degraded_reason(queue) {
            report(GroupStatus::Degraded, reason);
            dlq.get_or_insert_with(|| queue.depth());
        }
    }
    if is_stopping {
        status = GroupStatus::Draining;
        reasons.insert(0, "the group is stopping".to_owned());
    }
    let dlq = dlq.or_else(|| dead_letters.first().map(DeadLettersHealth::depth));
    let is_strict = options.is_strict;
    Readiness { status, reasons, loops, dlq, dead_letters, is_strict }
}

/// Conditions under which a group is ready.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReadinessOptions {
    /// Maximum time since the last answer of a mailbox.
    pub(super) ready_within: Duration,
    /// Whether a degraded group is not ready.
    pub(super) is_strict: bool,
}

impl GroupStatus {
    /// Returns the more severe of two statuses, which are declared in the order of severity.
    const fn or(self, other: Self) -> Self {
        if other as u8 > self as u8 { other } else { self }
    }
}

impl LoopStatus {
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

    /// Returns the health of the loop, and reports why it is not ready.
    fn health(
        &self,
        ready_within: Duration,
        now: Instant,
        report: &mut impl FnMut(GroupStatus, String),
    ) -> LoopHealth {
        let (name, state) = (&self.name, self.state());
        match (state, &self.failure) {
            (LoopState::Running, _) => {}
            (LoopState::Starting, _) => {
                report(GroupStatus::Starting, format!("loop '{name}' is starting"));
            }
            (LoopState::Restarting, Some(failure)) => {
                let reason = format!("loop '{name}' is being restarted: {failure}");
                report(GroupStatus::NotReady, reason);
            }
            (LoopState::Failed, Some(failure)) => {
                report(GroupStatus::NotReady, format!("loop '{name}' failed: {failure}"));
            }
            _ => report(GroupStatus::NotReady, format!("loop '{name}' is {state}")),
        }
        let mailboxes = self.stats.as_ref().map_or(&[][..], |stats| &stats.mailboxes);
        if state == LoopState::Running {
            for mailbox in mailboxes {
                if let Some((status, reason)) = self.check_mailbox(mailbox, ready_within, now) {
                    report(status, reason);
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

    /// Returns why a mailbox makes the loop not ready.
    fn check_mailbox(
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
            let reason = format!("loop '{name}' has received no answer from queue '{queue}' yet");
            return Some((GroupStatus::Starting, reason));
        };
        let limit = ready_within.max(mailbox.poll.saturating_add(MARGIN));
        let silence = since(answered, now);
        if silence <= limit || self.is_at_capacity() {
            return None;
        }
        let reason = format!(
            "loop '{name}' has received no answer from queue '{queue}' for {} s",
            silence.as_secs()
        );
        Some((GroupStatus::NotReady, reason))
    }

    /// Whether all workers are busy, so that the loop receives no messages.
    fn is_at_capacity(&self) -> bool {
        let full = |stats: &StatsSnapshot| {
            stats.active_workers > 0 && stats.in_flight >= stats.active_workers
        };
        self.stats.as_ref().is_some_and(full)
    }
}

/// Returns why a dead-letter queue degrades the group.
fn degraded_reason(queue: &DeadLettersHealth) -> Option<String> {
    match queue {
        DeadLettersHealth::Unknown { name, error, .. } => {
            Some(format!("the dead letters in '{name}' cannot be counted: {error}"))
        }
        DeadLettersHealth::Known(health) if health.status == DlqStatus::Healthy => None,
        DeadLettersHealth::Known(DlqHealth { name, depth, threshold, .. })
            if depth >= threshold =>
        {
            Some(format!("'{name}' holds {depth} dead letters, and the limit is {threshold}"))
        }
        DeadLettersHealth::Known(DlqHealth { name, oldest_age_seconds, .. }) => {
            let age = oldest_age_seconds.unwrap_or_default();
            Some(format!("the oldest dead letter in '{name}' is {age:.0} s old, which is too old"))
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
    const OPTIONS: ReadinessOptions =
        ReadinessOptions { ready_within: Duration::from_secs(60), is_strict: false };

    /// A moment that others can be before.
    fn now() -> Instant {
        Instant::now() + 10_000 * SECOND
    }

    /// A running loop whose mailbox answered this many seconds ago.
    fn running(silence: u32, now: Instant) -> LoopStatus {
        let queue: QueueName = "orders".try_into().unwrap();
        let mut stats = StatsSnapshot::new(std::iter::once((queue, 20 * SECOND)));
        (stats.state, stats.active_workers) = (State::Running, 4);
        stats.mailboxes[0].answered_at = Some(now - silence * SECOND);
        let name = "orders".to_owned();
        LoopStatus { name, phase: Phase::Alive, restarts: 0, failure: None, stats: Some(stats) }
    }

    fn change(mut status: LoopStatus, change: impl FnOnce(&mut StatsSnapshot)) -> LoopStatus {
        change(status.stats.as_mut().unwrap());
        status
    }

    /// Dead letters whose limit is 100, and 60 s if their age is known.
    fn letters(name: &str, depth: u64, age: Option<f64>) -> DeadLettersHealth {
        let is_degraded = depth >= 100 || age.is_some_and(|age| age >= 60.0);
        DeadLettersHealth::Known(DlqHealth {
            status: if is_degraded { DlqStatus::Degraded } else { DlqStatus::Healthy },
            name: name.try_into().unwrap(),
            depth,
            threshold: 100,
            oldest_age_seconds: age,
            age_threshold_seconds: age.map(|_| 60.0),
        })
    }

    #[track_caller]
    fn assert_status(one: LoopStatus, now: Instant, status: GroupStatus, reasons: &[&str]) {
        let result = readiness(&[one], Vec::new(), false, OPTIONS, now);
        assert_eq!(result.status, status);
        assert_eq!(result.reasons, reasons);
    }

    #[test]
    fn a_loop_that_runs_and_whose_mailbox_answers_is_ready() {
        let now = now();
        assert_status(running(0, now), now, GroupStatus::Healthy, &[]);
        assert_status(running(60, now), now, GroupStatus::Healthy, &[]);
        let result = readiness(&[running(3, now)], Vec::new(), false, OPTIONS, now);
        assert!(result.is_ready());
        assert_eq!(result.loops[0].polled_seconds_ago, Some(3.0));
    }

    #[test]
    fn a_loop_whose_mailbox_has_not_answered_for_too_long_is_not_ready() {
        let now = now();
        let silent = "loop 'orders' has received no answer from queue 'orders' for 61 s";
        assert_status(running(61, now), now, GroupStatus::NotReady, &[silent]);
        // A receive may wait for longer than that.
        let long_poll = change(running(61, now), |stats| stats.mailboxes[0].poll = 300 * SECOND);
        assert_status(long_poll, now, GroupStatus::Healthy, &[]);
        // A loop whose workers are all busy receives nothing.
        let busy = change(running(61, now), |stats| stats.in_flight = 4);
        assert_status(busy, now, GroupStatus::Healthy, &[]);
        let none = change(running(0, now), |stats| stats.mailboxes[0].answered_at = None);
        let reason = "loop 'orders' has received no answer from queue 'orders' yet";
        assert_status(none, now, GroupStatus::Starting, &[reason]);
    }

    #[test]
    fn a_loop_that_cannot_receive_is_not_ready_even_if_it_could_recently() {
        let now = now();
        let failing = change(running(1, now), |stats| {
            stats.mailboxes[0].last_error = Some(Arc::from("cannot receive: gone"));
        });
        let result = readiness(std::slice::from_ref(&failing), Vec::new(), false, OPTIONS, now);
        assert_eq!(result.loops[0].error.as_deref(), Some("cannot receive: gone"));
        let reason = "loop 'orders': cannot receive: gone";
        assert_status(failing, now, GroupStatus::NotReady, &[reason]);
    }

    #[test]
    fn a_loop_that_does_not_run_is_not_ready_for_a_reason() {
        let now = now();
        let at = |state| change(running(0, now), |stats| stats.state = state);
        let unstarted = LoopStatus { stats: None, ..running(0, now) };
        let failure = Some("no".to_owned());
        let failed = |phase| LoopStatus { phase, failure: failure.clone(), ..running(0, now) };
        for (one, status, reason) in [
            (at(State::Starting), GroupStatus::Starting, "loop 'orders' is starting"),
            (at(State::Paused), GroupStatus::NotReady, "loop 'orders' is paused"),
            (at(State::Draining), GroupStatus::NotReady, "loop 'orders' is draining"),
            (at(State::Stopped), GroupStatus::NotReady, "loop 'orders' is stopped"),
            (unstarted, GroupStatus::Starting, "loop 'orders' is starting"),
            (
                failed(Phase::Restarting),
                GroupStatus::NotReady,
                "loop 'orders' is being restarted: no",
            ),
            (failed(Phase::Failed), GroupStatus::NotReady, "loop 'orders' failed: no"),
        ] {
            assert_status(one, now, status, &[reason]);
        }
    }

    #[test]
    fn the_most_severe_status_counts() {
        let now = now();
        let starting = change(running(0, now), |stats| stats.state = State::Starting);
        let paused = change(running(0, now), |stats| stats.state = State::Paused);
        let loops = [starting.clone(), paused, starting];
        let result = readiness(&loops, Vec::new(), false, OPTIONS, now);
        assert_eq!((result.status, result.reasons.len()), (GroupStatus::NotReady, 3));
        let result = readiness(&loops, Vec::new(), true, OPTIONS, now);
        assert_eq!((result.status, result.reasons.len()), (GroupStatus::Draining, 4));
        assert_eq!(result.reasons[0], "the group is stopping");
    }

    #[test]
    fn too_many_old_or_uncountable_dead_letters_degrade_a_group() {
        let now = now();
        let reasons = |queue| {
            let result = readiness(&[running(0, now)], vec![queue], false, OPTIONS, now);
            let is_degraded = result.status == GroupStatus::Degraded;
            assert!(result.is_ready() && is_degraded != result.reasons.is_empty(), "{result:?}");
            result.reasons
        };
        assert!(reasons(letters("dead", 99, Some(1.0))).is_empty());
        let many = reasons(letters("dead", 100, Some(1.0)));
        assert_eq!(many, ["'dead' holds 100 dead letters, and the limit is 100"]);
        let old = reasons(letters("dead", 1, Some(61.0)));
        assert_eq!(old, ["the oldest dead letter in 'dead' is 61 s old, which is too old"]);
        let (name, error) = ("dead".to_owned(), "gone".to_owned());
        let unknown = DeadLettersHealth::Unknown { name, threshold: 100, error };
        assert_eq!(reasons(unknown), ["the dead letters in 'dead' cannot be counted: gone"]);
    }

    #[test]
    fn a_degraded_group_is_ready_unless_it_is_strict() {
        let now = now();
        let queues =
            vec![letters("few", 1, None), letters("many", 100, None), letters("more", 300, None)];
        let check = |loops: &[LoopStatus], is_strict| {
            readiness(loops, queues.clone(), false, ReadinessOptions { is_strict, ..OPTIONS }, now)
        };
        let result = check(&[running(0, now)], false);
        assert!(result.is_ready());
        let written = serde_json::to_value(&result).unwrap();
        assert_eq!(written["status"], "degraded");
        let dlq = serde_json::json!({ "name": "many", "depth": 100, "threshold": 100 });
        assert_eq!(written["dlq"], dlq);
        let strict = check(&[running(0, now)], true);
        assert!(!strict.is_ready() && strict.status == GroupStatus::Degraded);
        // The state of a loop is more severe.
        let paused = change(running(0, now), |stats| stats.state = State::Paused);
        let result = check(&[paused, running(0, now)], false);
        assert!(!result.is_ready() && result.status == GroupStatus::NotReady);
    }

    #[test]
    fn redacted_reasons_do_not_name_hosts() {
        let now = now();
        let error = "cannot receive from queue 'orders': redis://10.0.0.5:6379 refused";
        let failing = change(running(1, now), |stats| {
            stats.mailboxes[0].last_error = Some(Arc::from(error));
        });
        let failed = LoopStatus {
            phase: Phase::Failed,
            failure: Some("it panicked: no route to db.internal".to_owned()),
            ..running(0, now)
        };
        let (name, error) = ("dead".to_owned(), "cannot count queue 'dead': 10.0.0.5".to_owned());
        let unknown = DeadLettersHealth::Unknown { name, threshold: 100, error };
        let loops = [failing.redacted(), failed.redacted()];
        let redacted = readiness(&loops, vec![unknown.redacted()], false, OPTIONS, now);
        assert_eq!(
            redacted.reasons,
            [
                "loop 'orders': cannot receive from queue 'orders'",
                "loop 'orders' failed: it panicked",
                "the dead letters in 'dead' cannot be counted: cannot count queue 'dead'",
            ]
        );
        let written = serde_json::to_string(&redacted).unwrap();
        assert!(!written.contains("10.0.0.5") && !written.contains("internal"), "{written}");
    }

    #[test]
    fn readiness_is_serialized_for_probes() {
        let now = now();
        let queues = vec![letters("dead", 3, Some(1.5)), letters("more", 1, None)];
        let result = readiness(&[running(2, now)], queues, false, OPTIONS, now);
        let written = serde_json::to_value(&result).unwrap();
        let expected = serde_json::json!({
            "status": "healthy",
            "reasons": [],
            "loops": [{
                "name": "orders", "state": "running", "in_flight": 0, "polled_seconds_ago": 2.0,
                "restarts": 0, "error": null
            }],
            "dlq": { "name": "dead", "depth": 3, "threshold": 100 },
            "dead_letters": [{
                "status": "healthy", "name": "dead", "depth": 3, "threshold": 100,
                "oldest_age_seconds": 1.5, "age_threshold_seconds": 60.0
            }, {
                "status": "healthy", "name": "more", "depth": 1, "threshold": 100,
                "oldest_age_seconds": null, "age_threshold_seconds": null
            }]
        });
        assert_eq!(written, expected);
    }
}
