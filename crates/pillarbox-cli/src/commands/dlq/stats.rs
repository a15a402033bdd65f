//! `pillarbox dlq stats`

use std::ops::ControlFlow;
use std::time::Duration;

use pillarbox::runtime::{Dlq, Summary};
use pillarbox::{Mailboxes, MessageId, QueueName, Timestamp};
use serde::Serialize;

use super::filter::Filter;
use super::{Group, beyond, error_type, groups};
use crate::args;
use crate::commands::using;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Table, text, time};

/// How the queues of dead letters end that nobody has named.
const SUFFIX: &str = "-dlq";
/// How many messages that cannot be read are named.
const NAMED: usize = 5;

/// The dead letters of a queue.
struct Seen {
    queue: QueueName,
    summary: Summary,
    /// The first of those that cannot be read.
    unreadable: Vec<MessageId>,
}

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    letters: u64,
    others: u64,
    replayed: u64,
    unreadable: u64,
    unreadable_ids: &'a [MessageId],
    body_bytes: u64,
    first_at: Option<Timestamp>,
    last_at: Option<Timestamp>,
    errors: Vec<Group<'a>>,
    /// How many letters have errors that are not among these.
    further: u64,
}

pub(super) async fn run(context: &mut Context, args: args::DlqStats) -> Result<()> {
    let args::DlqStats { queues, top, fail_over, fail_older, filters } = args;
    let alarm = Alarm { over: fail_over, older: fail_older };
    let now = Timestamp::now();
    let filter = Filter::new(filters, now);
    using(context.open_existing().await?, async |backend| {
        let is_overview = queues.is_empty();
        let queues = if is_overview { found(backend).await? } else { queues };
        if queues.is_empty() {
            let url = context.url();
            context.out.note(&format!("{url} has no queue that ends in {SUFFIX}; name one"));
        }
        let mut overview =
            Table::new(&["QUEUE", ">LETTERS", ">OLDEST", ">NEWEST", ">TOP", "ERROR"]);
        let mut problems = Vec::new();
        for (place, queue) in queues.iter().enumerate() {
            let dlq = Dlq::open(backend, queue)?;
            let seen = match look(&dlq, &filter).await {
                Ok(seen) => seen,
                // One that cannot be looked at does not hide the others.
                Err(Failure::Pillarbox(error)) if queues.len() > 1 => {
                    problems.push(error.to_string());
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            problems.extend(alarm.problem(&seen, &filter, now));
            if context.out.is_json() {
                context.out.json(&seen.line(top, now))?;
            } else if is_overview {
                overview.row(seen.row(now));
            } else {
                if place > 0 {
                    context.out.line("")?;
                }
                show(context, &seen, top, now)?;
            }
            if !is_overview && seen.is_empty() {
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

/// The queues that hold dead letters, by their names.
async fn found(backend: &Mailboxes) -> Result<Vec<QueueName>> {
    let mut queues = backend.queues().await?;
    queues.retain(|name| backend.is_dead_letter_name(name));
    queues.sort();
    Ok(queues)
}

async fn look(dlq: &Dlq, filter: &Filter) -> Result<Seen> {
    let mut summary = Summary::default();
    let mut unreadable = Vec::new();
    dlq.peek(|found| {
        summary.add(&found, |letter| filter.means(found.id, letter));
        if found.letter.is_err() && unreadable.len() < NAMED {
            unreadable.push(found.id);
        }
        ControlFlow::Continue(())
    })
    .await?;
    summary.sort();
    Ok(Seen { queue: dlq.name().clone(), summary, unreadable })
}

impl Seen {
    fn is_empty(&self) -> bool {
        self.summary.letters + self.summary.others + self.summary.unreadable == 0
    }

    fn line(&self, top: usize, now: Timestamp) -> Line<'_> {
        let Self { queue, summary, unreadable } = self;
        Line {
            queue,
            letters: summary.letters,
            others: summary.others,
            replayed: summary.replayed,
            unreadable: summary.unreadable,
            unreadable_ids: unreadable,
            body_bytes: summary.body_bytes,
            first_at: summary.first_at,
            last_at: summary.last_at,
            errors: Group::all(summary, top, now),
            further: beyond(summary, top),
        }
    }

    /// The queue among others.
    fn row(&self, now: Timestamp) -> [String; 6] {
        let none = || "-".to_owned();
        let age = |at: Option<Timestamp>| at.map_or_else(none, |at| time::show(now.since(at)));
        let top = self.summary.errors.first();
        [
            self.queue.to_string(),
            self.summary.letters.to_string(),
            age(self.summary.first_at),
            age(self.summary.last_at),
            top.map_or_else(none, |top| top.count.to_string()),
            top.map_or_else(none, |top| format!("{}: {}", error_type(&top.error_type), top.error)),
        ]
    }

    /// How much there is of what, on one line.
    fn totals(&self, now: Timestamp) -> String {
        let summary = &self.summary;
        let mut totals = format!("{}: {}", self.queue, text::count(summary.letters, "dead letter"));
        if let (Some(first), Some(last)) = (summary.first_at, summary.last_at) {
            totals.push_str(&format!(
                ", {} replayed before, bodies of {}, the first {}, the last {}",
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
            totals.push_str(&format!("; {} cannot be read", summary.unreadable));
        }
        totals
    }
}

fn show(context: &mut Context, seen: &Seen, top: usize, now: Timestamp) -> Result<()> {
    context.out.line(&seen.totals(now))?;
    if seen.summary.letters > 0 {
        context.out.table(&groups(&seen.summary, top, now))?;
    }
    match beyond(&seen.summary, top) {
        0 => {}
        rest => context.out.note(&format!("{rest} with other errors; --top shows more")),
    }
    if !seen.unreadable.is_empty() {
        let named: Vec<_> = seen.unreadable.iter().map(ToString::to_string).collect();
        let more = if seen.summary.unreadable > NAMED as u64 { ", ..." } else { "" };
        context.out.note(&format!(
            "no dead letters that can be read: {}{more}. `pillarbox peek {}` shows them",
            named.join(", "),
            seen.queue
        ));
    }
    Ok(())
}

/// From where on it is an error.
struct Alarm {
    over: Option<u64>,
    older: Option<Duration>,
}

impl Alarm {
    /// What is wrong with a queue, if anything is. What cannot be read counts where no filter is asked for.
    fn problem(&self, seen: &Seen, filter: &Filter, now: Timestamp) -> Option<String> {
        let Seen { queue, summary, .. } = seen;
        let unreadable = if filter.is_all() { summary.unreadable } else { 0 };
        let depth = summary.letters + unreadable;
        let oldest = summary.first_at.map(|first| now.since(first));
        let mut said = Vec::new();
        if let Some(over) = self.over.filter(|over| depth > *over) {
            said.push(format!("{}, more than {over}", text::count(depth, "dead letter")));
        }
        if let Some((limit, oldest)) = self.older.zip(oldest).filter(|(limit, old)| old >= limit) {
            let (oldest, limit) = (time::show(oldest), time::show(limit));
            said.push(format!("one that is {oldest} old, older than {limit}"));
        }
        (!said.is_empty()).then(|| format!("'{queue}' holds {}", said.join(", and ")))
    }
}
