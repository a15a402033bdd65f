//! Rules of the contract. Exhaustive and random checks of the ledger are in `pillarbox-testing`.

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns a ledger with messages of these bodies, sent at 0 s.
fn holding(bodies: &[&'static str]) -> Ledger {
    let mut ledger = Ledger::new();
    for body in bodies {
        ledger.send(at(0), Outgoing::new(*body), None).unwrap();
    }
    ledger
}

/// Returns the message whose timer is the first.
fn first_timer(ledger: &Ledger) -> Key {
    ledger.timers.iter().next().unwrap().1
}

fn receive(ledger: &mut Ledger, now: i64, max: usize, visibility: u64) -> Vec<Delivery> {
    let deliveries = ledger.receive(at(now), max, secs(visibility), Nonce::random);
    ledger.check().unwrap();
    deliveries
}

fn settle(ledger: &mut Ledger, now: i64, of: &Delivery, action: SettleAction) -> Result<(), Stale> {
    let result = ledger.settle(at(now), &of.receipt, action);
    ledger.check().unwrap();
    result
}

fn bodies(deliveries: &[Delivery]) -> Vec<&str> {
    deliveries.iter().map(|d| std::str::from_utf8(&d.message.body).unwrap()).collect()
}

fn states(ledger: &mut Ledger, now: i64) -> (u64, u64, u64) {
    let counts = ledger.counts(at(now));
    (counts.ready, counts.in_flight, counts.delayed)
}

const ACK: SettleAction = SettleAction::Acknowledge;

fn nack(delay: u64) -> SettleAction {
    SettleAction::Nack { delay: secs(delay) }
}

fn extend(timeout: u64) -> SettleAction {
    SettleAction::Extend { timeout: secs(timeout) }
}

fn start(timeout: u64) -> SettleAction {
    SettleAction::Start { timeout: secs(timeout) }
}

fn release(delay: u64) -> SettleAction {
    SettleAction::Release { delay: secs(delay) }
}

#[test]
fn the_time_of_the_first_delivery_does_not_change() {
    let mut ledger = holding(&["a"]);
    assert_eq!(ledger.peek(at(0), 0, 1)[0].message.first_received_at, None);
    let first = receive(&mut ledger, 1, 1, 30).remove(0);
    settle(&mut ledger, 2, &first, nack(0)).unwrap();
    let second = receive(&mut ledger, 3, 1, 30).remove(0);
    for delivery in [first, second] {
        assert_eq!(delivery.message.first_received_at, Some(at(1)));
    }
}

#[test]
fn messages_are_delivered_in_the_order_sent() {
    let mut ledger = holding(&["a", "b", "c"]);
    assert_eq!(bodies(&receive(&mut ledger, 1, 2, 30)), ["a", "b"]);
    assert_eq!(bodies(&receive(&mut ledger, 1, 2, 30)), ["c"]);
    assert!(receive(&mut ledger, 1, 2, 30).is_empty());
}

#[test]
fn an_existing_id_is_not_stored_again_in_any_state() {
    let mut ledger = Ledger::new();
    let message = Outgoing::new("once");
    let id = message.id;
    let send = |ledger: &mut Ledger| ledger.send(at(0), message.clone(), Some(1));
    assert_eq!(send(&mut ledger), Ok(Sent::stored(id)));
    assert_eq!(send(&mut ledger), Ok(Sent::duplicate(id)));
    let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
    assert_eq!(send(&mut ledger), Ok(Sent::duplicate(id)));
    settle(&mut ledger, 0, &delivery, nack(5)).unwrap();
    assert_eq!(send(&mut ledger), Ok(Sent::duplicate(id)));
    assert_eq!(ledger.len(), 1);
}

#[test]
fn an_id_may_be_sent_again_once_its_message_is_deleted() {
    let mut ledger = Ledger::new();
    let message = Outgoing::new("again");
    ledger.send(at(0), message.clone(), None).unwrap();
    let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
    settle(&mut ledger, 0, &delivery, ACK).unwrap();
    assert!(ledger.send(at(1), message, None).unwrap().is_new);
    assert_eq!(receive(&mut ledger, 1, 1, 30)[0].message.delivery_count, 1);
    assert_eq!(settle(&mut ledger, 1, &delivery, ACK), Err(Stale));
}

#[test]
fn a_lease_is_invalid_from_its_deadline_on() {
    for action in [ACK, nack(0), nack(9), release(0), release(9), extend(30), start(30)] {
        let mut ledger = holding(&["a"]);
        let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
        assert_eq!(settle(&mut ledger.clone(), 29, &delivery, action), Ok(()));
        assert_eq!(settle(&mut ledger, 30, &delivery, action), Err(Stale), "{action:?}");
        assert_eq!(states(&mut ledger, 30), (1, 0, 0));
    }
}

#[test]
fn a_receipt_settles_once() {
    for action in [ACK, nack(0), nack(9)] {
        let mut ledger = holding(&["a"]);
        let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
        settle(&mut ledger, 1, &delivery, action).unwrap();
        for again in [ACK, nack(0), extend(30)] {
            assert_eq!(settle(&mut ledger, 1, &delivery, again), Err(Stale), "{action:?}");
        }
    }
}

#[test]
fn a_stale_receipt_cannot_settle_the_next_delivery() {
    let mut ledger = holding(&["a"]);
    let stale = receive(&mut ledger, 0, 1, 1).remove(0);
    let current = receive(&mut ledger, 1, 1, 30).remove(0);
    assert_ne!(stale.receipt, current.receipt);
    for action in [ACK, nack(0), extend(60)] {
        assert_eq!(settle(&mut ledger, 2, &stale, action), Err(Stale));
    }
    assert_eq!(settle(&mut ledger, 2, &current, ACK), Ok(()));
}

#[test]
fn extend_counts_from_now_and_may_shorten() {
    let mut ledger = holding(&["a"]);
    let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
    settle(&mut ledger, 29, &delivery, extend(30)).unwrap();
    assert_eq!(states(&mut ledger, 58), (0, 1, 0));
    settle(&mut ledger, 58, &delivery, extend(0)).unwrap();
    assert_eq!(states(&mut ledger, 58), (1, 0, 0));
    assert_eq!(settle(&mut ledger, 58, &delivery, ACK), Err(Stale));
}

#[test]
fn a_nacked_message_joins_the_tail() {
    let mut ledger = holding(&["a", "b"]);
    let first = receive(&mut ledger, 0, 1, 30).remove(0);
    settle(&mut ledger, 0, &first, nack(0)).unwrap();
    assert_eq!(bodies(&receive(&mut ledger, 0, 9, 30)), ["b", "a"]);
}

#[test]
fn messages_are_ordered_by_when_they_became_ready() {
    let mut ledger = holding(&["expires at 5", "nacked until 3", "waits"]);
    let leased = receive(&mut ledger, 0, 2, 5);
    settle(&mut ledger, 0, &leased[1], nack(3)).unwrap();
    let late = Outgoing { delay: secs(4), ..Outgoing::new("due at 4") };
    ledger.send(at(0), late, None).unwrap();
    ledger.send(at(4), Outgoing::new("sent at 4"), None).unwrap();
    assert_eq!(
        bodies(&receive(&mut ledger, 9, 9, 30)),
        ["waits", "nacked until 3", "due at 4", "sent at 4", "expires at 5"]
    );
}

#[test]
fn delivery_count_rises_by_one_through_nack_and_expiry() {
    let mut ledger = holding(&["a"]);
    for (now, expected) in [(0, 1), (1, 2), (2, 3)] {
        let delivery = receive(&mut ledger, now, 1, 1).remove(0);
        assert_eq!(delivery.message.delivery_count, expected);
        if now == 0 {
            settle(&mut ledger, now, &delivery, nack(0)).unwrap();
        }
    }
}

/// Delivers the only message of a ledger, and returns its numbers of unsettled and uncounted deliveries.
fn deliver(ledger: &mut Ledger, now: i64, visibility: u64) -> (Delivery, (u32, u32)) {
    let delivery = receive(ledger, now, 1, visibility).remove(0);
    let before = (delivery.message.unsettled, delivery.message.uncounted);
    (delivery, before)
}

fn shown(ledger: &mut Ledger, now: i64) -> (u32, u32) {
    let message = &ledger.peek(at(now), 0, 1)[0].message;
    (message.unsettled, message.uncounted)
}

#[test]
fn an_expired_delivery_is_unsettled_if_started_and_otherwise_no_attempt() {
    let mut ledger = holding(&["a"]);
    let (first, before) = deliver(&mut ledger, 0, 5);
    assert_eq!(before, (0, 0));
    assert_eq!(first.message.attempt(), 1);
    // Visible at the deadline, and not before.
    assert_eq!((shown(&mut ledger, 4), shown(&mut ledger, 5)), ((0, 0), (0, 1)));
    let (second, _) = deliver(&mut ledger, 9, 5);
    assert_eq!((second.message.delivery_count, second.message.attempt()), (2, 1));
    settle(&mut ledger, 10, &second, start(5)).unwrap();
    // An extension does not reset the start.
    settle(&mut ledger, 11, &second, extend(5)).unwrap();
    assert_eq!((shown(&mut ledger, 15), shown(&mut ledger, 16)), ((0, 1), (1, 1)));
    let (third, _) = deliver(&mut ledger, 16, 0);
    assert_eq!((third.message.delivery_count, third.message.attempt()), (3, 2));
    let (fourth, before) = deliver(&mut ledger, 16, 30);
    assert_eq!(before, (1, 2), "the new delivery was not started");
    settle(&mut ledger, 16, &fourth, start(0)).unwrap();
    assert_eq!(deliver(&mut ledger, 16, 30).1, (2, 2));
}

#[test]
fn a_delivery_that_is_released_is_no_attempt() {
    let mut ledger = holding(&["a"]);
    for releases in 0..5 {
        let (delivery, before) = deliver(&mut ledger, 10 * releases, 9);
        assert_eq!((before.1, delivery.message.attempt()), (releases as u32, 1));
        settle(&mut ledger, 10 * releases, &delivery, start(9)).unwrap();
        settle(&mut ledger, 10 * releases, &delivery, release(5 * (releases as u64 % 2))).unwrap();
        assert_eq!(settle(&mut ledger, 10 * releases, &delivery, ACK), Err(Stale));
    }
    assert_eq!(shown(&mut ledger, 50), (0, 5));
}

#[test]
fn a_settled_delivery_is_not_unsettled() {
    let mut ledger = holding(&["a"]);
    let (delivery, _) = deliver(&mut ledger, 0, 1);
    settle(&mut ledger, 0, &delivery, start(1)).unwrap();
    let (delivery, _) = deliver(&mut ledger, 1, 30);
    settle(&mut ledger, 2, &delivery, nack(0)).unwrap();
    let (delivery, before) = deliver(&mut ledger, 2, 30);
    assert_eq!(before, (1, 0));
    // The delay elapses, and no lease expires.
    settle(&mut ledger, 3, &delivery, nack(5)).unwrap();
    let (delivery, before) = deliver(&mut ledger, 8, 30);
    assert_eq!(before, (1, 0));
    settle(&mut ledger, 9, &delivery, extend(60)).unwrap();
    assert_eq!(shown(&mut ledger, 60), (1, 0));
    settle(&mut ledger, 60, &delivery, ACK).unwrap();
    ledger.send(at(60), Outgoing::with_id(delivery.message.id, "again"), None).unwrap();
    assert_eq!(deliver(&mut ledger, 60, 30).1, (0, 0), "a message that is sent again starts at 0");
}

#[test]
fn a_delayed_message_that_becomes_ready_was_never_delivered() {
    let mut ledger = Ledger::new();
    let late = Outgoing { delay: secs(5), ..Outgoing::new("late") };
    ledger.send(at(0), late, None).unwrap();
    assert_eq!(deliver(&mut ledger, 5, 30).1, (0, 0));
}

#[test]
fn counts_of_deliveries_saturate() {
    let mut ledger = holding(&["a"]);
    let message = &mut ledger.entries[ledger.ready[0]].message;
    (message.delivery_count, message.uncounted) = (u32::MAX, u32::MAX);
    ledger.receive(at(0), 1, secs(1), Nonce::random);
    let message = &ledger.receive(at(1), 1, secs(1), Nonce::random)[0].message;
    assert_eq!((message.delivery_count, message.uncounted), (u32::MAX, u32::MAX));
}

#[test]
fn a_lease_of_zero_delivers_once_per_receive() {
    let mut ledger = holding(&["a", "b"]);
    for expected in [1, 2] {
        let deliveries = receive(&mut ledger, 0, 10, 0);
        assert_eq!(bodies(&deliveries), ["a", "b"]);
        assert!(deliveries.iter().all(|d| d.message.delivery_count == expected));
        assert_eq!(settle(&mut ledger, 0, &deliveries[0], ACK), Err(Stale));
    }
}

#[test]
fn a_full_queue_stores_nothing_and_counts_every_state() {
    let mut ledger = Ledger::new();
    let send = |ledger: &mut Ledger, delay| {
        let message = Outgoing { delay: secs(delay), ..Outgoing::new("x") };
        ledger.send(at(0), message, Some(2))
    };
    send(&mut ledger, 0).unwrap();
    let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
    send(&mut ledger, 9).unwrap();
    assert_eq!(send(&mut ledger, 0), Err(Full));
    assert_eq!(states(&mut ledger, 0), (0, 1, 1));
    settle(&mut ledger, 0, &delivery, ACK).unwrap();
    assert!(send(&mut ledger, 0).unwrap().is_new);
}

#[test]
fn purge_invalidates_every_receipt() {
    let mut ledger = holding(&["a", "b"]);
    let delivery = receive(&mut ledger, 0, 1, 30).remove(0);
    assert_eq!(ledger.purge(), 2);
    assert_eq!(settle(&mut ledger, 0, &delivery, ACK), Err(Stale));
    assert_eq!((ledger.len(), ledger.next_due()), (0, None));
}

#[test]
fn peek_returns_messages_in_order_of_readiness_and_changes_nothing() {
    let mut ledger = holding(&["leased", "ready"]);
    receive(&mut ledger, 0, 1, 30);
    let late = Outgoing { delay: secs(9), ..Outgoing::new("delayed") };
    ledger.send(at(0), late, None).unwrap();
    let expected = [
        ("ready", 0, MessageState::Ready),
        ("delayed", 0, MessageState::Delayed { until: at(9) }),
        ("leased", 1, MessageState::InFlight { until: at(30) }),
    ];
    let shown = ledger.peek(at(1), 0, 9);
    assert_eq!(shown.len(), expected.len());
    for (peeked, (body, deliveries, state)) in shown.iter().zip(expected) {
        assert_eq!(peeked.message.body, body);
        assert_eq!((peeked.message.delivery_count, peeked.state), (deliveries, state));
    }
    let second = ledger.peek(at(1), 1, 1);
    assert_eq!((second.len(), &second[0].message.body[..]), (1, &b"delayed"[..]));
    assert_eq!(states(&mut ledger, 1), (1, 1, 1));
}

#[test]
fn time_that_goes_backwards_revives_no_lease() {
    let mut ledger = holding(&["a"]);
    let delivery = receive(&mut ledger, 100, 1, 30).remove(0);
    assert_eq!(states(&mut ledger, 130), (1, 0, 0));
    assert_eq!(settle(&mut ledger, 101, &delivery, ACK), Err(Stale));
}

#[test]
fn oldest_age_is_that_of_the_next_message() {
    let mut ledger = holding(&["a"]);
    assert_eq!(ledger.counts(at(7)).oldest_age, Some(secs(7)));
    let moved = Outgoing { enqueued_at: Some(at(-50)), ..Outgoing::new("moved here") };
    ledger.send(at(7), moved, None).unwrap();
    receive(&mut ledger, 7, 1, 30);
    assert_eq!(ledger.counts(at(8)).oldest_age, Some(secs(58)));
    receive(&mut ledger, 8, 1, 30);
    assert_eq!(ledger.counts(at(8)).oldest_age, None);
}

#[test]
fn sent_counts_what_was_stored_and_never_falls() {
    let mut ledger = holding(&["a", "b"]);
    let counts = |ledger: &mut Ledger, now| {
        let counts = ledger.counts(at(now));
        (counts.sent, counts.removed())
    };
    assert_eq!(counts(&mut ledger, 0), (Some(2), Some(0)));

    let first = receive(&mut ledger, 0, 1, 30).remove(0);
    let again = Outgoing::with_id(first.message.id, "a");
    assert!(!ledger.send(at(0), again.clone(), None).unwrap().is_new);
    assert_eq!(ledger.send(at(0), Outgoing::new("c"), Some(2)), Err(Full));
    settle(&mut ledger, 1, &first, nack(5)).unwrap();
    let second = receive(&mut ledger, 6, 9, 30);
    assert_eq!(receive(&mut ledger, 36, 9, 30).len(), second.len());
    assert_eq!(counts(&mut ledger, 36), (Some(2), Some(0)));

    let third = receive(&mut ledger, 66, 9, 30);
    settle(&mut ledger, 66, &third[0], ACK).unwrap();
    assert_eq!(counts(&mut ledger, 66), (Some(2), Some(1)));
    ledger.purge();
    assert_eq!(counts(&mut ledger, 66), (Some(2), Some(2)));
    assert!(ledger.send(at(66), again, None).unwrap().is_new);
    assert_eq!(counts(&mut ledger, 66), (Some(3), Some(2)));
}

#[test]
fn an_emptied_queue_frees_its_memory() {
    let mut ledger = Ledger::new();
    for _ in 0..KEEP_CAPACITY + 1 {
        ledger.send(at(0), Outgoing::new("x"), None).unwrap();
    }
    for delivery in ledger.receive(at(0), usize::MAX, secs(9), Nonce::random) {
        ledger.settle(at(0), &delivery.receipt, ACK).unwrap();
    }
    assert!(ledger.is_empty() && ledger.entries.capacity() <= KEEP_CAPACITY);
    assert_eq!(ledger.counts(at(0)).sent, Some(KEEP_CAPACITY as u64 + 1));
}

#[test]
fn leases_that_end_together_are_requeued_in_order_of_delivery() {
    let mut ledger = holding(&["a", "b", "c"]);
    let first = receive(&mut ledger, 0, 1, 30).remove(0);
    settle(&mut ledger, 0, &first, nack(0)).unwrap();
    assert_eq!(bodies(&receive(&mut ledger, 1, 9, 30)), ["b", "c", "a"]);
    assert_eq!(bodies(&receive(&mut ledger, 31, 9, 30)), ["b", "c", "a"]);
}

#[test]
fn a_purge_does_not_reset_the_time() {
    let mut ledger = holding(&["a"]);
    ledger.advance(at(100));
    ledger.purge();
    ledger.send(at(50), Outgoing::new("b"), None).unwrap();
    assert_eq!(receive(&mut ledger, 50, 1, 30)[0].message.enqueued_at, at(100));
}

#[test]
fn the_check_finds_every_inconsistency() {
    let broken: [fn(&mut Ledger); 11] = [
        |ledger| ledger.in_flight = 0,
        |ledger| ledger.sent = 1,
        |ledger| ledger.timers = Timers::default(),
        |ledger| ledger.ready.clear(),
        |ledger| ledger.ready.push_back(ledger.ready[0]),
        |ledger| ledger.ready[0] = 99,
        |ledger| ledger.timers.insert(Due { at: at(9), seq: 99 }, ledger.ready[0]),
        |ledger| ledger.entries[ledger.ready[0]].message.id = crate::MessageId::new(),
        |ledger| ledger.entries[ledger.ready[0]].message.unsettled = 1,
        |ledger| {
            let key = first_timer(ledger);
            ledger.entries[key].message.unsettled = 1;
        },
        |ledger| {
            let key = first_timer(ledger);
            ledger.entries[key].message.uncounted = 1;
        },
    ];
    for (index, breakage) in broken.into_iter().enumerate() {
        // One time in a hundred, the new id has the same hash bucket as the old one.
        let found = (0..20).any(|_| {
            let mut ledger = holding(&["a", "b"]);
            receive(&mut ledger, 0, 1, 30);
            breakage(&mut ledger);
            ledger.check().is_err()
        });
        assert!(found, "breakage {index}");
    }
}
