//! `pillarbox stats`

use std::time::Duration;

use pillarbox::{Counts, Error, Mailboxes, QueueName, QueueOptions};
use serde::Serialize;
use tokio::task::JoinSet;

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Table, time};

/// How many queues are counted at a time.
const AT_A_TIME: usize = 32;

#[derive(Serialize)]
struct Line<'a> {
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
    using(context.open_existing().await?, async |backend| {
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
            complain(context, &failed);
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
                // To the top left, and nothing below.
                context.out.bytes(b"\x1b[H\x1b[2J\x1b[3J")?;
                context.out.line(&format!("{}, every {}", context.url(), time::show(every)))?;
                context.out.line("")?;
            }
            show(context, &counts)?;
            context.out.flush()?;
            complain(context, &failed);
        }
    })
    .await
}

/// Says which queues could not be counted, and why.
fn complain(context: &Context, failed: &[(QueueName, Error)]) {
    const ENOUGH: usize = 10;
    for (_, error) in failed.iter().take(ENOUGH) {
        context.out.error(&error.to_string());
    }
    if failed.len() > ENOUGH {
        let more = failed.len() - ENOUGH;
        context.out.error(&format!("and {more} more queues could not be counted"));
    }
}

fn show(context: &mut Context, counted: &[(QueueName, Counts)]) -> Result<()> {
    if context.out.is_json() {
        for (queue, counts) in counted {
            context.out.json(&Line {
                queue: queue.as_str(),
                ready: counts.ready,
                in_flight: counts.in_flight,
                delayed: counts.delayed,
                oldest_age_seconds: counts.oldest_age.map(seconds),
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

/// Seconds, to the millisecond.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1e3
}

/// Queues that were counted, and those that could not be.
pub(crate) struct Counted {
    pub(crate) counts: Vec<(QueueName, Counts)>,
    pub(crate) failed: Vec<(QueueName, Error)>,
}

impl Counted {
    /// The same, or what went wrong if nothing could be counted: it may be the backend then, and not a queue.
    pub(crate) fn any(mut self) -> Result<Self> {
        if self.counts.is_empty() && !self.failed.is_empty() {
            return Err(self.failed.swap_remove(0).1.into());
        }
        Ok(self)
    }
}

/// Counts the messages of the named queues, or of all there are. One that cannot be counted does not keep the others from it.
pub(crate) async fn count(backend: &Mailboxes, names: &[QueueName]) -> Result<Counted> {
    let names = if names.is_empty() { backend.queues().await? } else { names.to_vec() };
    let (mut counts, mut failed) = (Vec::with_capacity(names.len()), Vec::new());
    let mut asked = JoinSet::new();
    let mut waiting = names.into_iter();
    loop {
        while asked.len() < AT_A_TIME
            && let Some(name) = waiting.next()
        {
            let queue = backend.queue(&name, QueueOptions::new())?;
            asked.spawn(async move { (name, queue.counts().await) });
        }
        match asked.join_next().await {
            Some(Ok((name, Ok(counted)))) => counts.push((name, counted)),
            Some(Ok((name, Err(error)))) => failed.push((name, error)),
            // It neither panics nor is it cancelled.
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
