//! The process that works: a [`Worker`] as a program would have it, which does what its messages say.

use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pillarbox_core::Mailbox;
use pillarbox_runtime::{
    Context, DlqPolicy, Event, Heartbeat, Metadata, Outcome, Runnable, Worker,
};
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_sqlite::transaction;
use pillarbox_testing::process::{Child, told};
pub(crate) use pillarbox_testing::process::{end_with_the_parent, say};
use pillarbox_testing::{block_on, on_threads};
use serde::{Deserialize, Serialize};

use super::place::{Place, open};

pub(crate) const QUEUE: &str = "orders";
pub(crate) const DEAD: &str = "orders-dlq";
/// The ignored test that is the other process.
const ROLE: &str = "common::employee::work";

/// A message: a number that it is known by, and what its handler is to do.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) number: u64,
    pub(crate) act: Act,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Act {
    /// Takes so many milliseconds, and has an effect then.
    Work(u64),
    /// Goes on until the lease is lost, and reports success all the same.
    UntilLost,
    /// Goes on for ever, and can be cancelled.
    Endless,
    /// Holds its thread for so many seconds, and cannot be cancelled.
    Block(u64),
    /// Takes the process down.
    Abort,
    /// Says that it makes no sense.
    Reject,
    /// Has its effect in the file of the queue, in one transaction with the acknowledgement.
    Book,
    /// The same, but stops for ever at its first delivery: before it commits, or after that.
    BookAndHold { commits: bool },
}

/// How the worker is set up. Leases are short, so that tests are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) workers: usize,
    pub(crate) inbox: usize,
    pub(crate) results: usize,
    pub(crate) visibility: Duration,
    /// Where there is a place for dead letters: how often is tried again.
    pub(crate) retries: Option<u32>,
}

impl Terms {
    /// The most messages that are in its hands at a time.
    pub(crate) const fn hands(&self) -> usize {
        self.workers * (self.inbox + 1) + self.results
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Task {
    effects: PathBuf,
    terms: Terms,
}

/// Starts a process that works.
pub(crate) fn employ(place: &Place, terms: &Terms) -> Child {
    let task = Task { effects: place.file("effects"), terms: terms.clone() };
    Child::start(ROLE, &place.url, &serde_json::to_string(&task).expect("a task"))
}

/// What that process does: works until a signal says stop, and says all that happens.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn work() {
    let Some((url, task)) = told() else { return };
    let Task { effects, terms } = serde_json::from_str(&task).expect("a task");
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let orders: Mailbox<Order> = backend.mailbox(QUEUE).expect("a mailbox");
        let mut worker = Worker::new(orders)
            .context(effects)
            .workers(terms.workers)
            .inbox(terms.inbox)
            .result_buffer(terms.results)
            .visibility(terms.visibility)
            .without_timeout();
        if let Some(retries) = terms.retries {
            worker = worker.max_deliveries(retries + 1).dead_letters(DlqPolicy::new());
        }
        let worker = worker.handler(carry_out);
        let mut events = worker.control().events();
        // On a thread of its own: a handler that blocks one of Tokio's must not keep it from being told.
        let listener = std::thread::spawn(move || {
            block_on(async {
                while let Some(event) = events.next().await {
                    let id = event.about().map(|about| about.message_id.to_string());
                    say(&format!("event {} {}", event.name(), id.unwrap_or_default()));
                    if matches!(event, Event::Drained) {
                        break;
                    }
                }
            });
        });
        let stats = worker.run().await.unwrap_or_else(|error| panic!("{error}"));
        backend.close().await;
        listener.join().expect("the listener ends");
        say(&format!("stats leases_lost={}", stats.leases_lost));
    });
}

async fn carry_out(
    order: Order,
    heartbeat: Heartbeat,
    about: Metadata,
    Context(effects): Context<PathBuf>,
) -> Outcome {
    let Order { number, act } = order;
    // The dot ends the number: lines are found by how they begin.
    say(&format!("begun {number}."));
    match act {
        Act::Work(millis) => {
            tokio::time::sleep(Duration::from_millis(millis)).await;
            record(&effects, number);
        }
        Act::UntilLost => {
            heartbeat.lost().await;
            say(&format!("lost {number}."));
        }
        Act::Endless => pending().await,
        Act::Block(seconds) => std::thread::sleep(Duration::from_secs(seconds)),
        Act::Abort => std::process::abort(),
        Act::Reject => return Outcome::reject("it makes no sense"),
        Act::Book | Act::BookAndHold { .. } => {
            return match book(&effects.with_file_name("queues.db"), order, &about) {
                Ok(()) => Outcome::settled(),
                // The machine stood still for longer than the lease runs.
                Err(_) => Outcome::retry_after(Duration::ZERO),
            };
        }
    }
    Outcome::done()
}

/// Has an effect that outlives the process: one line by one write, which no kill can cut.
fn record(effects: &Path, number: u64) {
    let file = OpenOptions::new().create(true).append(true).open(effects);
    file.expect("a file").write_all(format!("{number}\n").as_bytes()).expect("written");
}

/// Has an effect that outlives the process and acknowledges its order, both or neither.
fn book(file: &Path, Order { number, act }: Order, about: &Metadata) -> pillarbox_core::Result<()> {
    let hold = |commits| {
        let is_here = matches!(act, Act::BookAndHold { commits: when } if when == commits);
        if is_here && about.delivery_count() == 1 {
            say(&format!("holding {number}."));
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

/// The numbers of the orders that were carried out, in that order.
pub(crate) fn effects(place: &Place) -> Vec<u64> {
    let text = std::fs::read_to_string(place.file("effects")).unwrap_or_default();
    text.lines().map(|line| line.parse().expect("a number")).collect()
}
