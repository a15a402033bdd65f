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
    /// Why it is not healthy, each in a sentence. None if it is.
    pub reasons: Vec<String>,
    /// Each loop.
    pub loops: Vec<LoopHealth>,
    /// The queue of dead letters that is looked at: of several, the first with too many, or else the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dlq: Option<DlqDepth>,
    /// Each queue of dead letters that is looked at.
    pub dead_letters: Vec<DeadLettersHealth>,
    /// Whether one that is degraded is not ready.
    #[serde(skip)]
    is_strict: bool,
}

impl Readiness {
    /// Whether it does its work, so that `/health/ready` answers 200. A group that is degraded does, unless
    /// [said otherwise](super::LoopGroup::unready_when_degraded).
    pub fn is_ready(&self) -> bool {
        match self.status {
            GroupStatus::Healthy => true,
            GroupStatus::Degraded => !self.is_strict,
            GroupStatus::Starting | GroupStatus::NotReady | GroupStatus::Draining => false,
        }
    }
}

/// How many dead letters a queue holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DlqDepth {
    /// The name of the queue.
    pub name: String,
    /// How many there are. `None` where they could not be counted.
    pub depth: Option<u64>,
    /// From how many on the group is degraded.
    pub threshold: u64,
}

/// What a group of loops is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum GroupStatus {
    /// Every loop works, and every mailbox answers.
    Healthy,
    /// The same, but somebody should look after the dead letters: there are too many, too old ones, or they
    /// cannot be counted.
    Degraded,
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
        /// From how many on it would be degraded.
        threshold: u64,
        /// Why.
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

    /// The same for those who are not told where things are.
    #[cfg(feature = "health")]
    pub(super) fn for_strangers(mut self) -> Self {
        if let Self::Unknown { error, .. } = &mut self {
            *error = without_cause(error).to_owned();
        }
        self
    }
}

/// What an error says was tried, on which queue, without what the backend or the network said of it, which may
/// name hosts and files: that comes behind the first colon.
#[cfg(feature = "health")]
fn without_cause(error: &str) -> &str {
    error.split_once(": ").map_or(error, |(tried, _)| tried)
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

impl Seen {
    /// The same for those who are not told where things are.
    #[cfg(feature = "health")]
    pub(super) fn for_strangers(mut self) -> Self {
        self.failure = self.failure.map(|failure| without_cause(&failure).to_owned());
        for mailbox in self.stats.iter_mut().flat_map(|stats| &mut stats.mailboxes) {
            mailbox.last_error =
                mailbox.last_error.take().map(|error| without_cause(&error).into());
        }
        self
    }
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
    terms: Terms,
    now: Instant,
) -> Readiness {
    let mut reasons = Vec::new();
    let mut status = GroupStatus::Healthy;
    let mut is_wrong = |what: GroupStatus, reason: String| {
        status = status.or(what);
        reasons.push(reason);
    };
    let judge = |seen: &Seen| seen.judge(terms.ready_within, now, &mut is_wrong);
    let shown = loops.iter().map(judge).collect();
    let mut dlq = None;
    for queue in &dead_letters {
        if let Some(reason) = judge_dead_letters(queue) {
            is_wrong(GroupStatus::Degraded, reason);
            dlq.get_or_insert_with(|| queue.depth());
        }
    }
    if is_stopping {
        status = GroupStatus::Draining;
        reasons.insert(0, "the group is stopping".to_owned());
    }
    let dlq = dlq.or_else(|| dead_letters.first().map(DeadLettersHealth::depth));
    let is_strict = terms.is_strict;
    Readiness { status, reasons, loops: shown, dlq, dead_letters, is_strict }
}

/// What is asked of a group that is ready.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// How long ago mailboxes may have answered.
    pub(super) ready_within: Duration,
    /// One that is degraded is not ready.
    pub(super) is_strict: bool,
}

impl GroupStatus {
    /// The one that counts for more: what is wrong more than what has not begun, and that more than dead letters.
    const fn or(self, other: Self) -> Self {
        if other.weight() > self.weight() { other } else { self }
    }

    const fn weight(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Degraded => 1,
            Self::Starting => 2,
            Self::NotReady => 3,
            Self::Draining => 4,
        }
    }
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
        DeadLettersHealth::Unknown { name, error, .. } => {
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
    const TERMS: Terms = Terms { ready_within: Duration::from_secs(60), is_strict: false };

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
        let verdict = readiness(&[seen], Vec::new(), false, TERMS, now);
        assert_eq!(verdict.status, status);
        assert_eq!(verdict.reasons, reasons);
    }

    #[test]
    fn a_loop_that_runs_and_whose_mailbox_answers_is_ready() {
        let now = now();
        judged(running(0, now), now, GroupStatus::Healthy, &[]);
        judged(running(60, now), now, GroupStatus::Healthy, &[]);
        let verdict = readiness(&[running(3, now)], Vec::new(), false, TERMS, now);
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
        judged(patient, now, GroupStatus::Healthy, &[]);
        // Nobody asks for more than there are hands for.
        let busy = change(running(61, now), |stats| stats.in_flight = 4);
        judged(busy, now, GroupStatus::Healthy, &[]);
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
        let verdict = readiness(std::slice::from_ref(&failing), Vec::new(), false, TERMS, now);
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
        let verdict = readiness(&loops, Vec::new(), false, TERMS, now);
        assert_eq!((verdict.status, verdict.reasons.len()), (GroupStatus::NotReady, 3));
        let verdict = readiness(&loops, Vec::new(), true, TERMS, now);
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
        let reasons = |queue| {
            let verdict = readiness(&[running(0, now)], vec![queue], false, TERMS, now);
            let is_degraded = verdict.status == GroupStatus::Degraded;
            assert!(verdict.is_ready() && is_degraded != verdict.reasons.is_empty(), "{verdict:?}");
            verdict.reasons
        };
        assert!(reasons(letters(DlqStatus::Healthy, 99, 1.0)).is_empty());
        let many = reasons(letters(DlqStatus::Degraded, 100, 1.0));
        assert_eq!(many, ["'dead' holds 100 dead letters, and 100 are too many"]);
        let old = reasons(letters(DlqStatus::Degraded, 1, 61.0));
        assert_eq!(
            old,
            ["the oldest dead letter in 'dead' has waited for 61 s, which is too long"]
        );
        let (name, error) = ("dead".to_owned(), "gone".to_owned());
        let unknown = DeadLettersHealth::Unknown { name, threshold: 100, error };
        assert_eq!(reasons(unknown), ["the dead letters in 'dead' cannot be counted: gone"]);
    }

    #[test]
    fn dead_letters_leave_a_group_ready_unless_it_is_said_that_they_do_not() {
        let now = now();
        let queue = |name: &str, depth, threshold| {
            DeadLettersHealth::Known(DlqHealth {
                status: if depth >= threshold { DlqStatus::Degraded } else { DlqStatus::Healthy },
                name: name.try_into().unwrap(),
                depth,
                threshold,
                oldest_age_seconds: None,
                age_threshold_seconds: None,
            })
        };
        let queues = vec![queue("few", 1, 100), queue("many", 100, 100), queue("more", 300, 100)];
        let judge = |loops: &[Seen], is_strict| {
            readiness(loops, queues.clone(), false, Terms { is_strict, ..TERMS }, now)
        };
        let verdict = judge(&[running(0, now)], false);
        assert!(verdict.is_ready());
        let written = serde_json::to_value(&verdict).unwrap();
        assert_eq!(written["status"], "degraded");
        let dlq = serde_json::json!({ "name": "many", "depth": 100, "threshold": 100 });
        assert_eq!(written["dlq"], dlq);
        let strict = judge(&[running(0, now)], true);
        assert!(!strict.is_ready() && strict.status == GroupStatus::Degraded);
        // What is wrong with a loop counts for more.
        let paused = change(running(0, now), |stats| stats.state = State::Paused);
        let verdict = judge(&[paused, running(0, now)], false);
        assert!(!verdict.is_ready() && verdict.status == GroupStatus::NotReady);
    }

    #[test]
    fn strangers_are_told_what_is_wrong_and_not_where() {
        let now = now();
        let error = "cannot receive from queue 'orders': redis://10.0.0.5:6379 refused";
        let failing = change(running(1, now), |stats| {
            stats.mailboxes[0].last_error = Some(Arc::from(error));
        });
        let failed = Seen {
            phase: Phase::Failed,
            failure: Some("it panicked: no route to db.internal".to_owned()),
            ..running(0, now)
        };
        let (name, error) = ("dead".to_owned(), "cannot count queue 'dead': 10.0.0.5".to_owned());
        let unknown = DeadLettersHealth::Unknown { name, threshold: 100, error };
        let loops = [failing.for_strangers(), failed.for_strangers()];
        let told = readiness(&loops, vec![unknown.for_strangers()], false, TERMS, now);
        assert_eq!(
            told.reasons,
            [
                "loop 'orders': cannot receive from queue 'orders'",
                "loop 'orders' failed: it panicked",
                "the dead letters in 'dead' cannot be counted: cannot count queue 'dead'",
            ]
        );
        let written = serde_json::to_string(&told).unwrap();
        assert!(!written.contains("10.0.0.5") && !written.contains("internal"), "{written}");
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
        let verdict = readiness(&[running(2, now)], vec![known], false, TERMS, now);
        let written = serde_json::to_value(&verdict).unwrap();
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
                "oldest_age_seconds": 1.5, "age_threshold_seconds": null
            }]
        });
        assert_eq!(written, expected);
    }
}
