//! Durability: what outlives the process. Tested if the subject can restart.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{MessageState, Outgoing, Queue, QueueName, QueueOptions, Receipt};

use super::{LONG, Steps, assert_expired, bodies, needs, queue_of};
use crate::Subject;

/// Opens the same queue as a new process would.
async fn reopened(s: &Subject, name: &QueueName) -> Option<Arc<dyn Queue>> {
    let Some(backend) = s.restart().await else {
        println!("skipped: the subject cannot restart");
        return None;
    };
    Some(backend.queue(name, QueueOptions::new()).expect("the queue opens"))
}

/// Bodies, attributes, reply addresses, times, order and delays.
pub async fn messages_outlive_a_restart(s: &Subject) {
    needs!(s: fifo, peek);
    let queue = s.queue();
    let mut first = Outgoing::new("first");
    first.attributes = [("tenant", "acme")].into_iter().collect();
    first.reply_to = Some("client-7".into());
    queue.try_put(first).await.expect("stored");
    queue.put("second").await;
    queue.put_delayed("delayed", LONG).await;
    let before = queue.shown(10).await;

    let Some(queue) = reopened(s, queue.name()).await else { return };
    assert_eq!(queue.shown(10).await, before);
    assert_eq!(bodies(&queue.take(10, LONG).await), ["first", "second"]);
}

/// However the deliveries ended.
pub async fn delivery_counts_outlive_a_restart(s: &Subject) {
    let queue = queue_of(s, &["x"]).await;
    for _ in 0..2 {
        let delivery = queue.take_one(LONG).await;
        queue.nack(&delivery.receipt, Duration::ZERO).await.expect("nacked");
    }
    let Some(queue) = reopened(s, queue.name()).await else { return };
    assert_eq!(queue.take_one(LONG).await.message.delivery_count, 3);
}

/// Those before the restart, and the one that the restart has interrupted: a message that kills its receiver
/// is recognised by them.
pub async fn unsettled_deliveries_outlive_a_restart(s: &Subject) {
    needs!(s: counts_unsettled);
    let queue = queue_of(s, &["x"]).await;
    queue.take_one(s.ticks(1)).await;
    s.pass(2).await;
    let started = queue.take_one(LONG).await;
    queue.start(&started.receipt, s.ticks(1)).await.expect("started");
    s.pass(2).await;
    let nacked = queue.take_one(LONG).await;
    queue.nack(&nacked.receipt, Duration::ZERO).await.expect("nacked");
    let released = queue.take_one(LONG).await;
    queue.release(&released.receipt, Duration::ZERO).await.expect("released");
    let started = queue.take_one(LONG).await;
    queue.start(&started.receipt, s.ticks(3)).await.expect("started");
    let Some(queue) = reopened(s, queue.name()).await else { return };
    s.pass(5).await;
    let message = queue.take_one(LONG).await.message;
    assert_eq!((message.delivery_count, message.unsettled, message.uncounted), (6, 2, 2));
}

/// Leases continue with their receipts: valid ones stay valid and expired ones stay expired.
pub async fn leases_outlive_a_restart(s: &Subject) {
    needs!(s: strict_receipts, fifo, peek);
    let queue = queue_of(s, &["held", "given back", "done"]).await;
    let deliveries = queue.take(3, LONG).await;
    let texts: Vec<_> = deliveries.iter().map(|d| d.receipt.to_string()).collect();
    queue.nack(&deliveries[1].receipt, Duration::ZERO).await.expect("nacked");
    queue.acknowledge(&deliveries[2].receipt).await.expect("acknowledged");

    let Some(queue) = reopened(s, queue.name()).await else { return };
    let receipts: Vec<Receipt> = texts.iter().map(|text| text.parse().expect("text")).collect();
    let shown = queue.shown(10).await;
    assert_eq!(shown.len(), 2);
    assert!(matches!(shown[1].state, MessageState::InFlight { .. }), "{shown:?}");
    assert_expired(queue.acknowledge(&receipts[1]).await);
    assert_expired(queue.acknowledge(&receipts[2]).await);
    queue.extend(&receipts[0], LONG).await.expect("extended");
    queue.acknowledge(&receipts[0]).await.expect("acknowledged");
}

/// Messages that became due meanwhile are ready.
pub async fn time_passes_during_a_restart(s: &Subject) {
    needs!(s: exact_counts);
    let queue = queue_of(s, &["expires"]).await;
    let old = queue.take_one(s.ticks(3)).await;
    queue.put_delayed("comes due", s.ticks(3)).await;
    let Some(queue) = reopened(s, queue.name()).await else { return };
    s.pass(5).await;
    assert_eq!(queue.states().await, (2, 0, 0));
    if s.capabilities().strict_receipts {
        assert_expired(queue.acknowledge(&old.receipt).await);
    }
}

/// Including purged messages.
pub async fn sent_outlives_a_restart(s: &Subject) {
    needs!(s: exact_counts);
    let queue = queue_of(s, &["a", "b"]).await;
    queue.purge().await.expect("purged");
    queue.put("c").await;
    let Some(before) = queue.lifetime().await else {
        println!("skipped: {} does not count sends", s.capabilities().backend);
        return;
    };
    assert_eq!(before, (3, 2));
    let Some(queue) = reopened(s, queue.name()).await else { return };
    assert_eq!(queue.lifetime().await, Some((3, 2)));
    queue.put("d").await;
    assert_eq!(queue.lifetime().await, Some((4, 2)));
}
