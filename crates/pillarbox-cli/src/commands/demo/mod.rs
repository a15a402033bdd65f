//! `pillarbox demo`: tasks, workers, failures, retries and dead letters.
//!
//! The tasks run on the worker runtime: the handler is in `worker`; `tally` counts the events of the runtime, and `view`
//! shows them.

mod tally;
mod view;
mod worker;

use std::time::{Duration, Instant};

use pillarbox::dead_letters::DlqPolicy;
use pillarbox::stats::StatsSnapshot;
use pillarbox::{Backoff, Event, Events, Runnable, Worker};
use pillarbox::{Mailbox, Mailboxes, QueueOptions, SendOptions};
use rand::Rng;
use serde::Serialize;
use tokio::sync::watch;

use self::tally::Tally;
use self::view::View;
use self::worker::{Simulation, Task};
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{text, time};
use crate::url::BackendUrl;

const TASKS: &str = "demo";
/// The default dead-letter queue of [`TASKS`].
const DEAD: &str = "demo-dlq";

#[derive(Serialize)]
struct DemoJson {
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
        None => temporary_file()?,
    };
    with_backend(interrupt.or(pillarbox::open(url.reveal())).await??, async |backend| {
        let start = Instant::now();
        let (tally, stats) = run_demo(context, backend, &url, &args, &interrupt).await?;
        print_summary(context, &url, &args, &tally, &stats, start.elapsed())?;
        if interrupt.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

fn temporary_file() -> Result<BackendUrl> {
    let name = format!("pillarbox-demo-{:08x}.db", rand::rng().next_u32());
    let path = std::env::temp_dir().join(name);
    match path.to_str() {
        Some(path) => Ok(format!("sqlite:{path}").parse().unwrap_or_default()),
        None => Err(Failure::Usage(
            "the path of the temporary directory is not valid UTF-8; use --url".to_owned(),
        )),
    }
}

async fn run_demo(
    context: &mut Context,
    backend: &Mailboxes,
    url: &BackendUrl,
    args: &args::Demo,
    interrupt: &Interrupt,
) -> Result<(Tally, StatsSnapshot)> {
    let tasks: Mailbox<Task> = backend.mailbox(TASKS)?;
    for name in [TASKS, DEAD] {
        let total = backend.queue(name, QueueOptions::new())?.counts().await?.total();
        if total > 0 {
            let messages = text::count(total, "message");
            return Err(Failure::Usage(format!(
                "'{name}' at {url} already has {messages}: purge it, or use another backend"
            )));
        }
    }
    let todo: Vec<_> = (1..=args.tasks as u64).map(Task::new).collect();
    let sent = tasks.send_batch_with(todo.iter().map(|task| (task, SendOptions::new()))).await?;
    let tally = Tally::new(sent.all()?);

    let simulation = Simulation { seed: args.seed, fast: args.fast };
    let step = simulation.scaled(Duration::from_millis(400));
    let is_depth_exact = tasks.capabilities().exact_counts;
    let worker = Worker::new(tasks)
        .context(simulation)
        .handler(worker::work)
        .workers(args.workers)
        .retry(Backoff::linear(step, Duration::MAX))
        .max_deliveries(args.max_deliveries)
        .dead_letters(DlqPolicy::new())
        .depth_every(Duration::from_secs(1));
    let feed = Feed {
        events: worker.control().events(),
        stats: worker.control().stats(),
        tally,
        is_depth_exact,
    };
    let (stop, mut stopped) = watch::channel(false);
    // In a separate task, so that a blocked terminal does not delay the extension of leases.
    let work = tokio::spawn(worker.run_until(async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    }));
    let view = View::new(context, args.tasks, args.workers);
    let shown = follow(context, url, view, feed, &stop, interrupt).await;
    stop.send_replace(true);
    let ended = work.await;
    let tally = shown?;
    match ended {
        Ok(stats) => Ok((tally, stats?)),
        Err(error) => Err(Failure::Other(format!("the workers failed: {error}"))),
    }
}

/// Events and statistics of the runtime.
struct Feed {
    events: Events,
    stats: watch::Receiver<StatsSnapshot>,
    tally: Tally,
    is_depth_exact: bool,
}

/// Shows events until the workers have stopped, and stops them when all tasks are finished or the user interrupts.
async fn follow(
    context: &mut Context,
    url: &BackendUrl,
    mut view: View,
    feed: Feed,
    stop: &watch::Sender<bool>,
    interrupt: &Interrupt,
) -> Result<Tally> {
    let Feed { mut events, mut stats, mut tally, is_depth_exact } = feed;
    let mut is_failing = false;
    loop {
        tokio::select! {
            event = events.next() => {
                let Some(event) = event else { return Ok(tally) };
                if let Some(update) = tally.add(&event) {
                    view.show(context, &update, &tally)?;
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
            // Another consumer may have taken some: the demo also ends when the queue is empty.
            Ok(()) = stats.changed(), if is_depth_exact => {
                if stats.borrow_and_update().mailboxes.iter().all(|tasks| tasks.depth == Some(0)) {
                    stop.send_replace(true);
                }
            }
            () = interrupt.interrupted(), if !*stop.borrow() => {
                view.set_message("finishing running tasks; interrupt again to end at once");
                stop.send_replace(true);
            }
        }
    }
}

fn print_summary(
    context: &mut Context,
    url: &BackendUrl,
    args: &args::Demo,
    tally: &Tally,
    stats: &StatsSnapshot,
    elapsed: Duration,
) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&DemoJson {
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
        ("processed", format!("{} attempts of {} tasks", stats.processed, args.tasks)),
        ("succeeded", tally.succeeded.to_string()),
        ("retried", tally.retried.to_string()),
        ("dead-lettered", tally.dead_lettered.to_string()),
        ("elapsed", time::measured(elapsed)),
        ("backend", url.to_string()),
    ];
    let style = context.out.style();
    // The first newline ends the line of the progress bar.
    context.out.text(if context.out.is_terminal() { "\n\n" } else { "\n" })?;
    for (name, value) in rows {
        let name = style.heading(format!("{name:<13}"));
        context.out.parts(&[name, format!("  {value}").into()])?;
    }
    let program = std::env::args().next().unwrap_or_else(|| "pillarbox".to_owned());
    let hints = [
        ("\nInspect it:", &["stats", "dlq stats demo-dlq", "dlq list demo-dlq", "doctor"][..]),
        ("Replay the dead letters:", &["dlq replay demo-dlq --yes"]),
    ];
    for (title, commands) in hints {
        context.out.text(title)?;
        for command in commands {
            context.out.line(&format!("  {program} --url {url} {command}"))?;
        }
    }
    Ok(())
}
