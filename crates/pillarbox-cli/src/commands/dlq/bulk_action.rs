//! The common part of `replay` and `discard`: dry run, confirmation, progress and summary.

use std::ops::ControlFlow;
use std::time::Duration;

use pillarbox::dead_letters::{DeadLetter, Dlq, Pass, PassFailed, PassReport, Summary};
use pillarbox::{Mailboxes, MessageState, QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::filter::Filter;
use super::{ErrorGroupJson, error_table, other_errors};
use crate::commands::confirm;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Progress, text, time};
use crate::url::BackendUrl;

/// Number of messages that are checked to see whether a queue has dead letters at all.
const MAX_CHECKED: u32 = 1_000;
/// Number of errors that a dry run shows.
const TOP: usize = 10;

/// An action on the dead letters of a queue that match a filter.
pub(super) struct BulkAction {
    pub(super) queue: QueueName,
    pub(super) filter: Filter,
    pub(super) max: Option<u64>,
    /// Waits for delayed dead letters that become ready within this time.
    pub(super) delayed: Option<Duration>,
    pub(super) action: Action,
}

/// What to do with the dead letters.
pub(super) enum Action {
    Replay {
        max_replays: u32,
        /// `None`: the source queues.
        to: Option<QueueName>,
        /// `None`: the backend of the dead letters.
        to_url: Option<BackendUrl>,
    },
    Discard,
}

/// Outcome of the action or of a dry run.
#[derive(Debug, Default)]
struct BulkResult {
    report: PassReport,
    /// Matches beyond `--max`, of a dry run.
    beyond_max: u64,
}

impl BulkResult {
    /// Returns whether there was no message at all.
    fn is_empty(&self) -> bool {
        let Self { report, beyond_max } = self;
        let processed = report.done + report.unacknowledged;
        processed + skipped(report) + report.failed_again + report.unseen + beyond_max == 0
    }
}

/// Returns the number of messages that were received and stay, except those that failed again meanwhile.
const fn skipped(report: &PassReport) -> u64 {
    report.skipped + report.exhausted + report.unreadable + report.refused
}

#[derive(Serialize)]
struct BulkActionJson<'a> {
    queue: &'a QueueName,
    dry_run: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    replayed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    discarded: Option<u64>,
    /// Dead letters that do not match the filter.
    skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_by_max_replays: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped_by_max: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_again: Option<u64>,
    unreadable: u64,
    refused: u64,
    unacknowledged: u64,
    in_flight_or_delayed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    errors: Option<Vec<ErrorGroupJson<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    further: Option<u64>,
}

/// Returns a note about messages that are not valid dead letters.
pub(super) fn unreadable_note(number: u64, queue: &QueueName) -> String {
    let messages = text::count(number, "message");
    format!(
        "{messages} skipped: not a valid dead letter. `pillarbox dlq stats {queue}` lists the ids, \
         `pillarbox peek {queue}` shows the messages; only `pillarbox purge {queue}` deletes them, with all others"
    )
}

impl BulkAction {
    /// Shows what would be done.
    pub(super) async fn dry_run(
        &self,
        context: &mut Context,
        backend: &Mailboxes,
        dlq: &Dlq,
    ) -> Result<()> {
        let now = Timestamp::now();
        let (result, summary) = self.plan(backend, dlq).await?;
        if context.out.is_json() {
            let mut line = self.line(&result, true);
            line.errors = Some(ErrorGroupJson::most_frequent(&summary, TOP, now));
            line.further = Some(other_errors(&summary, TOP));
            line.skipped_by_max = Some(result.beyond_max);
            context.out.json(&line)?;
        } else {
            if result.report.done > 0 {
                context.out.table(&error_table(&summary, TOP, now))?;
            }
            context.out.line(&self.summary(&result, true))?;
        }
        self.notes(context, backend, &result).await
    }

    /// Asks for confirmation, unless there is nothing to do.
    pub(super) async fn confirm(
        &self,
        context: &Context,
        backend: &Mailboxes,
        dlq: &Dlq,
    ) -> Result<()> {
        let number = self.expected(backend, dlq).await?;
        if number > 0 && !confirm(&self.question(number, context))? {
            return Err(Failure::Other(format!("nothing was {}", self.action.past())));
        }
        Ok(())
    }

    /// Returns the number of dead letters that would be replayed or discarded, or an estimate.
    async fn expected(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<u64> {
        if backend.capabilities().peek {
            return Ok(self.plan(backend, dlq).await?.0.report.done);
        }
        let counts = backend.queue(&self.queue, QueueOptions::new())?.counts().await?;
        let available = if self.delayed.is_some() { counts.total() } else { counts.ready };
        Ok(self.max.map_or(available, |max| available.min(max)))
    }

    /// Returns the question for the confirmation.
    fn question(&self, number: u64, context: &Context) -> String {
        let (queue, url) = (&self.queue, context.url());
        match &self.action {
            Action::Replay { to, to_url, .. } => {
                let messages = text::count(number, "message");
                let to = destination(number, to.as_ref(), to_url.as_ref());
                format!("Replay {messages} of '{queue}' at {url} to {to}?")
            }
            Action::Discard => {
                let letters = text::count(number, "dead letter");
                format!("Delete {letters} of '{queue}' at {url}?")
            }
        }
    }

    /// Returns whether a message is ready, or delayed and waited for.
    fn is_available(&self, state: MessageState, now: Timestamp) -> bool {
        match state {
            MessageState::Ready => true,
            MessageState::Delayed { until } => {
                self.delayed.is_some_and(|within| until.since(now) <= within)
            }
            MessageState::InFlight { .. } => false,
        }
    }

    async fn plan(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<(BulkResult, Summary)> {
        let (mut report, mut beyond_max) = (PassReport::default(), 0);
        let mut summary = Summary::default();
        let counts = backend.queue(&self.queue, QueueOptions::new())?.counts().await?;
        let now = counts.counted_at.unwrap_or_else(Timestamp::now);
        dlq.peek(|found| {
            match &found.letter {
                _ if !self.is_available(found.state, now) => report.unseen += 1,
                Err(_) => report.unreadable += 1,
                Ok(letter) if !self.filter.matches(found.id, letter) => report.skipped += 1,
                Ok(letter) if self.action.is_exhausted(letter.replay_count) => {
                    report.exhausted += 1;
                }
                Ok(letter) if self.action.is_refused(letter) => report.refused += 1,
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
        Ok((BulkResult { report, beyond_max }, summary))
    }

    /// Rejects a queue without any dead letter: receiving from it would count as deliveries of messages for other
    /// consumers.
    async fn check(&self, backend: &Mailboxes, dlq: &Dlq) -> Result<()> {
        if !backend.capabilities().peek {
            return Ok(());
        }
        let (mut messages, mut letters) = (0, 0);
        dlq.peek(|found| {
            messages += 1;
            letters += u32::from(found.letter.is_ok());
            let is_done = letters > 0 || messages == MAX_CHECKED;
            if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .await?;
        if letters > 0 || messages == 0 {
            return Ok(());
        }
        let queue = &self.queue;
        let known = backend.queues().await?;
        let likely = backend.dead_letter_name(queue).ok().filter(|name| known.contains(name));
        let hint = likely.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default();
        Err(Failure::Other(format!("'{queue}' has messages, but no dead letters{hint}")))
    }

    /// Runs the action until it is done or interrupted.
    pub(super) async fn run(
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
        let progress = context.out.progress_alone(total, self.action.unit());
        let mut pass = self.filter.apply(pass).progress(self.on_progress(progress));
        if let Some(max) = self.max {
            pass = pass.max(max);
        }
        if let Some(within) = self.delayed {
            pass = pass.delayed(within);
        }
        if let Action::Replay { max_replays, .. } = &self.action {
            pass = pass.max_replays(*max_replays);
        }
        let (report, error) = match pass.run_until(interrupt.interrupted()).await {
            Ok(report) => (report, None),
            Err(PassFailed { report, error, .. }) => (report, Some(error)),
        };
        self.print_errors(context, &report);
        let result = BulkResult { report, beyond_max: 0 };
        if context.out.is_json() {
            context.out.json(&self.line(&result, false))?;
        } else {
            context.out.line(&self.summary(&result, false))?;
        }
        self.notes(context, backend, &result).await?;
        let failure = match error {
            // Not a usage error, since something was done.
            Some(error) => Failure::Other(error.to_string()),
            None if interrupt.is_interrupted() => Failure::Interrupted,
            None if result.report.refused + result.report.unacknowledged > 0 => {
                return Err(Failure::Reported);
            }
            None => return Ok(()),
        };
        context.out.note(match self.action {
            Action::Replay { .. } => {
                "no dead letter was deleted before its message was sent; run the same command again to continue"
            }
            Action::Discard => "the others are still there; run the same command again to continue",
        });
        Err(failure)
    }

    /// Returns a callback that updates a progress bar.
    fn on_progress(&self, progress: Progress) -> impl FnMut(&PassReport) + Send + 'static {
        let max = self.max.unwrap_or(u64::MAX);
        let is_counted = self.max.is_some();
        let past = self.action.past();
        let (mut before, mut awaited) = (0, 0);
        move |report| {
            // Only the pass knows the number it waits for.
            progress.expect_more(report.awaited.saturating_sub(awaited), max);
            awaited = report.awaited;
            // Messages that failed again were not counted in the total.
            let done = report.done;
            let all = done + report.unacknowledged + skipped(report);
            let seen = if is_counted { done } else { all };
            progress.add(seen - before);
            progress.set_message(match report.waiting {
                Some(wait) => format!("{done} {past}, waiting up to {}", time::show(wait)),
                None => format!("{done} {past}"),
            });
            before = seen;
        }
    }

    fn line(&self, result: &BulkResult, dry_run: bool) -> BulkActionJson<'_> {
        let is_replay = matches!(self.action, Action::Replay { .. });
        let report = &result.report;
        BulkActionJson {
            queue: &self.queue,
            dry_run,
            replayed: is_replay.then_some(report.done),
            discarded: (!is_replay).then_some(report.done),
            skipped: report.skipped,
            skipped_by_max_replays: is_replay.then_some(report.exhausted),
            skipped_by_max: None,
            failed_again: (is_replay && !dry_run).then_some(report.failed_again),
            unreadable: report.unreadable,
            refused: report.refused,
            unacknowledged: report.unacknowledged,
            in_flight_or_delayed: report.unseen,
            errors: None,
            further: None,
        }
    }

    /// Returns the outcome as text.
    fn summary(&self, result: &BulkResult, dry_run: bool) -> String {
        let would = if dry_run { "would be " } else { "" };
        let report = &result.report;
        let mut summary = match &self.action {
            Action::Replay { to, to_url, .. } => {
                let to = destination(report.done, to.as_ref(), to_url.as_ref());
                format!("{} {would}replayed to {to}", text::count(report.done, "message"))
            }
            Action::Discard => {
                format!("{} {would}discarded", text::count(report.done, "dead letter"))
            }
        };
        let times = match &self.action {
            Action::Replay { max_replays, .. } => text::count((*max_replays).into(), "time"),
            Action::Discard => String::new(),
        };
        let max = self.max.unwrap_or_default();
        let parts = [
            (report.skipped, "skipped (no match)".to_owned()),
            (report.exhausted, format!("skipped (already replayed {times})")),
            (report.failed_again, "failed again meanwhile".to_owned()),
            (result.beyond_max, format!("skipped (--max {max})")),
            (report.unreadable, "skipped (not a valid dead letter)".to_owned()),
            (report.refused, "skipped (rejected)".to_owned()),
            (report.unseen, "skipped (in flight or delayed)".to_owned()),
        ];
        let mut parts: Vec<_> = parts
            .into_iter()
            .filter(|(number, _)| *number > 0)
            .map(|(number, what)| format!("{number} {what}"))
            .collect();
        if !dry_run && self.max.is_some_and(|max| report.done >= max) {
            parts.push(format!("stopped at --max {max}"));
        }
        if !parts.is_empty() {
            summary.push_str("; ");
            summary.push_str(&parts.join(", "));
        }
        summary
    }

    /// Prints the errors of single messages.
    fn print_errors(&self, context: &Context, report: &PassReport) {
        for error in &report.reasons {
            context.out.error(&format!("skipped: {error}"));
        }
        if report.refused > report.reasons.len() as u64 {
            let refused = text::count(report.refused, "message");
            context.out.error(&format!("{refused} in total were rejected"));
        }
        if report.unacknowledged > 0 {
            let messages = text::count(report.unacknowledged, "message");
            context.out.error(&format!(
                "{messages} replayed, but not removed from the dead letters, since their leases expired \
                 first: the next replay sends them again with the same ids"
            ));
        }
    }

    async fn notes(
        &self,
        context: &Context,
        backend: &Mailboxes,
        result: &BulkResult,
    ) -> Result<()> {
        let number = result.report.unreadable;
        if number > 0 {
            context.out.note(&unreadable_note(number, &self.queue));
        }
        if result.is_empty() {
            context.note_if_unknown(backend, &self.queue).await?;
        }
        Ok(())
    }
}

/// Returns the destination as text.
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

impl Action {
    fn is_exhausted(&self, replays: u32) -> bool {
        matches!(self, Self::Replay { max_replays, .. } if replays >= *max_replays)
    }

    /// Returns whether a message is skipped because it came from another backend and no destination is given.
    fn is_refused(&self, letter: &DeadLetter) -> bool {
        let has_no_destination = matches!(self, Self::Replay { to: None, to_url: None, .. });
        has_no_destination && letter.source_backend.is_some()
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
