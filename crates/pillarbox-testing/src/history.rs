//! A record of what clients saw, and the check that it could have been.
//!
//! Clients note what they did and when, on one clock: a send that was answered, a delivery, a
//! settle and its outcome. [`History::check`] then holds the record to the promise of the
//! contract, knowing nothing of the queue inside:
//!
//! * nothing lost: every send that was answered is acknowledged, or still in the queue;
//! * nothing acknowledged twice, and nothing delivered after its acknowledgement;
//! * no receipt used for two deliveries;
//! * the counts of a message's deliveries are 1, 2, 3, ... without a gap;
//! * no lease ended early: the next delivery comes after a nack or after the deadline;
//! * no receipt accepted from its deadline on.
//!
//! Times are taken before a request and after its answer. The queue acted somewhere in between,
//! so each rule is held to what must be true wherever that was.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::Duration;

use pillarbox_core::{Delivery, MessageId, Receipt, SettleAction};
use tokio::time::Instant;

/// What clients saw of one queue.
#[derive(Debug, Default)]
pub struct History {
    sent: HashSet<MessageId>,
    deliveries: HashMap<MessageId, Vec<Lease>>,
}

/// One delivery and what was done with it.
#[derive(Debug, Clone)]
struct Lease {
    receipt: Receipt,
    count: u32,
    /// Before the receive was called, and after it was answered.
    received: Interval,
    visibility: Duration,
    settles: Vec<Attempt>,
}

#[derive(Debug, Clone)]
struct Attempt {
    action: SettleAction,
    at: Interval,
    outcome: Outcome,
}

/// How a settle ended, as far as the client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The queue said that it is done.
    Done,
    /// The queue said that the receipt is not valid.
    Refused,
    /// The client does not know: the answer was lost.
    Unknown,
}

/// The time of a call: from before the request to after the answer.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    /// Before the request.
    pub start: Instant,
    /// After the answer.
    pub end: Instant,
}

impl Interval {
    /// The time from `start` until now.
    pub fn since(start: Instant) -> Self {
        Self { start, end: Instant::now() }
    }
}

/// What a history came to when it was good.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Messages sent.
    pub sent: usize,
    /// Deliveries, first ones and repeated ones.
    pub deliveries: usize,
    /// Deliveries after the first of their message.
    pub redeliveries: usize,
    /// Messages acknowledged.
    pub acknowledged: usize,
    /// Settles that were refused.
    pub refused: usize,
}

/// What a history shows that must not be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations(Vec<String>);

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations of the contract:", self.0.len())?;
        self.0.iter().take(20).try_for_each(|violation| writeln!(f, "- {violation}"))
    }
}

impl std::error::Error for Violations {}

impl History {
    /// Makes an empty history.
    pub fn new() -> Self {
        Self::default()
    }

    /// Notes a send that was answered.
    pub fn sent(&mut self, id: MessageId) {
        self.sent.insert(id);
    }

    /// Notes a delivery.
    pub fn delivered(&mut self, delivery: &Delivery, received: Interval, visibility: Duration) {
        self.deliveries.entry(delivery.message.id).or_default().push(Lease {
            receipt: delivery.receipt.clone(),
            count: delivery.message.delivery_count,
            received,
            visibility,
            settles: Vec::new(),
        });
    }

    /// Notes an attempt to settle a delivery that was noted before.
    pub fn settled(
        &mut self,
        delivery: &Delivery,
        action: SettleAction,
        at: Interval,
        outcome: Outcome,
    ) {
        let leases = self.deliveries.entry(delivery.message.id).or_default();
        if let Some(lease) = leases.iter_mut().find(|lease| lease.receipt == delivery.receipt) {
            lease.settles.push(Attempt { action, at, outcome });
        }
    }

    /// Adds what another client saw.
    pub fn merge(&mut self, other: Self) {
        self.sent.extend(other.sent);
        for (id, leases) in other.deliveries {
            self.deliveries.entry(id).or_default().extend(leases);
        }
    }

    /// Holds the record to the contract. `left` are the messages that are still in the queue.
    pub fn check(&self, left: &HashSet<MessageId>) -> Result<Summary, Violations> {
        let mut violations = Vec::new();
        let mut summary = Summary { sent: self.sent.len(), ..Summary::default() };
        let mut receipts = HashSet::new();
        for (id, leases) in &self.deliveries {
            let mut leases = leases.clone();
            leases.sort_by_key(|lease| lease.count);
            let acknowledged = leases.iter().filter(|lease| lease.acknowledged().is_some()).count();
            summary.deliveries += leases.len();
            summary.redeliveries += leases.len().saturating_sub(1);
            summary.acknowledged += acknowledged;
            let attempts = leases.iter().flat_map(|lease| &lease.settles);
            summary.refused += attempts.filter(|a| a.outcome == Outcome::Refused).count();

            if !self.sent.contains(id) {
                violations.push(format!("{id} was delivered and never sent"));
            }
            if acknowledged > 1 {
                violations.push(format!("{id} was acknowledged {acknowledged} times"));
            }
            if acknowledged > 0 && left.contains(id) {
                violations.push(format!("{id} was acknowledged and is still in the queue"));
            }
            for lease in &leases {
                if !receipts.insert(lease.receipt.clone()) {
                    violations.push(format!("{id} was delivered under a used receipt"));
                }
                violations.extend(lease.violation().map(|what| format!("{id} {what}")));
            }
            for (place, lease) in leases.iter().enumerate() {
                if lease.count as usize != place + 1 {
                    violations.push(format!(
                        "{id} has delivery counts {:?}",
                        leases.iter().map(|lease| lease.count).collect::<Vec<_>>()
                    ));
                    break;
                }
            }
            for pair in leases.windows(2) {
                violations.extend(pair[0].succession(&pair[1]).map(|what| format!("{id} {what}")));
            }
        }
        for id in &self.sent {
            let leases = self.deliveries.get(id);
            let gone = leases.is_some_and(|leases| leases.iter().any(Lease::may_be_acknowledged));
            if !gone && !left.contains(id) {
                violations.push(format!("{id} is lost"));
            }
        }
        if violations.is_empty() { Ok(summary) } else { Err(Violations(violations)) }
    }
}

impl Lease {
    fn acknowledged(&self) -> Option<&Attempt> {
        self.settles.iter().find(|attempt| {
            attempt.action == SettleAction::Acknowledge && attempt.outcome == Outcome::Done
        })
    }

    fn may_be_acknowledged(&self) -> bool {
        self.settles.iter().any(|attempt| {
            attempt.action == SettleAction::Acknowledge && attempt.outcome != Outcome::Refused
        })
    }

    /// Extensions that may have taken place.
    fn extensions(&self) -> impl Iterator<Item = (&Attempt, Duration)> {
        self.settles.iter().filter_map(|attempt| match attempt.action {
            SettleAction::Extend { timeout } if attempt.outcome != Outcome::Refused => {
                Some((attempt, timeout))
            }
            _ => None,
        })
    }

    /// A settle that was done though the lease had ended before it was asked for.
    fn violation(&self) -> Option<String> {
        let mut latest_end = self.received.end + self.visibility;
        for attempt in &self.settles {
            if attempt.outcome == Outcome::Done && attempt.at.start > latest_end {
                let late = attempt.at.start - latest_end;
                return Some(format!("took {:?} {late:?} after its lease ended", attempt.action));
            }
            if let SettleAction::Extend { timeout } = attempt.action
                && attempt.outcome != Outcome::Refused
            {
                latest_end = attempt.at.end + timeout;
            }
        }
        None
    }

    /// A next delivery that came while this one must still have been running, or after it was
    /// acknowledged.
    fn succession(&self, next: &Lease) -> Option<String> {
        if let Some(attempt) = self.acknowledged()
            && next.received.start > attempt.at.end
        {
            return Some(format!("came back as delivery {} after acknowledgement", next.count));
        }
        let nacked = self.settles.iter().any(|attempt| {
            matches!(attempt.action, SettleAction::Nack { .. })
                && attempt.outcome != Outcome::Refused
        });
        let ended_early = nacked
            || self.extensions().any(|(attempt, timeout)| {
                // An extension may also have shortened the lease.
                attempt.at.end + timeout < self.received.end + self.visibility
            });
        let earliest_end = self
            .extensions()
            .filter(|(attempt, _)| attempt.outcome == Outcome::Done)
            .map(|(attempt, timeout)| attempt.at.start + timeout)
            .fold(self.received.start + self.visibility, Instant::max);
        if !ended_early && next.received.end < earliest_end {
            let early = earliest_end - next.received.end;
            return Some(format!(
                "came as delivery {} {early:?} before the lease ended",
                next.count
            ));
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use pillarbox_core::{Nonce, RawMessage, Timestamp};

    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    /// Builds a history by hand, with times in seconds.
    struct Builder {
        zero: Instant,
        history: History,
        id: MessageId,
    }

    impl Builder {
        fn new() -> Self {
            let id = MessageId::new();
            let mut history = History::new();
            history.sent(id);
            Self { zero: Instant::now(), history, id }
        }

        fn at(&self, second: u64) -> Interval {
            let start = self.zero + Duration::from_secs(second);
            Interval { start, end: start + Duration::from_millis(1) }
        }

        fn deliver(&mut self, second: u64, count: u32) -> Delivery {
            let message = RawMessage {
                id: self.id,
                body: bytes::Bytes::new(),
                attributes: pillarbox_core::Attributes::new(),
                reply_to: None,
                enqueued_at: Timestamp::now(),
                delivery_count: count,
            };
            let receipt = Receipt::new(self.id, Nonce::random());
            let delivery = Delivery { message, receipt };
            self.history.delivered(&delivery, self.at(second), LEASE);
            delivery
        }

        fn settle(&mut self, of: &Delivery, second: u64, action: SettleAction, outcome: Outcome) {
            self.history.settled(of, action, self.at(second), outcome);
        }

        fn refused(&self, says: &str) {
            let violations = self.history.check(&HashSet::new()).unwrap_err().to_string();
            assert!(violations.contains(says), "{violations}");
        }
    }

    const ACK: SettleAction = SettleAction::Acknowledge;
    const NACK: SettleAction = SettleAction::Nack { delay: Duration::ZERO };

    #[test]
    fn a_good_history_is_summed_up() {
        let mut h = Builder::new();
        let first = h.deliver(0, 1);
        h.settle(&first, 40, ACK, Outcome::Refused);
        let second = h.deliver(31, 2);
        h.settle(&second, 32, NACK, Outcome::Done);
        let third = h.deliver(33, 3);
        h.settle(&third, 34, ACK, Outcome::Done);
        let summary = h.history.check(&HashSet::new()).unwrap();
        let expected =
            Summary { sent: 1, deliveries: 3, redeliveries: 2, acknowledged: 1, refused: 1 };
        assert_eq!(summary, expected);
    }

    #[test]
    fn a_lost_message_is_found() {
        let mut h = Builder::new();
        h.deliver(0, 1);
        h.refused("is lost");
        assert!(h.history.check(&HashSet::from([h.id])).is_ok());
    }

    #[test]
    fn a_lost_answer_to_an_acknowledgement_is_no_loss() {
        let mut h = Builder::new();
        let first = h.deliver(0, 1);
        h.settle(&first, 1, ACK, Outcome::Unknown);
        assert!(h.history.check(&HashSet::new()).is_ok());
    }

    #[test]
    fn a_second_acknowledgement_is_found() {
        let mut h = Builder::new();
        let (first, second) = (h.deliver(0, 1), h.deliver(31, 2));
        h.settle(&first, 29, ACK, Outcome::Done);
        h.settle(&second, 32, ACK, Outcome::Done);
        h.refused("acknowledged 2 times");
        h.refused("after acknowledgement");
    }

    #[test]
    fn a_message_acknowledged_and_still_there_is_found() {
        let mut h = Builder::new();
        let first = h.deliver(0, 1);
        h.settle(&first, 1, ACK, Outcome::Done);
        let violations = h.history.check(&HashSet::from([h.id])).unwrap_err();
        assert!(violations.to_string().contains("still in the queue"));
    }

    #[test]
    fn a_stale_receipt_that_was_accepted_is_found() {
        let mut h = Builder::new();
        let first = h.deliver(0, 1);
        h.settle(&first, 31, ACK, Outcome::Done);
        h.refused("after its lease ended");
    }

    #[test]
    fn an_extension_moves_the_deadline() {
        let mut h = Builder::new();
        let first = h.deliver(0, 1);
        h.settle(&first, 20, SettleAction::Extend { timeout: LEASE }, Outcome::Done);
        h.settle(&first, 45, ACK, Outcome::Done);
        assert!(h.history.check(&HashSet::new()).is_ok());
        h.deliver(40, 2);
        h.refused("before the lease ended");
    }

    #[test]
    fn two_leases_at_once_are_found() {
        let mut h = Builder::new();
        h.deliver(0, 1);
        h.deliver(20, 2);
        h.refused("before the lease ended");
    }

    #[test]
    fn counts_that_stand_still_or_jump_are_found() {
        for counts in [[1, 1], [1, 3], [2, 3]] {
            let mut h = Builder::new();
            h.deliver(0, counts[0]);
            h.deliver(31, counts[1]);
            h.refused("delivery counts");
        }
    }

    #[test]
    fn a_receipt_used_twice_is_found() {
        let mut h = Builder::new();
        let mut first = h.deliver(0, 1);
        first.message.delivery_count = 2;
        h.history.delivered(&first, h.at(31), LEASE);
        h.refused("used receipt");
    }

    #[test]
    fn a_message_that_nobody_sent_is_found() {
        let mut h = Builder::new();
        h.history.sent.clear();
        h.deliver(0, 1);
        h.refused("never sent");
    }
}
