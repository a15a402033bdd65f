//! The reference: a log that is appended to, with group commit.
//!
//! What a queue could cost that keeps its messages in memory and writes down only what happens to
//! them. Callers put requests in line; one thread takes all that are there, applies them, appends
//! one record each in a single write, syncs once, and then answers. Receives that wait are kept by
//! the thread and served in the batch that brings them a message.
//!
//! As ours: ids and nonces made the same way, a nonce that is checked when a delivery is
//! acknowledged, a deadline for each delivery, a checksum over each batch, a bound on the line,
//! and a message that goes back if its receiver has left.
//!
//! What it leaves out, and ours has: finding a message by its id when it is sent again, ending
//! leases, delays, more than one queue, more than one process, a queue larger than memory, opening
//! a file that holds something, and any end to the growth of the file. Nor does it take up the next
//! batch while the disk is at work on the last; there is little that it could do meanwhile. It is a
//! limit and not a queue.

mod record;
mod writer;

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use pillarbox_core::{MessageId, Nonce};
use tokio::sync::{Semaphore, oneshot};

use self::writer::Writer;
use super::load::{Durable, WAIT};
use crate::measure::{Result, expect_eq};

/// How many requests wait at most; further callers wait to ask.
const MAX_REQUESTS: usize = 4096;

/// A log, as its callers know it.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    line: Arc<Line>,
    thread: Arc<Mutex<Option<Thread>>>,
}

/// It ends with the number of messages that it holds.
type Thread = JoinHandle<std::io::Result<usize>>;

/// What a caller asks.
#[derive(Debug)]
enum Request {
    Send(MessageId, Bytes, oneshot::Sender<()>),
    Receive(oneshot::Sender<Delivery>),
    /// Says whether the receipt was the current one.
    Acknowledge(Receipt, oneshot::Sender<bool>),
}

#[derive(Debug)]
struct Delivery {
    body: Bytes,
    receipt: Receipt,
}

/// The right to acknowledge one delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Receipt {
    id: MessageId,
    nonce: Nonce,
}

/// The line of requests.
#[derive(Debug)]
struct Line {
    state: Mutex<State>,
    wake: Condvar,
    room: Semaphore,
}

#[derive(Debug, Default)]
struct State {
    requests: VecDeque<Request>,
    /// The writer sleeps, and must be woken.
    asleep: bool,
    closed: bool,
}

impl Log {
    /// Makes a new file, with room for `reserved` bytes already written: to write over blocks that
    /// are there is quicker on many disks than to add some. SQLite does so with its log too.
    pub(crate) fn create(path: &Path, reserved: u64) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).open(path)?;
        let line = Arc::new(Line::new());
        let writer = Writer::new(file, reserved, line.clone())?;
        let thread = std::thread::Builder::new().name("reference-log".into());
        let thread = thread.spawn(|| writer.run())?;
        Ok(Self { line, thread: Arc::new(Mutex::new(Some(thread))) })
    }

    /// Puts a request in line and waits for the answer.
    async fn ask<A>(&self, request: impl FnOnce(oneshot::Sender<A>) -> Request) -> Result<A> {
        let (reply, answer) = oneshot::channel();
        self.line.put(request(reply)).await?;
        Ok(answer.await?)
    }
}

impl Durable for Log {
    type Receipt = Receipt;

    async fn send(&self, body: Bytes) -> Result<()> {
        self.ask(|reply| Request::Send(MessageId::new(), body, reply)).await
    }

    async fn receive(&self) -> Result<(Bytes, Receipt)> {
        let delivery = tokio::time::timeout(WAIT, self.ask(Request::Receive)).await??;
        Ok((delivery.body, delivery.receipt))
    }

    async fn acknowledge(&self, receipt: Receipt) -> Result<()> {
        let current = self.ask(|reply| Request::Acknowledge(receipt, reply)).await?;
        expect_eq("the receipt is the current one", current, true)
    }

    async fn close(self, left: u64) -> Result<()> {
        self.line.close();
        let thread = lock(&self.thread).take().ok_or("the log was closed before")?;
        let remaining = thread.join().map_err(|_| "the log's thread has panicked")??;
        expect_eq("messages left", remaining as u64, left)
    }
}

impl Line {
    fn new() -> Self {
        Self { state: Mutex::default(), wake: Condvar::new(), room: Semaphore::new(MAX_REQUESTS) }
    }

    async fn put(&self, request: Request) -> Result<()> {
        self.room.acquire().await?.forget();
        let mut state = lock(&self.state);
        state.requests.push_back(request);
        let asleep = std::mem::take(&mut state.asleep);
        drop(state);
        if asleep {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Waits for requests and changes them for the empty `batch`. Says `false` once the log is
    /// closed and there are none.
    fn take(&self, batch: &mut VecDeque<Request>) -> bool {
        let mut state = lock(&self.state);
        while state.requests.is_empty() {
            if state.closed {
                return false;
            }
            state.asleep = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asleep = false;
        std::mem::swap(&mut state.requests, batch);
        drop(state);
        self.room.add_permits(batch.len());
        true
    }

    fn close(&self) {
        self.room.close();
        lock(&self.state).closed = true;
        self.wake.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::place;
    use super::*;

    #[tokio::test]
    async fn what_was_answered_is_in_the_file() {
        let directory = place::fresh().unwrap();
        let path = directory.path().join("log");
        let log = Log::create(&path, 1 << 16).unwrap();
        for body in ["a", "b"] {
            log.send(body.into()).await.unwrap();
        }
        let (body, receipt) = log.receive().await.unwrap();
        assert_eq!(body, "a");
        log.acknowledge(receipt).await.unwrap();
        assert!(log.acknowledge(receipt).await.is_err());

        let records = record::read(&std::fs::read(&path).unwrap());
        let kinds: String = records.iter().map(|(kind, ..)| kind).collect();
        assert_eq!(kinds, "SSRA");
        assert_eq!(records[3].1, *receipt.id.as_bytes());
        log.close(1).await.unwrap();
    }

    #[tokio::test]
    async fn a_receiver_that_has_left_is_passed_over() {
        let directory = place::fresh().unwrap();
        let log = Log::create(&directory.path().join("log"), 0).unwrap();
        let gone = tokio::spawn({
            let log = log.clone();
            async move { log.receive().await }
        });
        let waits = tokio::spawn({
            let log = log.clone();
            async move { log.receive().await }
        });
        tokio::task::yield_now().await;
        gone.abort();
        assert!(gone.await.is_err());
        log.send("a".into()).await.unwrap();
        assert_eq!(waits.await.unwrap().unwrap().0, "a");
        log.close(1).await.unwrap();
    }
}
