//! How soon an idle worker has a message in its handler.
//!
//! A message carries the time just before its send was called; the handler looks at the same clock
//! first of all. So the send is part of the time, and on SQLite a sync for the send and another for
//! the delivery. Compared with a loop without a runtime that waits in a receive: the difference is
//! what the dispatcher and the way to a worker add. In memory and on a file, sender and receiver
//! share a backend; on Redis each has one of its own, as if they were two processes.
//!
//! capp's runtime has only its polling to find a message by, every 50 ms as it comes.

use std::time::{Duration, Instant};

use pillarbox_core::{Mailbox, Receive};
use pillarbox_runtime::{Runnable, Worker};
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use super::capp;
use super::load::{Job, WAIT, WORKERS};
use super::store::{Kind, Opened, Store};
use crate::measure::{Case, Figure, Plan, Result, expect_eq, micros, on_two_threads, percentile};
use crate::report::Unit;

pub(super) fn case(plan: &Plan, kind: Kind) -> Case {
    let messages = plan.pick(300, 10);
    let name = format!("wake-up latency of an idle worker, {}", kind.name());
    let figures =
        ["p50", "p99"].map(|place| Figure::median(format!("{name}, {place}"), Unit::Micros));
    let case = Case::several(name, figures, move || run(kind, messages, to_worker))
        .against_limit("plain waiter", move || run(kind, messages, to_bare));
    match kind {
        Kind::Memory => {
            case.against_peer("capp runtime", move || on_two_threads(to_capp(messages)))
        }
        Kind::Sqlite | Kind::Redis => case,
    }
}

/// Who sends and who receives, and how many messages.
struct Ends {
    sender: Mailbox<Job>,
    receiver: Mailbox<Job>,
    messages: u64,
}

fn run(
    kind: Kind,
    messages: u64,
    measure: impl AsyncFnOnce(Ends) -> Result<[f64; 2]>,
) -> Result<[f64; 2]> {
    let store = Store::fresh(kind)?;
    let address = store.address();
    on_two_threads(async {
        let opened = address.open().await?;
        let other = match kind {
            Kind::Memory | Kind::Sqlite => None,
            Kind::Redis => Some(address.open().await?),
        };
        let sender = other.as_ref().unwrap_or(&opened).mailbox.clone();
        let receiver = opened.mailbox.clone();
        let figures = measure(Ends { sender, receiver, messages }).await?;
        for opened in other.into_iter().chain([opened]) {
            Opened::close(opened).await?;
        }
        Ok(figures)
    })
}

async fn to_worker(Ends { sender, receiver, messages }: Ends) -> Result<[f64; 2]> {
    let (clock, latencies) = Clock::start();
    let of_handler = clock.clone();
    let handler = move |job: Job| std::future::ready(of_handler.arrived(&job));
    let running = Worker::new(receiver).handler(handler).workers(WORKERS).start();
    let sends = tokio::spawn(send(sender, messages, clock));
    let figures = collect(latencies, messages).await?;
    sends.await??;
    let stats = running.stop().await?;
    expect_eq("messages that succeeded", stats.succeeded, messages)?;
    Ok(figures)
}

async fn to_bare(Ends { sender, receiver, messages }: Ends) -> Result<[f64; 2]> {
    let (clock, latencies) = Clock::start();
    let receiver = tokio::spawn(receive(receiver, messages, clock.clone()));
    let sends = tokio::spawn(send(sender, messages, clock));
    let figures = collect(latencies, messages).await?;
    sends.await??;
    receiver.await??;
    Ok(figures)
}

async fn to_capp(messages: u64) -> Result<[f64; 2]> {
    let (clock, latencies) = Clock::start();
    let (queue, of_handler) = (capp::queue(), clock.clone());
    let runtime = capp::spawn(&queue, capp::Tuned::No, move |job| of_handler.arrived(job));
    let sends = tokio::spawn(async move {
        for _ in 0..messages {
            pause().await;
            queue.push(&capp::Task::new(clock.stamped())).await?;
        }
        Result::Ok(())
    });
    let figures = collect(latencies, messages).await?;
    sends.await??;
    runtime.shutdown().await;
    Ok(figures)
}

/// The clock that messages are stamped by, and where latencies go.
#[derive(Debug, Clone)]
struct Clock {
    start: Instant,
    latencies: UnboundedSender<Duration>,
}

impl Clock {
    fn start() -> (Self, UnboundedReceiver<Duration>) {
        let (latencies, receiver) = mpsc::unbounded_channel();
        (Self { start: Instant::now(), latencies }, receiver)
    }

    /// A message that says when it was made.
    fn stamped(&self) -> Job {
        Job::new(self.start.elapsed().as_nanos() as u64)
    }

    fn arrived(&self, job: &Job) -> Result<()> {
        let now = self.start.elapsed();
        Ok(self.latencies.send(now.saturating_sub(Duration::from_nanos(job.seq()?)))?)
    }
}

async fn send(mailbox: Mailbox<Job>, messages: u64, clock: Clock) -> Result<()> {
    for _ in 0..messages {
        pause().await;
        mailbox.send(&clock.stamped()).await?;
    }
    Ok(())
}

/// At intervals that suit nobody's clock, and long enough for all to wait again.
async fn pause() {
    tokio::time::sleep(Duration::from_micros(rand::random_range(5_000..10_000))).await;
}

/// Waits for as many messages at a time as there are workers.
async fn receive(mailbox: Mailbox<Job>, messages: u64, clock: Clock) -> Result<()> {
    let mut left = messages as usize;
    while left > 0 {
        let batch = mailbox.receive(Receive::up_to(WORKERS).wait(WAIT)).await?;
        if batch.is_empty() {
            return Err("waited for a message that is lost".into());
        }
        for message in &batch {
            clock.arrived(message.body())?;
        }
        left = left.checked_sub(batch.len()).ok_or("more messages than were sent")?;
        batch.acknowledge().await?.all()?;
    }
    Ok(())
}

/// In how many microseconds half of the messages were here at most, and 99 of 100.
async fn collect(mut latencies: UnboundedReceiver<Duration>, messages: u64) -> Result<[f64; 2]> {
    let mut all = Vec::new();
    while all.len() < messages as usize {
        let latency = tokio::time::timeout(WAIT, latencies.recv()).await;
        let latency = latency.map_err(|_| "waited for a message that is lost")?;
        all.push(latency.ok_or("the receiver has ended")?);
    }
    Ok([micros(percentile(&mut all, 50)?), micros(percentile(&mut all, 99)?)])
}
