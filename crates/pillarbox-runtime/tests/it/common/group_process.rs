//! A process that runs a group of two loops, as a program would; its messages are what the handlers do.

use std::time::Duration;

use pillarbox_core::{Mailbox, Mailboxes};
use pillarbox_runtime::group::LoopGroup;
use pillarbox_runtime::handler::{Context, Heartbeat};
use pillarbox_runtime::{Outcome, Runnable, Worker};
use pillarbox_testing::process::{Child, assignment};
use pillarbox_testing::{block_on, on_threads};
use serde::{Deserialize, Serialize};

use super::shared_backend::{SharedBackend, open};
use super::worker_process::{end_with_the_parent, report};

/// The queues of the two loops, which have the same names.
pub(crate) const QUEUES: [&str; 2] = ["orders", "reports"];
/// The ignored test that runs in the other process.
pub(crate) const ROLE: &str = "group::run_group";

/// What a handler does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Job {
    /// Takes this number of milliseconds.
    Work(u64),
    /// Never ends, and can be cancelled.
    Endless,
    /// Blocks its thread forever.
    Block,
    /// Takes this number of milliseconds, and beats meanwhile.
    Beat(u64),
}

/// The options of the group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) watchdog: Duration,
    pub(crate) drain: Duration,
    /// A stuck loop is reported and does not end the process.
    pub(crate) has_hook: bool,
}

/// Starts a process that runs a group.
pub(crate) fn start_group(shared: &SharedBackend, setup: &Setup) -> Child {
    Child::start(ROLE, &shared.url, &task(setup))
}

pub(crate) fn task(setup: &Setup) -> String {
    serde_json::to_string(setup).expect("a task")
}

/// The main function of that process: runs two loops until a signal stops them.
pub(crate) fn serve() {
    let Some((url, task)) = assignment() else { return };
    let setup: Setup = serde_json::from_str(&task).expect("setup");
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let mut group = LoopGroup::new().watchdog(setup.watchdog).drain_for(setup.drain);
        if setup.has_hook {
            group = group.on_stuck(|stuck| report(&format!("stuck {stuck}")));
        }
        let mut events = Vec::new();
        for queue in QUEUES {
            let worker = worker(&backend, queue, &setup);
            events.push((queue, worker.control().events()));
            group = group.add(worker);
        }
        // On their own threads, since a handler may block all threads of Tokio.
        let listeners = events.into_iter().map(|(queue, mut events)| {
            std::thread::spawn(move || {
                block_on(async {
                    while let Some(event) = events.next().await {
                        report(&format!("event {queue} {}", event.name()));
                    }
                });
            })
        });
        let listeners: Vec<_> = listeners.collect();
        let outcome = match group.run().await {
            Ok(report) => report,
            Err(error) => {
                report(&format!("failed {error}"));
                std::process::exit(1);
            }
        };
        backend.close().await;
        listeners.into_iter().for_each(|listener| listener.join().expect("the listener ends"));
        for one in &outcome.loops {
            report(&format!("done {} {}", one.name, one.stats.succeeded));
        }
    });
}

fn worker(backend: &Mailboxes, queue: &'static str, setup: &Setup) -> impl Runnable + use<> {
    let mailbox: Mailbox<Job> = backend.mailbox(queue).expect("a mailbox");
    Worker::new(mailbox).context(queue).workers(setup.workers).without_timeout().handler(handle)
}

async fn handle(job: Job, heartbeat: Heartbeat, Context(queue): Context<&'static str>) -> Outcome {
    report(&format!("begun {queue}"));
    match job {
        Job::Work(millis) => tokio::time::sleep(Duration::from_millis(millis)).await,
        Job::Endless => std::future::pending().await,
        Job::Block => loop {
            std::thread::park();
        },
        Job::Beat(millis) => {
            for _ in 0..millis / 10 {
                heartbeat.beat();
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
    Outcome::done()
}
