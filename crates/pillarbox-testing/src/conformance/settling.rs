//! Receipts, acknowledge, nack, extend.

use std::collections::HashSet;
use std::time::Duration;

use pillarbox_core::{Capabilities, MessageId, Nonce, QueueOptions, Receipt, Settle};
use tokio::task::JoinSet;

use super::{LONG, Steps, assert_expired, assert_invalid, bodies, needs, only, queue_of};
use crate::Subject;

/// Permanently, also after its lease would have ended.
pub async fn an_acknowledged_message_is_gone(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(s.ticks(6)).await;
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
    s.pass(8).await;
    assert!(queue.take(10, LONG).await.is_empty());
}

/// No delay, no wait.
pub async fn a_nacked_message_is_ready_at_once(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(LONG).await;
    queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 2);
}

/// The receipt dies with the nack, not with the delay.
pub async fn a_message_nacked_with_a_delay_is_invisible_without_a_receipt(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(LONG).await;
    queue.nack(&delivery.receipt, s.ticks(8)).await.expect("nacked");
    assert!(queue.take(10, LONG).await.is_empty());
    if s.capabilities().strict_receipts {
        assert_expired(queue.acknowledge(&delivery.receipt).await);
        assert_expired(queue.extend(&delivery.receipt, LONG).await);
        assert_expired(queue.nack(&delivery.receipt, Duration::ZERO).await);
    }
    s.pass(10).await;
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 2);
}

/// Extending keeps the message, and the receipt.
pub async fn an_extended_lease_outlives_its_first_deadline(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(s.ticks(6)).await;
    queue.extend(&delivery.receipt, s.ticks(60)).await.expect("extended");
    s.pass(8).await;
    assert!(queue.take(10, LONG).await.is_empty());
    queue.extend(&delivery.receipt, LONG).await.expect("extended again");
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
}

/// New deadline = now + timeout, nearer or farther.
pub async fn extend_counts_from_now_and_may_shorten(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(LONG).await;
    s.pass(2).await;
    queue.extend(&delivery.receipt, s.ticks(6)).await.expect("extended");
    s.pass(1).await;
    assert!(queue.take(10, LONG).await.is_empty());
    s.pass(7).await;
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 2);
}

/// Never the same twice, for one message or for many.
pub async fn every_delivery_has_a_receipt_of_its_own(s: &Subject) {
    let queue = queue_of(s, &["a", "b", "c"]).await;
    let mut receipts = HashSet::new();
    let mut delivered = 0;
    while delivered < 30 {
        let deliveries = queue.take(10, LONG).await;
        assert!(!deliveries.is_empty(), "nothing is left after {delivered} deliveries");
        for delivery in deliveries {
            delivered += 1;
            assert!(receipts.insert(delivery.receipt.to_string()), "{}", delivery.receipt);
            queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
        }
    }
}

/// Whether or not the message was requeued yet: the result does not depend on a sweep.
pub async fn a_receipt_is_invalid_from_its_deadline_on(s: &Subject) {
    needs!(s: strict_receipts);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    let expired = queue.take(3, s.ticks(1)).await;
    s.pass(2).await;
    assert_expired(queue.acknowledge(&expired[0].receipt).await);
    assert_expired(queue.nack(&expired[1].receipt, Duration::ZERO).await);
    assert_expired(queue.extend(&expired[2].receipt, LONG).await);
    assert_eq!(queue.take(10, LONG).await.len(), 3);
}

/// The holder of an old receipt cannot acknowledge, return or extend another delivery (a known defect of
/// apalis, pgmq and solid_queue).
pub async fn a_stale_receipt_cannot_settle_a_redelivered_message(s: &Subject) {
    needs!(s: strict_receipts);
    let queue = queue_of(s, &["x"]).await;
    let stale = queue.take_one(s.ticks(1)).await;
    s.pass(2).await;
    let current = queue.take_one(s.ticks(20)).await;
    assert_expired(queue.acknowledge(&stale.receipt).await);
    assert_expired(queue.nack(&stale.receipt, Duration::ZERO).await);
    assert_expired(queue.extend(&stale.receipt, LONG).await);
    assert!(queue.take(1, LONG).await.is_empty(), "the delivery still runs");
    queue.acknowledge(&current.receipt).await.expect("the current receipt is good");
}

/// Whatever the first action was.
pub async fn a_receipt_settles_once(s: &Subject) {
    needs!(s: strict_receipts);
    let queue = s.queue();
    for first in 0..3 {
        queue.put("x").await;
        let receipt = queue.take_one(LONG).await.receipt;
        match first {
            0 => queue.acknowledge(&receipt).await,
            1 => queue.nack(&receipt, Duration::ZERO).await,
            _ => queue.nack(&receipt, LONG).await,
        }
        .expect("settled");
        assert_expired(queue.acknowledge(&receipt).await);
        assert_expired(queue.nack(&receipt, Duration::ZERO).await);
        assert_expired(queue.extend(&receipt, LONG).await);
        queue.purge().await.expect("the queue is emptied");
    }
}

/// A receipt is not bound to its receiver.
pub async fn a_receipt_settles_from_another_handle_and_as_text(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let text = queue.take_one(LONG).await.receipt.to_string();
    let other = s.reopen(queue.name(), QueueOptions::new());
    let receipt: Receipt = text.parse().expect("the text of a receipt");
    other.extend(&receipt, LONG).await.expect("extended");
    other.acknowledge(&receipt).await.expect("acknowledged");
}

/// The right message is not enough, nor is the right receipt on another queue.
pub async fn a_forged_receipt_is_refused(s: &Subject) {
    needs!(s: strict_receipts);
    let (queue, other) = (s.queue(), s.queue());
    let id = queue.put("x").await;
    let delivery = queue.take_one(LONG).await;
    for made_up in [
        Receipt::new(id, Nonce::random()),
        Receipt::new(MessageId::new(), Nonce::random()),
        "AQEBwJnKyrHigUMZj6rYigCg".parse().expect("text"),
    ] {
        assert_expired(queue.acknowledge(&made_up).await);
        assert_expired(queue.extend(&made_up, LONG).await);
    }
    assert_expired(other.acknowledge(&delivery.receipt).await);
    queue.acknowledge(&delivery.receipt).await.expect("the true one is still good");
}

/// Valid and invalid receipts side by side, in order.
pub async fn a_batch_of_settles_answers_each_entry(s: &Subject) {
    needs!(s: strict_receipts, exact_counts);
    let queue = queue_of(s, &["acknowledge", "nack", "delay", "extend"]).await;
    let deliveries = queue.take(4, s.ticks(8)).await;
    let receipt = |body: &str| {
        let found = deliveries.iter().find(|d| d.message.body == body.as_bytes());
        found.expect("delivered").receipt.clone()
    };
    let batch = vec![
        Settle::acknowledge(receipt("acknowledge")),
        Settle::acknowledge(receipt("acknowledge")),
        Settle::nack(receipt("nack"), Duration::ZERO),
        Settle::nack(receipt("delay"), LONG),
        Settle::extend(receipt("extend"), LONG),
        Settle::acknowledge(Receipt::new(MessageId::new(), Nonce::random())),
    ];
    let results = queue.settle(batch).await.expect("the batch is answered");
    let ok: Vec<_> = results.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, true, true, true, false]);
    s.pass(10).await;
    assert_eq!(queue.states().await, (1, 1, 1));
    assert_eq!(bodies(&queue.take(10, LONG).await), ["nack"]);
}

/// An entry out of range fails alone, and its receipt stays valid.
pub async fn a_settle_out_of_range_is_refused_and_keeps_the_lease(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    let delivery = queue.take_one(LONG).await;
    let over = Capabilities::MAX_VISIBILITY + Duration::from_secs(1);
    assert_invalid(queue.extend(&delivery.receipt, over).await);
    if let Some(max) = s.capabilities().max_nack_delay {
        assert_invalid(queue.nack(&delivery.receipt, max + Duration::from_secs(1)).await);
    }
    let many = vec![Settle::acknowledge(delivery.receipt.clone()); s.capabilities().max_batch + 1];
    assert_invalid(queue.settle(many).await);
    queue.acknowledge(&delivery.receipt).await.expect("acknowledged");
}

/// The check and the effect are one step.
pub async fn racing_acknowledgements_have_one_winner(s: &Subject) {
    needs!(s: strict_receipts);
    let queue = queue_of(s, &["x"]).await;
    let receipt = queue.take_one(LONG).await.receipt;
    let mut racers = JoinSet::new();
    for _ in 0..10 {
        let (queue, batch) = (queue.clone(), vec![Settle::acknowledge(receipt.clone())]);
        racers.spawn(async move { only(queue.settle(batch).await.expect("answered")).is_ok() });
    }
    let won = racers.join_all().await.into_iter().filter(|ok| *ok).count();
    assert_eq!(won, 1);
}

/// A purge ends every delivery, also for a message that is sent again under the same id.
pub async fn purge_invalidates_every_receipt(s: &Subject) {
    needs!(s: strict_receipts);
    let queue = s.queue();
    let id = queue.put("x").await;
    let old = only(queue.take(10, LONG).await).receipt;
    queue.purge().await.expect("purged");
    assert_expired(queue.acknowledge(&old).await);
    queue.try_put(pillarbox_core::Outgoing::with_id(id, "y")).await.expect("stored");
    let current = queue.take_one(LONG).await;
    assert_eq!(current.message.delivery_count, 1);
    assert_expired(queue.extend(&old, LONG).await);
    queue.acknowledge(&current.receipt).await.expect("acknowledged");
}
