//! `pillarbox demo`: tasks, workers, failures, retries and dead letters.
//!
//! The runtime does the work: what a worker does with a task is in `worker`, what the runtime tells of it
//! is counted by `tally` and shown by `view`.

mod tally;
mod view;
mod worker;

use std::time::{Duration, Instant};

use pillarbox::runtime::{Backoff, DlqPolicy, Event, Events, Runnable, StatsSnapshot, Worker};
use pillarbox::{Mailbox, Mailboxes, QueueOptions, SendOptions};
use rand::Rng;
use serde::Serialize;
use tokio::sync::watch;

use self::tally::Tally;
use self::view::View;
use self::worker::{Luck, Task};
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{text, time};
use crate::url::BackendUrl;

const TASKS: &str = "demo";
/// Where the dead letters of [`TASKS`] go unless somebody says otherwise.
const DEAD: &str = "demo-dlq";

#[derive(Serialize)]
struct Line {
    url: String,
    tasks: usize,
    processed: u64,
    succeeded: u64,
    retried: u64,
    dead_lettered: u64,
    elapsed_seconds: f64,
}

pub(crate) async fn run(context: &mut Context, args: args::Demo) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let url = match context.given_url() {
        Some(url) => url.clone(),
        None => fresh_file()?,
    };
    using(interrupt.or(pillarbox::open(url.reveal())).await??, async |backend| {
        let start = Instant::now();
        let (tally, stats) = perform(context, backend, &url, &args, &interrupt).await?;
        summarise(context, &url, &args, &tally, &stats, start.elapsed())?;
        if interrupt.is_told() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

fn fresh_file() -> Result<BackendUrl> {
    let name = format!("pillarbox-demo-{:08x}.db", rand::rng().next_u32());
    let path = std::env::temp_dir().join(name);
    match path.to_str() {
        Some(path) => Ok(format!("sqlite:{path}").parse().unwrap_or_default()),
        None => Err(Failure::Usage(
            "the directory for temporary files has no plain name; say --url".to_owned(),
        )),
    }
}

async fn perform(
    context: &mut Context,
    backend: &Mailboxes,
    url: &BackendUrl,
    args: &args::Demo,
    interrupt: &Interrupt,
) -> Result<(Tally, StatsSnapshot)> {
    let tasks: Mailbox<Task> = backend.mailbox(TASKS)?;
    for name in [TASKS, DEAD] {
        let held = backend.queue(name, QueueOptions::new())?.counts().await?.total();
        if held > 0 {
            let held = text::count(held, "message");
            return Err(Failure::Usage(format!(
                "'{name}' at {url} holds {held} already: purge it, or name another backend"
            )));
        }
    }
    let todo: Vec<_> = (1..=args.tasks as u64).map(Task::new).collect();
    let sent = tasks.send_batch_with(todo.iter().map(|task| (task, SendOptions::new()))).await?;
    let tally = Tally::new(sent.all()?);

    let luck = Luck { seed: args.seed, fast: args.fast };
    let step = luck.scaled(Duration::from_millis(400));
    let is_depth_exact = tasks.capabilities().exact_counts;
    let worker = Worker::new(tasks)
        .context(luck)
        .handler(worker::work)
        .workers(args.workers)
        // A task takes longer than it takes to fetch one, so none need wait beside a worker.
        .inbox(0)
        .retry(Backoff::linear(step, Duration::MAX))
        .max_deliveries(args.max_deliveries)
        .dead_letters(DlqPolicy::new())
        .depth_every(Duration::from_secs(1));
    let heard = Heard {
        events: worker.control().events(),
        stats: worker.control().stats(),
        tally,
        is_depth_exact,
    };
    let (stop, mut stopped) = watch::channel(false);
    // In a task of its own, so that a terminal that is held up does not hold up the leases.
    let work = tokio::spawn(worker.run_until(async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }));
    let view = View::new(context, args.tasks, args.workers);
    let shown = follow(context, url, view, heard, &stop, interrupt).await;
    stop.send_replace(true);
    let ended = work.await;
    let tally = shown?;
    match ended {
        Ok(stats) => Ok((tally, stats?)),
        Err(error) => Err(Failure::Other(format!("the workers failed: {error}"))),
    }
}

/// What the runtime tells.
struct Heard {
    events: Events,
    stats: watch::Receiver<StatsSnapshot>,
    tally: Tally,
    is_depth_exact: bool,
}

/// Shows what happens until the workers are gone, and stops them when there is nothing left to do, or
/// the user has had enough.
async fn follow(
    context: &mut Context,
    url: &BackendUrl,
    mut view: View,
    heard: Heard,
    stop: &watch::Sender<bool>,
    interrupt: &Interrupt,
) -> Result<Tally> {
    let Heard { mut events, mut stats, mut tally, is_depth_exact } = heard;
    let mut is_failing = false;
    loop {
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return Ok(tally) };
                if let Some(news) = tally.add(&event) {
                    view.show(context, &news, &tally)?;
                }
                match event {
                    Event::ReceiveFailed { error, .. } if !is_failing => {
                        let error = url.hide_secrets_in(&error.to_string());
                        view.note(context, &format!("trying again: {error}"));
                        is_failing = true;
                    }
                    Event::Recovered { .. } => is_failing = false,
                    _ => {}
                }
                if tally.is_complete() {
                    stop.send_replace(true);
                }
            }
            // Somebody else may have taken some: then it is over as well when nothing is left.
            Ok(()) = stats.changed(), if is_depth_exact => {
                if stats.borrow_and_update().mailboxes.iter().all(|tasks| tasks.depth == Some(0)) {
                    stop.send_replace(true);
                }
            }
            () = interrupt.told(), if !*stop.borrow() => {
                view.say("finishing what is running; once more ends at once");
                stop.send_replace(true);
            }
        }
    }
}

fn summarise(
    context: &mut Context,
    url: &BackendUrl,
    args: &args::Demo,
    tally: &Tally,
    stats: &StatsSnapshot,
    elapsed: Duration,
) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&Line {
            url: url.to_string(),
            tasks: args.tasks,
            processed: stats.processed,
            succeeded: tally.succeeded,
            retried: tally.retried,
            dead_lettered: tally.dead_lettered,
            elapsed_seconds: elapsed.as_millis() as f64 / 1e3,
        });
    }
    let rows = [
        ("processed", format!("{} times, for {} tasks", stats.processed, args.tasks)),
        ("succeeded", tally.succeeded.to_string()),
        ("retried", tally.retried.to_string()),
        ("dead-lettered", tally.dead_lettered.to_string()),
        ("elapsed", time::measured(elapsed)),
        ("backend", url.to_string()),
    ];
    let style = context.out.style();
    // The first ends the line that the bar is on.
    context.out.text(if context.out.is_terminal() { "\n\n" } else { "\n" })?;
    for (name, value) in rows {
        let name = style.heading(format!("{name:<13}"));
        context.out.parts(&[name, format!("  {value}").into()])?;
    }
    let program = std::env::args().next().unwrap_or_else(|| "pillarbox".to_owned());
    let hints = [
        ("\nLook into it:", &["stats", "dlq stats demo-dlq", "dlq list demo-dlq", "doctor"][..]),
        ("Send the dead letters back to be tried again:", &["dlq replay demo-dlq --yes"]),
    ];
    for (what, commands) in hints {
        context.out.text(what)?;
        for command in commands {
            context.out.line(&format!("  {program} --url {url} {command}"))?;
        }
    }
    Ok(())
}
