//! A record of what clients observed, and the check that the contract allows it.
//!
//! Clients record what they did and when, on one clock: a send that was answered, a delivery, a
//! settle and its outcome. [`History::check`] then compares the record with the contract, without
//! knowledge of the queue's internals:
//!
//! * nothing lost: every send that was answered is acknowledged, or still in the queue;
//! * nothing acknowledged twice, and nothing delivered after its acknowledgement;
//! * no receipt used for two deliveries, and none accepted after its delivery was settled, after its
//!   deadline or after the message was delivered again;
//! * no receipt refused while its lease must have been running;
//! * the counts of a message's deliveries are 1, 2, 3, ... in the order of time;
//! * no delivery before the lease, or the delay of the nack, of the one before has ended.
//!
//! Times are taken before a request and after its answer. The queue acted somewhere in between, so
//! each rule checks only what must be true whenever that was. If an answer was lost, the rules allow
//! for both outcomes.
//!
//! Leases end by the clock of the server, which is on this machine. If that clock is set during a run, a
//! lease is longer or shorter than measured, so every rule allows for the amount by which it was set.
//!
//! When a server with asynchronous replication fails over, the last operations may be undone. Such
//! moments are [recorded](History::server_replaced), and a problem that only a failover explains is counted
//! as [`Undone`] instead: only if it spans a failover, and never for a receipt that is accepted after its
//! deadline.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::time::{Duration, SystemTime};

use pillarbox_core::{Delivery, MessageId, Receipt, SettleAction};
use tokio::time::Instant;

/// Record of what clients observed of one queue.
#[derive(Debug, Default)]
pub struct History {
    sent: HashSet<MessageId>,
    /// Sends whose answer was lost.
    maybe_sent: HashSet<MessageId>,
    /// The answer to a receive was lost: there may be deliveries that no client knows of.
    receive_lost: bool,
    deliveries: HashMap<MessageId, Vec<Lease>>,
    /// When a server was replaced by one that may lack its last operations.
    replaced: Vec<Interval>,
    began: Clocks,
    /// Largest change of the system clock against `began` seen so far.
    set_by: Duration,
}

/// One moment, by the monotonic clock and by the system clock.
#[derive(Debug, Clone, Copy)]
struct Clocks {
    monotonic: std::time::Instant,
    system: SystemTime,
}

impl Default for Clocks {
    fn default() -> Self {
        Self { monotonic: std::time::Instant::now(), system: SystemTime::now() }
    }
}

impl Clocks {
    /// Returns by how much the system clock was set since then, forwards or backwards.
    fn set_by(self) -> Duration {
        let now = Self::default();
        let expected = self.system + now.monotonic.duration_since(self.monotonic);
        let ahead = now.system.duration_since(expected);
        ahead.unwrap_or_else(|behind| behind.duration())
    }
}

/// One delivery and its settles.
#[derive(Debug, Clone)]
struct Lease {
    receipt: Receipt,
    count: u32,
    /// Before the receive was called, and after it was answered.
    received: Interval,
    visibility: Duration,
    settles: Vec<SettleCall>,
}

#[derive(Debug, Clone)]
struct SettleCall {
    action: SettleAction,
    at: Interval,
    outcome: Outcome,
}

/// Outcome of a settle, as far as the client knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The queue confirmed it.
    Done,
    /// The queue refused the receipt.
    Refused,
    /// The answer was lost.
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
    /// Returns the interval from `start` until now.
    pub fn since(start: Instant) -> Self {
        Self { start, end: Instant::now() }
    }
}

/// Totals of a history without violations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of messages sent.
    pub sent: usize,
    /// Number of deliveries, including redeliveries.
    pub deliveries: usize,
    /// Number of deliveries after the first of their message.
    pub redeliveries: usize,
    /// Number of messages acknowledged.
    pub acknowledged: usize,
    /// Number of refused settles.
    pub refused: usize,
    /// Operations undone by failovers.
    pub undone: Undone,
}

/// Numbers of operations on a server that were unknown to the one that took over from it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Confirmed sends of messages that are gone and were not acknowledged.
    pub lost: usize,
    /// Acknowledged messages that were delivered again or are still in the queue.
    pub came_back: usize,
    /// Confirmed settles after which the receipt was accepted again.
    pub revived: usize,
    /// Deliveries whose receipt was refused, or whose message was redelivered too early or with the same count.
    pub forgotten: usize,
}

impl Undone {
    fn count(&mut self, kind: Kind) {
        *match kind {
            Kind::Lost => &mut self.lost,
            Kind::CameBack => &mut self.came_back,
            Kind::Revived => &mut self.revived,
            Kind::Forgotten => &mut self.forgotten,
        } += 1;
    }
}

/// Field of [`Undone`].
#[derive(Debug, Clone, Copy)]
enum Kind {
    Lost,
    CameBack,
    Revived,
    Forgotten,
}

/// A violation, unless a server was replaced in the interval.
struct Problem {
    kind: Kind,
    between: Interval,
    what: String,
}

/// Violations of the contract that a history shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violations {
    what: Vec<String>,
    /// Change of the system clock that the rules allowed for.
    clock_set_by: Duration,
}

impl fmt::Display for Violations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, clock_set_by } = self;
        let count = what.len();
        writeln!(f, "{count} violations of the contract (with a clock set by {clock_set_by:?}):")?;
        what.iter().take(20).try_for_each(|violation| writeln!(f, "- {violation}"))
    }
}

impl std::error::Error for Violations {}

impl History {
    /// Creates an empty history. Must be called before the first call that it records.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records a send that was answered.
    pub fn sent(&mut self, id: MessageId) {
        self.sent.insert(id);
    }

    /// Records a send whose answer was lost.
    pub fn maybe_sent(&mut self, id: MessageId) {
        self.maybe_sent.insert(id);
    }

    /// Returns the number of sends whose answer was lost and that are not known to be stored.
    pub fn maybe_sent_len(&self) -> usize {
        self.maybe_sent.difference(&self.sent).count()
    }

    /// Records a receive whose answer was lost: delivery counts may have gaps from now on.
    pub fn receive_lost(&mut self) {
        self.receive_lost = true;
    }

    /// Records that a server failed within this interval, and that its successor may lack its last operations.
    pub fn server_replaced(&mut self, at: Interval) {
        self.replaced.push(at);
    }

    /// Whether any server was replaced.
    pub fn was_server_replaced(&self) -> bool {
        !self.replaced.is_empty()
    }

    fn was_replaced_in(&self, time: Interval) -> bool {
        self.replaced.iter().any(|at| time.start <= at.end && at.start <= time.end)
    }

    /// Records a delivery.
    pub fn delivered(&mut self, delivery: &Delivery, received: Interval, visibility: Duration) {
        self.set_by = self.set_by.max(self.began.set_by());
        self.deliveries.entry(delivery.message.id).or_default().push(Lease {
            receipt: delivery.receipt.clone(),
            count: delivery.message.delivery_count,
            received,
            visibility,
            settles: Vec::new(),
        });
    }

    /// Records a settle of a delivery that was recorded before.
    pub fn settled(
        &mut self,
        delivery: &Delivery,
        action: SettleAction,
        at: Interval,
        outcome: Outcome,
    ) {
        let leases = self.deliveries.entry(delivery.message.id).or_default();
        if let Some(lease) = leases.iter_mut().find(|lease| lease.receipt == delivery.receipt) {
            lease.settles.push(SettleCall { action, at, outcome });
        }
    }

    /// Adds the history of another client.
    pub fn merge(&mut self, other: Self) {
        self.sent.extend(other.sent);
        self.maybe_sent.extend(other.maybe_sent);
        self.receive_lost |= other.receive_lost;
        self.replaced.extend(other.replaced);
        self.set_by = self.set_by.max(other.set_by);
        if other.began.monotonic < self.began.monotonic {
            self.began = other.began;
        }
        for (id, leases) in other.deliveries {
            self.deliveries.entry(id).or_default().extend(leases);
        }
    }

    /// Checks the history against the contract. `left` are the messages that are still in the queue.
    pub fn check(&self, left: &HashSet<MessageId>) -> Result<Summary, Violations> {
        let set_by = self.set_by.max(self.began.set_by());
        let mut violations = Vec::new();
        let mut summary = Summary { sent: self.sent.len(), ..Summary::default() };
        let mut receipts = HashSet::new();
        for (id, leases) in &self.deliveries {
            let mut leases: Vec<_> = leases.iter().collect();
            leases.sort_by_key(|lease| (lease.count, lease.received.end));
            let ends: Vec<_> = leases.iter().map(|lease| lease.replay(set_by)).collect();
            let acknowledged = ends.iter().map(|end| end.acknowledged).sum::<usize>();
            summary.deliveries += leases.len();
            summary.redeliveries += leases.len().saturating_sub(1);
            summary.acknowledged += usize::from(acknowledged > 0);
            summary.refused += ends.iter().map(|end| end.refused).sum::<usize>();

            let mut violation = |what: String| violations.push(format!("{id} {what}"));
            if !self.sent.contains(id) && !self.maybe_sent.contains(id) {
                violation("was delivered and never sent".into());
            }
            for lease in &leases {
                if !receipts.insert(lease.receipt.clone()) {
                    violation("was delivered under a used receipt".into());
                }
            }
            ends.iter().flat_map(|end| &end.violations).cloned().for_each(&mut violation);
            let mut problems = self.problems(&leases, &ends, left.contains(id), set_by);
            let is_back = |problem: &Problem| matches!(problem.kind, Kind::CameBack);
            if problems.iter().any(is_back) && problems.iter().all(|p| self.explains(p)) {
                // Once per message, however many problems show it.
                summary.undone.count(Kind::CameBack);
                problems.retain(|problem| !is_back(problem));
            }
            for problem in problems {
                if self.explains(&problem) {
                    summary.undone.count(problem.kind);
                } else {
                    violation(problem.what);
                }
            }
        }
        for id in &self.sent {
            let leases = self.deliveries.get(id);
            let gone = leases.is_some_and(|leases| leases.iter().any(Lease::may_be_acknowledged));
            if gone || left.contains(id) {
                continue;
            }
            if self.replaced.is_empty() {
                violations.push(format!("{id} is lost"));
            } else {
                summary.undone.count(Kind::Lost);
            }
        }
        if violations.is_empty() {
            return Ok(summary);
        }
        Err(Violations { what: violations, clock_set_by: set_by })
    }

    /// Whether a replaced server explains a problem.
    fn explains(&self, problem: &Problem) -> bool {
        self.was_replaced_in(problem.between)
    }

    /// Returns the problems with the deliveries of one message, which are in the order of their counts.
    fn problems(
        &self,
        leases: &[&Lease],
        ends: &[End],
        is_left: bool,
        set_by: Duration,
    ) -> Vec<Problem> {
        let mut problems: Vec<_> = Vec::new();
        let mut problem =
            |kind, between, what: String| problems.push(Problem { kind, between, what });
        let start = leases.iter().map(|lease| lease.received.start).min();
        let end = leases.iter().map(|lease| lease.last()).max();
        let now = Instant::now();
        let whole = Interval { start: start.unwrap_or(now), end: end.unwrap_or(now) };
        let acknowledged = ends.iter().map(|end| end.acknowledged).sum::<usize>();
        if acknowledged > 1 {
            problem(Kind::CameBack, whole, format!("was acknowledged {acknowledged} times"));
        }
        if acknowledged > 0 && is_left {
            let between = Interval::since(whole.start);
            problem(Kind::CameBack, between, "was acknowledged and is still in the queue".into());
        }
        let counts: Vec<_> = leases.iter().map(|lease| lease.count).collect();
        let gapless = counts.iter().zip(1..).all(|(count, expected)| *count == expected);
        let rising = counts.is_sorted_by(|a, b| a < b) && counts[0] > 0;
        if !(gapless || self.receive_lost && rising) {
            problem(Kind::Forgotten, whole, format!("has delivery counts {counts:?}"));
        }
        for (index, (lease, end)) in leases.iter().zip(ends).enumerate() {
            for (kind, between, what) in &end.problems {
                problem(*kind, *between, what.clone());
            }
            let next = leases[index + 1..].iter().find(|next| next.count > lease.count);
            if let Some((kind, what)) = next.and_then(|next| lease.check_next(end, next, set_by)) {
                problem(kind, whole, what);
            }
        }
        problems
    }
}

/// Result of one lease, from its own settles.
struct End {
    /// Earliest moment at which the message could be delivered again: the end of the lease, or of a nack's delay.
    earliest: Instant,
    /// Number of confirmed acknowledgements.
    acknowledged: usize,
    /// Number of refused settles.
    refused: usize,
    /// Violations that no failover explains.
    violations: Vec<String>,
    problems: Vec<(Kind, Interval, String)>,
}

impl Lease {
    /// Replays the settles in order; the holder of a delivery makes one at a time. Times may be wrong by `set_by`.
    fn replay(&self, set_by: Duration) -> End {
        let mut end = End {
            earliest: self.received.start + self.visibility,
            acknowledged: 0,
            refused: 0,
            violations: Vec::new(),
            problems: Vec::new(),
        };
        // The lease is over after this.
        let mut latest = self.received.end + self.visibility;
        let (mut over, mut unsure) = (false, false);
        let since = |at: &Interval| Interval { start: self.received.start, end: at.end };
        for SettleCall { action, at, outcome } in &self.settles {
            match outcome {
                Outcome::Refused => {
                    end.refused += 1;
                    if !over && !unsure && at.end + set_by < end.earliest {
                        let what = format!("refused {action:?} while its lease ran");
                        end.problems.push((Kind::Forgotten, since(at), what));
                    }
                    continue;
                }
                Outcome::Unknown => unsure = true,
                Outcome::Done if over => {
                    let what = format!("took {action:?} after it was settled");
                    end.problems.push((Kind::Revived, since(at), what));
                }
                Outcome::Done if at.start > latest + set_by => {
                    let late = at.start - latest;
                    end.violations.push(format!("took {action:?} {late:?} after its lease ended"));
                }
                Outcome::Done => {}
            }
            let done = *outcome == Outcome::Done;
            let later = match *action {
                SettleAction::Acknowledge => {
                    end.acknowledged += usize::from(done);
                    end.earliest
                }
                SettleAction::Nack { delay } | SettleAction::Release { delay } => at.start + delay,
                SettleAction::Extend { timeout } | SettleAction::Start { timeout } => {
                    let until = at.end + timeout;
                    latest = if done { until } else { latest.max(until) };
                    at.start + timeout
                }
            };
            end.earliest = if done { later } else { end.earliest.min(later) };
            over |= done && action.timeout().is_none();
        }
        end
    }

    /// Returns the problem with `next` following this delivery, if any. Times may be wrong by `set_by`.
    fn check_next(&self, end: &End, next: &Lease, set_by: Duration) -> Option<(Kind, String)> {
        let count = next.count;
        let late = self.settles.iter().find(|call| {
            call.outcome == Outcome::Done && call.at.start > next.received.end + set_by
        });
        if end.acknowledged > 0 {
            let what = format!("came as delivery {count} though it was acknowledged before");
            return Some((Kind::CameBack, what));
        }
        let what = if let Some(late) = late {
            format!("took {:?} for a delivery before the last", late.action)
        } else if next.received.end + set_by < self.received.start {
            format!("came as delivery {count} before delivery {}", self.count)
        } else if next.received.end + set_by < end.earliest {
            let early = end.earliest - next.received.end;
            format!("came as delivery {count} {early:?} before it could be ready")
        } else {
            return None;
        };
        Some((Kind::Forgotten, what))
    }

    /// Returns the end of the last call about this delivery.
    fn last(&self) -> Instant {
        self.settles.iter().map(|call| call.at.end).fold(self.received.end, Instant::max)
    }

    fn may_be_acknowledged(&self) -> bool {
        self.settles.iter().any(|call| {
            call.action == SettleAction::Acknowledge && call.outcome != Outcome::Refused
        })
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

        /// Builds a history with one delivery.
        fn delivered() -> (Self, Delivery) {
            let mut builder = Self::new();
            let delivery = builder.deliver(0, 1);
            (builder, delivery)
        }

        fn at(&self, second: u64) -> Interval {
            let start = self.zero + Duration::from_secs(second);
            Interval { start, end: start + Duration::from_millis(1) }
        }

        fn deliver(&mut self, second: u64, count: u32) -> Delivery {
            let mut message = RawMessage::new(self.id, "", Timestamp::now());
            message.delivery_count = count;
            let delivery = Delivery::new(message, Receipt::new(self.id, Nonce::random()));
            self.history.delivered(&delivery, self.at(second), LEASE);
            delivery
        }

        fn settle(&mut self, of: &Delivery, second: u64, action: SettleAction, outcome: Outcome) {
            self.history.settled(of, action, self.at(second), outcome);
        }

        fn replaced(&mut self, second: u64) {
            self.history.server_replaced(self.at(second));
        }

        fn refused(&self, says: &str) {
            let violations = self.history.check(&HashSet::new()).unwrap_err().to_string();
            assert!(violations.contains(says), "{violations}");
        }
    }

    const ACK: SettleAction = SettleAction::Acknowledge;
    const NACK: SettleAction = SettleAction::Nack { delay: Duration::ZERO };

    #[test]
    fn a_valid_history_is_summarized() {
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 40, ACK, Outcome::Refused);
        let second = h.deliver(41, 2);
        h.settle(&second, 42, NACK, Outcome::Done);
        let third = h.deliver(43, 3);
        h.settle(&third, 44, ACK, Outcome::Done);
        let summary = h.history.check(&HashSet::new()).unwrap();
        let expected = Summary {
            sent: 1,
            deliveries: 3,
            redeliveries: 2,
            acknowledged: 1,
            refused: 1,
            ..Summary::default()
        };
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
        let (mut h, first) = Builder::delivered();
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
        h.refused("though it was acknowledged before");
    }

    #[test]
    fn a_message_acknowledged_and_still_there_is_found() {
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 1, ACK, Outcome::Done);
        let violations = h.history.check(&HashSet::from([h.id])).unwrap_err();
        assert!(violations.to_string().contains("still in the queue"));
    }

    #[test]
    fn a_stale_receipt_that_was_accepted_is_found() {
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 31, ACK, Outcome::Done);
        h.refused("after its lease ended");
    }

    #[test]
    fn an_extension_moves_the_deadline() {
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 20, SettleAction::Extend { timeout: LEASE }, Outcome::Done);
        h.settle(&first, 45, ACK, Outcome::Done);
        assert!(h.history.check(&HashSet::new()).is_ok());

        let (mut h, first) = Builder::delivered();
        h.settle(&first, 20, SettleAction::Extend { timeout: LEASE }, Outcome::Done);
        h.deliver(40, 2);
        h.refused("before it could be ready");
    }

    #[test]
    fn the_last_extension_counts() {
        let (mut h, first) = Builder::delivered();
        let extend = |seconds| SettleAction::Extend { timeout: Duration::from_secs(seconds) };
        h.settle(&first, 1, extend(1000), Outcome::Done);
        h.settle(&first, 2, extend(60), Outcome::Done);
        let second = h.deliver(63, 2);
        h.settle(&second, 64, ACK, Outcome::Done);
        assert!(h.history.check(&HashSet::new()).is_ok());
        h.settle(&first, 65, NACK, Outcome::Done);
        h.refused("after its lease ended");
    }

    #[test]
    fn a_receipt_that_outlives_its_settling_is_found() {
        for (first, second) in [(NACK, ACK), (ACK, ACK), (NACK, NACK)] {
            let (mut h, delivery) = Builder::delivered();
            h.settle(&delivery, 1, first, Outcome::Done);
            h.settle(&delivery, 2, second, Outcome::Done);
            h.refused("after it was settled");
        }
    }

    #[test]
    fn a_receipt_that_is_refused_in_time_is_found() {
        let (mut h, delivery) = Builder::delivered();
        h.settle(&delivery, 10, ACK, Outcome::Refused);
        h.refused("while its lease ran");
    }

    #[test]
    fn a_nack_for_a_delivery_before_the_last_is_found() {
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 1, SettleAction::Extend { timeout: Duration::ZERO }, Outcome::Unknown);
        h.deliver(5, 2);
        h.settle(&first, 10, NACK, Outcome::Done);
        h.refused("before the last");
    }

    #[test]
    fn a_redelivery_before_the_delay_of_a_nack_is_over_is_found() {
        let (mut h, first) = Builder::delivered();
        let hour = SettleAction::Nack { delay: Duration::from_secs(3600) };
        h.settle(&first, 1, hour, Outcome::Done);
        h.deliver(40, 2);
        h.refused("before it could be ready");
    }

    #[test]
    fn a_clock_that_was_set_excuses_only_what_it_explains() {
        let ten_seconds = Duration::from_secs(10);
        for (second, is_explained) in [(21, true), (19, false)] {
            for forwards in [true, false] {
                let mut h = Builder::new();
                let began = &mut h.history.began.system;
                *began = if forwards { *began - ten_seconds } else { *began + ten_seconds };
                h.deliver(0, 1);
                h.deliver(second, 2);
                let checked = h.history.check(&HashSet::from([h.id]));
                assert_eq!(checked.is_ok(), is_explained, "{second} {forwards} {checked:?}");
            }
        }
    }

    #[test]
    fn counts_that_fall_over_time_are_found() {
        let mut h = Builder::new();
        h.deliver(40, 1);
        h.deliver(0, 2);
        h.refused("before delivery 1");
    }

    #[test]
    fn lost_answers_are_excused_where_they_are_recorded() {
        let mut h = Builder::new();
        h.history.sent.clear();
        let third = h.deliver(0, 3);
        h.settle(&third, 1, ACK, Outcome::Done);
        h.refused("delivery counts");
        h.history.receive_lost();
        h.refused("never sent");
        h.history.maybe_sent(h.id);
        assert!(h.history.check(&HashSet::new()).is_ok());
    }

    #[test]
    fn two_leases_at_once_are_found() {
        let mut h = Builder::new();
        h.deliver(0, 1);
        h.deliver(20, 2);
        h.refused("before it could be ready");
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
    fn effects_that_a_replaced_server_has_undone_are_counted() {
        let undone = |h: &Builder| h.history.check(&HashSet::new()).unwrap().undone;
        let mut h = Builder::new();
        h.replaced(50);
        assert_eq!(undone(&h), Undone { lost: 1, ..Undone::default() });

        let (mut h, first) = Builder::delivered();
        h.settle(&first, 1, ACK, Outcome::Done);
        h.replaced(2);
        h.settle(&first, 3, NACK, Outcome::Done);
        let second = h.deliver(4, 2);
        h.settle(&second, 5, ACK, Outcome::Done);
        assert_eq!(undone(&h), Undone { came_back: 1, revived: 1, ..Undone::default() });

        let mut h = Builder::new();
        h.deliver(0, 1);
        h.replaced(2);
        let again = h.deliver(3, 1);
        h.settle(&again, 5, ACK, Outcome::Done);
        assert_eq!(undone(&h), Undone { forgotten: 1, ..Undone::default() });
    }

    #[test]
    fn violations_that_a_replaced_server_does_not_explain_are_found() {
        // All of it happened before.
        let (mut h, first) = Builder::delivered();
        h.settle(&first, 1, ACK, Outcome::Done);
        h.settle(&first, 2, NACK, Outcome::Done);
        h.replaced(3);
        h.refused("after it was settled");

        let (mut h, first) = Builder::delivered();
        h.replaced(20);
        h.settle(&first, 31, ACK, Outcome::Done);
        h.refused("after its lease ended");

        let mut h = Builder::new();
        h.deliver(0, 1);
        h.deliver(2, 1);
        h.replaced(3);
        h.refused("delivery counts");
    }

    #[test]
    fn a_message_that_was_never_sent_is_found() {
        let mut h = Builder::new();
        h.history.sent.clear();
        h.deliver(0, 1);
        h.refused("never sent");
    }
}
