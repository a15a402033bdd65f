//! `pillarbox demo`: tasks, workers, failures, retries and dead letters.
//!
//! The workers are a plain loop over a mailbox, in `worker`; what happens to each task is told here
//! and shown by `view`.

mod tally;
mod view;
mod worker;

use std::time::{Duration, Instant};

use pillarbox::{Mailbox, Mailboxes, SendOptions};
use rand::Rng;
use serde::Serialize;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use self::tally::{Event, Tally};
use self::view::View;
use self::worker::{Task, Worker};
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{text, time};
use crate::url::BackendUrl;

const TASKS: &str = "demo";
const DEAD: &str = "demo-dead";

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
    using(pillarbox::open(url.reveal()).await?, async |backend| {
        let start = Instant::now();
        let tally = perform(context, backend, &url, &args, &interrupt).await?;
        summarise(context, &url, &args, &tally, start.elapsed())?;
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
) -> Result<Tally> {
    let tasks: Mailbox<Task> = backend.mailbox(TASKS)?;
    let dead: Mailbox<Task> = backend.mailbox(DEAD)?;
    for mailbox in [&tasks, &dead] {
        let held = mailbox.approximate_count().await?;
        if held > 0 {
            let (name, held) = (mailbox.name(), text::count(held, "message"));
            return Err(Failure::Usage(format!(
                "'{name}' at {url} holds {held} already: purge it, or name another backend"
            )));
        }
    }
    let todo: Vec<_> = (1..=args.tasks as u64).map(Task::new).collect();
    let sent = tasks.send_batch_with(todo.iter().map(|task| (task, SendOptions::new()))).await?;
    sent.all()?;

    // Workers tell what they do; bounded, so that they cannot run ahead of what is shown.
    let (tell, mut told) = mpsc::channel::<Event>(64);
    let (stop, stopped) = watch::channel(false);
    let mut workers = JoinSet::new();
    for number in 1..=args.workers {
        let worker = Worker {
            number,
            tasks: tasks.clone(),
            dead: dead.clone(),
            tell: tell.clone(),
            stopped: stopped.clone(),
            seed: args.seed,
            max_retries: args.max_retries,
            fast: args.fast,
        };
        workers.spawn(worker.run());
    }
    drop(tell);

    let mut view = View::new(context, args.tasks, args.workers);
    let mut tally = Tally::default();
    loop {
        tokio::select! {
            event = told.recv() => {
                let Some(event) = event else { break };
                tally.add(&event);
                view.show(context, &event, &tally)?;
                if tally.finished() == args.tasks as u64 {
                    stop.send_replace(true);
                }
            }
            () = interrupt.told(), if !*stop.borrow() => {
                view.say("finishing what is running; once more ends at once");
                stop.send_replace(true);
            }
        }
    }
    for ended in workers.join_all().await {
        ended?;
    }
    Ok(tally)
}

fn summarise(
    context: &mut Context,
    url: &BackendUrl,
    args: &args::Demo,
    tally: &Tally,
    elapsed: Duration,
) -> Result<()> {
    if context.out.is_json() {
        return context.out.json(&Line {
            url: url.to_string(),
            tasks: args.tasks,
            processed: tally.processed(),
            succeeded: tally.succeeded,
            retried: tally.retried,
            dead_lettered: tally.dead_lettered,
            elapsed_seconds: elapsed.as_millis() as f64 / 1e3,
        });
    }
    let rows = [
        ("processed", format!("{} times, for {} tasks", tally.processed(), args.tasks)),
        ("succeeded", tally.succeeded.to_string()),
        ("retried", tally.retried.to_string()),
        ("dead-lettered", tally.dead_lettered.to_string()),
        ("elapsed", time::measured(elapsed)),
        ("backend", url.to_string()),
    ];
    let style = context.out.style();
    // The first ends the line that the bar is on.
    context.out.line(if context.out.is_terminal() { "\n" } else { "" })?;
    for (name, value) in rows {
        context.out.line(&format!("{}  {value}", style.heading(&format!("{name:<13}"))))?;
    }
    let program = std::env::args().next().unwrap_or_else(|| "pillarbox".to_owned());
    context.out.line("\nLook into it:")?;
    for command in ["stats", "peek demo-dead", "dump demo-dead", "doctor"] {
        context.out.line(&format!("  {program} --url {url} {command}"))?;
    }
    context.out.line("Send the dead letters back to be tried again:")?;
    context.out.line(&format!("  {program} --url {url} move {DEAD} {url} {TASKS}"))
}
