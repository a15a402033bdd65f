//! `pillarbox stats`

use std::time::Duration;

use pillarbox::{Counts, Mailboxes, QueueName, QueueOptions};
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
            let counted = count(backend, &args.queues).await?;
            for (queue, counts) in &counted {
                if counts.total() == 0 && args.queues.contains(queue) {
                    context.note_if_unknown(backend, queue).await?;
                }
            }
            return show(context, &counted);
        };
        let interrupt = Interrupt::listen()?;
        let mut ticks = tokio::time::interval(every.max(Duration::from_millis(50)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        while interrupt.or(ticks.tick()).await.is_ok() {
            let counted = count(backend, &args.queues).await?;
            if context.out.is_terminal() && !context.out.is_json() {
                // To the top left, and nothing below.
                context.out.bytes(b"\x1b[H\x1b[2J\x1b[3J")?;
                context.out.line(&format!("{}, every {}\n", context.url(), time::show(every)))?;
            }
            show(context, &counted)?;
            context.out.flush()?;
        }
        Ok(())
    })
    .await
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

/// Counts the messages of the named queues, or of all there are.
pub(crate) async fn count(
    backend: &Mailboxes,
    names: &[QueueName],
) -> Result<Vec<(QueueName, Counts)>> {
    let names = if names.is_empty() { backend.queues().await? } else { names.to_vec() };
    let mut counted = Vec::with_capacity(names.len());
    let mut asked = JoinSet::new();
    let mut waiting = names.into_iter();
    loop {
        while asked.len() < AT_A_TIME
            && let Some(name) = waiting.next()
        {
            let queue = backend.queue(&name, QueueOptions::new())?;
            asked.spawn(async move { queue.counts().await.map(|counts| (name, counts)) });
        }
        match asked.join_next().await {
            Some(Ok(answer)) => counted.push(answer?),
            // It neither panics nor is it cancelled.
            Some(Err(_)) => {}
            None => break,
        }
    }
    counted.sort_by(|(one, _), (other, _)| one.cmp(other));
    counted.dedup_by(|(one, _), (other, _)| one == other);
    Ok(counted)
}
