//! Tests of the dispatcher without queues, workers or a clock: inputs in, actions out.

use futures_util::FutureExt;
use pillarbox_core::{MessageId, Nonce, SettleAction, Timestamp};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::shutdown::CANCEL_GRACE;
use super::*;
use crate::delivery_event::DeadLetterIds;
use crate::lease::Lease;
use crate::outcome::FailureDetails;

const LEASE: Duration = Duration::from_secs(30);
const BACKOFF: Duration = Duration::from_millis(50);
const RELEASED: Verdict = Verdict::Released { delay: Duration::ZERO };
const RELEASE: SettleAction = SettleAction::Release { delay: Duration::ZERO };
const EXTEND: SettleAction = SettleAction::Extend { timeout: LEASE };
const START: SettleAction = SettleAction::Start { timeout: LEASE };

fn settings() -> SourceSettings {
    SourceSettings {
        weight: 1,
        visibility: LEASE,
        max_receive: 1000,
        max_batch: 1000,
        extend_while_beating: false,
        cancel_when_lost: false,
        quarantine: QuarantineSettings { after: 5, route: None, is_exact: true, stagger: STAGGER },
        park: Duration::from_secs(900),
    }
}

/// A dispatcher, and the actions that it has asked for.
struct Bench {
    dispatcher: Dispatcher,
    /// The pace that the dispatcher is to assume, if not the one that it measures.
    pace: Option<Pace>,
    now: Instant,
    fetches: Vec<Option<usize>>,
    assigned: VecDeque<(usize, Assignment)>,
    calls: VecDeque<(usize, SettleKind, Vec<SettleAction>, u64)>,
    storing: VecDeque<Key>,
    replying: VecDeque<Key>,
    /// Dead letters whose hooks are to run, and whether there was an error reply.
    reporting: VecDeque<(Key, bool)>,
    stopped: Vec<usize>,
    started: Vec<usize>,
    events: Vec<DeliveryEvent>,
    is_over: bool,
}

/// A pace at which as much is prefetched as may be.
fn slow_fetches() -> Pace {
    let mut pace = Pace::default();
    pace.fetched(Duration::from_secs(1_000_000));
    pace.handled(Duration::ZERO);
    pace
}

impl Bench {
    /// Workers each of which has room for `prefetch` deliveries behind the one that it handles.
    fn new(workers: usize, prefetch: usize, sources: &[SourceSettings]) -> Self {
        Self::at_pace(Some(slow_fetches()), workers, workers * prefetch, sources)
    }

    fn at_pace(
        pace: Option<Pace>,
        workers: usize,
        prefetch: usize,
        sources: &[SourceSettings],
    ) -> Self {
        let now = Instant::now();
        let drain = Duration::from_secs(30);
        let desired = DesiredState { is_paused: false, stop: None, workers, drain };
        let settings = Settings { prefetch, result_buffer: 128, receive_backoff: BACKOFF };
        let mut bench = Self {
            dispatcher: Dispatcher::new(settings, sources.to_vec(), desired, now),
            pace,
            now,
            fetches: vec![None; sources.len()],
            assigned: VecDeque::new(),
            calls: VecDeque::new(),
            storing: VecDeque::new(),
            replying: VecDeque::new(),
            reporting: VecDeque::new(),
            stopped: Vec::new(),
            started: Vec::new(),
            events: Vec::new(),
            is_over: false,
        };
        bench.plan();
        bench
    }

    fn one(workers: usize, prefetch: usize) -> Self {
        Self::new(workers, prefetch, &[settings()])
    }

    /// One worker without prefetch, and its first delivery.
    fn with_one_delivery() -> Self {
        let mut bench = Self::one(1, 0);
        bench.deliver(0, 1);
        bench
    }

    fn plan(&mut self) {
        self.dispatcher.pace = self.pace.unwrap_or(self.dispatcher.pace);
        self.dispatcher.plan(self.now);
        while let Some(action) = self.dispatcher.next_action() {
            match action {
                Action::Fetch { source, max, .. } => {
                    assert!(self.fetches[source].replace(max).is_none(), "two fetches of a source");
                }
                Action::CancelFetch { source } => {
                    assert!(self.fetches[source].take().is_some(), "no such fetch");
                }
                Action::Assign { worker, assignments } => {
                    self.assigned.extend(assignments.into_iter().map(|one| (worker, one)));
                }
                Action::Settle { source, kind, call, batch } => {
                    let actions = batch.into_iter().map(|settle| settle.action).collect();
                    self.calls.push_back((source, kind, actions, call));
                }
                Action::StoreDeadLetter(new) => self.storing.push_back(new.key),
                Action::SendErrorReply { key } => self.replying.push_back(key),
                Action::ReportDeadLetter { key, reply_error } => {
                    self.reporting.push_back((key, reply_error.is_none()));
                }
                Action::StartWorker { worker } => self.started.push(worker),
                Action::StopWorker { worker } => self.stopped.push(worker),
                Action::Finish => self.is_over = true,
            }
        }
        self.events.extend_from_slice(self.dispatcher.events());
        self.dispatcher.clear_events();
    }

    fn input(&mut self, input: Input) {
        self.dispatcher.handle(input, self.now);
        self.plan();
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.plan();
    }

    /// Answers the receive of a source with messages at their first delivery.
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

    /// Answers with messages all of whose earlier deliveries, of these numbers, are unsettled.
    fn deliver_unsettled(&mut self, source: usize, unsettled: &[u32]) {
        let all: Vec<_> = unsettled.iter().map(|n| (MessageId::new(), n + 1, *n)).collect();
        self.deliver_all(source, &all);
    }

    fn deliver_all(&mut self, source: usize, all: &[(MessageId, u32, u32)]) {
        let all: Vec<_> = all.iter().map(|(id, count, n)| (*id, *count, *n, 0)).collect();
        self.deliver_messages(source, &all);
    }

    /// Answers with messages, given as id and the numbers of deliveries, unsettled and uncounted ones.
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
        let result = Ok(all.iter().map(delivery).collect());
        self.input(Input::Fetched { source, result });
    }

    /// A worker takes the first delivery, and waits until its start is recorded.
    fn start(&mut self) -> Arc<Lease> {
        let (_, Assignment { key, lease, .. }) = &self.assigned[0];
        let (key, lease) = (*key, lease.clone());
        assert!(lease.begin());
        self.input(Input::Starting { key });
        lease
    }

    /// A worker begins with the first assignment.
    fn begin(&mut self) -> (usize, Assignment) {
        let (worker, assignment) = self.assigned.pop_front().expect("an assignment");
        assert!(assignment.lease.begin());
        (worker, assignment)
    }

    fn finish(&mut self, verdict: Verdict) -> Key {
        self.finish_after(Duration::from_millis(1), verdict)
    }

    fn finish_after(&mut self, took: Duration, verdict: Verdict) -> Key {
        let (worker, assignment) = self.assigned.pop_front().expect("an assignment");
        let Assignment { key, source, lease, .. } = assignment;
        if !lease.begin() && !lease.has_begun() {
            self.input(Input::Skipped { worker });
            return key;
        }
        let took = Some(took);
        self.input(Input::Finished(Finished { key, source, worker, verdict, took }));
        key
    }

    fn finish_and_settle(&mut self, verdict: Verdict) {
        self.finish(verdict);
        self.answer(Ok(()));
    }

    /// Answers the next settle call, with the same result for all its entries.
    fn answer(&mut self, result: Result<()>) {
        let (source, kind, actions, call) = self.calls.pop_front().expect("a call");
        let result = Ok(vec![result; actions.len()]);
        self.input(Input::Settled { source, kind, call, result });
    }

    /// Answers the next settle call, which has these entries, with success.
    fn accept(&mut self, actions: &[SettleAction]) {
        assert_eq!(self.calls[0].2, actions);
        self.answer(Ok(()));
    }

    fn answer_all(&mut self) {
        while !self.calls.is_empty() {
            self.answer(Ok(()));
        }
    }

    /// Reports that a dead letter without an error reply was stored, and that its hooks have run.
    fn dead_letter_stored(&mut self, key: Key) {
        let result = Ok(stored(false));
        self.input(Input::DeadLetterStored { key, result });
        assert_eq!(self.reporting.pop_front(), Some((key, true)));
        self.input(Input::DeadLetterReported { key });
    }

    fn fail_to_store(&mut self, error: Error) {
        let key = self.storing.pop_front().expect("a dead letter");
        self.input(Input::DeadLetterStored { key, result: Err(error) });
    }

    fn names(&self) -> Vec<&'static str> {
        self.events
            .iter()
            .map(|event| match event.change {
                DeliveryChange::Received => "received",
                DeliveryChange::Shed => "shed",
                DeliveryChange::Succeeded { .. } => "succeeded",
                DeliveryChange::Failed { .. } => "failed",
                DeliveryChange::Retried { .. } => "retried",
                DeliveryChange::Released { .. } => "released",
                DeliveryChange::Returned => "returned",
                DeliveryChange::Parked { .. } => "parked",
                DeliveryChange::DeadLettered { .. } => "dead-lettered",
                DeliveryChange::LeaseLost => "lost",
                DeliveryChange::Unconfirmed => "unconfirmed",
                DeliveryChange::Extended => "extended",
            })
            .collect()
    }

    /// Returns how a message of these numbers of deliveries and unsettled ones may run.
    fn admission(&self, id: MessageId, attempt: u32, unsettled: u32) -> Admission {
        let mut message = RawMessage::new(id, "x", Timestamp::now());
        (message.delivery_count, message.unsettled) = (attempt, unsettled);
        self.dispatcher.admit(0, &message)
    }

    fn stop(&mut self, stop: Stop) {
        self.desire(|desired| desired.stop = Some(stop));
    }

    fn desire(&mut self, change: impl FnOnce(&mut DesiredState)) {
        let mut desired = self.dispatcher.desired;
        change(&mut desired);
        self.input(Input::Desired(desired));
    }
}

fn expired() -> Error {
    let receipt = Receipt::new(MessageId::new(), Nonce::random());
    Error::ReceiptHandleExpired { queue: "q".parse().unwrap(), receipt }
}

fn broken() -> Error {
    Error::connection(None, "settle", "broken")
}

/// A dead letter that was stored.
fn stored(has_reply: bool) -> StoredDeadLetter {
    let ids = DeadLetterIds { message_id: MessageId::new(), request_id: None };
    StoredDeadLetter { ids, has_reply }
}

fn failed(disposition: Disposition) -> Verdict {
    let failure = FailureDetails {
        kind: FailureKind::Error,
        type_name: "E",
        text: "no".into(),
        causes: [].into(),
    };
    Verdict::Failed { failure, disposition }
}

fn dead() -> Verdict {
    failed(Disposition::DeadLetter { route: 0 })
}

fn retried() -> Verdict {
    failed(Disposition::Retry { delay: Duration::ZERO })
}

#[test]
fn no_more_is_requested_than_there_is_room_for() {
    let mut bench = Bench::one(4, 1);
    assert_eq!((bench.fetches[0], bench.started.len()), (Some(8), 4));
    bench.deliver(0, 3);
    assert_eq!((bench.fetches[0], bench.assigned.len()), (Some(5), 3));
    let workers: Vec<_> = bench.assigned.iter().map(|(worker, _)| *worker).collect();
    assert_eq!(workers, [0, 1, 2], "each gets one before any gets two");
    bench.deliver(0, 5);
    assert_eq!(bench.fetches[0], None, "there is no room");
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], None, "room for one is not worth a call while all have work");
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], Some(2));
}

#[test]
fn an_idle_worker_is_reason_enough_to_fetch() {
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
    assert_eq!(bench.fetches[0], Some(1), "one is idle");
}

#[test]
fn what_waits_behind_a_slow_handler_goes_to_idle_workers() {
    let mut bench = Bench::one(2, 3);
    bench.deliver(0, 8);
    let of = |bench: &Bench, worker| bench.assigned.iter().filter(|(of, _)| *of == worker).count();
    assert_eq!((of(&bench, 0), of(&bench, 1)), (4, 4));
    let first = bench.assigned.iter().position(|(worker, _)| *worker == 1).unwrap();
    let slow = bench.assigned.remove(first).unwrap();
    assert!(slow.1.lease.begin());
    // The other has finished everything.
    bench.desire(|desired| desired.is_paused = true);
    bench.assigned.make_contiguous().sort_by_key(|(worker, _)| *worker);
    for _ in 0..4 {
        bench.finish(Verdict::Done);
    }
    let taken: Vec<_> = bench.assigned.iter().filter(|(worker, _)| *worker == 0).collect();
    assert_eq!(taken.len(), 2, "half of what waits behind the slow one");
    let skipped = bench.assigned.iter().filter(|(of, it)| *of == 1 && !it.lease.begin()).count();
    assert_eq!(skipped, 2, "which skips two that were taken back");
}

#[test]
fn results_that_arrive_together_are_settled_in_one_call() {
    let mut bench = Bench::one(8, 0);
    bench.deliver(0, 8);
    for _ in 0..4 {
        bench.finish(Verdict::Done);
    }
    assert_eq!(bench.calls.len(), 1, "one call at a time");
    assert_eq!(bench.calls[0].2.len(), 1);
    bench.answer(Ok(()));
    assert_eq!(bench.calls[0].2.len(), 3, "what arrived meanwhile goes together");
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.in_flight(), 4);
    assert_eq!(bench.names().iter().filter(|name| **name == "succeeded").count(), 4);
}

#[test]
fn too_many_unsettled_results_stop_the_fetching() {
    let mut bench = Bench::one(1, 0);
    bench.dispatcher.settings.result_buffer = 3;
    for _ in 0..4 {
        bench.deliver(0, 1);
        bench.finish(Verdict::Done);
    }
    assert_eq!(bench.fetches[0], None, "room for one and three unsettled results is used up");
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
        (failed(Disposition::Retry { delay: seconds(60) }), nack(seconds(60)), "retried"),
        (failed(Disposition::Park { delay: seconds(900) }), nack(seconds(900)), "parked"),
        (failed(Disposition::Release), release(Duration::ZERO), "released"),
    ] {
        let mut bench = Bench::with_one_delivery();
        bench.finish(verdict);
        bench.accept(&[action]);
        assert_eq!(bench.names().last(), Some(&name));
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

#[test]
fn a_dead_letter_is_stored_before_the_message_is_acknowledged() {
    let mut bench = Bench::with_one_delivery();
    bench.finish(dead());
    let key = bench.storing.pop_front().unwrap();
    assert!(bench.calls.is_empty());
    bench.dead_letter_stored(key);
    bench.accept(&[SettleAction::Acknowledge]);
    assert_eq!(bench.names(), ["received", "failed", "dead-lettered"]);
}

#[test]
fn a_dead_letter_that_cannot_be_stored_is_retried_and_then_its_message_is_parked() {
    let mut bench = Bench::with_one_delivery();
    bench.finish(dead());
    for tries in 0..6 {
        bench.fail_to_store(broken());
        let wait = BACKOFF * (1 << tries);
        bench.pass(wait - Duration::from_nanos(1));
        assert!(bench.storing.is_empty() && bench.calls.is_empty());
        assert!(bench.dispatcher.next_wake().is_some());
        bench.pass(Duration::from_nanos(1));
    }
    bench.fail_to_store(broken());
    let park = SettleAction::Nack { delay: Duration::from_secs(900) };
    assert_eq!(bench.calls[0].2, [park], "a message without a dead letter stays in its queue");
}

#[test]
fn a_dead_letter_that_is_refused_parks_its_message_at_once_and_a_stop_gives_it_back() {
    let refused = || Error::invalid(None, "body", "too long", "less");
    let park = SettleAction::Nack { delay: Duration::from_secs(900) };
    for (error, is_ending, action) in [(refused(), false, park), (broken(), true, RELEASE)] {
        let mut bench = Bench::with_one_delivery();
        bench.finish(dead());
        if is_ending {
            bench.stop(Stop::Graceful);
        }
        bench.fail_to_store(error);
        assert_eq!(bench.calls[0].2, [action]);
    }
}

#[test]
fn the_error_reply_is_sent_after_the_dead_letter_and_before_the_acknowledgement() {
    let mut bench = Bench::with_one_delivery();
    let key = bench.finish(dead());
    assert_eq!((bench.storing.len(), bench.replying.len(), bench.calls.len()), (1, 0, 0));
    bench.input(Input::DeadLetterStored { key, result: Ok(stored(true)) });
    assert_eq!((bench.replying.len(), bench.reporting.len(), bench.calls.len()), (1, 0, 0));
    bench.input(Input::ErrorReplySent { key, result: Ok(()) });
    assert_eq!((bench.reporting.pop_front(), bench.calls.len()), (Some((key, true)), 0));
    bench.input(Input::DeadLetterReported { key });
    assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
}

#[test]
fn an_error_reply_that_fails_is_retried_and_then_given_up() {
    let invalid = || Error::invalid(None, "body", "too long", "less");
    for (error, retries) in [(broken as fn() -> Error, 4), (invalid, 0)] {
        let mut bench = Bench::with_one_delivery();
        let key = bench.finish(dead());
        bench.input(Input::DeadLetterStored { key, result: Ok(stored(true)) });
        for failures in 0..retries {
            assert_eq!(bench.replying.pop_front(), Some(key));
            bench.input(Input::ErrorReplySent { key, result: Err(error()) });
            let delay = Duration::from_millis(100) * (1 << failures);
            assert!(bench.dispatcher.next_wake() <= Some(bench.now + delay));
            // A stop does not hurry it.
            bench.stop(Stop::Graceful);
            bench.pass(delay - Duration::from_nanos(1));
            assert!(bench.replying.is_empty() && bench.storing.len() == 1);
            bench.pass(Duration::from_nanos(1));
        }
        assert_eq!(bench.replying.pop_front(), Some(key));
        bench.input(Input::ErrorReplySent { key, result: Err(error()) });
        assert_eq!(bench.reporting.pop_front(), Some((key, false)), "without a reply");
        bench.input(Input::DeadLetterReported { key });
        assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge], "the dead letter is stored");
    }
}

/// Stores the dead letter of a delivery. `result` is that of the first try to send its error reply: none while it is
/// under way, an error if it is to be retried, success if the hooks are to run.
fn with_error_reply(result: Option<Result<()>>) -> (Bench, Key) {
    let mut bench = Bench::with_one_delivery();
    bench.finish(dead());
    let key = bench.storing.pop_front().unwrap();
    bench.input(Input::DeadLetterStored { key, result: Ok(stored(true)) });
    assert_eq!(bench.replying.pop_front(), Some(key));
    if let Some(result) = result {
        bench.input(Input::ErrorReplySent { key, result });
    }
    (bench, key)
}

#[test]
fn a_lease_lost_after_the_dead_letter_is_stored_stops_neither_error_reply_nor_hooks() {
    for result in [None, Some(Err(broken())), Some(Ok(()))] {
        let is_retried = matches!(result, Some(Err(_)));
        let is_sent = matches!(result, Some(Ok(())));
        let (mut bench, key) = with_error_reply(result);
        bench.pass(LEASE / 3);
        assert_eq!(bench.replying.pop_front().is_some(), is_retried);
        bench.answer(Err(expired()));
        assert_eq!(bench.names(), ["received", "failed", "lost"]);
        assert_eq!(bench.dispatcher.in_flight(), 1);
        if !is_sent {
            bench.input(Input::ErrorReplySent { key, result: Ok(()) });
        }
        assert_eq!(bench.reporting.pop_front(), Some((key, true)));
        bench.input(Input::DeadLetterReported { key });
        // The queue decides whether the message is still there.
        assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
        bench.answer(Err(expired()));
        assert_eq!(bench.names(), ["received", "failed", "lost"], "no dead letter is reported");
        assert_eq!((bench.calls.len(), bench.dispatcher.in_flight()), (0, 0));
    }
}

#[test]
fn an_error_reply_or_hooks_that_do_not_end_in_the_grace_of_a_stop_are_abandoned() {
    for result in [None, Some(Err(broken())), Some(Ok(()))] {
        let is_retried = matches!(result, Some(Err(_)));
        let (mut bench, key) = with_error_reply(result);
        bench.stop(Stop::Now);
        bench.pass(CANCEL_GRACE - Duration::from_nanos(1));
        assert!(!bench.is_over, "they have some time to end");
        assert_eq!(bench.replying.pop_front().is_some(), is_retried);
        bench.pass(Duration::from_nanos(1));
        assert!(bench.is_over && bench.calls.is_empty());
        assert_eq!(bench.names(), ["received", "failed", "unconfirmed"]);
        // Late results change nothing. The message comes back, and stores the same dead letter again.
        bench.reporting.clear();
        bench.input(Input::ErrorReplySent { key, result: Err(broken()) });
        bench.input(Input::DeadLetterReported { key });
        bench.pass(LEASE);
        assert!(bench.replying.is_empty() && bench.reporting.is_empty() && bench.calls.is_empty());
    }
}

fn quarantining(after: u32, is_exact: bool) -> SourceSettings {
    let quarantine = QuarantineSettings { after, route: Some(0), is_exact, stagger: STAGGER };
    SourceSettings { quarantine, ..settings() }
}

#[test]
fn a_message_with_too_many_unsettled_deliveries_is_not_run_again() {
    let mut bench = Bench::new(1, 0, &[quarantining(4, true)]);
    bench.deliver_unsettled(0, &[3]);
    assert_eq!((bench.assigned.len(), bench.storing.len()), (1, 0));
    bench.finish_and_settle(retried());
    bench.deliver_unsettled(0, &[4]);
    assert_eq!((bench.assigned.len(), bench.storing.len()), (0, 1));
}

#[test]
fn a_message_that_was_given_back_any_number_of_times_is_run() {
    let mut bench = Bench::new(1, 0, &[quarantining(4, true)]);
    bench.deliver_nth(0, 1, 1_000);
    assert_eq!((bench.assigned.len(), bench.storing.len()), (1, 0));
}

#[test]
fn if_the_queue_does_not_count_unsettled_deliveries_all_count_except_those_given_back_here() {
    let mut bench = Bench::new(1, 0, &[quarantining(2, false)]);
    let id = MessageId::new();
    for attempt in 1..=5 {
        bench.deliver_ids(0, &[id], attempt);
        assert_eq!(bench.assigned[0].1.attempt, 1);
        bench.finish_and_settle(RELEASED);
    }
    bench.deliver_ids(0, &[id], 17);
    bench.finish_and_settle(retried());
    // Its handler ended here: only deliveries after that count.
    assert_eq!(bench.admission(id, 18, 0), Admission::Run);
    assert_eq!(bench.admission(id, 28, 0), Admission::Isolate);
    assert_eq!(bench.admission(id, 29, 0), Admission::Quarantine { route: 0 });
    bench.deliver_ids(0, &[id], 29);
    assert_eq!((bench.assigned.len(), bench.storing.len()), (0, 1));
}

#[test]
fn if_the_queue_counts_uncounted_deliveries_its_count_alone_is_used() {
    let mut bench = Bench::new(1, 0, &[quarantining(2, true)]);
    let id = MessageId::new();
    for (deliveries, uncounted, attempt) in [(1, 0, 1), (2, 1, 1), (30, 25, 5), (31, 25, 6)] {
        bench.deliver_messages(0, &[(id, deliveries, 0, uncounted)]);
        assert_eq!(bench.assigned[0].1.attempt, attempt);
        bench.finish(RELEASED);
        bench.accept(&[RELEASE]);
        assert_eq!(bench.events.last().unwrap().attempt, attempt);
    }
}

#[test]
fn two_queues_of_a_worker_may_have_messages_of_the_same_id() {
    let mut bench = Bench::new(4, 0, &[quarantining(2, false), quarantining(2, false)]);
    let id = MessageId::new();
    for (source, attempt, expected) in [(0, 1, 1), (1, 2, 2), (0, 2, 1), (1, 3, 2)] {
        bench.deliver_ids(source, &[id], attempt);
        assert_eq!(bench.assigned[0].1.attempt, expected, "{source} {attempt}");
        bench.finish_and_settle(RELEASED);
    }
}

/// Only messages with such a delivery pay for the call.
#[test]
fn a_start_is_recorded_if_an_earlier_delivery_was_released_or_expired() {
    for (unsettled, uncounted, must_record) in [(0, 0, false), (0, 1, true), (1, 0, true)] {
        let mut bench = Bench::one(1, 0);
        bench.deliver_messages(0, &[(MessageId::new(), 3, unsettled, uncounted)]);
        assert_eq!(bench.assigned[0].1.must_record_start, must_record);
        if !must_record {
            continue;
        }
        let lease = bench.start();
        assert_eq!(bench.calls[0].2, [START]);
        assert!(lease.started().now_or_never().is_none(), "it is not recorded yet");
        bench.answer(Ok(()));
        assert_eq!(lease.started().now_or_never(), Some(true));
        // The renewal of the lease comes at its time, and records the start as well.
        bench.pass(LEASE / 3);
        bench.accept(&[START]);
        bench.pass(LEASE / 3);
        assert_eq!(bench.calls[0].2, [START], "one renewal at a time");
        bench.answer(Ok(()));
        bench.finish_and_settle(Verdict::Done);
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

#[test]
fn a_delivery_whose_start_is_not_recorded_is_not_run() {
    for is_refused in [true, false] {
        let mut bench = Bench::one(1, 0);
        bench.deliver_messages(0, &[(MessageId::new(), 2, 0, 1)]);
        let lease = bench.start();
        if is_refused {
            bench.answer(Err(expired()));
        } else {
            bench.answer(Err(broken()));
            assert!(lease.started().now_or_never().is_none(), "it is tried again");
            bench.pass(LEASE);
        }
        assert_eq!(lease.started().now_or_never(), Some(false));
        assert!(lease.is_lost());
        bench.finish(Verdict::NotRun);
        // In case the queue has recorded the start.
        assert_eq!(bench.calls[0].2, [RELEASE]);
        bench.answer(Err(expired()));
        assert_eq!(bench.dispatcher.in_flight(), 0);
    }
}

/// The start may be recorded although the answer came too late.
#[test]
fn a_delivery_that_was_lost_before_it_ran_is_released_if_its_start_may_be_recorded() {
    let mut bench = Bench::one(1, 0);
    bench.deliver_messages(0, &[(MessageId::new(), 2, 0, 1)]);
    let lease = bench.start();
    assert_eq!(bench.calls[0].2, [START]);
    bench.pass(LEASE);
    assert_eq!(lease.started().now_or_never(), Some(false));
    bench.finish(Verdict::NotRun);
    // The late answer to the start, then the release.
    bench.answer(Ok(()));
    bench.accept(&[RELEASE]);
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
    assert_eq!([1, 2, 3, 4].map(QuarantineSettings::default_limit), [3, 3, 3, 4]);
    let bench = Bench::new(1, 0, &[quarantining(QuarantineSettings::default_limit(1), true)]);
    let admission = [0, 1, 2, 3].map(|unsettled| bench.admission(MessageId::new(), 9, unsettled));
    let quarantine = Admission::Quarantine { route: 0 };
    assert_eq!(admission, [Admission::Run, Admission::Run, Admission::Isolate, quarantine]);
}

#[test]
fn an_isolated_message_whose_handler_ends_is_cleared() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    let id = MessageId::new();
    for (unsettled, verdict) in [(2, retried()), (4, RELEASED), (8, Verdict::Done)] {
        bench.deliver_all(0, &[(id, unsettled + 1, unsettled)]);
        assert_eq!(bench.fetches[0], None, "it runs alone");
        bench.finish_and_settle(verdict);
        let more = [0, 1, 2, 4].map(|more| bench.admission(id, unsettled + 2, unsettled + more));
        let [run, isolate] = [Admission::Run, Admission::Isolate];
        assert_eq!(more, [run, run, isolate, isolate]);
    }
    assert_eq!(bench.admission(id, 20, 13), Admission::Quarantine { route: 0 });
    let other = bench.admission(MessageId::new(), 20, 5);
    assert_eq!(other, Admission::Quarantine { route: 0 });
}

#[test]
fn an_isolated_message_that_runs_for_longer_than_a_lease_is_no_longer_alone() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver_unsettled(0, &[2]);
    assert_eq!((bench.assigned.len(), bench.fetches[0]), (1, None));
    assert!(bench.assigned[0].1.lease.begin());
    for _ in 0..2 {
        bench.pass(LEASE / 3);
        bench.answer_all();
        assert_eq!(bench.fetches[0], None);
    }
    bench.pass(LEASE / 3 - Duration::from_nanos(1));
    bench.answer_all();
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + Duration::from_nanos(1)));
    bench.pass(Duration::from_nanos(1));
    bench.answer_all();
    assert_eq!(bench.fetches[0], Some(1), "other messages run beside it");
    bench.deliver(0, 1);
    assert_eq!(bench.assigned.len(), 2);
}

#[test]
fn a_message_whose_lease_is_lost_is_not_dead_lettered() {
    let mut bench = Bench::with_one_delivery();
    assert!(bench.assigned[0].1.lease.begin());
    bench.pass(LEASE / 3);
    bench.answer(Err(expired()));
    bench.finish(dead());
    assert!(bench.storing.is_empty(), "the other consumer may succeed");
    assert_eq!((bench.calls.len(), bench.dispatcher.in_flight()), (0, 0));

    // The same if the first try to store its dead letter failed.
    bench.deliver(0, 1);
    bench.finish(dead());
    bench.pass(LEASE / 3);
    bench.fail_to_store(broken());
    bench.answer(Err(expired()));
    bench.pass(BACKOFF);
    assert!(bench.storing.is_empty());
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn an_isolated_message_runs_alone_and_others_go_back() {
    let mut bench = Bench::new(4, 1, &[quarantining(5, true)]);
    bench.deliver(0, 2);
    // One of these is started, the other is not.
    let running = bench.begin();
    bench.deliver_unsettled(0, &[2, 0, 2, 3]);
    // What is not started goes back at once, other messages to be isolated one after the other.
    assert_eq!(bench.fetches[0], None, "nothing is received beside it");
    let release = |delay| SettleAction::Release { delay };
    let mut back: Vec<_> = Vec::new();
    while let Some((_, _, actions, _)) = bench.calls.front() {
        back.extend(actions.clone());
        bench.answer(Ok(()));
    }
    back.sort_by_key(|action| format!("{action:?}").len());
    assert_eq!(back.iter().filter(|action| **action == release(Duration::ZERO)).count(), 2);
    for turn in 1..=2 {
        assert!(back.contains(&release(STAGGER * turn)), "{back:?}");
    }
    assert_eq!(bench.dispatcher.in_flight(), 2, "the one that runs and the isolated one");
    assert_eq!(bench.assigned.iter().filter(|(_, one)| one.message.unsettled > 0).count(), 0);
    bench.assigned.clear();

    // The one that runs ends: now the isolated one is alone.
    let (worker, Assignment { key, source, .. }) = running;
    let (verdict, took) = (Verdict::Done, Some(Duration::ZERO));
    bench.input(Input::Finished(Finished { key, source, worker, verdict, took }));
    assert!(bench.assigned.is_empty(), "not before it is settled");
    bench.answer(Ok(()));
    assert_eq!(bench.assigned.len(), 1);
    assert_eq!((bench.assigned[0].1.message.unsettled, bench.fetches[0]), (2, None));
    bench.finish(Verdict::Done);
    assert_eq!(bench.fetches[0], None, "not before it is settled");
    bench.answer(Ok(()));
    assert!(bench.fetches[0].is_some(), "then receiving goes on");
}

#[test]
fn an_isolated_message_waits_for_running_handlers_for_one_lease_at_most() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver(0, 1);
    bench.begin();
    bench.deliver_unsettled(0, &[2]);
    assert!(bench.assigned.is_empty());
    for _ in 0..3 {
        bench.pass(LEASE / 3);
        bench.answer_all();
    }
    assert_eq!(bench.assigned.len(), 1, "everything would stand still");
}

#[test]
fn a_stop_returns_messages_to_be_isolated() {
    let mut bench = Bench::new(2, 0, &[quarantining(5, true)]);
    bench.deliver(0, 1);
    let (worker, running) = bench.begin();
    bench.deliver_unsettled(0, &[2]);
    bench.stop(Stop::Graceful);
    bench.accept(&[RELEASE]);
    let Assignment { key, source, .. } = running;
    let (verdict, took) = (Verdict::Done, Some(Duration::ZERO));
    bench.input(Input::Finished(Finished { key, source, worker, verdict, took }));
    bench.answer(Ok(()));
    assert!(bench.is_over);
}

#[test]
fn leases_are_extended_at_every_stage() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 2);
    bench.pass(LEASE / 3 - Duration::from_nanos(1));
    assert!(bench.calls.is_empty());
    bench.pass(Duration::from_nanos(1));
    assert_eq!(bench.calls[0].2, [EXTEND; 2], "the one that runs and the one that waits");
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + LEASE / 3));
    for _ in 0..10 {
        bench.pass(LEASE / 3);
        bench.answer(Ok(()));
    }
    assert!(!bench.names().contains(&"lost"));
    // It is not extended while it is being settled.
    bench.finish(Verdict::Done);
    bench.pass(LEASE / 3);
    let extensions = bench.calls.iter().filter(|call| call.1 == SettleKind::Extension);
    assert_eq!(extensions.map(|call| call.2.len()).sum::<usize>(), 1);
}

#[test]
fn an_extension_that_fails_is_repeated_until_the_lease_expires() {
    let mut bench = Bench::with_one_delivery();
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
    // The handler still finishes; the queue decides whether that counts.
    bench.finish(Verdict::Done);
    assert_eq!(bench.calls[0].2, [SettleAction::Acknowledge]);
    bench.answer(Err(expired()));
    assert_eq!(bench.names().iter().filter(|name| **name == "lost").count(), 1, "reported once");
    assert_eq!(bench.dispatcher.in_flight(), 0);
}

#[test]
fn a_lease_that_is_refused_is_lost_and_not_given_back() {
    let cancelling = SourceSettings { cancel_when_lost: true, ..settings() };
    let mut bench = Bench::new(1, 0, &[cancelling]);
    bench.deliver(0, 1);
    bench.pass(LEASE / 3);
    bench.answer(Err(expired()));
    assert!(bench.assigned[0].1.lease.is_lost());
    bench.finish(retried());
    assert!(bench.calls.is_empty() && bench.dispatcher.in_flight() == 0);
    assert_eq!(bench.fetches[0], Some(1), "there is room again");
}

#[test]
fn an_extension_that_crosses_an_acknowledgement_is_no_loss() {
    let mut bench = Bench::with_one_delivery();
    bench.pass(LEASE / 3);
    bench.finish(Verdict::Done);
    // The acknowledgement is answered first.
    bench.calls.rotate_left(1);
    bench.answer(Ok(()));
    bench.answer(Err(expired()));
    assert_eq!(bench.names(), ["received", "succeeded"]);
}

#[test]
fn a_handler_that_does_not_beat_loses_its_lease() {
    let beating = SourceSettings { extend_while_beating: true, ..settings() };
    let mut bench = Bench::new(1, 1, &[beating]);
    bench.deliver(0, 2);
    let running = bench.assigned[0].1.lease.clone();
    assert!(running.begin());
    crate::handler::Heartbeat(running.clone()).beat();
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2.len(), 2, "one has beaten, the other has not started");
    bench.answer(Ok(()));
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2.len(), 1, "one has not beaten again");
    bench.answer(Ok(()));
    // A late beat is enough while the lease runs.
    crate::handler::Heartbeat(running.clone()).beat();
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
    let mut bench = Bench::with_one_delivery();
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
fn receives_that_fail_are_delayed_longer_each_time() {
    let mut bench = Bench::one(1, 0);
    let mut waits = Vec::new();
    for _ in 0..9 {
        bench.fetches[0].take().expect("a fetch");
        bench.input(Input::Fetched { source: 0, result: Err(broken()) });
        let wake = bench.dispatcher.next_wake().expect("a time");
        waits.push((wake - bench.now).as_millis());
        bench.now = wake;
        bench.plan();
    }
    assert_eq!(waits, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
    bench.now += Duration::from_secs(20);
    bench.deliver(0, 0);
    assert_eq!(bench.fetches[0], Some(1), "an empty queue is asked at once: the receive waits");
    bench.deliver(0, 0);
    assert_eq!(bench.fetches[0], None, "unless it did not wait");
    bench.pass(BACKOFF);
    assert_eq!(bench.fetches[0], Some(1));
}

#[test]
fn busy_queues_share_the_workers_by_weight() {
    let weighed = [3, 1].map(|weight| SourceSettings { weight, ..settings() });
    let mut bench = Bench::new(4, 1, &weighed);
    assert_eq!(bench.fetches, [Some(1), Some(1)], "each waits with room for one");
    let mut served = [0; 2];
    for _ in 0..4_000 {
        // Both queues always have as many as are requested.
        for (source, served) in served.iter_mut().enumerate() {
            if let Some(max) = bench.fetches[source] {
                *served += max;
                bench.deliver(source, max);
            }
        }
        bench.finish(Verdict::Done);
        bench.answer_all();
    }
    let ratio = served[0] as f64 / served[1] as f64;
    assert!((2.8..3.2).contains(&ratio), "{served:?}");
}

#[test]
fn an_empty_queue_does_not_keep_room_from_the_others() {
    let mut bench = Bench::new(4, 1, &[settings(), settings(), settings()]);
    bench.deliver(0, 1);
    assert_eq!(bench.fetches, [Some(5), Some(1), Some(1)], "two wait with room for one each");
    bench.deliver(0, 0);
    assert_eq!(bench.fetches, [Some(1), Some(1), Some(1)], "now all three do");
}

#[test]
fn a_queue_that_comes_back_does_not_make_up_for_lost_time() {
    let mut bench = Bench::new(1, 1, &[settings(), settings()]);
    bench.deliver(0, 1);
    for _ in 0..100 {
        bench.finish_and_settle(Verdict::Done);
        if let Some(max) = bench.fetches[0] {
            bench.deliver(0, max);
        }
    }
    assert!(bench.dispatcher.sources[0].virtual_time > 50.0);
    bench.deliver(1, 1);
    assert!(bench.dispatcher.sources[1].virtual_time > 50.0);
}

#[test]
fn a_pause_stops_the_fetching_and_nothing_else() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 1);
    bench.desire(|desired| desired.is_paused = true);
    assert_eq!(bench.fetches[0], None);
    bench.finish_and_settle(Verdict::Done);
    assert_eq!(bench.names(), ["received", "succeeded"]);
    assert!(bench.dispatcher.next_wake().is_none_or(|at| at > bench.now));
    bench.desire(|desired| desired.is_paused = false);
    assert_eq!(bench.fetches[0], Some(2));
}

#[test]
fn workers_are_started_and_stopped() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 4);
    // The first of each worker.
    [0, 2].into_iter().for_each(|index| assert!(bench.assigned[index].1.lease.begin()));
    bench.desire(|desired| desired.workers = 1);
    assert_eq!(bench.stopped, [1]);
    // What the stopping worker has not started goes to the other.
    let (worker, taken_back) = bench.assigned.remove(3).unwrap();
    assert!(worker == 1 && !taken_back.lease.begin());
    bench.input(Input::Skipped { worker });
    assert_eq!(bench.assigned.iter().map(|(worker, _)| *worker).collect::<Vec<_>>(), [0, 0, 1, 0]);
    assert!(bench.calls.is_empty() && bench.assigned[3].1.key == taken_back.key);
    for _ in 0..4 {
        bench.finish(Verdict::Done);
    }
    bench.input(Input::WorkerEnded { worker: 1 });
    bench.desire(|desired| desired.workers = 3);
    assert_eq!(bench.started, [0, 1, 1, 2], "numbers are reused");
}

#[test]
fn a_stop_goes_in_order() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 3);
    bench.assigned.iter().take(2).for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.stop(Stop::Graceful);
    assert_eq!((bench.fetches[0], &bench.stopped[..]), (None, &[0, 1][..]), "nothing is received");
    // What is not started goes back at once, while the others run.
    let (worker, assigned) = bench.assigned.pop_back().unwrap();
    assert!(!assigned.lease.begin());
    bench.input(Input::Skipped { worker });
    bench.accept(&[RELEASE]);
    // Their leases are extended.
    bench.pass(LEASE / 3);
    bench.accept(&[START; 2]);
    bench.finish(Verdict::Done);
    bench.finish(retried());
    assert!(!bench.is_over);
    bench.answer(Ok(()));
    assert!(!bench.is_over, "not before all is settled");
    bench.answer(Ok(()));
    assert!(bench.is_over && bench.dispatcher.mode() == Mode::Finished);
}

#[test]
fn a_drain_ends_at_its_deadline() {
    let mut bench = Bench::one(2, 0);
    bench.deliver(0, 2);
    bench.assigned.iter().for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.stop(Stop::Graceful);
    for _ in 0..3 {
        bench.pass(Duration::from_secs(10));
        bench.answer(Ok(()));
    }
    assert!(!bench.is_over, "cancelled handlers have some time to end");
    bench.finish(failed(Disposition::Release));
    bench.accept(&[RELEASE]);
    bench.pass(CANCEL_GRACE);
    assert!(bench.is_over, "one does not end");
    assert_eq!(bench.names().last(), Some(&"unconfirmed"));
    // Its late result changes nothing.
    bench.finish(Verdict::Done);
    assert!(bench.calls.is_empty());
}

#[test]
fn the_pool_ends_when_every_queue_is_closed() {
    let mut bench = Bench::new(2, 0, &[settings(), settings()]);
    for source in 0..2 {
        assert!(!bench.is_over);
        bench.fetches[source] = None;
        bench.input(Input::Fetched { source, result: Err(Error::Closed { queue: None }) });
    }
    assert!(bench.is_over && bench.dispatcher.closed().is_some());
}

#[test]
fn finished_deliveries_do_not_stay_until_their_leases_expire() {
    let mut bench = Bench::one(1, 0);
    for _ in 0..10_000 {
        bench.deliver(0, 1);
        bench.finish_and_settle(Verdict::Done);
    }
    assert!(bench.dispatcher.sources[0].renewals.len() < 2_000);
}

#[test]
fn a_delivery_that_a_limit_refuses_stays_in_flight() {
    let mut bench = Bench::with_one_delivery();
    bench.finish(Verdict::Shed { delay: BACKOFF });
    assert!(bench.calls.is_empty() && bench.assigned.is_empty());
    assert_eq!((bench.fetches[0], bench.dispatcher.next_wake()), (None, Some(bench.now + BACKOFF)));
    bench.pass(BACKOFF);
    assert_eq!(bench.assigned.len(), 1, "it is tried again");
    bench.finish(Verdict::Shed { delay: BACKOFF });
    bench.stop(Stop::Graceful);
    assert_eq!(bench.calls[0].2, [RELEASE]);
}

#[test]
fn a_settling_delivery_is_not_assigned_again() {
    let mut bench = Bench::with_one_delivery();
    let (worker, assigned) = bench.begin();
    bench.input(Input::WorkerEnded { worker });
    assert_eq!(bench.calls.len(), 1, "what it handled is given back");
    bench.input(Input::Returned { key: assigned.key, worker });
    assert!(bench.assigned.is_empty());
}

#[test]
fn what_an_ended_worker_had_not_started_goes_to_the_next() {
    let mut bench = Bench::one(1, 1);
    bench.deliver(0, 2);
    let (worker, _) = bench.begin();
    let (_, waiting) = bench.assigned.pop_front().unwrap();
    bench.input(Input::WorkerEnded { worker });
    assert_eq!(bench.calls[0].2.len(), 1);
    assert_eq!(bench.assigned[0].1.key, waiting.key);
}

#[test]
fn an_extension_that_is_refused_for_good_does_not_drop_the_delivery() {
    let mut bench = Bench::with_one_delivery();
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
fn in_beat_mode_a_lease_is_extended_while_a_dead_letter_is_stored() {
    let beating = SourceSettings { extend_while_beating: true, ..settings() };
    let mut bench = Bench::new(1, 0, &[beating]);
    bench.deliver(0, 1);
    bench.finish(dead());
    bench.pass(LEASE / 3);
    assert_eq!(bench.calls[0].2, [EXTEND]);
}

#[test]
fn with_no_workers_prefetched_messages_go_back() {
    let mut bench = Bench::one(2, 1);
    bench.deliver(0, 3);
    bench.desire(|desired| desired.workers = 0);
    assert_eq!(bench.calls[0].2, [RELEASE; 3]);
}

#[test]
fn with_less_room_than_queues_each_has_its_turn() {
    let mut bench = Bench::new(3, 0, &[settings(), settings(), settings()]);
    bench.desire(|desired| desired.workers = 1);
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
            bench.answer_all();
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
fn finished_deliveries_have_time_to_be_settled_at_the_end() {
    let mut bench = Bench::one(2, 0);
    bench.deliver(0, 2);
    bench.assigned.iter().for_each(|(_, assigned)| assert!(assigned.lease.begin()));
    bench.stop(Stop::Now);
    bench.finish(Verdict::Done);
    bench.pass(CANCEL_GRACE);
    assert!(!bench.is_over, "the acknowledgement is under way; the other handler is abandoned");
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

/// Every verdict except `Settled`, and what becomes of the message.
fn other_verdicts() -> [(Verdict, &'static str); 7] {
    let delay = Duration::ZERO;
    [
        (Verdict::Done, "succeeded"),
        (Verdict::Released { delay }, "released"),
        (retried(), "retried"),
        (failed(Disposition::Park { delay }), "parked"),
        (failed(Disposition::Release), "released"),
        (dead(), "dead-lettered"),
        // There may be no room for it any more.
        (Verdict::Shed { delay: BACKOFF }, "released"),
    ]
}

#[test]
fn a_delivery_that_its_handler_has_settled_is_not_settled_again() {
    let (mut bench, _) = in_transaction(settings());
    bench.finish(Verdict::Settled);
    assert!(bench.calls.is_empty() && bench.storing.is_empty());
    assert_eq!((bench.names(), bench.dispatcher.in_flight()), (vec!["received", "succeeded"], 0));
}

#[test]
fn an_extension_after_the_handlers_own_acknowledgement_reports_no_loss() {
    for (verdict, _) in other_verdicts().into_iter().chain([(Verdict::Settled, "")]) {
        let is_failure = matches!(verdict, Verdict::Failed { .. });
        let cancelling = SourceSettings { cancel_when_lost: true, ..settings() };
        let (mut bench, lease) = in_transaction(cancelling);
        bench.pass(LEASE / 3);
        bench.answer(Err(expired()));
        assert!(!lease.is_lost() && lease.cancelled().now_or_never().is_none());
        // The commit is known: nothing is extended, and nothing is asked when the handler ends, however late.
        bench.pass(3 * LEASE);
        assert!(bench.calls.is_empty() && !lease.is_lost());
        bench.finish(verdict);
        assert!(bench.calls.is_empty() && bench.storing.is_empty());
        let names: &[_] = if is_failure {
            &["received", "failed", "succeeded"]
        } else {
            &["received", "succeeded"]
        };
        assert_eq!((bench.names(), bench.dispatcher.in_flight()), (names.to_vec(), 0));
    }
}

#[test]
fn an_acknowledgement_without_settled_is_confirmed_by_the_queue_and_done_if_committed() {
    for (verdict, _) in other_verdicts() {
        let (mut bench, _) = in_transaction(settings());
        bench.finish(verdict);
        assert!(bench.storing.is_empty(), "no dead letter of a message that may be done");
        assert_eq!(bench.calls[0].2, [EXTEND]);
        bench.answer(Err(expired()));
        assert!(bench.calls.is_empty() && bench.storing.is_empty());
        assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("succeeded"), 0));
        assert!(!bench.names().contains(&"lost"));
    }
}

#[test]
fn after_a_rollback_the_verdict_counts() {
    for (verdict, end) in other_verdicts() {
        let (mut bench, _) = in_transaction(settings());
        bench.finish_and_settle(verdict);
        while let Some(key) = bench.storing.pop_front() {
            bench.pass(LEASE / 3);
            assert_eq!(bench.calls.len(), 1, "its lease is extended while it is dead-lettered");
            bench.answer(Ok(()));
            bench.dead_letter_stored(key);
        }
        assert!(!matches!(bench.calls[0].2[..], [SettleAction::Extend { .. }]));
        bench.answer(Ok(()));
        assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some(end), 0));
    }
}

#[test]
fn whether_a_transaction_was_committed_is_asked_until_the_lease_expires() {
    let (mut bench, _) = in_transaction(settings());
    bench.finish(dead());
    let until = bench.now + LEASE;
    while bench.now < until {
        bench.answer(Err(broken()));
        bench.pass(Duration::from_millis(1500));
    }
    assert!(bench.storing.is_empty());
    assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("unconfirmed"), 0));

    // A receipt that is refused after the lease may have expired proves nothing.
    let (mut bench, lease) = in_transaction(settings());
    bench.finish(dead());
    bench.pass(LEASE);
    bench.answer(Err(expired()));
    assert!(lease.is_lost() && bench.storing.is_empty());
    assert_eq!((bench.names().pop(), bench.dispatcher.in_flight()), (Some("lost"), 0));
}

#[test]
fn a_transaction_that_outlasts_its_lease_is_not_disturbed() {
    let cancelling = SourceSettings { cancel_when_lost: true, ..settings() };
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

/// Returns when the only lease expires.
fn lease_end(bench: &Bench) -> Instant {
    bench.dispatcher.in_flight.iter().next().expect("a lease").1.deadline
}

#[test]
fn what_is_prefetched_is_measured() {
    let ms = Duration::from_millis;
    for (fetch, handler, prefetched) in
        [(ms(1), ms(100), 0), (ms(1), ms(1), 8), (ms(10), ms(1), 80), (ms(10), Duration::ZERO, 256)]
    {
        let mut bench = Bench::at_pace(None, 4, 256, &[settings()]);
        assert_eq!(bench.fetches[0], Some(4), "nothing is known yet");
        let mut most = 0;
        for _ in 0..1_000 {
            bench.now += fetch;
            let messages = bench.fetches[0].unwrap_or(0);
            most = most.max(bench.dispatcher.in_flight() + messages);
            if messages > 0 {
                bench.deliver(0, messages);
            }
            // Every worker has ended as many handlers as it could in this time.
            let ended = if handler <= fetch { bench.assigned.len() } else { 1 };
            for _ in 0..ended.min(bench.assigned.len()) {
                bench.finish_after(handler, Verdict::Done);
            }
            bench.answer_all();
        }
        assert_eq!(bench.dispatcher.prefetch, prefetched, "{fetch:?} {handler:?}");
        assert!(most <= 4 + prefetched, "{most} of {prefetched}");
    }
}

#[test]
fn what_waits_for_slow_handlers_goes_back() {
    let mut bench = Bench::one(2, 3);
    bench.deliver(0, 8);
    // The handlers turn out to be slow.
    bench.pace = None;
    let mut measured = Pace::default();
    measured.fetched(Duration::from_millis(1));
    measured.handled(Duration::from_millis(1));
    bench.dispatcher.pace = measured;
    [0, 4].into_iter().for_each(|index| assert!(bench.assigned[index].1.lease.begin()));
    bench.pass(LONGEST_WAIT - Duration::from_nanos(1));
    assert!(bench.calls.is_empty());
    assert_eq!(bench.dispatcher.next_wake(), Some(bench.now + Duration::from_nanos(1)));
    bench.pass(Duration::from_nanos(1));
    bench.accept(&[RELEASE; 6]);
    assert_eq!((bench.dispatcher.in_flight(), bench.fetches[0]), (2, None));
    assert_eq!(bench.names().iter().filter(|name| **name == "returned").count(), 6);
    // Their workers come to what was taken back, and there is room again.
    bench.pass(LEASE / 3);
    bench.accept(&[START; 2]);
    while !bench.assigned.is_empty() {
        bench.finish(Verdict::Done);
        bench.answer_all();
    }
    assert!(bench.fetches[0].is_some());
}

#[test]
fn what_waits_for_quick_handlers_stays() {
    let mut bench = Bench::one(1, 3);
    bench.deliver(0, 4);
    bench.pass(LONGEST_WAIT);
    assert!(bench.calls.is_empty() && bench.dispatcher.in_flight() == 4);
    bench.pass(LEASE / 3 - LONGEST_WAIT);
    bench.accept(&[EXTEND; 4]);
}

#[test]
fn fewer_workers_return_what_they_will_not_begin_soon() {
    let mut bench = Bench::one(4, 2);
    bench.deliver(0, 12);
    bench.pace = None;
    bench.dispatcher.pace = Pace::default();
    (0..4).for_each(|worker| assert!(bench.assigned[3 * worker].1.lease.begin()));
    bench.desire(|desired| desired.workers = 1);
    bench.accept(&[RELEASE; 8]);
}

/// Jobs of the free tier wait here when the paying one sends some.
#[test]
fn a_mailbox_with_more_right_goes_before_what_waits_for_slow_handlers() {
    let weighed = [9, 1].map(|weight| SourceSettings { weight, ..settings() });
    let (paying, free) = (0, 1);
    let mut bench = Bench::new(2, 4, &weighed);
    bench.deliver(paying, 0);
    bench.deliver(free, 1);
    let max = bench.fetches[free].expect("a fetch");
    bench.deliver(free, max);
    assert_eq!(bench.dispatcher.in_flight(), 10);
    for worker in 0..2 {
        let first = bench.assigned.iter().find(|(of, _)| *of == worker).expect("an assignment");
        assert!(first.1.lease.begin());
    }
    // The handlers turn out to be slow.
    bench.pace = None;
    bench.dispatcher.pace = Pace::default();
    bench.deliver(paying, 1);
    let mut order = Vec::new();
    for _ in 0..40 {
        if let Some(max) = bench.fetches[paying].filter(|_| order.len() < 8) {
            bench.deliver(paying, max);
        }
        let Some((_, next)) = bench.assigned.front() else { break };
        if next.lease.begin() {
            order.push(next.source);
        }
        bench.finish(Verdict::Done);
        bench.answer_all();
    }
    assert_eq!(order[..6], [paying; 6], "{order:?}");
}

/// What was taken back from a worker stays in its channel until the worker comes to it.
#[test]
fn what_was_taken_back_from_busy_workers_keeps_no_room_from_the_others() {
    let mut bench = Bench::one(4, 4);
    bench.deliver(0, 20);
    // The handlers turn out to be slow, those of three workers very slow.
    bench.pace = None;
    bench.dispatcher.pace = Pace::default();
    for worker in 0..3 {
        let first = bench.assigned.iter().find(|(of, _)| *of == worker).expect("an assignment");
        assert!(first.1.lease.begin());
    }
    while let Some(next) = bench.assigned.iter().position(|(worker, _)| *worker == 3) {
        let next = bench.assigned.remove(next).expect("an assignment");
        bench.assigned.push_front(next);
        bench.finish(Verdict::Done);
        bench.answer_all();
    }
    assert_eq!((bench.dispatcher.in_flight(), bench.fetches[0]), (3, Some(1)), "it is idle");
}

#[test]
fn what_free_workers_are_about_to_begin_does_not_go_back() {
    let mut bench = Bench::new(4, 0, &[settings(), settings()]);
    bench.deliver(1, 0);
    bench.deliver(0, 1);
    let max = bench.fetches[0].expect("a fetch");
    bench.deliver(0, max);
    assert_eq!(bench.assigned.len(), 4, "none has begun");
    bench.pass(LONGEST_WAIT - Duration::from_millis(1));
    bench.deliver(1, 1);
    bench.pass(Duration::from_millis(1));
    let returned: usize = bench.calls.iter().map(|call| call.2.len()).sum();
    assert!(returned <= 1, "{returned} went back");
}

#[test]
fn a_message_that_goes_back_does_not_count_against_its_mailbox() {
    let weighed = [9, 1].map(|weight| SourceSettings { weight, ..settings() });
    let mut bench = Bench::new(2, 16, &weighed);
    bench.deliver(0, 0);
    bench.deliver(1, 1);
    let max = bench.fetches[1].expect("a fetch");
    bench.deliver(1, max);
    (0..2).for_each(|worker| {
        let first = bench.assigned.iter().find(|(of, _)| *of == worker).expect("an assignment");
        assert!(first.1.lease.begin());
    });
    bench.pace = None;
    bench.dispatcher.pace = Pace::default();
    bench.pass(LONGEST_WAIT);
    bench.accept(&[RELEASE; 32]);
    assert_eq!(bench.dispatcher.sources[1].virtual_time.round(), 2.0, "two were begun");
}

#[test]
fn the_order_of_what_waits_survives_a_lost_lease() {
    let short = SourceSettings { visibility: LEASE / 10, ..settings() };
    let mut bench = Bench::new(1, 0, &[settings(), short, settings()]);
    bench.deliver(0, 1);
    assert!(bench.assigned[0].1.lease.begin());
    for (source, virtual_time) in [(0, 10.0), (1, 20.0), (2, 30.0)] {
        let key = waiting(&mut bench, source, virtual_time);
        assert!(bench.dispatcher.unassigned.contains(&key));
    }
    let lost = bench.dispatcher.unassigned[1];
    bench.dispatcher.lose(lost);
    waiting(&mut bench, 0, 5.0);
    let turns: Vec<_> = bench
        .dispatcher
        .unassigned
        .iter()
        .map(|key| bench.dispatcher.in_flight.get(*key).expect("in flight").turn)
        .collect();
    assert_eq!(turns, [5.0, 10.0, 30.0]);
}

/// Lets a delivery with this turn wait for a worker.
fn waiting(bench: &mut Bench, source: usize, turn: f64) -> Key {
    let id = MessageId::new();
    let message = RawMessage::new(id, "x", Timestamp::now());
    let receipt = Receipt::new(id, Nonce::random());
    let delivery = InFlight::new(source, message, receipt, 1, turn, bench.now, bench.now + LEASE);
    let key = bench.dispatcher.in_flight.insert(delivery);
    bench.dispatcher.assign(key);
    key
}

#[test]
fn a_message_goes_back_once_if_its_queue_counts_that() {
    let inexact = quarantining(5, false);
    for (delivery_count, goes_back) in [(1, true), (2, false)] {
        let mut bench = Bench::new(1, 1, &[inexact]);
        bench.deliver_nth(0, 2, delivery_count);
        assert!(bench.assigned[0].1.lease.begin());
        bench.pace = None;
        bench.dispatcher.pace = Pace::default();
        bench.pass(LONGEST_WAIT);
        assert_eq!(!bench.calls.is_empty(), goes_back, "{delivery_count}");
    }
}

#[test]
fn full_batches_are_settled_without_waiting_for_each_other() {
    let small = SourceSettings { max_batch: 2, ..settings() };
    let mut bench = Bench::new(8, 0, &[small]);
    bench.deliver(0, 8);
    for _ in 0..6 {
        bench.finish(Verdict::Done);
    }
    let sizes: Vec<_> = bench.calls.iter().map(|call| call.2.len()).collect();
    assert_eq!(sizes, [1, 2, 2], "one waits for more or for an answer");
    // Answers come in any order.
    bench.calls.rotate_left(2);
    bench.answer(Ok(()));
    assert_eq!(bench.dispatcher.in_flight(), 6);
    bench.answer(Ok(()));
    bench.answer(Err(broken()));
    assert!(bench.calls.is_empty(), "the backend has failed");
    bench.pass(BACKOFF);
    assert_eq!((bench.calls.len(), bench.calls[0].2.len()), (1, 2), "one call until it succeeds");
    bench.answer_all();
    assert_eq!(bench.dispatcher.in_flight(), 2);
}

/// In any order of inputs and at any pace, the capacity is never exceeded and not left unused, no delivery is begun
/// after it was taken back, and at the end nothing is in flight.
#[test]
fn random_inputs_never_break_the_invariants() {
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let sources: Vec<_> = (0..random.random_range(1..4))
            .map(|_| SourceSettings {
                weight: random.random_range(1..5),
                extend_while_beating: random.random(),
                cancel_when_lost: random.random(),
                ..settings()
            })
            .collect();
        let (workers, prefetch) = (random.random_range(3..6), random.random_range(0..3));
        let mut bench = Bench::new(workers, prefetch, &sources);
        let mut max_workers = workers;
        for _ in 0..400 {
            step(&mut bench, &mut random, &mut max_workers);
            // A source that is idle waits for one message beside what there is room for.
            let capacity = max_workers + workers * prefetch + sources.len();
            // Stopping workers finish what they have, beside their successors.
            let dispatcher = &bench.dispatcher;
            let is_active = |stage: &Stage| matches!(stage, Stage::Assigned { worker } if dispatcher.slots[*worker].is_active());
            let deliveries = dispatcher.in_flight.iter();
            let assigned = deliveries.filter(|(_, delivery)| is_active(&delivery.stage)).count();
            let requested: usize = bench.fetches.iter().flatten().sum();
            let used = (assigned, requested);
            assert!(assigned + requested <= capacity, "seed {seed}: {used:?} of {capacity}");
            assert!(!is_stalled(&bench), "seed {seed}: no receive although a worker is idle");
            assert_current(&bench, seed);
        }
        bench.stop(Stop::Graceful);
        while !bench.assigned.is_empty() {
            bench.finish(Verdict::Done);
        }
        for _ in 0..10_000 {
            if bench.is_over {
                break;
            }
            bench.answer_all();
            while let Some(key) = bench.storing.pop_front() {
                let result = Ok(stored(false));
                bench.input(Input::DeadLetterStored { key, result });
            }
            while let Some(key) = bench.replying.pop_front() {
                bench.input(Input::ErrorReplySent { key, result: Ok(()) });
            }
            while let Some((key, _)) = bench.reporting.pop_front() {
                bench.input(Input::DeadLetterReported { key });
            }
            bench.pass(Duration::from_millis(10));
        }
        assert!(bench.is_over && bench.dispatcher.in_flight() == 0, "seed {seed}");
        assert!(bench.fetches.iter().all(Option::is_none), "seed {seed}");
    }
}

/// Returns whether there are more workers than deliveries for them, and yet no receive is under way.
fn is_stalled(bench: &Bench) -> bool {
    let dispatcher = &bench.dispatcher;
    let is_receiving = dispatcher.mode == Mode::Running && !dispatcher.quarantine.is_isolating();
    let is_held = |stage: &Stage| match stage {
        Stage::Unassigned => true,
        Stage::Assigned { worker } => dispatcher.slots[*worker].is_active(),
        _ => false,
    };
    let held = dispatcher.in_flight.iter().filter(|(_, it)| is_held(&it.stage)).count();
    is_receiving
        && dispatcher.idle_workers() > 0
        && held < dispatcher.active_workers()
        && dispatcher.in_flight() < dispatcher.slots.len() + dispatcher.settings.result_buffer
        && bench.fetches.iter().all(Option::is_none)
        && dispatcher.sources.iter().any(Source::can_fetch)
}

/// Asserts that what waits is in turn, and that no worker can begin an assignment that is not the current one of its
/// delivery.
fn assert_current(bench: &Bench, seed: u64) {
    let in_flight = &bench.dispatcher.in_flight;
    let unassigned = bench.dispatcher.unassigned.iter();
    let turns = unassigned.map(|key| in_flight.get(*key).expect("in flight").turn);
    assert!(turns.is_sorted(), "seed {seed}");
    for (worker, Assignment { key, lease, .. }) in &bench.assigned {
        let delivery = in_flight.get(*key);
        let is_current =
            delivery.is_some_and(|it| it.is_assigned_to(*worker) && Arc::ptr_eq(&it.lease, lease));
        assert!(is_current || lease.has_begun() || !lease.take_back(), "seed {seed}");
        let of_key = bench.assigned.iter().filter(|(_, other)| other.key == *key);
        let begun = of_key.filter(|(_, other)| other.lease.has_begun()).count();
        assert!(begun <= 1, "seed {seed}");
    }
}

/// Moves the next assignment of a random worker to the front.
fn choose_worker(bench: &mut Bench, random: &mut StdRng) {
    let (worker, _) = bench.assigned[random.random_range(0..bench.assigned.len())];
    let next = bench.assigned.iter().position(|(of, _)| *of == worker);
    let next = next.and_then(|index| bench.assigned.remove(index)).expect("an assignment");
    bench.assigned.push_front(next);
}

fn step(bench: &mut Bench, random: &mut StdRng, max_workers: &mut usize) {
    if random.random_range(0..10) == 0 {
        // From handlers that are much slower than fetches to such that are much quicker.
        let mut pace = Pace::default();
        pace.fetched(Duration::from_millis(1));
        pace.handled(Duration::from_micros(random.random_range(1..3_000)));
        bench.pace = [Some(slow_fetches()), Some(pace), None][random.random_range(0..3)];
    }
    if !bench.assigned.is_empty() {
        choose_worker(bench, random);
    }
    match random.random_range(0..13) {
        12 if !bench.assigned.is_empty() => {
            let _ = bench.assigned[0].1.lease.begin();
        }
        0..4 => {
            let source = random.random_range(0..bench.fetches.len());
            if let Some(max) = bench.fetches[source] {
                if random.random_range(0..5) == 0 {
                    bench.fetches[source] = None;
                    bench.input(Input::Fetched { source, result: Err(broken()) });
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
                0 => dead(),
                1 => retried(),
                2 => RELEASED,
                _ => Verdict::Done,
            };
            bench.finish(verdict);
        }
        8 | 9 if !bench.calls.is_empty() => {
            let index = random.random_range(0..bench.calls.len());
            bench.calls.swap(0, index);
            let result = match random.random_range(0..6) {
                0 => Err(broken()),
                1 => Err(expired()),
                2 => Err(Error::invalid(None, "delay", "odd", "even")),
                _ => Ok(()),
            };
            bench.answer(result);
        }
        10 => match random.random_range(0..6) {
            0 => bench.desire(|desired| desired.is_paused = !desired.is_paused),
            1 => {
                let workers = random.random_range(0..6);
                *max_workers = workers.max(*max_workers);
                bench.desire(|desired| desired.workers = workers);
            }
            2 => {
                // A worker ends without a report; its assignments are gone with it.
                let worker = random.random_range(0..bench.dispatcher.slots.len());
                if bench.dispatcher.slots[worker].is_active() {
                    let own = bench.assigned.iter().find(|(of, _)| *of == worker);
                    own.iter().for_each(|(_, assigned)| {
                        let _ = assigned.lease.begin();
                    });
                    bench.assigned.retain(|(of, _)| *of != worker);
                    bench.input(Input::WorkerEnded { worker });
                }
            }
            _ => {
                if let Some(key) = bench.storing.pop_front() {
                    let has_reply = random.random();
                    let result =
                        if random.random() { Ok(stored(has_reply)) } else { Err(broken()) };
                    bench.input(Input::DeadLetterStored { key, result });
                }
                if let Some(key) = bench.replying.pop_front() {
                    let result = if random.random() { Ok(()) } else { Err(broken()) };
                    bench.input(Input::ErrorReplySent { key, result });
                }
                if let Some((key, _)) = bench.reporting.pop_front() {
                    bench.input(Input::DeadLetterReported { key });
                }
            }
        },
        _ => bench.pass(Duration::from_millis(random.random_range(1..8_000))),
    }
}
