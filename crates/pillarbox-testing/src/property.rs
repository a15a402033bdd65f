//! Random commands against any backend, with the ledger as the oracle.
//!
//! A case is a list of commands. Each is executed on the backend and on a [`Ledger`], and both must
//! agree: which messages, in which order, with which counts, which receipts are valid. A case that
//! fails is shrunk by proptest, and its history is printed:
//!
//! ```text
//! the backend and the ledger disagree:
//!   1. send m1
//!   2. receive 1 for 0 ticks        m1 #1 (0 unsettled) as r1
//!   3. r1 acknowledge               ok
//!   backend: Ok(())
//!    ledger: Err("refused")
//! ```
//!
//! On a backend with its own clock, the ledger gets the time of each call, and no call is made while a
//! message is about to become ready: the run waits until that is past, so that the two clocks do not
//! disagree.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::ledger::{Ledger, Stale};
use pillarbox_core::{
    Delivery, Error, MessageId, MessageState, Nonce, Outgoing, Queue, RawMessage, Receipt, Receive,
    Settle, SettleAction, Timestamp,
};
use proptest::prelude::*;
use proptest::test_runner::{Config, Reason, TestCaseError, TestError, TestRunner};
use tokio::time::Instant;

use crate::subject::Expected;
use crate::{Subject, block_on};

/// One step of a case. Durations are in ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after the methods of Queue")]
pub enum Command {
    /// Sends new messages.
    Send {
        messages: usize,
        delay: u32,
    },
    /// Sends again the message sent `ago` messages before the last, if there was one.
    SendAgain {
        ago: usize,
    },
    Receive {
        max: usize,
        visibility: u32,
    },
    /// Settles by the receipt given `ago` deliveries before the last, if there was one.
    Settle {
        ago: usize,
        action: Action,
    },
    /// Settles by all receipts ever given, valid and stale, in one batch.
    SettleAll {
        action: Action,
    },
    Purge,
    Counts,
    Peek,
    /// Lets time pass.
    Pass {
        ticks: u32,
    },
}

/// Action of a settle. Durations are in ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named after SettleAction")]
pub enum Action {
    Acknowledge,
    Nack { delay: u32 },
    Release { delay: u32 },
    Extend { timeout: u32 },
    Start { timeout: u32 },
}

/// Returns a strategy of commands, in proportions that find most defects.
pub fn command() -> impl Strategy<Value = Command> {
    let action = prop_oneof![
        4 => Just(Action::Acknowledge),
        3 => (0..3u32).prop_map(|delay| Action::Nack { delay }),
        2 => (0..3u32).prop_map(|delay| Action::Release { delay }),
        2 => (0..5u32).prop_map(|timeout| Action::Extend { timeout }),
        3 => (0..5u32).prop_map(|timeout| Action::Start { timeout }),
    ];
    let settle_all = action.clone().prop_map(|action| Command::SettleAll { action });
    prop_oneof![
        6 => (1..4usize, prop_oneof![3 => Just(0), 1 => 1..4u32])
            .prop_map(|(messages, delay)| Command::Send { messages, delay }),
        1 => (0..8usize).prop_map(|ago| Command::SendAgain { ago }),
        6 => (1..5usize, 0..5u32)
            .prop_map(|(max, visibility)| Command::Receive { max, visibility }),
        8 => (0..10usize, action).prop_map(|(ago, action)| Command::Settle { ago, action }),
        1 => settle_all,
        1 => Just(Command::Counts),
        1 => Just(Command::Peek),
        1 => prop::bool::weighted(0.2)
            .prop_map(|purge| if purge { Command::Purge } else { Command::Counts }),
        4 => (1..4u32).prop_map(|ticks| Command::Pass { ticks }),
    ]
}

/// Runs `cases` random cases of up to `commands` commands, each on a new subject.
///
/// # Panics
///
/// If the backend and the ledger disagree, with the shortest history found.
pub fn check<F>(cases: u32, commands: usize, subject: impl Fn() -> F)
where
    F: Future<Output = Subject>,
{
    let run = |case: &[Command]| block_on(async { run(&subject().await, case).await });
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let commands = prop::collection::vec(command(), 1..=commands);
    match TestRunner::new(config).run(&commands, |case| run(&case)) {
        Ok(()) => {}
        Err(TestError::Fail(reason, case)) => panic!("{}", shorten(case, reason, run)),
        Err(error) => panic!("{error}"),
    }
}

/// Removes every command that the failure does not need. Proptest does so too, but not again after it
/// has simplified the commands themselves.
fn shorten(
    mut case: Vec<Command>,
    mut reason: Reason,
    run: impl Fn(&[Command]) -> Result<(), TestCaseError>,
) -> Reason {
    let mut index = 0;
    while index < case.len() {
        let simpler = simpler(&case, index).find_map(|simpler| match run(&simpler) {
            Err(TestCaseError::Fail(reason)) => Some((simpler, reason)),
            _ => None,
        });
        match simpler {
            Some(found) => {
                (case, reason) = found;
                index = 0;
            }
            None => index += 1,
        }
    }
    reason
}

/// Returns cases without one command, or with a smaller one in its place.
fn simpler(case: &[Command], index: usize) -> impl Iterator<Item = Vec<Command>> {
    // Without a receive, earlier receipts are fewer deliveries ago.
    let without = (0..5).map(move |nearer| {
        let mut case = case.to_vec();
        case.remove(index);
        for command in &mut case[index..] {
            if let Command::Settle { ago, .. } = command {
                *ago = ago.saturating_sub(nearer);
            }
        }
        case
    });
    let smaller = match &case[index] {
        Command::Send { messages: 2.., delay } => {
            Some(Command::Send { messages: 1, delay: *delay })
        }
        Command::Receive { max: 2.., visibility } => {
            Some(Command::Receive { max: 1, visibility: *visibility })
        }
        _ => None,
    };
    without.chain(smaller.map(move |command| {
        let mut case = case.to_vec();
        case[index] = command;
        case
    }))
}

/// Runs one case.
///
/// # Errors
///
/// Fails with the history up to where the backend and the ledger disagree. Rejects the case if the
/// backend was too slow to compare times.
pub async fn run(subject: &Subject, case: &[Command]) -> Result<(), TestCaseError> {
    let caps = subject.capabilities();
    let comparable = caps.fifo
        && caps.strict_receipts
        && caps.exact_counts
        && caps.reports_duplicates
        && caps.peek;
    if !comparable {
        println!("skipped: {} does not keep all rules", caps.backend);
        return Ok(());
    }
    let mut run = Run::new(subject);
    for command in case {
        run.step(command).await?;
    }
    run.drain().await
}

type Checked = Result<(), TestCaseError>;

struct Run<'a> {
    subject: &'a Subject,
    queue: Arc<dyn Queue>,
    ledger: Ledger,
    sent: Vec<Outgoing>,
    receipts: Vec<Pair>,
    nonces: u64,
    history: Vec<String>,
    /// For each message in flight or delayed, the earliest and the latest time at which the backend may make it
    /// ready: its clock was read at some point of the call.
    due: BTreeMap<MessageId, (Timestamp, Timestamp)>,
}

/// The receipt of one delivery, as the backend and as the ledger gave it.
struct Pair {
    backend: Receipt,
    ledger: Receipt,
}

impl<'a> Run<'a> {
    fn new(subject: &'a Subject) -> Self {
        Self {
            subject,
            queue: subject.queue(),
            ledger: Ledger::new(),
            sent: Vec::new(),
            receipts: Vec::new(),
            nonces: 0,
            history: Vec::new(),
            due: BTreeMap::new(),
        }
    }

    async fn step(&mut self, command: &Command) -> Checked {
        let now = self.wait_for_margin().await;
        let started = Instant::now();
        self.history.push(String::new());
        let mut outcome = self.execute(now, command).await;
        let passing = matches!(command, Command::Pass { .. });
        if !passing && !self.subject.is_exact() && self.is_order_unknown(now, started.elapsed()) {
            return Err(TestCaseError::reject("two messages become ready at nearly the same time"));
        }
        if outcome.is_ok() && !passing {
            let expected = || {
                let mut ledger = self.ledger.clone();
                let sent = ledger.counts(now).sent.unwrap_or(0);
                let messages = ledger.peek(now, 0, usize::MAX);
                Expected { queue: self.queue.name().clone(), messages, sent }
            };
            let inspected = self.subject.inspect(expected).await;
            outcome = inspected.map_err(|problem| self.disagree(&format!("stored: {problem}")));
        }
        if !passing && !self.subject.is_exact() && started.elapsed() > self.margin() {
            // Whatever the outcome, times cannot be compared.
            return Err(TestCaseError::reject("the backend was too slow"));
        }
        outcome?;
        self.ledger.check().map_err(|problem| self.disagree(&format!("the ledger: {problem}")))
    }

    /// Records when messages become ready after a call that took `elapsed`. Returns whether the clocks of the
    /// ledger and the backend may differ on which of two messages is first.
    fn is_order_unknown(&mut self, now: Timestamp, elapsed: Duration) -> bool {
        let messages = self.ledger.clone().peek(now, 0, usize::MAX);
        let due = messages.into_iter().filter_map(|peeked| match peeked.state {
            MessageState::InFlight { until } | MessageState::Delayed { until } => {
                let known = self.due.get(&peeked.message.id).filter(|(first, _)| *first == until);
                Some((peeked.message.id, *known.unwrap_or(&(until, until + elapsed))))
            }
            MessageState::Ready => None,
        });
        self.due = due.collect();
        let mut due: Vec<_> = self.due.values().collect();
        due.sort_unstable();
        // Messages of one call become ready in an order that both know.
        due.windows(2).any(|pair| pair[0].0 < pair[1].0 && pair[1].0 <= pair[0].1)
    }

    async fn execute(&mut self, now: Timestamp, command: &Command) -> Checked {
        match command {
            Command::Send { messages, delay } => {
                let known = self.sent.len();
                let new = (1..=*messages).map(|n| {
                    let number = known + n;
                    let mut message = Outgoing::new(format!("m{number}"));
                    if number % 2 == 1 {
                        message.attributes = [("number", number.to_string())].into_iter().collect();
                    }
                    message.reply_to =
                        (!number.is_multiple_of(3)).then(|| format!("to-{number}").into());
                    message.delay = self.subject.ticks(*delay);
                    message
                });
                let batch: Vec<_> = new.collect();
                self.sent.extend(batch.iter().cloned());
                self.send(now, batch).await?;
            }
            Command::SendAgain { ago } => {
                let again = self.sent.iter().rev().nth(*ago).cloned();
                self.send(now, again.into_iter().collect()).await?;
            }
            Command::Receive { max, visibility } => self.receive(now, *max, *visibility).await?,
            Command::Settle { ago, action } => {
                let index = self.receipts.len().checked_sub(ago + 1);
                self.settle(now, index.into_iter().collect(), *action).await?;
            }
            Command::SettleAll { action } => {
                self.settle(now, (0..self.receipts.len()).collect(), *action).await?;
            }
            Command::Purge => {
                self.note("purge".into());
                let purged = self.queue.purge().await;
                self.agree(purged.ok(), Some(self.ledger.clone().purge()))?;
                self.ledger.purge();
            }
            Command::Counts => self.counts(now).await?,
            Command::Peek => self.peek(now).await?,
            Command::Pass { ticks } => {
                self.note(format!("pass {ticks} ticks"));
                self.subject.pass(*ticks).await;
            }
        }
        Ok(())
    }

    async fn send(&mut self, now: Timestamp, batch: Vec<Outgoing>) -> Checked {
        let names: Vec<_> = batch.iter().map(|message| self.name(message.id)).collect();
        let delay = batch.first().map_or(Duration::ZERO, |message| message.delay);
        self.note(format!("send {} {}", names.join(" "), self.describe(" delay", delay)));
        let expected: Vec<_> = batch
            .iter()
            .map(|message| self.ledger.send(now, message.clone(), None).expect("no limit is set"))
            .collect();
        let results = self.queue.send(batch).await.map_err(|error| self.failed(&error))?;
        let answered: Vec<_> = results.into_iter().filter_map(Result::ok).collect();
        self.agree(answered, expected)
    }

    async fn receive(&mut self, now: Timestamp, max: usize, visibility: u32) -> Checked {
        self.note(format!("receive {max} for {visibility} ticks"));
        let visibility = self.subject.ticks(visibility);
        let nonces = &mut self.nonces;
        let expected = self.ledger.receive(now, max, visibility, || {
            *nonces += 1;
            let mut bytes = [0; 12];
            bytes[..8].copy_from_slice(&nonces.to_be_bytes());
            Nonce::from_bytes(bytes)
        });
        let request = Receive::up_to(max).visibility(visibility);
        let actual = self.queue.receive(request).await.map_err(|error| self.failed(&error))?;
        let seen = |deliveries: &[Delivery]| {
            let each = deliveries.iter().enumerate().map(|(n, delivery)| {
                let message = self.show(&delivery.message);
                format!("{message} as r{}", self.receipts.len() + n + 1)
            });
            each.collect::<Vec<_>>().join(", ")
        };
        let (seen, expected_seen) = (seen(&actual), seen(&expected));
        self.outcome(&seen);
        self.agree(seen, expected_seen)?;
        let known: Vec<_> = self.receipts.iter().map(|pair| &pair.backend).collect();
        if actual.iter().any(|delivery| known.contains(&&delivery.receipt)) {
            return Err(self.disagree("a receipt was given twice"));
        }
        let pairs = actual.into_iter().zip(expected);
        self.receipts.extend(pairs.map(|(a, e)| Pair { backend: a.receipt, ledger: e.receipt }));
        Ok(())
    }

    async fn settle(&mut self, now: Timestamp, indices: Vec<usize>, action: Action) -> Checked {
        let ticks = |count| self.subject.ticks(count);
        let after = |delay| self.describe(" for", ticks(delay));
        let (verb, action) = match action {
            Action::Acknowledge => ("acknowledge".to_owned(), SettleAction::Acknowledge),
            Action::Nack { delay } => {
                (format!("nack{}", after(delay)), SettleAction::Nack { delay: ticks(delay) })
            }
            Action::Release { delay } => {
                (format!("release{}", after(delay)), SettleAction::Release { delay: ticks(delay) })
            }
            Action::Extend { timeout } => {
                let verb = format!("extend to {timeout} ticks");
                (verb, SettleAction::Extend { timeout: ticks(timeout) })
            }
            Action::Start { timeout } => {
                let verb = format!("start for {timeout} ticks");
                (verb, SettleAction::Start { timeout: ticks(timeout) })
            }
        };
        let names: Vec<_> = indices.iter().map(|index| format!("r{}", index + 1)).collect();
        self.note(format!("{} {verb}", names.join(" ")));
        let (mut expected, mut batch) = (Vec::new(), Vec::new());
        for Pair { backend, ledger } in indices.iter().map(|index| &self.receipts[*index]) {
            let outcome = self.ledger.settle(now, ledger, action);
            expected.push(outcome.map_err(|Stale| "refused"));
            batch.push(Settle { receipt: backend.clone(), action });
        }
        let results = self.queue.settle(batch).await.map_err(|error| self.failed(&error))?;
        let seen = |result| match result {
            Ok(()) => Ok(Ok(())),
            Err(Error::ReceiptHandleExpired { .. }) => Ok(Err("refused")),
            Err(other) => Err(self.failed(&other)),
        };
        let actual = results.into_iter().map(seen).collect::<Result<Vec<_>, _>>()?;
        let shown: Vec<_> = actual.iter().map(|result| result.err().unwrap_or("ok")).collect();
        self.outcome(&shown.join(" "));
        self.agree(actual, expected)
    }

    async fn counts(&mut self, now: Timestamp) -> Checked {
        self.note("counts".into());
        let expected = self.ledger.counts(now);
        let actual = self.queue.counts().await.map_err(|error| self.failed(&error))?;
        self.agree(
            (actual.ready, actual.in_flight, actual.delayed, actual.oldest_age.is_some()),
            (expected.ready, expected.in_flight, expected.delayed, expected.oldest_age.is_some()),
        )?;
        // Not every backend counts them.
        self.agree(actual.sent, actual.sent.and(expected.sent))
    }

    async fn peek(&mut self, now: Timestamp) -> Checked {
        self.note("peek".into());
        let max = self.subject.capabilities().max_receive;
        let state = |state| match state {
            MessageState::Ready => "ready",
            MessageState::InFlight { .. } => "in flight",
            MessageState::Delayed { .. } => "delayed",
        };
        let expected = self.ledger.peek(now, 0, max);
        let page = self.queue.peek(max, None).await.map_err(|error| self.failed(&error))?;
        let actual = page.messages;
        let seen = |peeked: &pillarbox_core::Peeked| {
            format!("{} {}", self.show(&peeked.message), state(peeked.state))
        };
        self.agree::<Vec<_>>(actual.iter().map(seen).collect(), expected.iter().map(seen).collect())
    }

    /// After the last command: receives and acknowledges all that the ledger holds, and nothing else.
    async fn drain(&mut self) -> Checked {
        self.step(&Command::Pass { ticks: 6 }).await?;
        while !self.ledger.is_empty() {
            let first = self.receipts.len();
            self.step(&Command::Receive { max: 50, visibility: 5 }).await?;
            if self.receipts.len() == first {
                return Err(self.disagree("messages are left that are never delivered"));
            }
            for ago in 0..self.receipts.len() - first {
                self.step(&Command::Settle { ago, action: Action::Acknowledge }).await?;
            }
        }
        self.step(&Command::Counts).await
    }

    /// Returns the current time for the ledger, once nothing is about to become ready.
    async fn wait_for_margin(&mut self) -> Timestamp {
        let margin = self.margin();
        loop {
            let now = Timestamp::from_secs(0) + self.subject.elapsed();
            let mut soon = self.ledger.clone();
            // A message due before the margin is ready for both.
            soon.advance(Timestamp::from_nanos(now.as_nanos() - margin.as_nanos() as i64));
            match soon.next_due() {
                Some(due) if !self.subject.is_exact() && due <= now + margin => {
                    tokio::time::sleep((due + margin).since(now) + margin / 4).await;
                }
                _ => return now,
            }
        }
    }

    /// Returns the largest difference of the two clocks.
    fn margin(&self) -> Duration {
        if self.subject.is_exact() { Duration::ZERO } else { self.subject.ticks(1) / 4 }
    }

    fn name(&self, id: MessageId) -> String {
        match self.sent.iter().position(|message| message.id == id) {
            Some(index) => format!("m{}", index + 1),
            None => format!("unknown {id}"),
        }
    }

    /// Formats a message by its name and counts, and in full if it differs from what was sent.
    fn show(&self, message: &RawMessage) -> String {
        let name = self.name(message.id);
        let sent = self.sent.iter().find(|sent| sent.id == message.id);
        let same = sent.is_some_and(|sent| {
            sent.body == message.body
                && sent.attributes == message.attributes
                && sent.reply_to == message.reply_to
        });
        let changed =
            if same { String::new() } else { format!(" but not as it was sent: {message:?}") };
        let RawMessage { delivery_count, unsettled, uncounted, .. } = message;
        // Not every backend counts them.
        let counts = self.subject.capabilities().counts_unsettled;
        let others = counts.then(|| format!(" ({unsettled} unsettled, {uncounted} uncounted)"));
        format!("{name} #{delivery_count}{}{changed}", others.unwrap_or_default())
    }

    fn describe(&self, what: &str, duration: Duration) -> String {
        if duration.is_zero() {
            return String::new();
        }
        let ticks = duration.as_secs_f64() / self.subject.ticks(1).as_secs_f64();
        format!("{what} {ticks} ticks")
    }

    fn note(&mut self, what: String) {
        if let Some(line) = self.history.last_mut() {
            *line = what;
        }
    }

    fn outcome(&mut self, outcome: &str) {
        if let Some(line) = self.history.last_mut() {
            *line = format!("{line:<28} {outcome}");
        }
    }

    fn agree<T: PartialEq + fmt::Debug>(&self, actual: T, expected: T) -> Checked {
        if actual == expected {
            return Ok(());
        }
        Err(self.disagree(&format!("  backend: {actual:?}\n   ledger: {expected:?}")))
    }

    fn failed(&self, error: &Error) -> TestCaseError {
        self.disagree(&format!("the backend failed: {error}"))
    }

    fn disagree(&self, how: &str) -> TestCaseError {
        let mut text = String::from("the backend and the ledger disagree:\n");
        for (index, line) in self.history.iter().enumerate() {
            text += &format!("{:>3}. {}\n", index + 1, line.trim_end());
        }
        TestCaseError::fail(text + how)
    }
}
