//! The dispatcher without a queue, a worker or a clock: events in, actions out.

use futures_util::FutureExt;
use pillarbox_core::{MessageId, Nonce, SettleAction, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::lease::Lease;

const LEASE: Duration = Duration::from_secs(30);
const BACKOFF: Duration = Duration::from_millis(50);

fn settings() -> SourceSettings {
    SourceSettings {
        weight: 1,
        visibility: LEASE,
        max_receive: 1000,
        max_batch: 1000,
        while_beating: false,
        cancel_lost: false,
        quarantine: Quarantine { after: 5, route: None, is_exact: true, stagger: STAGGER },
        park: Duration::from_secs(900),
    }
}

/// A dispatcher, and what it has asked for.
struct Bench {
    dispatcher: Dispatcher,
    now: Instant,
    fetches: Vec<Option<usize>>,
    assigned: VecDeque<(usize, Assigned)>,
    calls: VecDeque<(usize, LaneKind, Vec<SettleAction>)>,
    buried: VecDeque<Key>,
    retired: Vec<usize>,
    hired: Vec<usize>,
    notes: Vec<Note>,
    is_over: bool,
}

impl Bench {
    fn new(workers: usize, inbox: usize, sources: &[SourceSettings]) -> Self {
        let now = Instant::now();
        let drain = Duration::from_secs(30);
        let wanted = Wanted { is_paused: false, stop: None, workers, drain };
        let settings = Settings { inbox, results: 128, backoff: BACKOFF };
        let mut bench = Self {
            dispatcher: Dispatcher::new(settings, sources.to_vec(), wanted, now),
            now,
            fetches: vec![None; sources.len()],
            assigned: VecDeque::new(),
            calls: VecDeque::new(),
            buried: VecDeque::new(),
            retired: Vec::new(),
            hired: Vec::new(),
            notes: Vec::new(),
            is_over: false,
        };
        bench.plan();
        bench
    }

    fn one(workers: usize, inbox: usize) -> Self {
        Self::new(workers, inbox, &[settings()])
    }

    fn plan(&mut self) {
        self.dispatcher.plan(self.now);
        while let Some(action) = self.dispatcher.next_action() {
            match action {
                Action::Fetch { source, max, .. } => {
                    assert!(self.fetches[source].replace(max).is_none(), "two fetches of a source");
                }
                Action::CancelFetch { source } => {
                    assert!(self.fetches[source].take().is_some(), "no such fetch");
                }
                Action::Assign { worker, assigned } => self.assigned.push_back((worker, assigned)),
                Action::Settle { source, lane, batch } => {
                    let actions = batch.into_iter().map(|(_, action)| action).collect();
                    self.calls.push_back((source, lane, actions));
                }
                Action::Bury(burial) => self.buried.push_back(burial.key),
                Action::Hire { worker } => self.hired.push(worker),
                Action::Retire { worker } => self.retired.push(worker),
                Action::Finish => self.is_over = true,
            }
        }
        self.notes.extend(self.dispatcher.take_notes());
    }

    fn event(&mut self, event: Event) {
        self.dispatcher.handle(event, self.now);
        self.plan();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.plan();
    }

    /// Answers the fetch of a source with so many messages, at their first delivery.
    fn deliver(&mut self, source: usize, messages: usize) {
        self.deliver_nth(source, messages, 1);
    }

    fn deliver_nth(&mut self, source: usize, messages: usize, attempt: u32) {
        let ids: Vec<_> = (0..messages).map(|_| MessageId::new()).collect();
        self.deliver_ids(source, &ids, attempt);
    }

    fn deliver_ids(&mut self, source: usize, ids: &[MessageId], attempt: u32) {
        let unsettled: Vec<_> = ids.iter().map(|id| (*id, attempt, 0)).collect();
        self.deliver_all(source, &unsettled);
    }

    /// Answers with messages of which so many deliveries were not settled, which are all before this one.
    fn deliver_unsettled(&mut self, source: usize, unsettled: &[u32]) {
        let all: Vec<_> = unsettled.iter().map(|n| (MessageId::new(), n + 1, *n)).collect();
        self.deliver_all(source, &all);
    }

    fn deliver_all(&mut self, source: usize, all: &[(MessageId, u32, u32)]) {
        let all: Vec<_> = all.iter().map(|(id, count, n)| (*id, *count, *n, 0)).collect();
        self.deliver_messages(source, &all);
    }

    /// Answers with messages of so many deliveries, of which so many were unsettled and uncounted.
    fn deliver_messages(&mut self, source: usize, all: &[(MessageId, u32, u32, u32)]) {
        let max = self.fetches[source].take().expect("a fetch");
        assert!(all.len() <= max, "{} of {max}", all.len());
        let delivery = |(id, attempt, unsettled, uncounted): &(MessageId, u32, u32, u32)| {
            let mut message = RawMessage::new(*id, "x", Timestamp::now());
            message.delivery_count = *attempt;
            message.unsettled = *unsettled;
            message.uncounted = *uncounted;
            Delivery::new(message, Receipt::new(*id, Nonce::random()))
        };
        let answer = Ok(all.iter().map(delivery).collect());
        self.event(Event::Fetched { source, answer });
    }

    /// A worker takes up the first delivery, and waits until the queue knows.
    fn start(&mut self) -> Arc<Lease> {
        let (_, Assigned { key, lease, .. }) = &self.assigned[0];
        let (key, lease) = (*key, lease.clone());
        assert!(lease.begin());
        self.event(Event::Starting { key });
        lease
    }

    fn finish(&mut self, verdict: Verdict) -> Key {
        let (worker, Assigned { key, source, lease, .. }) = self.assigned.pop_front().expect("one");
        if !lease.begin() && !lease.has_begun() {
            self.event(Event::Skipped { worker });
            return key;
        }
        let took = Some(Duration::from_millis(1));
        self.event(Event::Finished(Finished { key, source, worker, verdict, took }));
        key
    }

    /// Answers the next call, with the same for all its entries.
    fn answer(&mut self, answer: Result<()>) {
        let (source, lane, actions) = self.calls.pop_front().expect("a call");
        let answer = Ok(vec![answer; actions.len()]);
        self.event(Event::Settled { source, lane, answer });
    }

    fn names(&self) -> Vec<&'static str> {
        self.notes
            .iter()
            .map(|note| match note.what {
                What::Received => "received",
                What::Shed => "shed",
                What::Succeeded { .. } => "succeeded",
                What::Failed { .. } => "failed",
                What::Retried { .. } => "retried",
                What::Released { .. } => "released",
                What::Returned => "returned",
                What::Parked { .. } => "parked",
                What::DeadLettered { .. } => "dead-lettered",
                What::LeaseLost => "lost",
                What::Unconfirmed => "unconfirmed",
                What::Extended => "extended",
            })
            .collect()
    }

    /// What is thought of a message at this delivery, of which so many were not settled.
    fn suspicion(&self, id: MessageId, attempt: u32, unsettled: u32) -> Suspicion {
        let mut message = RawMessage::new(id, "x", Timestamp::now());
        (message.delivery_count, message.unsettled) = (attempt, unsettled);
        self.dispatcher.suspicion(0, &message)
    }

    fn want(&mut self, change: impl FnOnce(&mut Wanted)) {
        let mut wanted = self.dispatcher.wanted;
        change(&mut wanted);
        self.event(Event::Wanted(wanted));
    }
}

fn expired() -> Error {
    let receipt = Receipt::new(MessageId::new(), Nonce::random());
    Error::ReceiptHandleExpired { queue: "q".parse().unwrap(), receipt }
}

fn broken() -> Error {
    Error::connection(None, "settle", "broken")
}

fn letter() -> LetterNote {
    LetterNote { message_id: MessageId::new(), request_id: None }
}

fn failed(then: Then) -> Verdict {
    let failure = FailureNote {
        kind: FailureKind::Error,
        type_name: "E",
        text: "no".into(),
        causes: [].into(),
    };
    Verdict::Failed { failure, then }
}

#[test]
fn no_more_is_asked_for_than_there_are_places() {
    let mut bench = Bench::one(4, 1);
    assert_eq!((bench.fetches[0], bench.hired.len()), (Some(8), 4));
    bench.deliver(0, 3);
    assert_eq!((bench.fetches[0], bench.assigned.len()), (Some(5), 3));
    let workers: Vec<_> = bench.assigned.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers, [0, 1, 2], "each gets one before any gets two");
    bench.deliver(0, 5);
    assert_eq!(bench.fetches[0], None, "all places are taken");
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], None, "one place is not worth a call while all have work");
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], Some(2));
}

#[test]
fn a_worker_without_work_is_reason_enough_to_fetch() {
    let mut bench = Bench::one(1, 9);
    bench.deliver(0, 10);
    bench.finish(Verdict::Done);
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], None);
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], Some(3), "a quarter is free");

    let mut bench = Bench::one(8, 0);
    bench.deliver(0, 8);
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], Some(1), "one has nothing to do");
}

#[test]
fn what_waits_behind_a_slow_one_goes_to_who_is_free() {
    let mut bench = Bench::one(2, 3);
    bench.deliver(0, 8);
    let of = |bench: &Bench, worker| bench.assigned.iter().filter(|(of, _)| *of == worker).count();
    assert_eq!((of(&bench, 0), of(&bench, 1)), (4, 4));
    let first = bench.assigned.iter().position(|(worker, _)| *worker == 1).unwrap();
    let slow = bench.assigned.remove(first).unwrap();
    assert!(slow.1.lease.begin());
    // The other has done all it has.
    bench.want(|wanted| wanted.is_paused = true);
    bench.assigned.make_contiguous().sort_by_key(|(worker, _)| *worker);
    for _ in 0..4 {
        bench.finish(Verdict::Done);
    }
    let taken: Vec<_> = bench.assigned.iter().filter(|(worker, _)| *worker == 0).collect();
    assert_eq!(taken.len(), 2, "half of what waits behind the slow one");
    let skipped = bench.assigned.iter().filter(|(of, it)| *of == 1 && !it.lease.begin()).count();
    assert_eq!(skipped, 2, "which comes upon two that were taken back");
}

#[test]
fn results_that_come_together_are_one_call() {
    let mut bench = Bench::one(4, 1);
    bench.deliver(0, 8);
    for _ in 0..4 {
        bench.finish(Verdict::Done);
    }
    assert_eq!(bench.calls.len(), 1, "one call at a time");
    assert_eq!(bench.calls[0].2.len(), 1);
    bench.answer(Ok(()));
    assert_eq!(bench.calls[0].2.len(), 3, "what came meanwhile goes together");
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.in_flight(), 4);
    assert_eq!(bench.names().iter().filter(|name| **name == "succeeded").count(), 4);
}

#[test]
fn what_cannot_be_settled_stops_the_fetching() {
    let mut bench = Bench::one(1, 0);
    bench.dispatcher.settings.results = 3;
    for _ in 0..4 {
        bench.deliver(0, 1);
        bench.finish(Verdict::Done);
    }
    assert_eq!(bench.fetches[0], None, "one is with a worker's place, three wait to be settled");
    bench.answer(Ok(()));
    assert_eq!(bench.fetches[0], Some(1));
}

#[test]
fn each_verdict_is_one_settle() {
    let seconds = Duration::from_secs;
    let nack = |delay| SettleAction::Nack { delay };
    let release = |delay| SettleAction::Release { delay };
    for (verdict, action, name) in [
        (Verdict::Done, SettleAction::Acknowledge, "succeeded"),
        (Verdict::Released { delay: seconds(2) }, release(seconds(2)), "released"),
        (failed(Then::Retry { delay: seconds(60) }), nack(seconds(60)), "retried"),
        (failed(Then::Park { delay: seconds(900) }), nack(seconds(900)), "parked"),
        (failed(Then::Release), release(Duration::ZERO), "released"),
    ] {
        let mut bench = Bench::one(1, 0);
        bench.deliver(0, 1);
        bench.finish(verdict);
        assert_eq!(bench.calls[0].2, [action]);
        bench.answer(Ok(()));
        assert_eq!(bench.names().last(), Some(&name));
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

#[test]
fn a_dead_letter_is_stored_before_the_message_is_acknowledged() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.finish(failed(Then::Bury { route: 0 }));
    let key = bench.buried.pop_front().unwrap();
    assert!(bench.calls.is_empty());
    bench.event(Event::Buried { key, answer: Ok(letter()) });
    assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
    bench.answer(Ok(()));
    assert_eq!(bench.names(), ["received", "failed", "dead-lettered"]);
}

#[test]
fn a_dead_letter_that_cannot_be_stored_is_tried_again_and_then_its_message_is_parked() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.finish(failed(Then::Bury { route: 0 }));
    for tries in 0..6 {
        let key = bench.buried.pop_front().unwrap();
        bench.event(Event::Buried { key, answer: Err(broken()) });
        let wait = BACKOFF * (1 << tries);
        bench.pass(wait - Duration::from_nanos(1));
        assert!(bench.buried.is_empty() && bench.calls.is_empty());
        assert!(bench.dispatcher.next_wake().is_some());
        bench.pass(Duration::from_nanos(1));
    }
    let key = bench.buried.pop_front().unwrap();
    bench.event(Event::Buried { key, answer: Err(broken()) });
    let park = SettleAction::Nack { delay: Duration::from_secs(900) };
    assert_eq!(bench.calls[0].2, [park], "what cannot be buried stays in its queue");
}

#[test]
fn a_dead_letter_that_is_refused_parks_its_message_at_once_and_a_stop_gives_it_back() {
    let refused = || Error::invalid(None, "body", "too long", "less");
    let park = SettleAction::Nack { delay: Duration::from_secs(900) };
    let back = SettleAction::Release { delay: Duration::ZERO };
    for (answer, is_ending, action) in [(refused(), false, park), (broken(), true, back)] {
        let mut bench = Bench::one(1, 0);
        bench.deliver(0, 1);
        bench.finish(failed(Then::Bury { route: 0 }));
        if is_ending {
            bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
        }
        let key = bench.buried.pop_front().unwrap();
        bench.event(Event::Buried { key, answer: Err(answer) });
        assert_eq!(bench.calls[0].2, [action]);
    }
}

fn quarantining(after: u32, is_exact: bool) -> SourceSettings {
    let quarantine = Quarantine { after, route: Some(0), is_exact, stagger: STAGGER };
    SourceSettings { quarantine, ..settings() }
}

#[test]
fn a_message_of_which_nothing_was_ever_heard_is_not_run_again() {
    let mut bench = Bench::new(1, 0, &[quarantining(4, true)]);
    bench.deliver_unsettled(0, &[3]);
    assert_eq!((bench.assigned.len(), bench.buried.len()), (1, 0));
    bench.finish(failed(Then::Retry { delay: Duration::ZERO }));
    bench.answer(Ok(()));
    bench.deliver_unsettled(0, &[4]);
    assert_eq!((bench.assigned.len(), bench.buried.len()), (0, 1));
}

#[test]
fn a_message_that_was_given_back_however_often_is_run() {
    let mut bench = Bench::new(1, 0, &[quarantining(4, true)]);
    bench.deliver_nth(0, 1, 1_000);
    assert_eq!((bench.assigned.len(), bench.buried.len()), (1, 0));
}

#[test]
fn where_unsettled_deliveries_are_not_counted_all_are_but_those_given_back_here() {
    let mut bench = Bench::new(1, 0, &[quarantining(2, false)]);
    let id = MessageId::new();
    for attempt in 1..=5 {
        bench.deliver_ids(0, &[id], attempt);
        assert_eq!(bench.assigned[0].1.attempt, 1);
        bench.finish(Verdict::Released { delay: Duration::ZERO });
        bench.answer(Ok(()));
    }
    bench.deliver_ids(0, &[id], 17);
    bench.finish(failed(Then::Retry { delay: Duration::ZERO }));
    bench.answer(Ok(()));
    // Its end was seen here: twelve more speak against it that were not.
    assert_eq!(bench.suspicion(id, 18, 0), Suspicion::None);
    assert_eq!(bench.suspicion(id, 28, 0), Suspicion::Suspect);
    assert_eq!(bench.suspicion(id, 29, 0), Suspicion::Proven { route: 0 });
    bench.deliver_ids(0, &[id], 29);
    assert_eq!((bench.assigned.len(), bench.buried.len()), (0, 1));
}

#[test]
fn where_the_queue_counts_what_was_no_attempt_it_alone_is_asked() {
    let mut bench = Bench::new(1, 0, &[quarantining(2, true)]);
    let id = MessageId::new();
    for (deliveries, uncounted, attempt) in [(1, 0, 1), (2, 1, 1), (30, 25, 5), (31, 25, 6)] {
        bench.deliver_messages(0, &[(id, deliveries, 0, uncounted)]);
        assert_eq!(bench.assigned[0].1.attempt, attempt);
        bench.finish(Verdict::Released { delay: Duration::ZERO });
        assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
        bench.answer(Ok(()));
        assert_eq!(bench.notes.last().unwrap().attempt, attempt);
    }
}

#[test]
fn two_queues_of_a_worker_may_have_a_message_of_the_same_id() {
    let mut bench = Bench::new(4, 0, &[quarantining(2, false), quarantining(2, false)]);
    let id = MessageId::new();
    for (source, attempt, expected) in [(0, 1, 1), (1, 2, 2), (0, 2, 1), (1, 3, 2)] {
        bench.deliver_ids(source, &[id], attempt);
        assert_eq!(bench.assigned[0].1.attempt, expected, "{source} {attempt}");
        bench.finish(Verdict::Released { delay: Duration::ZERO });
        bench.answer(Ok(()));
    }
}

/// Only a message with such a delivery pays for it.
#[test]
fn the_queue_knows_that_a_handler_starts_where_an_earlier_delivery_was_released_or_expired() {
    let start = SettleAction::Start { timeout: LEASE };
    for (unsettled, uncounted, is_to_record) in [(0, 0, false), (0, 1, true), (1, 0, true)] {
        let mut bench = Bench::one(1, 0);
        bench.deliver_messages(0, &[(MessageId::new(), 3, unsettled, uncounted)]);
        assert_eq!(bench.assigned[0].1.is_to_record, is_to_record);
        if !is_to_record {
            continue;
        }
        let lease = bench.start();
        assert_eq!(bench.calls[0].2, [start]);
        assert!(lease.started().now_or_never().is_none(), "it is not known yet");
        bench.answer(Ok(()));
        assert_eq!(lease.started().now_or_never(), Some(true));
        // It is no renewal: there is one, at its time, and it says the same in passing.
        bench.pass(LEASE / 3);
        assert_eq!(bench.calls[0].2, [start]);
        bench.answer(Ok(()));
        bench.pass(LEASE / 3);
        assert_eq!(bench.calls[0].2, [start], "one renewal at a time");
        bench.answer(Ok(()));
        bench.finish(Verdict::Done);
        bench.answer(Ok(()));
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

#[test]
fn a_delivery_whose_start_is_not_known_is_not_run() {
    for is_refused in [true, false] {
        let mut bench = Bench::one(1, 0);
        bench.deliver_messages(0, &[(MessageId::new(), 2, 0, 1)]);
        let lease = bench.start();
        if is_refused {
            bench.answer(Err(expired()));
        } else {
            bench.answer(Err(broken()));
            assert!(lease.started().now_or_never().is_none(), "it is asked again");
            bench.pass(LEASE);
        }
        assert_eq!(lease.started().now_or_never(), Some(false));
        assert!(lease.is_lost());
        bench.finish(Verdict::TooLate);
        // In case the queue has it as started.
        assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
        bench.answer(Err(expired()));
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

/// The queue may have done what was asked, though its answer came too late.
#[test]
fn a_delivery_that_was_lost_before_it_ran_is_released_if_the_queue_may_take_it_for_started() {
    let mut bench = Bench::one(1, 0);
    bench.deliver_messages(0, &[(MessageId::new(), 2, 0, 1)]);
    let lease = bench.start();
    assert_eq!(bench.calls[0].2, [SettleAction::Start { timeout: LEASE }]);
    bench.pass(LEASE);
    assert_eq!(lease.started().now_or_never(), Some(false));
    bench.finish(Verdict::TooLate);
    // The answer to the start, and what is said about it.
    bench.answer(Ok(()));
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn a_worker_does_not_wait_for_a_start_that_is_refused_for_good() {
    let mut bench = Bench::one(1, 0);
    bench.deliver_messages(0, &[(MessageId::new(), 2, 0, 1)]);
    let lease = bench.start();
    bench.answer(Err(Error::invalid(None, "timeout", "30s", "none")));
    assert_eq!(lease.started().now_or_never(), Some(false));
}

#[test]
fn a_message_has_run_alone_before_it_is_quarantined() {
    assert_eq!([1, 2, 3, 4].map(Quarantine::usual), [3, 3, 3, 4]);
    let bench = Bench::new(1, 0, &[quarantining(Quarantine::usual(1), true)]);
    let suspicion = [0, 1, 2, 3].map(|unsettled| bench.suspicion(MessageId::new(), 9, unsettled));
    let proven = Suspicion::Proven { route: 0 };
    assert_eq!(suspicion, [Suspicion::None, Suspicion::None, Suspicion::Suspect, proven]);
}

#[test]
fn a_suspect_that_came_to_an_end_is_cleared() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    let id = MessageId::new();
    for (unsettled, verdict) in [
        (2, failed(Then::Retry { delay: Duration::ZERO })),
        (4, Verdict::Released { delay: Duration::ZERO }),
        (8, Verdict::Done),
    ] {
        bench.deliver_all(0, &[(id, unsettled + 1, unsettled)]);
        assert_eq!(bench.fetches[0], None, "it runs alone");
        bench.finish(verdict);
        bench.answer(Ok(()));
        let more = [0, 1, 2, 4].map(|more| bench.suspicion(id, unsettled + 2, unsettled + more));
        let [none, suspect] = [Suspicion::None, Suspicion::Suspect];
        assert_eq!(more, [none, none, suspect, suspect]);
    }
    assert_eq!(bench.suspicion(id, 20, 13), Suspicion::Proven { route: 0 });
    let other = bench.suspicion(MessageId::new(), 20, 5);
    assert_eq!(other, Suspicion::Proven { route: 0 });
}

#[test]
fn a_suspect_that_runs_for_longer_than_a_lease_is_not_alone_any_more() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver_unsettled(0, &[2]);
    assert_eq!((bench.assigned.len(), bench.fetches[0]), (1, None));
    assert!(bench.assigned[0].1.lease.begin());
    let keep = |bench: &mut Bench| {
        while let Some((source, lane, actions)) = bench.calls.pop_front() {
            let answer = Ok(vec![Ok(()); actions.len()]);
            bench.event(Event::Settled { source, lane, answer });
        }
    };
    for _ in 0..2 {
        bench.pass(LEASE / 3);
        keep(&mut bench);
        assert_eq!(bench.fetches[0], None);
    }
    bench.pass(LEASE / 3 - Duration::from_nanos(1));
    keep(&mut bench);
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + Duration::from_nanos(1)));
    bench.pass(Duration::from_nanos(1));
    keep(&mut bench);
    assert_eq!(bench.fetches[0], Some(1), "the others go on beside it");
    bench.deliver(0, 1);
    assert_eq!(bench.assigned.len(), 2);
}

#[test]
fn a_message_that_somebody_else_has_is_not_buried() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    assert!(bench.assigned[0].1.lease.begin());
    bench.pass(LEASE / 3);
    bench.answer(Err(expired()));
    bench.finish(failed(Then::Bury { route: 0 }));
    assert!(bench.buried.is_empty(), "the other may succeed");
    assert_eq!((bench.calls.len(), bench.dispatcher.in_flight()), (0, 0));

    // Nor once its dead letter could not be stored at first.
    bench.deliver(0, 1);
    bench.finish(failed(Then::Bury { route: 0 }));
    bench.pass(LEASE / 3);
    let key = bench.buried.pop_front().unwrap();
    bench.event(Event::Buried { key, answer: Err(broken()) });
    bench.answer(Err(expired()));
    bench.pass(BACKOFF);
    assert!(bench.buried.is_empty());
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn a_suspect_runs_alone_and_others_make_way() {
    let mut bench = Bench::new(4, 1, &[quarantining(5, true)]);
    bench.deliver(0, 2);
    // One of these is begun, the other is not.
    let begun = bench.assigned.pop_front().unwrap();
    assert!(begun.1.lease.begin());
    bench.deliver_unsettled(0, &[2, 0, 2, 3]);
    // Whatever can go back goes back: what is not begun at once, other suspects one after the other.
    assert_eq!(bench.fetches[0], None, "nothing is fetched beside a suspect");
    let release = |delay| SettleAction::Release { delay };
    let mut back: Vec<_> = Vec::new();
    while let Some((source, lane, actions)) = bench.calls.pop_front() {
        back.extend(actions.clone());
        let answer = Ok(vec![Ok(()); actions.len()]);
        bench.event(Event::Settled { source, lane, answer });
    }
    back.sort_by_key(|action| format!("{action:?}").len());
    assert_eq!(back.iter().filter(|action| **action == release(Duration::ZERO)).count(), 2);
    for turn in 1..=2 {
        assert!(back.contains(&release(STAGGER * turn)), "{back:?}");
    }
    assert_eq!(bench.dispatcher.in_flight(), 2, "the one that runs and the suspect");
    assert_eq!(bench.assigned.iter().filter(|(_, one)| one.message.unsettled > 0).count(), 0);
    bench.assigned.clear();

    // The one that runs comes to its end: now the suspect is alone.
    let (worker, Assigned { key, source, .. }) = begun;
    let took = Some(Duration::ZERO);
    let verdict = Verdict::Done;
    bench.event(Event::Finished(Finished { key, source, worker, verdict, took }));
    assert!(bench.assigned.is_empty(), "not before it is settled");
    bench.answer(Ok(()));
    assert_eq!(bench.assigned.len(), 1);
    assert_eq!((bench.assigned[0].1.message.unsettled, bench.fetches[0]), (2, None));
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], None, "not before it is settled");
    bench.answer(Ok(()));
    assert!(bench.fetches[0].is_some(), "and all goes on");
}

#[test]
fn a_suspect_waits_for_what_is_running_no_longer_than_a_lease() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver(0, 1);
    let (_, running) = bench.assigned.pop_front().unwrap();
    assert!(running.lease.begin());
    bench.deliver_unsettled(0, &[2]);
    assert!(bench.assigned.is_empty());
    for _ in 0..3 {
        bench.pass(LEASE / 3);
        while let Some((source, lane, actions)) = bench.calls.pop_front() {
            let answer = Ok(vec![Ok(()); actions.len()]);
            bench.event(Event::Settled { source, lane, answer });
        }
    }
    assert_eq!(bench.assigned.len(), 1, "all would stand still");
}

#[test]
fn a_stop_gives_suspects_back() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver(0, 1);
    let (worker, running) = bench.assigned.pop_front().unwrap();
    assert!(running.lease.begin());
    bench.deliver_unsettled(0, &[2]);
    bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
    bench.answer(Ok(()));
    let (key, source, took) = (running.key, running.source, Some(Duration::ZERO));
    let verdict = Verdict::Done;
    bench.event(Event::Finished(Finished { key, source, worker, verdict, took }));
    bench.answer(Ok(()));
    assert!(bench.is_over);
}

#[test]
fn leases_are_extended_wherever_the_message_is() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 2);
    bench.pass(LEASE / 3 - Duration::from_nanos(1));
    assert!(bench.calls.is_empty());
    bench.pass(Duration::from_nanos(1));
    let extend = SettleAction::Extend { timeout: LEASE };
    assert_eq!(bench.calls[0].2, [extend, extend], "the one that runs and the one that waits");
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + LEASE / 3));
    for _ in 0..10 {
        bench.pass(LEASE / 3);
        bench.answer(Ok(()));
    }
    assert!(!bench.names().contains(&"lost"));
    // Once it is being settled, it is not extended any more.
    bench.finish(Verdict::Done);
    bench.pass(LEASE / 3);
    let extensions = |bench: &Bench| {
        bench
            .calls
            .iter()
            .filter(|call| call.1 == LaneKind::Extensions)
            .map(|c| c.2.len())
            .sum::<usize>()
    };
    assert_eq!(extensions(&bench), 1);
}

#[test]
fn an_extension_that_fails_is_repeated_until_the_lease_is_over() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.pass(LEASE / 3);
    bench.answer(Err(broken()));
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + BACKOFF));
    bench.pass(BACKOFF);
    bench.answer(Err(broken()));
    bench.pass(BACKOFF * 2);
    assert_eq!(bench.calls.len(), 1, "and again");
    bench.answer(Ok(()));
    assert!(!bench.assigned[0].1.lease.is_lost());

    bench.pass(LEASE / 3);
    bench.answer(Err(broken()));
    bench.pass(LEASE);
    assert!(bench.assigned[0].1.lease.is_lost() && bench.calls.is_empty());
    assert_eq!(bench.names().last(), Some(&"lost"));
    // The handler has done its work all the same; whether that counts, the queue decides.
    bench.finish(Verdict::Done);
    assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
    bench.answer(Err(expired()));
    assert_eq!(bench.names().iter().filter(|name| **name == "lost").count(), 1, "told once");
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn a_lease_that_is_refused_is_lost_and_not_given_back() {
    let cancelling = SourceSettings { cancel_lost: true, ..settings() };
    let mut bench = Bench::new(1, 0, &[cancelling]);
    bench.deliver(0, 1);
    bench.pass(LEASE / 3);
    bench.answer(Err(expired()));
    assert!(bench.assigned[0].1.lease.is_lost());
    bench.finish(failed(Then::Retry { delay: Duration::ZERO }));
    assert!(bench.calls.is_empty() && bench.dispatcher.in_flight() == 0);
    assert_eq!(bench.fetches[0], Some(1), "its place is free");
}

#[test]
fn an_extension_that_crosses_an_acknowledgement_is_no_loss() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.pass(LEASE / 3);
    bench.finish(Verdict::Done);
    // The acknowledgement is first.
    bench.calls.rotate_left(1);
    bench.answer(Ok(()));
    bench.answer(Err(expired()));
    assert_eq!(bench.names(), ["received", "succeeded"]);
}

#[test]
fn a_handler_that_does_not_beat_loses_its_lease() {
    let beating = SourceSettings { while_beating: true, ..settings() };
    let mut bench = Bench::new(1, 1, &[beating]);
    bench.deliver(0, 2);
    let running = bench.assigned[0].1.lease.clone();
    assert!(running.begin());
    crate::Heartbeat(running.clone()).beat();
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2.len(), 2, "one has beaten, the other has not begun");
    bench.answer(Ok(()));
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2.len(), 1, "one has not beaten again");
    bench.answer(Ok(()));
    // A late beat is enough, as long as the lease runs.
    crate::Heartbeat(running.clone()).beat();
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2.len(), 2);
    bench.answer(Ok(()));
    for _ in 0..2 {
        bench.pass(LEASE / 3);
        assert!(!running.is_lost());
        bench.answer(Ok(()));
    }
    bench.pass(LEASE / 3);
    assert!(running.is_lost());
}

#[test]
fn a_settle_that_failed_may_have_had_its_effect() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.finish(Verdict::Done);
    bench.answer(Err(broken()));
    bench.pass(BACKOFF);
    bench.answer(Err(expired()));
    assert_eq!(bench.names(), ["received", "succeeded"], "stale means done");

    bench.deliver(0, 1);
    bench.finish(Verdict::Done);
    for _ in 0..100 {
        if bench.calls.is_empty() {
            break;
        }
        bench.answer(Err(broken()));
        bench.pass(Duration::from_secs(5));
    }
    assert_eq!(bench.names().last(), Some(&"unconfirmed"), "until the lease is over");
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn errors_are_waited_out_ever_longer() {
    let mut bench = Bench::one(1, 0);
    let mut waits = Vec::new();
    for _ in 0..9 {
        bench.fetches[0].take().expect("a fetch");
        bench.event(Event::Fetched { source: 0, answer: Err(broken()) });
        let wake = bench.dispatcher.next_wake().expect("a time");
        waits.push((wake - bench.now).as_millis());
        bench.now = wake;
        bench.plan();
    }
    assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    bench.now += Duration::from_secs(20);
    bench.deliver(0, 0);
    assert_eq!(bench.fetches[0], Some(1), "an empty queue is asked again at once: it waits itself");
    bench.deliver(0, 0);
    assert_eq!(bench.fetches[0], None, "and if it does not, it is not asked again and again");
    bench.pass(BACKOFF);
    assert_eq!(bench.fetches[0], Some(1));
}

#[test]
fn busy_queues_share_the_workers_by_weight() {
    let weighed = [3, 1].map(|weight| SourceSettings { weight, ..settings() });
    let mut bench = Bench::new(4, 1, &weighed);
    assert_eq!(bench.fetches, [Some(1), Some(1)], "each waits with one place");
    let mut served = [0; 2];
    for _ in 0..4_000 {
        // Both queues always have as many as are asked for.
        for (source, served) in served.iter_mut().enumerate() {
            if let Some(max) = bench.fetches[source] {
                *served += max;
                bench.deliver(source, max);
            }
        }
        bench.finish(Verdict::Done);
        while !bench.calls.is_empty() {
            bench.answer(Ok(()));
        }
    }
    let ratio = served[0] as f64 / served[1] as f64;
    assert!((2.8..3.2).contains(&ratio), "{served:?}");
}

#[test]
fn a_queue_without_messages_keeps_no_other_from_its_places() {
    let mut bench = Bench::new(4, 1, &[settings(), settings(), settings()]);
    bench.deliver(0, 1);
    assert_eq!(bench.fetches, [Some(5), Some(1), Some(1)], "two wait with one place each");
    bench.deliver(0, 0);
    assert_eq!(bench.fetches, [Some(1), Some(1), Some(1)], "now all three do");
}

#[test]
fn a_queue_that_comes_back_does_not_make_up_for_lost_time() {
    let mut bench = Bench::new(1, 1, &[settings(), settings()]);
    bench.deliver(0, 1);
    for _ in 0..100 {
        bench.finish(Verdict::Done);
        bench.answer(Ok(()));
        if let Some(max) = bench.fetches[0] {
            bench.deliver(0, max);
        }
    }
    assert!(bench.dispatcher.sources[0].served() > 50.0);
    bench.deliver(1, 1);
    assert!(bench.dispatcher.sources[1].served() > 50.0);
}

#[test]
fn a_pause_stops_the_fetching_and_nothing_else() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 1);
    bench.want(|wanted| wanted.is_paused = true);
    assert_eq!(bench.fetches[0], None);
    bench.finish(Verdict::Done);
    bench.answer(Ok(()));
    assert_eq!(bench.names(), ["received", "succeeded"]);
    assert!(bench.dispatcher.next_wake().is_none_or(|at| at > bench.now));
    bench.want(|wanted| wanted.is_paused = false);
    assert_eq!(bench.fetches[0], Some(2));
}

#[test]
fn workers_come_and_go() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 4);
    bench.assigned.iter().take(2).for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.want(|wanted| wanted.workers = 1);
    assert_eq!(bench.retired, [1]);
    // What the one that goes has not begun is taken back.
    let place = bench.assigned.iter().rposition(|(worker, _)| *worker == 1).unwrap();
    let (worker, assigned) = bench.assigned.remove(place).unwrap();
    assert!(!assigned.lease.begin(), "it was taken back");
    bench.event(Event::Skipped { worker });
    assert_eq!(
        bench.calls[0].2,
        [SettleAction::Release { delay: Duration::ZERO }],
        "the other has no room"
    );
    bench.answer(Ok(()));
    bench.finish(Verdict::Done);
    bench.finish(Verdict::Done);
    bench.event(Event::WorkerEnded { worker: 1 });
    bench.want(|wanted| wanted.workers = 3);
    assert_eq!(bench.hired, [0, 1, 1, 2], "numbers are used again");
}

#[test]
fn a_stop_goes_in_order() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 3);
    bench.assigned.iter().take(2).for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
    assert_eq!((bench.fetches[0], &bench.retired[..]), (None, &[0, 1][..]), "nothing is fetched");
    // What has not been begun goes back at once, while the others run.
    let (worker, assigned) = bench.assigned.pop_back().unwrap();
    assert!(!assigned.lease.begin());
    bench.event(Event::Skipped { worker });
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
    bench.answer(Ok(()));
    // Their leases are kept.
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2, [SettleAction::Start { timeout: LEASE }; 2]);
    bench.answer(Ok(()));
    bench.finish(Verdict::Done);
    bench.finish(failed(Then::Retry { delay: Duration::ZERO }));
    assert!(!bench.is_over);
    bench.answer(Ok(()));
    assert!(!bench.is_over, "not before all is settled");
    bench.answer(Ok(()));
    assert!(bench.is_over && bench.dispatcher.mode() == Mode::Finished);
}

#[test]
fn a_drain_has_an_end() {
    let mut bench = Bench::one(2, 0);
    bench.deliver(0, 2);
    bench.assigned.iter().for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
    for _ in 0..3 {
        bench.pass(Duration::from_secs(10));
        bench.answer(Ok(()));
    }
    assert!(!bench.is_over, "handlers were cancelled, and may let go");
    bench.finish(failed(Then::Release));
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
    bench.answer(Ok(()));
    bench.pass(GRACE);
    assert!(bench.is_over, "one does not let go");
    assert_eq!(bench.names().last(), Some(&"unconfirmed"));
    // Its late result changes nothing.
    bench.finish(Verdict::Done);
    assert!(bench.calls.is_empty());
}

#[test]
fn when_every_queue_is_closed_it_is_over() {
    let mut bench = Bench::new(2, 0, &[settings(), settings()]);
    let closed = || Event::Fetched { source: 0, answer: Err(Error::Closed { queue: None }) };
    bench.fetches[0] = None;
    bench.event(closed());
    assert!(!bench.is_over);
    bench.fetches[1] = None;
    bench.event(Event::Fetched { source: 1, answer: Err(Error::Closed { queue: None }) });
    assert!(bench.is_over && bench.dispatcher.closed().is_some());
}

#[test]
fn finished_deliveries_are_not_remembered_for_their_leases() {
    let mut bench = Bench::one(1, 0);
    for _ in 0..10_000 {
        bench.deliver(0, 1);
        bench.finish(Verdict::Done);
        bench.answer(Ok(()));
    }
    assert!(bench.dispatcher.sources[0].renewals_len() < 2_000);
}

#[test]
fn what_a_limit_refuses_waits_here_under_its_lease() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    bench.finish(Verdict::Shed { delay: BACKOFF });
    assert!(bench.calls.is_empty() && bench.assigned.is_empty());
    assert_eq!((bench.fetches[0], bench.dispatcher.next_wake()), (None, Some(bench.now + BACKOFF)));
    bench.pass(BACKOFF);
    assert_eq!(bench.assigned.len(), 1, "it is tried again");
    bench.finish(Verdict::Shed { delay: BACKOFF });
    bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }]);
}

#[test]
fn a_settling_delivery_is_not_seated_again() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    let (worker, assigned) = bench.assigned.pop_front().unwrap();
    assert!(assigned.lease.begin());
    bench.event(Event::WorkerEnded { worker });
    assert_eq!(bench.calls.len(), 1, "what it was at is given back");
    bench.event(Event::Returned { key: assigned.key, worker });
    assert!(bench.assigned.is_empty());
}

#[test]
fn what_a_dead_worker_had_not_begun_goes_to_the_next() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 2);
    let (worker, begun) = bench.assigned.pop_front().unwrap();
    assert!(begun.lease.begin());
    let (_, waiting) = bench.assigned.pop_front().unwrap();
    bench.event(Event::WorkerEnded { worker });
    assert_eq!(bench.calls[0].2.len(), 1);
    assert_eq!(bench.assigned[0].1.key, waiting.key);
}

#[test]
fn an_extension_that_cannot_be_is_no_reason_to_forget_a_handler() {
    let mut bench = Bench::one(1, 0);
    bench.deliver(0, 1);
    assert!(bench.assigned[0].1.lease.begin());
    bench.pass(LEASE / 3);
    bench.answer(Err(Error::invalid(None, "timeout", "too long in all", "12 h")));
    assert_eq!(bench.dispatcher.in_flight(), 1);
    bench.pass(LEASE);
    assert!(bench.assigned[0].1.lease.is_lost());
    bench.finish(Verdict::Done);
    assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
}

#[test]
fn in_beat_mode_a_lease_is_kept_while_a_message_is_buried() {
    let beating = SourceSettings { while_beating: true, ..settings() };
    let mut bench = Bench::new(1, 0, &[beating]);
    bench.deliver(0, 1);
    bench.finish(failed(Then::Bury { route: 0 }));
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2, [SettleAction::Extend { timeout: LEASE }]);
}

#[test]
fn with_no_workers_what_waits_goes_back() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 3);
    bench.want(|wanted| wanted.workers = 0);
    assert_eq!(bench.calls[0].2, [SettleAction::Release { delay: Duration::ZERO }; 3]);
}

#[test]
fn with_fewer_places_than_queues_each_has_its_turn() {
    let mut bench = Bench::new(3, 0, &[settings(), settings(), settings()]);
    bench.want(|wanted| wanted.workers = 1);
    let mut asked = [0; 3];
    for _ in 0..30 {
        for (source, asked) in asked.iter_mut().enumerate() {
            if bench.fetches[source].is_some() {
                *asked += 1;
                bench.deliver(source, 0);
            }
        }
        bench.pass(BACKOFF);
    }
    assert!(asked.iter().all(|times| *times >= 5), "{asked:?}");
}

#[test]
fn a_queue_that_was_empty_for_a_while_is_not_made_to_wait_for_the_others() {
    let mut bench = Bench::new(2, 0, &[settings(), settings()]);
    let serve = |bench: &mut Bench, both: bool, rounds: usize| {
        let mut served = [0; 2];
        for _ in 0..rounds {
            for (source, served) in served.iter_mut().enumerate() {
                if let Some(max) = bench.fetches[source].filter(|_| both || source == 0) {
                    *served += max;
                    bench.deliver(source, max);
                }
            }
            while !bench.assigned.is_empty() {
                bench.finish(Verdict::Done);
            }
            while !bench.calls.is_empty() {
                bench.answer(Ok(()));
            }
        }
        served
    };
    serve(&mut bench, false, 500);
    // It has nothing for a moment, and nobody else has anything.
    if bench.fetches[0].is_some() {
        bench.deliver(0, 0);
    }
    let served = serve(&mut bench, true, 500);
    let ratio = served[0] as f64 / served[1] as f64;
    assert!((0.8..1.25).contains(&ratio), "{served:?}");
}

#[test]
fn what_is_done_has_time_to_be_settled_at_the_end() {
    let mut bench = Bench::one(2, 0);
    bench.deliver(0, 2);
    bench.assigned.iter().for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.want(|wanted| wanted.stop = Some(Stop::Now));
    bench.finish(Verdict::Done);
    bench.pass(GRACE);
    assert!(
        !bench.is_over,
        "the acknowledgement is under way; the handler that does not end is given up"
    );
    assert_eq!(bench.dispatcher.in_flight(), 1);
    bench.answer(Ok(()));
    assert!(bench.is_over);
    assert_eq!(bench.names(), ["received", "received", "unconfirmed", "succeeded"]);
}

/// A delivery that its handler has acknowledged in a transaction.
fn in_transaction(settings: SourceSettings) -> (Bench, Arc<Lease>) {
    let mut bench = Bench::new(1, 0, &[settings]);
    bench.deliver(0, 1);
    let lease = bench.assigned[0].1.lease.clone();
    assert!(lease.begin() && lease.acknowledge());
    (bench, lease)
}

/// Every end of a handler but that it has settled its message itself, and what becomes of it.
fn other_ends() -> [(Verdict, &'static str); 7] {
    let delay = Duration::ZERO;
    [
        (Verdict::Done, "succeeded"),
        (Verdict::Released { delay }, "released"),
        (failed(Then::Retry { delay }), "retried"),
        (failed(Then::Park { delay }), "parked"),
        (failed(Then::Release), "released"),
        (failed(Then::Bury { route: 0 }), "dead-lettered"),
        // There is no place for it here any more.
        (Verdict::Shed { delay: BACKOFF }, "released"),
    ]
}

#[test]
fn a_delivery_that_its_handler_has_settled_is_not_settled_again() {
    let (mut bench, _) = in_transaction(settings());
    bench.finish(Verdict::Settled);
    assert!(bench.calls.is_empty() && bench.buried.is_empty());
    assert_eq!((bench.names(), bench.dispatcher.in_flight()), (vec!["received", "succeeded"], 0));
}

#[test]
fn an_extension_that_comes_after_the_handlers_own_acknowledgement_tells_of_no_loss() {
    for (verdict, _) in other_ends().into_iter().chain([(Verdict::Settled, "")]) {
        let is_failure = matches!(verdict, Verdict::Failed { .. });
        let cancelling = SourceSettings { cancel_lost: true, ..settings() };
        let (mut bench, lease) = in_transaction(cancelling);
        bench.pass(LEASE / 3);
        bench.answer(Err(expired()));
        assert!(!lease.is_lost() && lease.cancelled().now_or_never().is_none());
        // It is known to be gone, so nothing is extended, and nothing is asked when the handler ends, however late.
        bench.pass(3 * LEASE);
        assert!(bench.calls.is_empty() && !lease.is_lost());
        bench.finish(verdict);
        assert!(bench.calls.is_empty() && bench.buried.is_empty());
        let names: &[_] = if is_failure {
            &["received", "failed", "succeeded"]
        } else {
            &["received", "succeeded"]
        };
        assert_eq!((bench.names(), bench.dispatcher.in_flight()), (names.to_vec(), 0));
    }
}

#[test]
fn who_has_acknowledged_and_not_settled_is_asked_for_and_is_done_if_it_was_committed() {
    for (verdict, _) in other_ends() {
        let (mut bench, _) = in_transaction(settings());
        bench.finish(verdict);
        assert!(bench.buried.is_empty(), "no dead letter of a message that may be done");
        assert_eq!(bench.calls[0].2, [SettleAction::Extend { timeout: LEASE }]);
        bench.answer(Err(expired()));
        assert!(bench.calls.is_empty() && bench.buried.is_empty());
        assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("succeeded"), 0));
        assert!(!bench.names().contains(&"lost"));
    }
}

#[test]
fn a_transaction_that_was_rolled_back_leaves_the_verdict_as_it_is() {
    for (verdict, end) in other_ends() {
        let (mut bench, _) = in_transaction(settings());
        bench.finish(verdict);
        bench.answer(Ok(()));
        while let Some(key) = bench.buried.pop_front() {
            bench.pass(LEASE / 3);
            assert_eq!(bench.calls.len(), 1, "its lease is extended while it is buried");
            bench.answer(Ok(()));
            bench.event(Event::Buried { key, answer: Ok(letter()) });
        }
        assert!(!matches!(bench.calls[0].2[..], [SettleAction::Extend { .. }]));
        bench.answer(Ok(()));
        assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some(end), 0));
    }
}

#[test]
fn whether_a_transaction_was_committed_is_asked_until_the_lease_is_over() {
    let (mut bench, _) = in_transaction(settings());
    bench.finish(failed(Then::Bury { route: 0 }));
    let until = bench.now + LEASE;
    while bench.now < until {
        bench.answer(Err(broken()));
        bench.pass(Duration::from_millis(1500));
    }
    assert!(bench.buried.is_empty());
    assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("unconfirmed"), 0));

    // A receipt that is refused when the lease may have ended by itself proves nothing.
    let (mut bench, lease) = in_transaction(settings());
    bench.finish(failed(Then::Bury { route: 0 }));
    bench.pass(LEASE);
    bench.answer(Err(expired()));
    assert!(lease.is_lost() && bench.buried.is_empty());
    assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("lost"), 0));
}

#[test]
fn a_transaction_that_outlasts_its_lease_is_not_disturbed() {
    let cancelling = SourceSettings { cancel_lost: true, ..settings() };
    let (mut bench, lease) = in_transaction(cancelling);
    bench.pass(LEASE / 3);
    // Extensions wait for the transaction, and time out.
    while bench.now < lease_end(&bench) {
        if !bench.calls.is_empty() {
            bench.answer(Err(broken()));
        }
        bench.pass(Duration::from_millis(1500));
    }
    assert!(!lease.is_lost() && lease.cancelled().now_or_never().is_none());
    bench.finish(Verdict::Settled);
    assert_eq!(bench.names(), ["received", "succeeded"]);
}

/// When the only lease ends.
fn lease_end(bench: &Bench) -> Instant {
    bench.dispatcher.held.iter().map(|(_, held)| held.deadline).next().expect("a lease")
}

/// Whatever comes in whatever order: places are never exceeded, and at the end nothing is held.
#[test]
fn random_events_never_break_the_invariants() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let sources: Vec<_> = (0..random.random_range(1..4))
            .map(|_| SourceSettings {
                weight: random.random_range(1..5),
                while_beating: random.random(),
                cancel_lost: random.random(),
                ..settings()
            })
            .collect();
        let (workers, inbox) = (random.random_range(3..6), random.random_range(0..3));
        let mut bench = Bench::new(workers, inbox, &sources);
        let mut most = workers;
        for _ in 0..400 {
            step(&mut bench, &mut random, &mut most);
            let places = most * (inbox + 1);
            // Those who retire finish what they have, beside their successors.
            let dispatcher = &bench.dispatcher;
            let is_active = |place: &Place| matches!(place, Place::Seated { worker } if dispatcher.seats[*worker].is_active());
            let seated = dispatcher.held.iter().filter(|(_, held)| is_active(&held.place)).count();
            let asked: usize = bench.fetches.iter().flatten().sum();
            assert!(seated + asked <= places, "seed {seed}: {seated} and {asked} of {places}");
        }
        bench.want(|wanted| wanted.stop = Some(Stop::Graceful));
        while !bench.assigned.is_empty() {
            bench.finish(Verdict::Done);
        }
        for _ in 0..10_000 {
            if bench.is_over {
                break;
            }
            while !bench.calls.is_empty() {
                bench.answer(Ok(()));
            }
            while let Some(key) = bench.buried.pop_front() {
                bench.event(Event::Buried { key, answer: Ok(letter()) });
            }
            bench.pass(Duration::from_millis(10));
        }
        assert!(bench.is_over && bench.dispatcher.in_flight() == 0, "seed {seed}");
        assert!(bench.fetches.iter().all(Option::is_none), "seed {seed}");
    }
}

fn step(bench: &mut Bench, random: &mut StdRng, most: &mut usize) {
    match random.random_range(0..12) {
        0..4 => {
            let source = random.random_range(0..bench.fetches.len());
            if let Some(max) = bench.fetches[source] {
                if random.random_range(0..5) == 0 {
                    bench.fetches[source] = None;
                    bench.event(Event::Fetched { source, answer: Err(broken()) });
                } else {
                    let messages = random.random_range(0..=max);
                    bench.deliver(source, messages);
                }
            }
        }
        4..8 if !bench.assigned.is_empty() => {
            // Some are acknowledged in a transaction, which is committed or not.
            let lease = bench.assigned[0].1.lease.clone();
            let is_acknowledged = random.random_range(0..4) == 0
                && (lease.begin() || lease.has_begun())
                && lease.acknowledge();
            let verdict = match random.random_range(0..6) {
                4 if is_acknowledged => Verdict::Settled,
                5 => Verdict::Shed { delay: BACKOFF },
                0 => failed(Then::Bury { route: 0 }),
                1 => failed(Then::Retry { delay: Duration::ZERO }),
                2 => Verdict::Released { delay: Duration::ZERO },
                _ => Verdict::Done,
            };
            bench.finish(verdict);
        }
        8 | 9 if !bench.calls.is_empty() => {
            let place = random.random_range(0..bench.calls.len());
            bench.calls.swap(0, place);
            let answer = match random.random_range(0..6) {
                0 => Err(broken()),
                1 => Err(expired()),
                2 => Err(Error::invalid(None, "delay", "odd", "even")),
                _ => Ok(()),
            };
            bench.answer(answer);
        }
        10 => match random.random_range(0..6) {
            0 => bench.want(|wanted| wanted.is_paused = !wanted.is_paused),
            1 => {
                let workers = random.random_range(3..6);
                *most = workers.max(*most);
                bench.want(|wanted| wanted.workers = workers);
            }
            2 => {
                // A worker ends without a word; what was in its inbox is gone with it.
                let worker = random.random_range(0..bench.dispatcher.seats.len());
                if bench.dispatcher.seats[worker].is_active() {
                    let own = bench.assigned.iter().find(|(of, _)| *of == worker);
                    own.iter().for_each(|(_, assigned)| {
                        let _ = assigned.lease.begin();
                    });
                    bench.assigned.retain(|(of, _)| *of != worker);
                    bench.event(Event::WorkerEnded { worker });
                }
            }
            _ => {
                if let Some(key) = bench.buried.pop_front() {
                    let answer = if random.random() { Ok(letter()) } else { Err(broken()) };
                    bench.event(Event::Buried { key, answer });
                }
            }
        },
        _ => bench.pass(Duration::from_millis(random.random_range(1..8_000))),
    }
}
