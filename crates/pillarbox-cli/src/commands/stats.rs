//! `pillarbox stats`

use std::time::Duration;

use pillarbox::{Counts, Error, Mailboxes, QueueName, QueueOptions};
use serde::Serialize;
use tokio::task::JoinSet;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Table, time};

/// Number of queues that are counted concurrently.
const CONCURRENCY: usize = 32;

#[derive(Serialize)]
struct StatsJson<'a> {
    queue: &'a str,
    ready: u64,
    in_flight: u64,
    delayed: u64,
    oldest_age_seconds: Option<f64>,
}

pub(crate) async fn run(context: &mut Context, args: args::Stats) -> Result<()> {
    if let (Some(_), Some(name)) = (args.watch, args.queues.first())
        && time::parse(name.as_str()).is_ok()
    {
        return Err(Failure::Usage(format!("write it as --watch={name}")));
    }
    with_backend(context.open_existing().await?, async |backend| {
        let Some(every) = args.watch else {
            let Counted { counts, failed } = count(backend, &args.queues).await?;
            for (queue, counts) in &counts {
                if counts.total() == 0 && args.queues.contains(queue) {
                    context.note_if_unknown(backend, queue).await?;
                }
            }
            if !counts.is_empty() || failed.is_empty() {
                show(context, &counts)?;
                context.out.flush()?;
            }
            print_errors(context, &failed);
            return if failed.is_empty() { Ok(()) } else { Err(Failure::Reported) };
        };
        let interrupt = Interrupt::listen()?;
        let mut ticks = tokio::time::interval(every.max(Duration::from_millis(50)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            interrupt.or(ticks.tick()).await?;
            let counted = interrupt.or(count(backend, &args.queues)).await??;
            let Counted { counts, failed } = counted.any()?;
            if context.out.is_terminal() && !context.out.is_json() {
                // Clears the screen.
                context.out.bytes(b"\x1b[H\x1b[2J\x1b[3J")?;
                context.out.line(&format!("{}, every {}", context.url(), time::show(every)))?;
                context.out.line("")?;
            }
            show(context, &counts)?;
            context.out.flush()?;
            print_errors(context, &failed);
        }
    })
    .await
}

/// Prints the errors of queues that could not be counted.
fn print_errors(context: &Context, failed: &[(QueueName, Error)]) {
    const MAX_LISTED: usize = 10;
    for (_, error) in failed.iter().take(MAX_LISTED) {
        context.out.error(&error.to_string());
    }
    if failed.len() > MAX_LISTED {
        let more = failed.len() - MAX_LISTED;
        context.out.error(&format!("and {more} more queues could not be counted"));
    }
}

fn show(context: &mut Context, counted: &[(QueueName, Counts)]) -> Result<()> {
    if context.out.is_json() {
        for (queue, counts) in counted {
            context.out.json(&StatsJson {
                queue: queue.as_str(),
                ready: counts.ready,
                in_flight: counts.in_flight,
                delayed: counts.delayed,
                oldest_age_seconds: counts.oldest_age.map(|age| age.as_millis() as f64 / 1e3),
            })?;
        }
        return Ok(());
    }
    if counted.is_empty() {
        context.out.note(&format!("{} has no queues", context.url()));
        return Ok(());
    }
    let mut table = Table::new(&["QUEUE", ">READY", ">IN FLIGHT", ">DELAYED", ">OLDEST"]);
    for (queue, counts) in counted {
        table.row([
            queue.to_string(),
            counts.ready.to_string(),
            counts.in_flight.to_string(),
            counts.delayed.to_string(),
            counts.oldest_age.map_or_else(|| "-".to_owned(), time::show),
        ]);
    }
    context.out.table(&table)
}

/// Counts of queues, and errors of those that could not be counted.
pub(crate) struct Counted {
    pub(crate) counts: Vec<(QueueName, Counts)>,
    pub(crate) failed: Vec<(QueueName, Error)>,
}

impl Counted {
    /// Returns the first error if no queue could be counted: then the backend may be the cause.
    pub(crate) fn any(mut self) -> Result<Self> {
        if self.counts.is_empty() && !self.failed.is_empty() {
            return Err(self.failed.swap_remove(0).1.into());
        }
        Ok(self)
    }
}

/// Counts the messages of the named queues, or of all queues. An error of one queue does not affect the others.
pub(crate) async fn count(backend: &Mailboxes, names: &[QueueName]) -> Result<Counted> {
    let names = if names.is_empty() { backend.queues().await? } else { names.to_vec() };
    let (mut counts, mut failed) = (Vec::with_capacity(names.len()), Vec::new());
    let mut asked = JoinSet::new();
    let mut waiting = names.into_iter();
    loop {
        while asked.len() < CONCURRENCY
            && let Some(name) = waiting.next()
        {
            let queue = backend.queue(&name, QueueOptions::new())?;
            asked.spawn(async move { (name, queue.counts().await) });
        }
        match asked.join_next().await {
            Some(Ok((name, Ok(counted)))) => counts.push((name, counted)),
            Some(Ok((name, Err(error)))) => failed.push((name, error)),
            // The task neither panics nor is cancelled.
            Some(Err(_)) => {}
            None => break,
        }
    }
    counts.sort_by(|(one, _), (other, _)| one.cmp(other));
    counts.dedup_by(|(one, _), (other, _)| one == other);
    failed.sort_by(|(one, _), (other, _)| one.cmp(other));
    failed.dedup_by(|(one, _), (other, _)| one == other);
    Ok(Counted { counts, failed })
}
