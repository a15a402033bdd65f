//! The invariants of a queue, one by one, checked in its keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use pillarbox_core::{
    Delivery, Error, Mailboxes, MessageId, MessageState, Outgoing, Queue, QueueOptions, Receive,
    Settle,
};
use pillarbox_redis::redis;
use pillarbox_testing::block_on;
use pillarbox_testing::server::RedisServer;
use tokio::task::JoinSet;

use crate::common::stored::{Stored, short};
use crate::common::{open, queue, start_queue};

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(80);

struct Fixture {
    server: RedisServer,
    backend: Mailboxes,
    queue: Arc<dyn Queue>,
}

impl Fixture {
    async fn new() -> Self {
        let (server, backend, queue) = start_queue().await;
        Self { server, backend, queue }
    }

    async fn send(&self, count: usize) -> Vec<MessageId> {
        let mut ids = Vec::new();
        for start in (0..count).step_by(1000) {
            let bodies = start..count.min(start + 1000);
            let batch = bodies.map(|n| Outgoing::new(n.to_string())).collect();
            let answers = self.queue.send(batch).await.expect("sent");
            ids.extend(answers.into_iter().map(|answer| answer.expect("stored").id));
        }
        ids
    }

    async fn take(&self, max: usize, lease: Duration) -> Vec<Delivery> {
        self.queue.receive(Receive::up_to(max).visibility(lease)).await.expect("received")
    }

    async fn settle(&self, settle: Settle) -> Result<(), Error> {
        self.queue.settle(vec![settle]).await.expect("answered").remove(0)
    }

    /// Reads the keys and checks their consistency.
    async fn stored(&self) -> Stored {
        let client = redis::Client::open(self.server.url()).expect("a client");
        let stored = Stored::read(&client, self.queue.name()).await;
        stored.check().unwrap_or_else(|problem| panic!("{problem}: {stored:?}"));
        stored
    }

    async fn all_ready_again(&self, count: u64) {
        let end = tokio::time::Instant::now() + Duration::from_secs(20);
        while self.queue.counts().await.expect("counts").ready < count {
            assert!(tokio::time::Instant::now() < end, "leases do not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn ids(deliveries: &[Delivery]) -> Vec<MessageId> {
    deliveries.iter().map(|delivery| delivery.message.id).collect()
}

#[test]
fn a_receive_moves_a_message_from_pending_to_invisible_in_one_step() {
    block_on(async {
        let fixture = Fixture::new().await;
        let id = short(fixture.send(1).await[0]);
        assert_eq!(fixture.stored().await.pending, std::slice::from_ref(&id));
        let delivery = fixture.take(1, LONG).await.remove(0);
        let stored = fixture.stored().await;
        assert!(stored.pending.is_empty());
        assert_eq!(stored.invisible[0].0, id);
        let (_, nonce) = delivery.receipt.token().expect("a receipt of ours");
        assert_eq!(stored.meta_of(&id), (Some(&*nonce.to_string()), 1));
    });
}

#[test]
fn a_nack_with_a_delay_removes_the_secret_and_keeps_the_count() {
    block_on(async {
        let fixture = Fixture::new().await;
        let id = short(fixture.send(1).await[0]);
        let delivery = fixture.take(1, LONG).await.remove(0);
        fixture.settle(Settle::nack(delivery.receipt.clone(), LONG)).await.expect("nacked");
        let stored = fixture.stored().await;
        assert_eq!((stored.meta_of(&id), stored.invisible.len()), ((None, 1), 1));
        let again = fixture.settle(Settle::acknowledge(delivery.receipt)).await;
        assert!(matches!(again, Err(Error::ReceiptHandleExpired { .. })), "{again:?}");
    });
}

#[test]
fn an_acknowledged_message_leaves_nothing_behind() {
    block_on(async {
        let fixture = Fixture::new().await;
        fixture.send(3).await;
        for delivery in fixture.take(3, LONG).await {
            fixture.settle(Settle::acknowledge(delivery.receipt)).await.expect("acknowledged");
        }
        let stored = fixture.stored().await;
        assert!(stored.data.is_empty() && stored.invisible.is_empty(), "{stored:?}");
        assert!(stored.meta.keys().all(|field| field.starts_with('#')), "{stored:?}");
    });
}

#[test]
fn racing_receivers_never_get_the_same_message() {
    block_on(async {
        let fixture = Fixture::new().await;
        let sent: HashSet<_> = fixture.send(100).await.into_iter().collect();
        let mut receivers = JoinSet::new();
        for _ in 0..4 {
            let queue = fixture.queue.clone();
            receivers.spawn(async move {
                let mut got = Vec::new();
                for _ in 0..50 {
                    let request = Receive::one().visibility(LONG);
                    got.extend(ids(&queue.receive(request).await.expect("received")));
                }
                got
            });
        }
        let got = receivers.join_all().await.concat();
        assert_eq!(got.len(), 100);
        assert_eq!(got.into_iter().collect::<HashSet<_>>(), sent);
        fixture.stored().await;
    });
}

#[test]
fn a_lease_that_ends_while_many_receive_is_delivered_once_more_and_not_twice() {
    block_on(async {
        let fixture = Fixture::new().await;
        fixture.send(1).await;
        for count in 1..=10 {
            let mut receivers = JoinSet::new();
            for _ in 0..4 {
                let queue = fixture.queue.clone();
                let request = Receive::one().visibility(SHORT).wait(SHORT * 5);
                receivers.spawn(async move { queue.receive(request).await.expect("received") });
            }
            // The first receiver ends the race; the others would get it after its lease.
            let got = receivers.join_next().await.expect("one of them").expect("received");
            let message = &got[0].message;
            assert_eq!((message.delivery_count, message.uncounted), (count, count - 1));
            receivers.shutdown().await;
            fixture.stored().await;
            fixture.all_ready_again(1).await;
        }
    });
}

#[test]
fn a_receive_that_was_dropped_leaves_all_numbers_as_they_were() {
    block_on(async {
        let fixture = Fixture::new().await;
        let id = short(fixture.send(1).await[0]);
        fixture.take(1, Duration::ZERO).await;
        let started = fixture.take(1, LONG).await.remove(0).receipt;
        fixture.settle(Settle::start(started, Duration::ZERO)).await.expect("started");
        let mut count = 2;
        for round in 0..40 {
            let receive = fixture.queue.receive(Receive::one().visibility(LONG));
            let answer = tokio::time::timeout(Duration::from_micros(50 * round), receive).await;
            if let Ok(deliveries) = answer {
                let delivery = deliveries.expect("received").remove(0);
                assert_eq!((delivery.message.unsettled, delivery.message.uncounted), (1, 1));
                let nack = Settle::nack(delivery.receipt, Duration::ZERO);
                fixture.settle(nack).await.expect("nacked");
                count += 1;
            }
            fixture.all_ready_again(1).await;
            let stored = fixture.stored().await;
            assert_eq!((stored.meta_of(&id), stored.ended_of(&id)), ((None, count), (1, 1)));
        }
    });
}

#[test]
fn counts_of_expired_leases_saturate() {
    block_on(async {
        let fixture = Fixture::new().await;
        let message_id = fixture.send(1).await[0];
        let id = short(message_id);
        // One below the largest exact number of Lua: 2^21 - 2 and 2^32 - 9.
        let most = (((1_u64 << 21) - 2) << 32) + (1 << 32) - 9;
        fixture.server.command(&["HSET", "{queue:q}:meta", &id, &most.to_string()]);
        for (added, unsettled) in [(1, -2), (2, -1), (3, -1), (4, -1)] {
            let Delivery { message, receipt, .. } = fixture.take(1, LONG).await.remove(0);
            assert_eq!(message.delivery_count, u32::MAX - 8 + added);
            assert_eq!(i64::from(message.unsettled), (1 << 21) + unsettled);
            fixture.settle(Settle::start(receipt, Duration::ZERO)).await.expect("started");
        }
        // The uncounted ones are still counted, and never look like a secret.
        for (value, uncounted) in [
            ("99999999:99999998", 99_999_999),
            ("12884911900:9999", 10_000),
            ("999999999999998", 1),
            ("9007199254740000", 0),
        ] {
            fixture.server.command(&["HSET", "{queue:q}:meta", &id, value]);
            fixture.take(1, Duration::ZERO).await;
            let message = fixture.take(1, LONG).await.remove(0).message;
            assert_eq!(message.uncounted, uncounted, "{value}");
            let known = fixture.stored().await.meta_of(&id).0.map(str::len);
            assert_eq!(known, Some(16), "{value}");
            fixture.queue.purge().await.expect("purged");
            let sent = Outgoing::with_id(message_id, "again");
            fixture.queue.send(vec![sent]).await.expect("sent").remove(0).expect("stored");
        }
    });
}

#[test]
fn an_unacknowledged_message_is_kept() {
    block_on(async {
        let fixture = Fixture::new().await;
        for count in [1, 2, 7, 20] {
            fixture.send(count).await;
            let half = fixture.take(count / 2 + 1, LONG).await;
            let (done, left) = half.split_at(count / 2);
            for delivery in done {
                let settle = Settle::acknowledge(delivery.receipt.clone());
                fixture.settle(settle).await.expect("acknowledged");
            }
            let counts = fixture.queue.counts().await.expect("counts");
            assert_eq!(counts.total(), (count - done.len()) as u64);
            assert_eq!(counts.in_flight, left.len() as u64);
            assert_eq!(fixture.queue.purge().await.expect("purged"), counts.total());
        }
    });
}

#[test]
fn messages_outlive_the_backend_that_sent_them() {
    block_on(async {
        let fixture = Fixture::new().await;
        let sent = fixture.send(10).await;
        fixture.backend.close().await;
        let other = open(&fixture.server.url()).await;
        let queue = queue(&other, "q");
        assert_eq!(queue.counts().await.expect("counts").total(), 10);
        let got = queue.receive(Receive::up_to(10)).await.expect("received");
        assert_eq!(ids(&got), sent);
    });
}

#[test]
fn every_lease_ends_without_a_sweep() {
    block_on(async {
        let fixture = Fixture::new().await;
        let sent = fixture.send(1500).await;
        // Long enough for the second of two calls on a busy machine.
        let lease = SHORT * 10;
        let held = [fixture.take(1000, lease).await, fixture.take(1000, lease).await].concat();
        assert_eq!(held.len(), 1500);
        tokio::time::sleep(lease * 2).await;
        let shown = fixture.queue.peek(1000, None).await.expect("shown").messages;
        assert!(shown.iter().all(|one| one.state == MessageState::Ready), "{shown:?}");
        assert!(shown.iter().all(|one| one.message.uncounted == 1), "{shown:?}");
        fixture.all_ready_again(1500).await;
        let stored = fixture.stored().await;
        assert_eq!(stored.pending.len(), 1500);
        for delivery in held.iter().step_by(100) {
            let late = fixture.settle(Settle::acknowledge(delivery.receipt.clone())).await;
            assert!(matches!(late, Err(Error::ReceiptHandleExpired { .. })), "{late:?}");
        }
        let again = [fixture.take(1000, LONG).await, fixture.take(1000, LONG).await].concat();
        assert_eq!(ids(&again), sent);
        assert!(again.iter().all(|delivery| delivery.message.delivery_count == 2));
        assert!(again.iter().all(|delivery| delivery.message.uncounted == 1));
    });
}

/// A script promotes at most 200 messages; the order is kept.
#[test]
fn messages_sent_or_nacked_after_many_leases_ended_are_behind_them() {
    block_on(async {
        let fixture = Fixture::new().await;
        let nacked = fixture.send(1).await;
        let nacked_delivery = fixture.take(1, LONG).await.remove(0);
        let mut order = fixture.send(1000).await;
        let held = fixture.take(1000, SHORT).await;
        assert_eq!(ids(&held), order);
        tokio::time::sleep(SHORT * 2).await;
        // Nothing was promoted yet: send and nack are the first calls.
        order.extend(fixture.send(2).await);
        fixture
            .settle(Settle::nack(nacked_delivery.receipt, Duration::ZERO))
            .await
            .expect("nacked");
        order.extend(nacked);
        order.extend(fixture.send(1).await);
        let mut got = Vec::new();
        while got.len() < order.len() {
            let some = fixture.take(300, LONG).await;
            assert!(!some.is_empty(), "{} of {}", got.len(), order.len());
            got.extend(ids(&some));
        }
        assert!(got == order, "out of order");
        fixture.stored().await;
    });
}

#[test]
fn leases_of_one_batch_end_in_the_order_of_delivery_whatever_the_ids() {
    block_on(async {
        let fixture = Fixture::new().await;
        let mut ids_of: Vec<_> = (0..40).map(|_| MessageId::new()).collect();
        ids_of.reverse();
        let batch = ids_of.iter().map(|id| Outgoing::with_id(*id, "x")).collect();
        fixture.queue.send(batch).await.expect("sent");
        assert_eq!(ids(&fixture.take(40, SHORT).await), ids_of);
        fixture.all_ready_again(40).await;
        assert_eq!(ids(&fixture.take(40, LONG).await), ids_of);
    });
}

#[test]
fn a_queue_over_its_limit_is_full_for_all_who_send_together() {
    block_on(async {
        let fixture = Fixture::new().await;
        let mut senders = JoinSet::new();
        for n in 0..40 {
            let limited = QueueOptions::new().max_size(25);
            let queue = fixture.backend.queue("q", limited).expect("a queue");
            senders.spawn(async move {
                let batch = vec![Outgoing::new(n.to_string())];
                queue.send(batch).await.expect("answered").remove(0)
            });
        }
        let answers = senders.join_all().await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 25);
        let full = |answer: &Result<_, Error>| matches!(answer, Err(Error::MailboxFull { .. }));
        assert_eq!(answers.iter().filter(|answer| full(answer)).count(), 15);
        assert_eq!(fixture.stored().await.data.len(), 25);
    });
}

#[test]
fn a_purged_queue_keeps_only_the_number_sent() {
    block_on(async {
        let fixture = Fixture::new().await;
        fixture.send(1200).await;
        fixture.take(500, LONG).await;
        assert_eq!(fixture.queue.purge().await.expect("purged"), 1200);
        let stored = fixture.stored().await;
        assert!(stored.data.is_empty() && stored.pending.is_empty() && stored.invisible.is_empty());
        assert_eq!(fixture.queue.counts().await.expect("counts").sent, Some(1200));
    });
}

/// A script promotes at most 200 messages, so one answer does not cover all.
#[test]
fn many_messages_that_become_due_at_once_wake_all_waiters() {
    block_on(async {
        let fixture = Fixture::new().await;
        let mut waiters = JoinSet::new();
        for _ in 0..3 {
            let queue = fixture.queue.clone();
            let request = Receive::up_to(1000).visibility(LONG).wait(LONG);
            waiters.spawn(async move { queue.receive(request).await.expect("received").len() });
        }
        let batch = (0..1000).map(|_| {
            let mut message = Outgoing::new("x");
            message.delay = SHORT * 2;
            message
        });
        fixture.queue.send(batch.collect()).await.expect("sent");
        let all = tokio::time::timeout(Duration::from_secs(5), waiters.join_all());
        let got = all.await.expect("all are woken, and soon");
        assert!(got.iter().sum::<usize>() <= 1000, "{got:?}");
        fixture.stored().await;
    });
}

/// Futures that were polled once and then no more do not block others.
#[test]
fn a_future_that_is_not_polled_does_not_block_others() {
    block_on(async {
        let fixture = Fixture::new().await;
        fixture.send(10).await;
        let mut unpolled = Vec::new();
        for _ in 0..4 {
            let receive = fixture.queue.receive(Receive::one().visibility(LONG));
            let send = fixture.queue.send(vec![Outgoing::new("x")]);
            let mut both = Box::pin(async move { tokio::join!(receive, send) });
            // Polled once, and never again.
            let begun = std::future::poll_fn(|context| Poll::Ready(both.as_mut().poll(context)));
            assert!(begun.await.is_pending());
            unpolled.push(both);
        }
        let others = async {
            fixture.send(1).await;
            let delivery = fixture.take(1, LONG).await.remove(0);
            fixture.settle(Settle::acknowledge(delivery.receipt)).await.expect("acknowledged");
        };
        tokio::time::timeout(Duration::from_secs(5), others).await.expect("not blocked");
        drop(unpolled);
        fixture.stored().await;
    });
}
