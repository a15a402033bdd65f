//! `pillarbox dlq stats`

use std::ops::ControlFlow;
use std::time::Duration;

use pillarbox::dead_letters::{Dlq, Summary};
use pillarbox::{Mailboxes, MessageId, QueueName, Timestamp};
use serde::Serialize;

use super::filter::Filter;
use super::{ErrorGroupJson, error_table, error_type, other_errors};
use crate::args;
use crate::commands::with_backend;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Table, text, time};

/// Maximum number of invalid messages whose ids are shown.
const MAX_LISTED: usize = 5;

/// Dead letters of a queue.
struct QueueSummary {
    queue: QueueName,
    summary: Summary,
    /// Ids of the first messages that are not valid dead letters.
    unreadable: Vec<MessageId>,
}

#[derive(Serialize)]
struct DlqStatsJson<'a> {
    queue: &'a QueueName,
    dead_letters: u64,
    others: u64,
    replayed: u64,
    unreadable: u64,
    unreadable_ids: &'a [MessageId],
    body_bytes: u64,
    first_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    errors: Vec<ErrorGroupJson<'a>>,
    /// Dead letters with other errors.
    further: u64,
}

pub(super) async fn run(context: &mut Context, args: args::DlqStats) -> Result<()> {
    let args::DlqStats { queues, top, fail_over, fail_older, filters } = args;
    let alarm = Alarm { over: fail_over, older: fail_older };
    let now = Timestamp::now();
    let filter = Filter::new(filters, now);
    with_backend(context.open_existing().await?, async |backend| {
        let is_overview = queues.is_empty();
        let queues = if is_overview { default_queues(backend).await? } else { queues };
        if queues.is_empty() {
            let url = context.url();
            context.out.note(&format!(
                "{url} has no dead-letter queue with a default name, such as orders-dlq; give the name of a queue"
            ));
        }
        let mut overview =
            Table::new(&["QUEUE", ">DEAD LETTERS", ">OLDEST", ">NEWEST", ">TOP", "ERROR"]);
        let mut problems = Vec::new();
        for (index, queue) in queues.iter().enumerate() {
            let dlq = Dlq::open(backend, queue)?;
            let found = match summarize(&dlq, &filter).await {
                Ok(found) => found,
                // An error of one queue does not hide the others.
                Err(Failure::Pillarbox(error)) if queues.len() > 1 => {
                    problems.push(error.to_string());
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            problems.extend(alarm.problem(&found, &filter, now));
            if context.out.is_json() {
                context.out.json(&found.line(top, now))?;
            } else if is_overview {
                overview.row(found.row(now));
            } else {
                if index > 0 {
                    context.out.line("")?;
                }
                show(context, &found, top, now)?;
            }
            if !is_overview && found.is_empty() {
                context.note_if_unknown(backend, queue).await?;
            }
        }
        if is_overview && !queues.is_empty() && !context.out.is_json() {
            context.out.table(&overview)?;
        }
        context.out.flush()?;
        for problem in &problems {
            context.out.error(problem);
        }
        if problems.is_empty() { Ok(()) } else { Err(Failure::Reported) }
    })
    .await
}

/// Returns the queues with the default name of a dead-letter queue.
async fn default_queues(backend: &Mailboxes) -> Result<Vec<QueueName>> {
    let mut queues = backend.queues().await?;
    queues.retain(|name| backend.is_dead_letter_name(name));
    queues.sort();
    Ok(queues)
}

async fn summarize(dlq: &Dlq, filter: &Filter) -> Result<QueueSummary> {
    let mut summary = Summary::default();
    let mut unreadable = Vec::new();
    dlq.peek(|found| {
        summary.add(&found, |letter| filter.matches(found.id, letter));
        if found.letter.is_err() && unreadable.len() < MAX_LISTED {
            unreadable.push(found.id);
        }
        ControlFlow::Continue(())
    })
    .await?;
    summary.sort();
    Ok(QueueSummary { queue: dlq.name().clone(), summary, unreadable })
}

impl QueueSummary {
    fn is_empty(&self) -> bool {
        self.summary.dead_letters + self.summary.others + self.summary.unreadable == 0
    }

    fn line(&self, top: usize, now: Timestamp) -> DlqStatsJson<'_> {
        let Self { queue, summary, unreadable } = self;
        DlqStatsJson {
            queue,
            dead_letters: summary.dead_letters,
            others: summary.others,
            replayed: summary.replayed,
            unreadable: summary.unreadable,
            unreadable_ids: unreadable,
            body_bytes: summary.body_bytes,
            first_at: summary.first_at,
            last_at: summary.last_at,
            errors: ErrorGroupJson::most_frequent(summary, top, now),
            further: other_errors(summary, top),
        }
    }

    /// Returns the row of the overview.
    fn row(&self, now: Timestamp) -> [String; 6] {
        let none = || "-".to_owned();
        let age = |at: Option<Timestamp>| at.map_or_else(none, |at| time::show(now.since(at)));
        let top = self.summary.errors.first();
        [
            self.queue.to_string(),
            self.summary.dead_letters.to_string(),
            age(self.summary.first_at),
            age(self.summary.last_at),
            top.map_or_else(none, |top| top.count.to_string()),
            top.map_or_else(none, |top| format!("{}: {}", error_type(&top.error_type), top.error)),
        ]
    }

    /// Returns the totals on one line.
    fn totals(&self, now: Timestamp) -> String {
        let summary = &self.summary;
        let mut totals =
            format!("{}: {}", self.queue, text::count(summary.dead_letters, "dead letter"));
        if let (Some(first), Some(last)) = (summary.first_at, summary.last_at) {
            totals.push_str(&format!(
                ", {} replayed before, bodies of {}, oldest {}, newest {}",
                summary.replayed,
                text::bytes(summary.body_bytes),
                time::ago(first, now),
                time::ago(last, now)
            ));
        }
        if summary.others > 0 {
            totals.push_str(&format!("; {} others do not match", summary.others));
        }
        if summary.unreadable > 0 {
            totals.push_str(&format!("; {} not valid", summary.unreadable));
        }
        totals
    }
}

fn show(context: &mut Context, found: &QueueSummary, top: usize, now: Timestamp) -> Result<()> {
    context.out.line(&found.totals(now))?;
    if found.summary.dead_letters > 0 {
        context.out.table(&error_table(&found.summary, top, now))?;
    }
    match other_errors(&found.summary, top) {
        0 => {}
        rest => context.out.note(&format!("{rest} with other errors; --top shows more")),
    }
    if !found.unreadable.is_empty() {
        let named: Vec<_> = found.unreadable.iter().map(ToString::to_string).collect();
        let more = if found.summary.unreadable > MAX_LISTED as u64 { ", ..." } else { "" };
        let (named, queue) = (named.join(", "), &found.queue);
        context.out.note(&format!(
            "not valid dead letters: {named}{more}. `pillarbox peek {queue}` shows them"
        ));
    }
    Ok(())
}

/// Limits above which the command fails.
struct Alarm {
    over: Option<u64>,
    older: Option<Duration>,
}

impl Alarm {
    /// Returns the problem of a queue, if it exceeds a limit. Invalid messages count if there is no filter.
    fn problem(&self, found: &QueueSummary, filter: &Filter, now: Timestamp) -> Option<String> {
        let QueueSummary { queue, summary, .. } = found;
        let unreadable = if filter.is_all() { summary.unreadable } else { 0 };
        let depth = summary.dead_letters + unreadable;
        let oldest = summary.first_at.map(|first| now.since(first));
        let mut problems = Vec::new();
        if let Some(over) = self.over.filter(|over| depth > *over) {
            problems.push(format!("{}, more than {over}", text::count(depth, "dead letter")));
        }
        if let Some((limit, oldest)) = self.older.zip(oldest).filter(|(limit, old)| old >= limit) {
            let (oldest, limit) = (time::show(oldest), time::show(limit));
            problems.push(format!("one that is {oldest} old, older than {limit}"));
        }
        (!problems.is_empty()).then(|| format!("'{queue}' has {}", problems.join(", and ")))
    }
}
