//! The process that runs a group of two loops, as a program would, and does what its messages say.

use std::time::Duration;

use pillarbox_core::{Mailbox, Mailboxes};
use pillarbox_runtime::{Context, Heartbeat, LoopGroup, Outcome, Runnable, Worker};
use pillarbox_testing::process::{Child, told};
use pillarbox_testing::{block_on, on_threads};
use serde::{Deserialize, Serialize};

use super::employee::{end_with_the_parent, say};
use super::place::{Place, open};

/// The queues of the two loops, which are called like them.
pub(crate) const QUEUES: [&str; 2] = ["orders", "reports"];
/// The ignored test that is the other process.
pub(crate) const ROLE: &str = "group::crew";

/// What a handler is to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Duty {
    /// Takes so many milliseconds.
    Work(u64),
    /// Goes on for ever, and can be cancelled.
    Endless,
    /// Holds its thread for ever.
    Block,
    /// Takes so many milliseconds, and beats all the while.
    Beat(u64),
}

/// How the group is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) workers: usize,
    pub(crate) watchdog: Duration,
    pub(crate) drain: Duration,
    /// Where a loop that is stuck does not end the process.
    pub(crate) has_hook: bool,
}

/// Starts a process that runs a group.
pub(crate) fn engage(place: &Place, terms: &Terms) -> Child {
    Child::start(ROLE, &place.url, &task(terms))
}

pub(crate) fn task(terms: &Terms) -> String {
    serde_json::to_string(terms).expect("a task")
}

/// What that process does: runs two loops on two threads until a signal says stop.
pub(crate) fn serve() {
    let Some((url, task)) = told() else { return };
    let terms: Terms = serde_json::from_str(&task).expect("terms");
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let mut group = LoopGroup::new().watchdog(terms.watchdog).drain_for(terms.drain);
        if terms.has_hook {
            group = group.on_stuck(|stuck| say(&format!("stuck {stuck}")));
        }
        let mut events = Vec::new();
        for queue in QUEUES {
            let worker = worker(&backend, queue, &terms);
            events.push((queue, worker.control().events()));
            group = group.add(worker);
        }
        // On threads of their own: a handler that blocks one of Tokio's must not keep it from being told.
        let listeners = events.into_iter().map(|(queue, mut events)| {
            std::thread::spawn(move || {
                block_on(async {
                    while let Some(event) = events.next().await {
                        say(&format!("event {queue} {}", event.name()));
                    }
                });
            })
        });
        let listeners: Vec<_> = listeners.collect();
        let report = match group.run().await {
            Ok(report) => report,
            Err(error) => {
                say(&format!("failed {error}"));
                std::process::exit(1);
            }
        };
        backend.close().await;
        listeners.into_iter().for_each(|listener| listener.join().expect("the listener ends"));
        for one in &report.loops {
            say(&format!("done {} {}", one.name, one.stats.succeeded));
        }
    });
}

fn worker(backend: &Mailboxes, queue: &'static str, terms: &Terms) -> impl Runnable + use<> {
    let mailbox: Mailbox<Duty> = backend.mailbox(queue).expect("a mailbox");
    Worker::new(mailbox).context(queue).workers(terms.workers).without_timeout().handler(carry_out)
}

async fn carry_out(
    duty: Duty,
    heartbeat: Heartbeat,
    Context(queue): Context<&'static str>,
) -> Outcome {
    say(&format!("begun {queue}"));
    match duty {
        Duty::Work(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Duty::Endless => std::future::pending().await,
        Duty::Block => loop {
            std::thread::park();
        },
        Duty::Beat(millis) => {
            for _ in 0..millis / 10 {
                heartbeat.beat();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    Outcome::done()
}
