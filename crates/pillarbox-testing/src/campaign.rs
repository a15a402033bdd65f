//! Crash campaigns: processes that are killed at any moment, and the check of what they observed.
//!
//! A child process runs a random [`Workload`] on a queue and reports every step on its standard output:
//! before a call the request, and after it the answer. The parent reads this [`Record`], kills the child at
//! any moment, starts another, and at the end checks all records against the contract: every confirmed
//! send is in the queue or was acknowledged, nothing acknowledged comes back, delivery counts do not fall,
//! no stale receipt is accepted. A call in progress when the child died may have had its effect or not.
//! Operations that a failover has undone are counted: see [`Undone`].
//!
//! ```text
//! @ S <id>                                          about to send
//! @ s <id>                                          sent
//! @ d <id> <receipt> <count> <lease ms> <from> <to> delivered
//! @ X <receipt> <action> <from>                     about to settle
//! @ x <receipt> done|refused <to>                   settled, or not
//! @ f <what>                                        a call failed
//! ```

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pillarbox_core::{
    Delivery, Error, MessageId, Outgoing, Queue, RawMessage, Receipt, Receive, Settle,
    SettleAction, Timestamp,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::history::{History, Interval, Outcome, Summary, Undone, Violations};

/// Random calls that a child makes until it is killed.
#[derive(Debug, Clone)]
#[must_use]
pub struct Workload {
    /// Number of concurrent clients.
    pub clients: usize,
    /// Seed of the clients' choices.
    pub seed: u64,
    /// Largest size of a body, in bytes.
    pub max_body: usize,
    /// Whether calls may fail; they are not retried. If not, a failure ends the child with a panic, which
    /// the record shows.
    pub may_fail: bool,
    /// Number of steps of each client. `None`: it runs until it is killed.
    pub steps: Option<usize>,
}

impl Default for Workload {
    fn default() -> Self {
        Self { clients: 6, seed: 1, max_body: 600, may_fail: false, steps: None }
    }
}

impl Workload {
    /// Runs the clients and reports each step.
    ///
    /// # Panics
    ///
    /// If a call fails that may not.
    pub async fn run(&self, queue: Arc<dyn Queue>) {
        let mut clients = JoinSet::new();
        for client in 0..self.clients {
            let client = Client {
                queue: queue.clone(),
                random: StdRng::seed_from_u64(self.seed ^ (client as u64 + 1) << 32),
                workload: self.clone(),
                held: Vec::new(),
            };
            clients.spawn(client.run());
        }
        clients.join_all().await;
    }
}

fn report(line: std::fmt::Arguments<'_>) {
    // One write per line, which a pipe takes whole.
    let line = format!("@ {line}\n");
    let mut out = std::io::stdout().lock();
    if out.write_all(line.as_bytes()).and_then(|()| out.flush()).is_err() {
        // The parent is gone.
        std::process::exit(1);
    }
}

fn now_nanos() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |since| since.as_nanos() as u64)
}

struct Client {
    queue: Arc<dyn Queue>,
    random: StdRng,
    workload: Workload,
    /// Receipts kept for later, when most of them are stale.
    held: Vec<Receipt>,
}

impl Client {
    async fn run(mut self) {
        let mut steps = 0;
        while self.workload.steps.is_none_or(|most| steps < most) {
            steps += 1;
            match self.random.random_range(0..100) {
                0..42 => self.send().await,
                42..92 => self.receive().await,
                92..97 => self.settle_held().await,
                _ => {
                    let counts = self.queue.counts().await.map(|_| ());
                    self.allow(counts);
                }
            }
        }
    }

    /// Reports a failure, if calls may fail.
    fn allow<T>(&self, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) if self.workload.may_fail && error.is_transient() => {
                report(format_args!("f {error}"));
                None
            }
            Err(error) => {
                report(format_args!("f {error}"));
                panic!("{error}");
            }
        }
    }

    async fn send(&mut self) {
        let batch: Vec<_> = (0..self.random.random_range(1..=4))
            .map(|_| {
                let size = self.random.random_range(0..=self.workload.max_body);
                let mut message = Outgoing::new(vec![b'x'; size]);
                if self.random.random_bool(0.1) {
                    message.delay = Duration::from_millis(self.random.random_range(1..60));
                }
                message
            })
            .collect();
        for message in &batch {
            report(format_args!("S {}", message.id));
        }
        let results = self.queue.send(batch).await;
        for result in self.allow(results).unwrap_or_default() {
            if let Some(sent) = self.allow(result) {
                report(format_args!("s {}", sent.id));
            }
        }
    }

    async fn receive(&mut self) {
        let lease = [40, 300, 3000][self.random.random_range(0..3)];
        let request = Receive::up_to(self.random.random_range(1..=6))
            .visibility(Duration::from_millis(lease))
            .wait(Duration::from_millis(self.random.random_range(0..20)));
        let from = now_nanos();
        let received = self.queue.receive(request).await;
        let deliveries = self.allow(received).unwrap_or_default();
        let to = now_nanos();
        for Delivery { message, receipt, .. } in &deliveries {
            let (id, count) = (message.id, message.delivery_count);
            report(format_args!("d {id} {receipt} {count} {lease} {from} {to}"));
        }
        for Delivery { receipt, .. } in deliveries {
            self.handle(receipt, Duration::from_millis(lease)).await;
        }
    }

    async fn handle(&mut self, receipt: Receipt, lease: Duration) {
        let nack = |delay| SettleAction::Nack { delay };
        match self.random.random_range(0..100) {
            0..60 => self.settle(&receipt, SettleAction::Acknowledge).await,
            60..68 => {
                // The second one is stale, and must be refused.
                self.settle(&receipt, SettleAction::Acknowledge).await;
                self.settle(&receipt, nack(Duration::ZERO)).await;
            }
            68..74 => self.settle(&receipt, nack(Duration::ZERO)).await,
            74..78 => {
                // Started or not, the message is returned, and the receipt is no longer valid.
                if self.random.random_bool(0.5) {
                    self.settle(&receipt, SettleAction::Start { timeout: lease }).await;
                }
                self.settle(&receipt, SettleAction::Release { delay: Duration::ZERO }).await;
            }
            78..84 => self.settle(&receipt, nack(Duration::from_millis(25))).await,
            84..90 => {
                self.settle(&receipt, SettleAction::Extend { timeout: lease * 2 }).await;
                self.settle(&receipt, SettleAction::Acknowledge).await;
            }
            _ => self.held.push(receipt),
        }
    }

    async fn settle_held(&mut self) {
        if !self.held.is_empty() {
            let place = self.random.random_range(0..self.held.len());
            let receipt = self.held.swap_remove(place);
            self.settle(&receipt, SettleAction::Acknowledge).await;
        }
    }

    async fn settle(&mut self, receipt: &Receipt, action: SettleAction) {
        let name = match action {
            SettleAction::Acknowledge => "acknowledge".to_owned(),
            SettleAction::Nack { delay } => format!("nack:{}", delay.as_millis()),
            SettleAction::Release { delay } => format!("release:{}", delay.as_millis()),
            SettleAction::Extend { timeout } => format!("extend:{}", timeout.as_millis()),
            SettleAction::Start { timeout } => format!("start:{}", timeout.as_millis()),
        };
        report(format_args!("X {receipt} {name} {}", now_nanos()));
        let settled = self.queue.settle(vec![Settle { receipt: receipt.clone(), action }]).await;
        let outcome = match self.allow(settled).as_deref() {
            None => return,
            Some([Ok(())]) => "done",
            Some([Err(Error::ReceiptHandleExpired { .. })]) => "refused",
            Some(other) => {
                report(format_args!("f {other:?}"));
                panic!("{other:?}");
            }
        };
        report(format_args!("x {receipt} {outcome} {}", now_nanos()));
    }
}

/// The reports of all children of a campaign.
#[derive(Debug)]
pub struct Record {
    history: History,
    /// Sends without an answer so far.
    sending: HashSet<MessageId>,
    /// Settles without an answer so far.
    settling: HashMap<Receipt, Vec<(SettleAction, Instant)>>,
    deliveries: HashMap<Receipt, Delivery>,
    /// Highest delivery count seen of each message.
    highest_counts: HashMap<MessageId, u32>,
    /// Receipts that were settled, and must be refused.
    settled: Vec<Receipt>,
    failures: Vec<String>,
    /// The same moment on both clocks.
    base: (Instant, u64),
}

impl Record {
    /// Creates an empty record. Must be called before the first child starts.
    pub fn new() -> Self {
        Self {
            history: History::new(),
            sending: HashSet::new(),
            settling: HashMap::new(),
            deliveries: HashMap::new(),
            highest_counts: HashMap::new(),
            settled: Vec::new(),
            failures: Vec::new(),
            base: (Instant::now(), now_nanos()),
        }
    }

    /// Reads the report of one child to its end.
    ///
    /// A last line that was cut off by the kill is ignored.
    pub fn read(output: impl std::io::Read) -> Vec<String> {
        let mut lines = Vec::new();
        Self::read_each(output, |line| lines.push(line));
        lines
    }

    /// Reads the report of one child and passes on each line as it arrives.
    pub fn read_each(output: impl std::io::Read, mut take: impl FnMut(String)) {
        let mut output = std::io::BufReader::new(output);
        let mut line = String::new();
        while output.read_line(&mut line).is_ok_and(|length| length > 0) {
            if let Some(report) = line.strip_prefix("@ ").and_then(|line| line.strip_suffix('\n')) {
                take(report.to_owned());
            }
            line.clear();
        }
    }

    /// Adds the report of a child that has ended.
    ///
    /// # Panics
    ///
    /// If a line does not have the expected form.
    pub fn add(&mut self, lines: &[String]) {
        for line in lines {
            self.add_line(line).unwrap_or_else(|| panic!("not a line of a record: {line:?}"));
        }
        for id in self.sending.drain() {
            self.history.maybe_sent(id);
        }
        for (receipt, calls) in self.settling.drain() {
            let Some(delivery) = self.deliveries.get(&receipt) else { continue };
            for (action, start) in calls {
                let at = Interval::since(start);
                self.history.settled(delivery, action, at, Outcome::Unknown);
            }
        }
        // The answer to a receive may have been lost with the child.
        self.history.receive_lost();
    }

    fn add_line(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "S" => {
                self.sending.insert(words.next()?.parse().ok()?);
            }
            "s" => {
                let id = words.next()?.parse().ok()?;
                self.sending.remove(&id);
                self.history.sent(id);
            }
            "d" => {
                let id = words.next()?.parse().ok()?;
                let receipt: Receipt = words.next()?.parse().ok()?;
                let mut message = RawMessage::new(id, "", Timestamp::MIN);
                message.delivery_count = words.next()?.parse().ok()?;
                let lease = Duration::from_millis(words.next()?.parse().ok()?);
                let start = self.instant(words.next()?)?;
                let received = Interval { start, end: self.instant(words.next()?)? };
                let highest = self.highest_counts.entry(id).or_default();
                *highest = message.delivery_count.max(*highest);
                let delivery = Delivery::new(message, receipt.clone());
                self.history.delivered(&delivery, received, lease);
                self.deliveries.insert(receipt, delivery);
            }
            "X" => {
                let receipt = words.next()?.parse().ok()?;
                let action = parse_action(words.next()?)?;
                let start = self.instant(words.next()?)?;
                self.settling.entry(receipt).or_default().push((action, start));
            }
            "x" => {
                let receipt: Receipt = words.next()?.parse().ok()?;
                let mut calls = self.settling.remove(&receipt)?;
                let (action, start) = calls.pop()?;
                let outcome = match words.next()? {
                    "done" => Outcome::Done,
                    "refused" => Outcome::Refused,
                    _ => return None,
                };
                let at = Interval { start, end: self.instant(words.next()?)? };
                if let Some(delivery) = self.deliveries.get(&receipt) {
                    // Calls before the last one have failed, and may have had their effect or not.
                    for (action, start) in calls {
                        let at = Interval { start, ..at };
                        self.history.settled(delivery, action, at, Outcome::Unknown);
                    }
                    self.history.settled(delivery, action, at, outcome);
                }
                let ends = action.timeout().is_none();
                if outcome == Outcome::Done && ends {
                    self.settled.push(receipt);
                }
            }
            "f" => self.failures.push(words.collect::<Vec<_>>().join(" ")),
            _ => return None,
        }
        Some(())
    }

    fn instant(&self, nanos: &str) -> Option<Instant> {
        let (instant, base) = self.base;
        let nanos: u64 = nanos.parse().ok()?;
        Some(instant + Duration::from_nanos(nanos.saturating_sub(base)))
    }

    /// Records that a server failed within this time until now, and that its successor may lack its last
    /// operations. Must be called after the failure, and before the takeover unless `within` covers it.
    pub fn server_failed(&mut self, within: Duration) {
        let (instant, base) = self.base;
        // By the clock of the children.
        let end = instant + Duration::from_nanos(now_nanos().saturating_sub(base));
        let start = end.checked_sub(within).unwrap_or(instant);
        self.history.server_replaced(Interval { start, end });
    }

    /// Checks the record against the contract, on a queue that is not in use: peeks at every message that
    /// is left, and tries some receipts that must be refused.
    pub async fn check(&self, queue: &Arc<dyn Queue>) -> Result<Summary, Violations> {
        let mut left = HashSet::new();
        let mut undone = Undone::default();
        let may_be_undone = self.history.was_server_replaced();
        let mut after = None;
        loop {
            let page = queue.peek(1000, after).await.expect("a page of the messages that are left");
            for peeked in page.messages {
                let RawMessage { id, delivery_count, .. } = peeked.message;
                let seen = self.highest_counts.get(&id).copied().unwrap_or(0);
                undone.forgotten += usize::from(delivery_count < seen);
                assert!(
                    delivery_count >= seen || may_be_undone,
                    "{id} was delivered {seen} times and has a delivery count of {delivery_count}"
                );
                left.insert(id);
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let recent = self.settled.iter().rev().take(200);
        let settles: Vec<_> = recent.cloned().map(Settle::acknowledge).collect();
        for result in queue.settle(settles).await.expect("an answer") {
            undone.revived += usize::from(result.is_ok());
            assert!(
                matches!(result, Err(Error::ReceiptHandleExpired { .. }))
                    || may_be_undone && result.is_ok(),
                "a receipt that had settled was accepted: {result:?}"
            );
        }
        let mut summary = self.history.check(&left)?;
        summary.undone.forgotten += undone.forgotten;
        summary.undone.revived += undone.revived;
        Ok(summary)
    }

    /// Returns the failures that the children reported.
    pub fn failures(&self) -> &[String] {
        &self.failures
    }

    /// Returns the number of sends in progress when a child was killed.
    pub fn sends_cut_short(&self) -> usize {
        self.history.maybe_sent_len()
    }
}

impl Default for Record {
    fn default() -> Self {
        Self::new()
    }
}

fn parse_action(text: &str) -> Option<SettleAction> {
    let (verb, millis) = text.split_once(':').unwrap_or((text, "0"));
    let duration = Duration::from_millis(millis.parse().ok()?);
    match verb {
        "acknowledge" => Some(SettleAction::Acknowledge),
        "nack" => Some(SettleAction::Nack { delay: duration }),
        "release" => Some(SettleAction::Release { delay: duration }),
        "extend" => Some(SettleAction::Extend { timeout: duration }),
        "start" => Some(SettleAction::Start { timeout: duration }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Mailboxes, MemoryBackend, Nonce, QueueOptions};

    use super::*;

    fn empty_queue() -> Arc<dyn Queue> {
        let backend = Mailboxes::new(MemoryBackend::new());
        backend.queue("campaign", QueueOptions::new()).expect("opened")
    }

    /// Returns the lines of one child.
    fn lines(texts: &[String]) -> Vec<String> {
        let report: String = texts.iter().map(|text| format!("@ {text}\n")).collect();
        Record::read(format!("running 1 test\n{report}@ s 0197").as_bytes())
    }

    fn delivered(id: MessageId, receipt: &Receipt, count: u32) -> String {
        format!("d {id} {receipt} {count} 30000 {} {}", now_nanos(), now_nanos())
    }

    #[tokio::test]
    async fn a_line_that_was_cut_off_is_ignored() {
        assert_eq!(lines(&["s a".to_owned()]), ["s a"]);
    }

    #[tokio::test]
    async fn an_answered_send_that_is_not_there_is_lost_and_one_without_answer_is_not() {
        let id = MessageId::new();
        let mut record = Record::new();
        record.add(&lines(&[format!("S {id}")]));
        assert!(record.check(&empty_queue()).await.is_ok());
        record.add(&lines(&[format!("S {id}"), format!("s {id}")]));
        let violations = record.check(&empty_queue()).await.unwrap_err().to_string();
        assert!(violations.contains("is lost"), "{violations}");
    }

    #[tokio::test]
    async fn an_acknowledged_message_must_not_be_there() {
        let queue = empty_queue();
        let id = queue.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap().id;
        let _held = queue.receive(Receive::one()).await.unwrap();
        let receipt = Receipt::new(id, Nonce::random());
        let mut record = Record::new();
        let mut report = vec![format!("S {id}"), format!("s {id}"), delivered(id, &receipt, 1)];
        report.push(format!("X {receipt} acknowledge {}", now_nanos()));
        // Without an answer, it may be gone or not.
        record.add(&lines(&report));
        assert!(record.check(&queue).await.is_ok() && record.check(&empty_queue()).await.is_ok());

        let mut record = Record::new();
        report.push(format!("x {receipt} done {}", now_nanos()));
        record.add(&lines(&report));
        let violations = record.check(&queue).await.unwrap_err().to_string();
        assert!(violations.contains("is still in the queue"), "{violations}");
    }

    #[tokio::test]
    #[should_panic(expected = "was delivered 2 times and has a delivery count of 0")]
    async fn a_stored_delivery_count_must_not_fall() {
        let queue = empty_queue();
        let id = queue.send(vec![Outgoing::new("x")]).await.unwrap().remove(0).unwrap().id;
        let mut record = Record::new();
        let receipt = Receipt::new(id, Nonce::random());
        record.add(&lines(&[format!("s {id}"), delivered(id, &receipt, 2)]));
        let _ = record.check(&queue).await;
    }

    #[tokio::test]
    async fn a_delivery_count_must_not_fall() {
        let id = MessageId::new();
        let mut record = Record::new();
        let (one, other) = (Nonce::random(), Nonce::random());
        record.add(&lines(&[
            format!("s {id}"),
            delivered(id, &Receipt::new(id, one), 2),
            delivered(id, &Receipt::new(id, other), 2),
        ]));
        let violations = record.check(&empty_queue()).await.unwrap_err().to_string();
        assert!(violations.contains("delivery counts"), "{violations}");
    }
}
