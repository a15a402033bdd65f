//! A process that runs a [`Worker`], as a program would; its messages are what the handler does.

use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pillarbox_core::Mailbox;
use pillarbox_runtime::dead_letters::DlqPolicy;
use pillarbox_runtime::handler::{Context, Heartbeat, Metadata};
use pillarbox_runtime::{Event, Outcome, Runnable, Worker};
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_sqlite::transaction;
use pillarbox_testing::process::{Child, assignment};
pub(crate) use pillarbox_testing::process::{end_with_the_parent, report};
use pillarbox_testing::{block_on, on_threads};
use serde::{Deserialize, Serialize};

use super::shared_backend::{SharedBackend, open};

pub(crate) const QUEUE: &str = "orders";
pub(crate) const DEAD: &str = "orders-dlq";
/// The ignored test that runs in the other process.
const ROLE: &str = "common::worker_process::work";

/// A message: its number, and what its handler does.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) act: Act,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Takes this number of milliseconds, and then has an effect.
    Work(u64),
    /// Runs until the lease is lost, and returns success nevertheless.
    UntilLost,
    /// Never ends, and can be cancelled.
    Endless,
    /// Blocks its thread for this number of seconds, and cannot be cancelled.
    Block(u64),
    /// Aborts the process.
    Abort,
    /// Rejects the message.
    Reject,
    /// Has its effect in the file of the queue, in one transaction with the acknowledgement.
    Book,
    /// The same, but blocks forever at its first delivery: before the commit, or after it.
    BookAndHold { commits: bool },
}

/// The options of the worker. Leases are short, so that tests are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Setup {
    pub(crate) workers: usize,
    pub(crate) prefetch: usize,
    pub(crate) results: usize,
    pub(crate) visibility: Duration,
    /// Number of retries, if there are dead letters.
    pub(crate) retries: Option<u32>,
}

impl Setup {
    /// The largest number of messages in flight.
    pub(crate) const fn max_in_flight(&self) -> usize {
        self.workers + self.prefetch + self.results
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    effects: PathBuf,
    setup: Setup,
}

/// Starts a process that runs a worker.
pub(crate) fn start_worker(shared: &SharedBackend, setup: &Setup) -> Child {
    let task = Task { effects: shared.file("effects"), setup: setup.clone() };
    Child::start(ROLE, &shared.url, &serde_json::to_string(&task).expect("a task"))
}

/// The main function of that process: works until a signal stops it, and prints all events.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn work() {
    let Some((url, task)) = assignment() else { return };
    let Task { effects, setup } = serde_json::from_str(&task).expect("a task");
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let orders: Mailbox<Order> = backend.mailbox(QUEUE).expect("a mailbox");
        let mut worker = Worker::new(orders)
            .context(effects)
            .workers(setup.workers)
            .prefetch(setup.prefetch)
            .result_buffer(setup.results)
            .visibility(setup.visibility)
            .without_timeout();
        if let Some(retries) = setup.retries {
            worker = worker.max_deliveries(retries + 1).dead_letters(DlqPolicy::new());
        }
        let worker = worker.handler(handle);
        let mut events = worker.control().events();
        // On its own thread, since a handler may block all threads of Tokio.
        let listener = std::thread::spawn(move || {
            block_on(async {
                while let Some(event) = events.next().await {
                    let id = event.about().map(|about| about.message_id.to_string());
                    report(&format!("event {} {}", event.name(), id.unwrap_or_default()));
                    if matches!(event, Event::Drained) {
                        break;
                    }
                }
            });
        });
        let stats = worker.run().await.unwrap_or_else(|error| panic!("{error}"));
        backend.close().await;
        listener.join().expect("the listener ends");
        report(&format!("stats leases_lost={}", stats.leases_lost));
    });
}

async fn handle(
    order: Order,
    heartbeat: Heartbeat,
    about: Metadata,
    Context(effects): Context<PathBuf>,
) -> Outcome {
    let Order { number, act } = order;
    // The dot ends the number, since lines are found by their prefix.
    report(&format!("begun {number}."));
    match act {
        Act::Work(millis) => {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            record(&effects, number);
        }
        Act::UntilLost => {
            heartbeat.lost().await;
            report(&format!("lost {number}."));
        }
        Act::Endless => pending().await,
        Act::Block(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
        Act::Abort => std::process::abort(),
        Act::Reject => return Outcome::reject("it makes no sense"),
        Act::Book | Act::BookAndHold { .. } => {
            return match book(&effects.with_file_name("queues.db"), order, &about) {
                Ok(()) => Outcome::settled(),
                // The machine stood still for longer than the lease.
                Err(_) => Outcome::retry_after(Duration::ZERO),
            };
        }
    }
    Outcome::done()
}

/// Has an effect that outlives the process: one line by one write, which no kill can split.
fn record(effects: &Path, number: u64) {
    let file = OpenOptions::new().create(true).append(true).open(effects);
    file.expect("a file").write_all(format!("{number}\n").as_bytes()).expect("written");
}

/// Has an effect that outlives the process and acknowledges its order, in one transaction.
fn book(file: &Path, Order { number, act }: Order, about: &Metadata) -> pillarbox_core::Result<()> {
    let hold = |commits| {
        let holds_here = matches!(act, Act::BookAndHold { commits: when } if when == commits);
        if holds_here && about.delivery_count() == 1 {
            report(&format!("holding {number}."));
            loop {
                std::thread::park();
            }
        }
    };
    let mut bank = Connection::open(file).expect("a connection");
    bank.busy_timeout(Duration::from_secs(30)).expect("set");
    let both = bank.transaction_with_behavior(TransactionBehavior::Immediate).expect("a lock");
    both.execute("INSERT INTO booked VALUES (?1)", [number as i64]).expect("inserted");
    transaction::acknowledge(&both, about)?;
    hold(false);
    both.commit().expect("committed");
    hold(true);
    Ok(())
}

/// Returns the numbers of the orders that were handled, in order.
pub(crate) fn effects(shared: &SharedBackend) -> Vec<u64> {
    let text = std::fs::read_to_string(shared.file("effects")).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}
