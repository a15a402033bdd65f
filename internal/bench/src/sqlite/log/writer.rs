//! The one thread that writes a log.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use hashbrown::HashMap;
use pillarbox_core::{MessageId, Nonce, Receive};
use tokio::sync::oneshot;

use super::record::Batch;
use super::{Delivery, Line, Receipt, Request};

pub(super) struct Writer {
    file: File,
    /// Where the next batch goes.
    offset: u64,
    line: Arc<Line>,
    ready: VecDeque<(MessageId, Bytes)>,
    in_flight: HashMap<MessageId, InFlight>,
    /// Receives that wait, in order of arrival.
    waiters: VecDeque<oneshot::Sender<Delivery>>,
    batch: Batch,
    /// Replies to send once the batch is on the disk.
    answers: Vec<Answer>,
}

struct InFlight {
    body: Bytes,
    nonce: Nonce,
    deadline: u64,
}

enum Answer {
    Sent(oneshot::Sender<()>),
    Delivered(oneshot::Sender<Delivery>, Delivery),
    Acknowledged(oneshot::Sender<bool>, bool),
}

impl Writer {
    /// Writes the reserved part of the file.
    pub(super) fn new(file: File, reserved: u64, line: Arc<Line>) -> io::Result<Self> {
        const PIECE: u64 = 1 << 20;
        let zeros = vec![0; PIECE as usize];
        for piece in 0..reserved.div_ceil(PIECE) {
            file.write_all_at(&zeros, piece * PIECE)?;
        }
        file.sync_all()?;
        Ok(Self {
            file,
            offset: 0,
            line,
            ready: VecDeque::new(),
            in_flight: HashMap::new(),
            waiters: VecDeque::new(),
            batch: Batch::new(),
            answers: Vec::new(),
        })
    }

    /// Runs until the log is closed, and says how many messages it holds.
    pub(super) fn run(mut self) -> io::Result<usize> {
        let mut requests = VecDeque::new();
        while self.line.take(&mut requests) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            for request in requests.drain(..) {
                self.apply(request, now);
            }
            self.serve(now);
            self.commit()?;
            self.answer();
        }
        Ok(self.ready.len() + self.in_flight.len())
    }

    fn apply(&mut self, request: Request, now: Duration) {
        match request {
            Request::Send(id, body, reply) => {
                self.batch.send(id, &body);
                self.ready.push_back((id, body));
                self.answers.push(Answer::Sent(reply));
            }
            Request::Receive(reply) => self.waiters.push_back(reply),
            Request::Acknowledge(receipt, reply) => {
                let current = self.in_flight.get(&receipt.id).is_some_and(|message| {
                    message.nonce == receipt.nonce && message.deadline > now.as_nanos() as u64
                });
                if current {
                    self.in_flight.remove(&receipt.id);
                    self.batch.acknowledge(receipt.id);
                }
                self.answers.push(Answer::Acknowledged(reply, current));
            }
        }
    }

    /// Gives what is ready to those who wait.
    fn serve(&mut self, now: Duration) {
        let deadline = (now + Receive::DEFAULT_VISIBILITY).as_nanos() as u64;
        while !self.ready.is_empty()
            && let Some(waiter) = self.waiters.pop_front()
        {
            if waiter.is_closed() {
                continue;
            }
            let Some((id, body)) = self.ready.pop_front() else { return };
            let nonce = Nonce::random();
            self.batch.receive(id, nonce, deadline);
            self.in_flight.insert(id, InFlight { body: body.clone(), nonce, deadline });
            let delivery = Delivery { body, receipt: Receipt { id, nonce } };
            self.answers.push(Answer::Delivered(waiter, delivery));
        }
    }

    /// Makes the disk keep the batch, if anything is in it.
    fn commit(&mut self) -> io::Result<()> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let bytes = self.batch.seal();
        self.file.write_all_at(bytes, self.offset)?;
        self.file.sync_data()?;
        self.offset += bytes.len() as u64;
        self.batch.clear();
        Ok(())
    }

    fn answer(&mut self) {
        let mut answers = std::mem::take(&mut self.answers);
        for answer in answers.drain(..) {
            // Who does not wait for an answer any more needs none, unless it is a delivery.
            match answer {
                Answer::Sent(reply) => drop(reply.send(())),
                Answer::Acknowledged(reply, current) => drop(reply.send(current)),
                Answer::Delivered(reply, delivery) => {
                    if let Err(delivery) = reply.send(delivery) {
                        self.put_back(delivery);
                    }
                }
            }
        }
        self.answers = answers;
    }

    /// Makes a message ready that nobody has received. The next batch says so.
    fn put_back(&mut self, delivery: Delivery) {
        let id = delivery.receipt.id;
        if let Some(message) = self.in_flight.remove(&id) {
            self.batch.release(id);
            self.ready.push_front((id, message.body));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::place;
    use super::*;

    #[test]
    fn a_message_goes_back_if_its_receiver_left_while_the_disk_was_at_work() {
        let directory = place::fresh().unwrap();
        let file = File::create(directory.path().join("log")).unwrap();
        let mut writer = Writer::new(file, 0, Arc::new(Line::new())).unwrap();
        let (sent, _is_sent) = oneshot::channel();
        let (receiver, is_received) = oneshot::channel();
        writer.apply(Request::Send(MessageId::new(), "a".into(), sent), Duration::ZERO);
        writer.apply(Request::Receive(receiver), Duration::ZERO);
        writer.serve(Duration::ZERO);
        writer.commit().unwrap();
        assert_eq!((writer.ready.len(), writer.in_flight.len()), (0, 1));
        drop(is_received);
        writer.answer();
        assert_eq!((writer.ready.len(), writer.in_flight.len()), (1, 0));
        assert!(!writer.batch.is_empty());
    }
}
