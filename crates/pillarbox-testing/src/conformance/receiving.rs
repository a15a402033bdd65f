//! Receives, leases, long polls, cancellation, closing.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Capabilities, Delivery, Error, Outgoing, Queue, QueueOptions, Receive, Result,
};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{
    LONG, Steps, assert_expired, assert_invalid, bodies, long_wait, needs, only, queue_of,
};
use crate::Subject;

/// Without a wait, an empty batch is returned.
pub async fn an_empty_queue_answers_at_once(s: &Subject) {
    let queue = s.queue();
    let start = Instant::now();
    assert!(queue.take(10, LONG).await.is_empty());
    assert!(start.elapsed() < s.ticks(5));
}

/// One message ends a long poll for ten (a known defect of weakincentives).
pub async fn a_receive_does_not_wait_to_fill_its_batch(s: &Subject) {
    let queue = queue_of(s, &["one"]).await;
    let start = Instant::now();
    let deliveries = queue.take_by(Receive::up_to(10).visibility(LONG).wait(s.ticks(20))).await;
    assert_eq!(bodies(&deliveries), ["one"]);
    assert!(start.elapsed() < s.ticks(10));
}

/// `max` is a limit; the rest is for the next receive.
pub async fn a_receive_delivers_no_more_than_asked(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    assert_eq!(bodies(&queue.take(2, LONG).await), ["a", "b"]);
    assert_eq!(bodies(&queue.take(2, LONG).await), ["c"]);
    assert!(queue.take(2, LONG).await.is_empty());
}

/// From any handle.
pub async fn a_received_message_is_invisible_to_others(s: &Subject) {
    let queue = queue_of(s, &["mine"]).await;
    queue.take_one(LONG).await;
    let other = s.reopen(queue.name(), QueueOptions::new());
    assert!(other.take(10, LONG).await.is_empty());
    assert!(queue.take(10, LONG).await.is_empty());
}

/// Refused, not clamped; and no message is touched.
pub async fn parameters_out_of_range_are_refused(s: &Subject) {
    let queue = s.queue();
    let caps = s.capabilities();
    queue.put("x").await;
    let over = Capabilities::MAX_VISIBILITY + Duration::from_secs(1);
    assert_invalid(queue.receive(Receive::up_to(0)).await);
    assert_invalid(queue.receive(Receive::up_to(caps.max_receive + 1)).await);
    assert_invalid(queue.receive(Receive::one().visibility(over)).await);
    if let Some(max) = caps.max_wait {
        let wait = max + Duration::from_secs(1);
        assert_invalid(queue.receive(Receive::one().wait(wait)).await);
    }
    if !caps.sub_second {
        let half = Duration::from_millis(1500);
        assert_invalid(queue.receive(Receive::one().visibility(half)).await);
    }
    if caps.peek {
        assert_invalid(queue.peek(0, None).await);
        assert_invalid(queue.peek(caps.max_receive + 1, None).await);
    }
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 1);
}

/// The limits themselves are allowed.
pub async fn parameters_at_their_limits_are_accepted(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let request = Receive::up_to(s.capabilities().max_receive)
        .visibility(Capabilities::MAX_VISIBILITY)
        .wait(s.capabilities().max_wait.unwrap_or(Duration::MAX));
    let delivery = only(queue.take_by(request).await);
    if s.capabilities().max_delivery.is_none() {
        queue.extend(&delivery.receipt, Capabilities::MAX_VISIBILITY).await.expect("extended");
    }
}

/// Each receive delivers each message once, and the receipt has expired on arrival.
pub async fn a_lease_of_zero_delivers_and_expires_at_once(s: &Subject) {
    needs!(s: strict_receipts, fifo);
    let queue = queue_of(s, &["a", "b"]).await;
    for count in 1..=3 {
        let deliveries = queue.take(10, Duration::ZERO).await;
        assert_eq!(bodies(&deliveries), ["a", "b"]);
        for delivery in deliveries {
            assert_eq!(delivery.message.delivery_count, count);
            super::assert_expired(queue.acknowledge(&delivery.receipt).await);
        }
    }
}

/// A receiver that dies leaves nothing in flight forever (a known defect of asynq and river).
pub async fn an_unsettled_message_is_ready_again_when_its_lease_ends(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    drop(queue.take_one(s.ticks(6)).await);
    s.pass(1).await;
    assert!(queue.take(1, LONG).await.is_empty());
    s.pass(6).await;
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 2);
}

/// After nacks and expiries alike.
pub async fn delivery_count_starts_at_one_and_rises_by_one(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    for count in 1..=6 {
        let lease = if count <= 3 { LONG } else { s.ticks(1) };
        let delivery = queue.take_one(lease).await;
        assert_eq!(delivery.message.delivery_count, count);
        match count {
            1 | 2 => queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked"),
            3 => {
                queue.nack(&delivery.receipt, s.ticks(1)).await.expect("nacked");
                s.pass(2).await;
            }
            _ => s.pass(2).await,
        }
    }
}

/// By the clock that stamps messages, and the same at every delivery.
pub async fn every_delivery_reports_the_time_of_the_first_or_none_does(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    if s.capabilities().peek {
        assert_eq!(only(queue.shown(1).await).message.first_received_at, None);
    }
    s.pass(1).await;
    let first = queue.take_one(LONG).await;
    queue.nack(&first.receipt, Duration::ZERO).await.expect("nacked");
    s.pass(1).await;
    let second = queue.take_one(LONG).await;
    let first_received = first.message.first_received_at;
    assert_eq!(first_received.is_some(), s.capabilities().reports_first_received);
    assert_eq!(second.message.first_received_at, first_received);
    if let Some(at) = first_received {
        assert!(at >= first.message.enqueued_at, "{at} before {}", first.message.enqueued_at);
    }
}

/// 0 at first, and one more for each started delivery whose lease expires, also if several expire together.
pub async fn a_started_delivery_that_expires_is_counted_as_unsettled(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    for unsettled in 0..4 {
        let deliveries = queue.take(10, LONG).await;
        let seen: Vec<_> = deliveries.iter().map(ended).collect();
        assert_eq!(seen, [(unsettled + 1, unsettled, 0); 3]);
        for delivery in &deliveries {
            queue.start(&delivery.receipt, s.ticks(4)).await.expect("started");
        }
        s.pass(6).await;
    }
}

/// No handler is known to have run: the delivery is counted in `delivery_count` and in `uncounted`.
pub async fn a_delivery_that_expires_before_it_is_started_is_no_attempt(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    for uncounted in 0..3 {
        let deliveries = queue.take(10, s.ticks(4)).await;
        let seen: Vec<_> = deliveries.iter().map(ended).collect();
        assert_eq!(seen, [(uncounted + 1, 0, uncounted); 3]);
        assert!(deliveries.iter().all(|d| d.message.attempt() == 1));
        s.pass(6).await;
    }
    // An extension does not start a delivery, and a started delivery stays started.
    let [extended, started, both] = &queue.take(10, LONG).await[..] else { panic!("three") };
    queue.extend(&extended.receipt, s.ticks(4)).await.expect("extended");
    queue.start(&started.receipt, s.ticks(4)).await.expect("started");
    queue.start(&both.receipt, LONG).await.expect("started");
    queue.extend(&both.receipt, s.ticks(4)).await.expect("extended");
    s.pass(6).await;
    let mut seen: Vec<_> = queue.take(10, LONG).await.iter().map(ended).collect();
    seen.sort_unstable();
    assert_eq!(seen, [(5, 0, 4), (5, 1, 3), (5, 1, 3)]);
}

/// A lease of zero, and one that is extended by zero, expire like any other.
pub async fn a_lease_that_ends_at_once_expires_like_any_other(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = queue_of(s, &["x"]).await;
    for uncounted in 0..3 {
        assert_eq!(queue.take_one(Duration::ZERO).await.message.uncounted, uncounted);
    }
    let delivery = queue.take_one(LONG).await;
    assert_eq!(ended(&delivery), (4, 0, 3));
    queue.extend(&delivery.receipt, Duration::ZERO).await.expect("extended");
    let delivery = queue.take_one(LONG).await;
    assert_eq!(ended(&delivery), (5, 0, 4));
    queue.start(&delivery.receipt, Duration::ZERO).await.expect("started");
    assert_eq!(ended(&queue.take_one(LONG).await), (6, 1, 4));
}

/// Like a nack, a release ends the lease, at once or with a delay; the delivery is uncounted, whether or
/// not it was started.
pub async fn a_released_delivery_is_no_attempt(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let counts = s.capabilities().counts_unsettled;
    for round in 0..4 {
        let delivery = queue.take_one(LONG).await;
        let expected = if counts { (round + 1, 0, round) } else { (round + 1, 0, 0) };
        assert_eq!(ended(&delivery), expected);
        if round % 2 == 1 {
            queue.start(&delivery.receipt, LONG).await.expect("started");
        }
        let delay = if round < 2 { Duration::ZERO } else { s.capabilities().round_up(s.ticks(2)) };
        queue.release(&delivery.receipt, delay).await.expect("released");
        if s.capabilities().strict_receipts {
            assert_expired(queue.acknowledge(&delivery.receipt).await);
        }
        if !delay.is_zero() {
            assert!(queue.take(1, LONG).await.is_empty(), "not before its delay");
            s.pass(4).await;
        }
    }
    // A nack is an attempt.
    let delivery = queue.take_one(LONG).await;
    queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    let message = queue.take_one(LONG).await.message;
    assert_eq!(message.delivery_count, 6);
    assert!(!counts || message.attempt() == 2, "{message:?}");
}

/// Returns the numbers of deliveries of a message: all, unsettled and uncounted.
fn ended(delivery: &Delivery) -> (u32, u32, u32) {
    let message = &delivery.message;
    (message.delivery_count, message.unsettled, message.uncounted)
}

/// Neither a nack, nor the end of its delay, nor an extension changes the number, whether or not earlier
/// deliveries were unsettled.
pub async fn a_settled_delivery_is_not_counted_as_unsettled(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = s.queue();
    queue.put_delayed("x", s.ticks(1)).await;
    s.pass(2).await;
    for unsettled in 0..2 {
        for delay in [0, 1] {
            let delivery = queue.take_one(LONG).await;
            assert_eq!(delivery.message.unsettled, unsettled);
            queue.nack(&delivery.receipt, s.ticks(delay)).await.expect("nacked");
            s.pass(2 * delay).await;
        }
        let delivery = queue.take_one(LONG).await;
        assert_eq!(delivery.message.unsettled, unsettled);
        queue.start(&delivery.receipt, s.ticks(1)).await.expect("started");
        s.pass(2).await;
    }
    let delivery = queue.take_one(s.ticks(6)).await;
    queue.extend(&delivery.receipt, LONG).await.expect("extended");
    s.pass(8).await;
    queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    let delivery = queue.take_one(LONG).await;
    assert_eq!(delivery.message.unsettled, 2);
    // An id that is sent again after its acknowledgement is a new message.
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    let again = Outgoing::with_id(delivery.message.id, "x");
    queue.try_put(again).await.expect("stored");
    assert_eq!(queue.take_one(LONG).await.message.unsettled, 0);
}

/// Messages that it had claimed come back unchanged, as if they had not been delivered.
pub async fn a_dropped_receive_is_no_unsettled_delivery(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = queue_of(s, &["x"]).await;
    let first = queue.take_one(LONG).await;
    queue.start(&first.receipt, s.ticks(1)).await.expect("started");
    s.pass(2).await;
    for round in 0..12 {
        let receive = spawn_receive(&queue, Receive::one().visibility(LONG));
        // Cancel at a different moment each time.
        for _ in 0..round {
            tokio::task::yield_now().await;
        }
        let delivery = cancel(s, &queue, receive).await;
        assert_eq!((delivery.message.unsettled, delivery.message.uncounted), (1, 0));
        queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    }
}

type ReceiveTask = JoinHandle<Result<Vec<Delivery>>>;

fn spawn_receive(queue: &Arc<dyn Queue>, request: Receive) -> ReceiveTask {
    let queue = queue.clone();
    tokio::spawn(async move { queue.receive(request).await })
}

/// Cancels a receive of one message, and receives the message if the cancelled receive did not.
async fn cancel(s: &Subject, queue: &Arc<dyn Queue>, receive: ReceiveTask) -> Delivery {
    receive.abort();
    let again = Receive::one().visibility(LONG).wait(s.ticks(10));
    only(match receive.await {
        Ok(answered) => answered.expect("delivered"),
        Err(_cancelled) => queue.take_by(again).await,
    })
}

/// Starts a long poll and gives it time to wait.
async fn poll(s: &Subject, queue: &Arc<dyn Queue>, max: usize) -> ReceiveTask {
    let request = Receive::up_to(max).visibility(LONG).wait(long_wait(s));
    let poll = spawn_receive(queue, request);
    s.pass(1).await;
    poll
}

/// Waits until a poll returns messages, well before its own end.
async fn answers(s: &Subject, poll: ReceiveTask, within: u32) -> Vec<Delivery> {
    let deliveries = tokio::time::timeout(s.ticks(within), poll).await;
    deliveries.expect("the long poll is woken").expect("the task ends").expect("delivered")
}

/// Waits until a poll returns one message, well before its own end.
async fn answer(s: &Subject, poll: ReceiveTask, within: u32) -> Delivery {
    only(answers(s, poll, within).await)
}

/// A send wakes a waiter.
pub async fn a_long_poll_ends_with_the_first_message(s: &Subject) {
    let queue = s.queue();
    let poll = poll(s, &queue, 10).await;
    queue.put("wake up").await;
    assert_eq!(&answer(s, poll, 5).await.message.body[..], b"wake up");
}

/// The end of a delay wakes a waiter.
pub async fn a_long_poll_sees_a_delayed_message_become_due(s: &Subject) {
    let queue = s.queue();
    let poll = poll(s, &queue, 10).await;
    queue.put_delayed("later", s.ticks(2)).await;
    answer(s, poll, 8).await;
}

/// An expired lease wakes a waiter.
pub async fn a_long_poll_sees_a_lease_end(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    queue.take_one(s.ticks(4)).await;
    let poll = poll(s, &queue, 10).await;
    assert_eq!(answer(s, poll, 10).await.message.delivery_count, 2);
}

/// Also the lease of a receiver that waited at the same time.
pub async fn a_long_poll_sees_the_lease_of_another_receiver_end(s: &Subject) {
    let queue = s.queue();
    let request = Receive::one().visibility(s.ticks(4)).wait(long_wait(s));
    let neighbours = [(); 2].map(|()| spawn_receive(&queue, request));
    s.pass(1).await;
    queue.put("x").await;
    let mut counts = Vec::new();
    for neighbour in neighbours {
        counts.push(answer(s, neighbour, 14).await.message.delivery_count);
    }
    counts.sort_unstable();
    assert_eq!(counts, [1, 2]);
}

/// Every one of them, whichever waiter received the one before.
pub async fn long_polls_see_one_message_after_the_other_become_due(s: &Subject) {
    let queue = s.queue();
    let request = Receive::up_to(s.capabilities().max_receive).visibility(LONG).wait(long_wait(s));
    let neighbours = [(); 2].map(|()| spawn_receive(&queue, request));
    s.pass(1).await;
    queue.put_delayed("first", s.ticks(2)).await;
    queue.put_delayed("second", s.ticks(5)).await;
    let mut received = Vec::new();
    for neighbour in neighbours {
        received.extend(answers(s, neighbour, 14).await);
    }
    let mut received = bodies(&received);
    received.sort_unstable();
    assert_eq!(received, ["first", "second"]);
}

/// A nack wakes a waiter, with and without a delay.
pub async fn a_long_poll_sees_a_nack(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    for delay in [0, 2] {
        let delivery = queue.take_one(LONG).await;
        let poll = poll(s, &queue, 10).await;
        queue.nack(&delivery.receipt, s.ticks(delay)).await.expect("nacked");
        let delivery = answer(s, poll, 8).await;
        queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    }
}

/// The wait has the requested duration.
pub async fn a_long_poll_ends_empty_after_its_wait_and_not_before(s: &Subject) {
    let queue = s.queue();
    let start = Instant::now();
    assert!(queue.take_by(Receive::one().wait(s.ticks(3))).await.is_empty());
    // A server's clock may run slightly faster than ours.
    assert!(start.elapsed() >= s.ticks(3).mul_f64(0.95), "{:?}", start.elapsed());
}

/// Ten messages, ten waiters, ten deliveries.
pub async fn each_message_goes_to_one_of_many_waiters(s: &Subject) {
    let queue = s.queue();
    let mut waiters = Vec::new();
    for _ in 0..10 {
        waiters.push(poll(s, &queue, 1).await);
    }
    let mut sent = HashSet::new();
    for _ in 0..10 {
        sent.insert(queue.put("x").await);
    }
    let mut received = HashSet::new();
    for waiter in waiters {
        received.insert(answer(s, waiter, 20).await.message.id);
    }
    assert_eq!(received, sent);
}

/// Messages claimed by a cancelled receive are returned long before their lease would end.
pub async fn a_dropped_receive_strands_nothing(s: &Subject) {
    let queue = s.queue();
    for round in 0..24 {
        let request = Receive::up_to(10).visibility(LONG).wait(long_wait(s));
        let poll = spawn_receive(&queue, request);
        // Cancel at a different moment each time: before it runs, while it waits, while it is
        // being woken.
        for _ in 0..round % 4 {
            tokio::task::yield_now().await;
        }
        let sent = queue.put("x").await;
        for _ in 0..round / 4 {
            tokio::task::yield_now().await;
        }
        let delivery = cancel(s, &queue, poll).await;
        assert_eq!(delivery.message.id, sent);
        queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    }
}

/// Every later call returns `Closed`.
pub async fn closing_wakes_waiters_and_refuses_later_calls(s: &Subject) {
    let queue = s.queue();
    let poll = poll(s, &queue, 1).await;
    queue.close().await;
    let answer = tokio::time::timeout(s.ticks(5), poll).await.expect("the waiter is woken");
    assert!(matches!(answer.expect("the task ends"), Err(Error::Closed { .. })));

    assert!(matches!(queue.send(vec![Outgoing::new("x")]).await, Err(Error::Closed { .. })));
    assert!(matches!(queue.receive(Receive::one()).await, Err(Error::Closed { .. })));
    assert!(matches!(queue.settle(Vec::new()).await, Err(Error::Closed { .. })));
    assert!(matches!(queue.counts().await, Err(Error::Closed { .. })));
    if s.capabilities().peek {
        assert!(matches!(queue.peek(1, None).await, Err(Error::Closed { .. })));
    }
    assert!(queue.is_closed());
    assert!(matches!(queue.purge().await, Err(Error::Closed { .. })));
    queue.close().await;
}

/// A handle is closed, not the queue.
pub async fn closing_one_handle_leaves_others_and_the_messages(s: &Subject) {
    let queue = s.queue();
    let other = s.reopen(queue.name(), QueueOptions::new());
    queue.put("kept").await;
    queue.close().await;
    assert!(!other.is_closed());
    assert_eq!(bodies(&other.take(1, LONG).await), ["kept"]);
}

/// All of them, waiters included.
pub async fn closing_the_backend_closes_its_queues(s: &Subject) {
    let (one, other) = (s.queue(), s.queue());
    let poll = poll(s, &one, 1).await;
    s.backend().close().await;
    let answer = tokio::time::timeout(s.ticks(5), poll).await.expect("the waiter is woken");
    assert!(matches!(answer.expect("the task ends"), Err(Error::Closed { .. })));
    assert!(matches!(other.counts().await, Err(Error::Closed { .. })));
    let late = s.backend().queue(s.fresh_name().as_str(), QueueOptions::new());
    let refused = match late {
        Ok(queue) => queue.counts().await.map(|_| ()),
        Err(error) => Err(error),
    };
    assert!(matches!(refused, Err(Error::Closed { .. })), "{refused:?}");
    assert!(matches!(s.backend().queues().await, Err(Error::Closed { .. })));
    assert!(matches!(s.backend().diagnose(false).await, Err(Error::Closed { .. })));
}
