//! A way through a queue of dead letters, as it is announced and told of: what `replay` and `discard` have
//! in common.

use std::ops::ControlFlow;
use std::time::Duration;

use pillarbox::runtime::{DeadLetter, Dlq, Pass, PassFailed, PassReport, Summary};
use pillarbox::{Mailboxes, MessageState, QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::filter::Filter;
use super::{Group, beyond, groups};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Progress, text, time};
use crate::url::BackendUrl;

/// How many messages are looked at to see whether a queue holds dead letters at all.
const LOOKED_AT: u32 = 1_000;
/// How many errors a dry run shows.
const TOP: usize = 10;

/// What is to be done, and with which.
pub(super) struct Round {
    pub(super) queue: QueueName,
    pub(super) filter: Filter,
    pub(super) max: Option<u64>,
    /// Those that are delayed and ready within this time are waited for.
    pub(super) delayed: Option<Duration>,
    pub(super) deed: Deed,
}

/// What is done with the dead letters that are meant.
pub(super) enum Deed {
    Replay {
        max_replays: u32,
        /// `None`: where the messages came from.
        to: Option<QueueName>,
        /// `None`: where the dead letters are.
        to_url: Option<BackendUrl>,
    },
    Discard,
}

/// What was done, or would be.
#[derive(Debug, Default)]
struct Tally {
    report: PassReport,
    /// Only a dry run looks beyond `--max`.
    beyond_max: u64,
}

impl Tally {
    /// Whether there was no dead letter at all.
    fn is_empty(&self) -> bool {
        let Self { report, beyond_max } = self;
        let looked_at = report.done + report.left + report.exhausted + report.unreadable;
        let others = report.failed_again + report.refused + report.unacknowledged + report.unseen;
        looked_at + others + beyond_max == 0
    }
}

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    discarded: Option<u64>,
    left: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_by_max_replays: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    left_by_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_again: Option<u64>,
    unreadable: u64,
    refused: u64,
    unacknowledged: u64,
    in_flight_or_delayed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<Group<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    further: Option<u64>,
}

/// What is said of messages that are no dead letters, to the eye at least.
pub(super) fn unreadable(number: u64, queue: &QueueName) -> String {
    let messages = text::count(number, "message");
    format!(
        "what cannot be read as a dead letter stays ({messages}): `pillarbox dlq stats {queue}` names it, \
         `pillarbox peek {queue}` shows it, and nothing deletes it but `pillarbox purge {queue}`, with all others"
    )
}

impl Round {
    /// Says what would be done, and does nothing.
    pub(super) async fn rehearse(
        &self,
        context: &mut Context,
        backend: &Mailboxes,
        dlq: &Dlq,
    ) -> Result<()> {
        let now = Timestamp::now();
        let (tally, summary) = self.plan(backend, dlq).await?;
        if context.out.is_json() {
            let mut line = self.line(&tally, true);
            line.errors = Some(Group::all(&summary, TOP, now));
            line.further = Some(beyond(&summary, TOP));
            line.left_by_max = Some(tally.beyond_max);
            context.out.json(&line)?;
        } else {
            if tally.report.done > 0 {
                context.out.table(&groups(&summary, TOP, now))?;
            }
            context.out.line(&self.sentence(&tally, true))?;
        }
        self.remark(context, backend, &tally).await
    }

    /// How many would be replayed or discarded, as far as it can be known.
    pub(super) async fn expected(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<u64> {
        if backend.capabilities().peek {
            return Ok(self.plan(backend, dlq).await?.0.report.done);
        }
        let counts = backend.queue(&self.queue, QueueOptions::new())?.counts().await?;
        let there = if self.delayed.is_some() { counts.total() } else { counts.ready };
        Ok(self.max.map_or(there, |max| there.min(max)))
    }

    /// What to ask before so many are gone from where they are.
    pub(super) fn question(&self, number: u64, context: &Context) -> String {
        let (queue, url) = (&self.queue, context.url());
        match &self.deed {
            Deed::Replay { to, to_url, .. } => {
                let messages = text::count(number, "message");
                let to = destination(number, to.as_ref(), to_url.as_ref());
                format!("Replay {messages} of '{queue}' at {url} to {to}?")
            }
            Deed::Discard => {
                let letters = text::count(number, "dead letter");
                format!("Delete {letters} of '{queue}' at {url}?")
            }
        }
    }

    /// Whether it is there to be replayed or discarded, now or when it was waited for.
    fn is_seen(&self, state: MessageState, now: Timestamp) -> bool {
        match state {
            MessageState::Ready => true,
            MessageState::Delayed { until } => {
                self.delayed.is_some_and(|within| until.since(now) <= within)
            }
            MessageState::InFlight { .. } => false,
        }
    }

    async fn plan(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<(Tally, Summary)> {
        let (mut report, mut beyond_max) = (PassReport::default(), 0);
        let mut summary = Summary::default();
        let counts = backend.queue(&self.queue, QueueOptions::new())?.counts().await?;
        let now = counts.counted_at.unwrap_or_else(Timestamp::now);
        dlq.peek(|found| {
            match &found.letter {
                _ if !self.is_seen(found.state, now) => report.unseen += 1,
                Err(_) => report.unreadable += 1,
                Ok(letter) if !self.filter.means(found.id, letter) => report.left += 1,
                Ok(letter) if self.deed.is_exhausted(letter.replay_count) => report.exhausted += 1,
                Ok(letter) if self.deed.is_refused(letter) => report.refused += 1,
                Ok(_) if self.max.is_some_and(|max| report.done >= max) => beyond_max += 1,
                Ok(_) => {
                    report.done += 1;
                    summary.add(&found, |_| true);
                }
            }
            ControlFlow::Continue(())
        })
        .await?;
        summary.sort();
        Ok((Tally { report, beyond_max }, summary))
    }

    /// Refuses a queue in which nothing is a dead letter: to receive from it would count as deliveries of what
    /// is meant for others.
    async fn check(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<()> {
        if !backend.capabilities().peek {
            return Ok(());
        }
        let (mut messages, mut letters) = (0, 0);
        dlq.peek(|found| {
            messages += 1;
            letters += u32::from(found.letter.is_ok());
            match letters > 0 || messages == LOOKED_AT {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        })
        .await?;
        if letters > 0 || messages == 0 {
            return Ok(());
        }
        let queue = &self.queue;
        let known = backend.queues().await?;
        let likely = backend.dead_letter_name(queue).ok().filter(|name| known.contains(name));
        let hint = likely.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
        Err(Failure::Other(format!("'{queue}' holds no dead letters but other messages{hint}")))
    }

    /// Does it, until it is done or the user wants to end.
    pub(super) async fn perform(
        &self,
        context: &mut Context,
        backend: &Mailboxes,
        dlq: &Dlq,
        pass: Pass,
        interrupt: &Interrupt,
    ) -> Result<()> {
        self.check(backend, dlq).await?;
        let ready = backend.queue(&self.queue, QueueOptions::new())?.counts().await?.ready;
        let total = self.max.map_or(ready, |max| ready.min(max));
        let progress = context.out.progress_alone(total, self.deed.unit());
        let mut pass = self.filter.apply(pass).progress(self.follow(progress));
        if let Some(max) = self.max {
            pass = pass.max(max);
        }
        if let Some(within) = self.delayed {
            pass = pass.delayed(within);
        }
        if let Deed::Replay { max_replays, .. } = &self.deed {
            pass = pass.max_replays(*max_replays);
        }
        let (report, error) = match pass.run_until(interrupt.told()).await {
            Ok(report) => (report, None),
            Err(PassFailed { report, error, .. }) => (report, Some(error)),
        };
        self.complain(context, &report);
        let tally = Tally { report, beyond_max: 0 };
        if context.out.is_json() {
            context.out.json(&self.line(&tally, false))?;
        } else {
            context.out.line(&self.sentence(&tally, false))?;
        }
        self.remark(context, backend, &tally).await?;
        let failure = match error {
            // It was well used: something was done.
            Some(error) => Failure::Other(error.to_string()),
            None if interrupt.is_told() => Failure::Interrupted,
            None if tally.report.refused + tally.report.unacknowledged > 0 => {
                return Err(Failure::Reported);
            }
            None => return Ok(()),
        };
        context.out.note(match self.deed {
            Deed::Replay { .. } => {
                "no dead letter was deleted before its message was sent; run the same command again to go on"
            }
            Deed::Discard => "the others are left; run the same command again to go on",
        });
        Err(failure)
    }

    /// Moves a bar by what a pass tells.
    fn follow(&self, progress: Progress) -> impl FnMut(&PassReport) + Send + 'static {
        let max = self.max.unwrap_or(u64::MAX);
        let is_counted = self.max.is_some();
        let past = self.deed.past();
        let (mut before, mut awaited) = (0, 0);
        move |report| {
            // Only the pass knows how many it waits for.
            progress.expect_more(report.awaited.saturating_sub(awaited), max);
            awaited = report.awaited;
            // What has failed again is not among those that were there.
            let done = report.done;
            let left = report.left + report.exhausted + report.unreadable + report.refused;
            let seen = if is_counted { done } else { done + left + report.unacknowledged };
            progress.add(seen - before);
            progress.say(match report.waiting {
                Some(left) => format!("{done} {past}, waiting up to {}", time::show(left)),
                None => format!("{done} {past}"),
            });
            before = seen;
        }
    }

    fn line(&self, tally: &Tally, dry_run: bool) -> Line<'_> {
        let is_replay = matches!(self.deed, Deed::Replay { .. });
        let report = &tally.report;
        Line {
            queue: &self.queue,
            dry_run,
            replayed: is_replay.then_some(report.done),
            discarded: (!is_replay).then_some(report.done),
            left: report.left,
            left_by_max_replays: is_replay.then_some(report.exhausted),
            left_by_max: None,
            failed_again: (is_replay && !dry_run).then_some(report.failed_again),
            unreadable: report.unreadable,
            refused: report.refused,
            unacknowledged: report.unacknowledged,
            in_flight_or_delayed: report.unseen,
            errors: None,
            further: None,
        }
    }

    /// What was done, in words.
    fn sentence(&self, tally: &Tally, dry_run: bool) -> String {
        let would = if dry_run { "would be " } else { "" };
        let report = &tally.report;
        let mut sentence = match &self.deed {
            Deed::Replay { to, to_url, .. } => {
                let to = destination(report.done, to.as_ref(), to_url.as_ref());
                format!("{} {would}replayed to {to}", text::count(report.done, "message"))
            }
            Deed::Discard => {
                format!("{} {would}discarded", text::count(report.done, "dead letter"))
            }
        };
        let often = match &self.deed {
            Deed::Replay { max_replays, .. } => text::count((*max_replays).into(), "time"),
            Deed::Discard => String::new(),
        };
        let max = self.max.unwrap_or_default();
        let parts = [
            (report.left, "left (not matching)".to_owned()),
            (report.exhausted, format!("left (replayed {often} already)")),
            (report.failed_again, "failed again meanwhile".to_owned()),
            (tally.beyond_max, format!("left (--max {max})")),
            (report.unreadable, "left (cannot be read)".to_owned()),
            (report.refused, "left (refused)".to_owned()),
            (report.unseen, "not looked at (in flight or delayed)".to_owned()),
        ];
        let mut parts: Vec<_> = parts
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, what)| format!("{number} {what}"))
            .collect();
        if !dry_run && self.max.is_some_and(|max| report.done >= max) {
            parts.push(format!("ended at --max {max}"));
        }
        if !parts.is_empty() {
            sentence.push_str("; ");
            sentence.push_str(&parts.join(", "));
        }
        sentence
    }

    /// Says what did not go well.
    fn complain(&self, context: &Context, report: &PassReport) {
        for error in &report.reasons {
            context.out.error(&format!("left where it was: {error}"));
        }
        if report.refused > report.reasons.len() as u64 {
            let refused = text::count(report.refused, "message");
            context.out.error(&format!("and others: {refused} were left where they were"));
        }
        if report.unacknowledged > 0 {
            let messages = text::count(report.unacknowledged, "message");
            context.out.error(&format!(
                "{messages} replayed whose dead letters are still there, for their leases ended before \
                 they could be acknowledged: the next replay sends them again, under the same ids"
            ));
        }
    }

    /// Says what is good to know.
    async fn remark(&self, context: &Context, backend: &Mailboxes, tally: &Tally) -> Result<()> {
        let number = tally.report.unreadable;
        if number > 0 {
            context.out.note(&unreadable(number, &self.queue));
        }
        if tally.is_empty() {
            context.note_if_unknown(backend, &self.queue).await?;
        }
        Ok(())
    }
}

/// Where so many messages go.
fn destination(number: u64, queue: Option<&QueueName>, url: Option<&BackendUrl>) -> String {
    let mut to = match queue {
        Some(queue) => format!("'{queue}'"),
        None if number == 1 => "its queue".to_owned(),
        None => "their queues".to_owned(),
    };
    if let Some(url) = url {
        to.push_str(&format!(" at {url}"));
    }
    to
}

impl Deed {
    fn is_exhausted(&self, replays: u32) -> bool {
        matches!(self, Self::Replay { max_replays, .. } if replays >= *max_replays)
    }

    /// Whether a message is left because it came from another backend, and nothing is said of where to.
    fn is_refused(&self, letter: &DeadLetter) -> bool {
        let is_unsaid = matches!(self, Self::Replay { to: None, to_url: None, .. });
        is_unsaid && letter.source_backend.is_some()
    }

    const fn unit(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "messages",
            Self::Discard => "dead letters",
        }
    }

    const fn past(&self) -> &'static str {
        match self {
            Self::Replay { .. } => "replayed",
            Self::Discard => "discarded",
        }
    }
}
