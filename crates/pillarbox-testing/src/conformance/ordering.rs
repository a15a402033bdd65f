//! FIFO by the time of becoming ready.

use std::time::Duration;

use pillarbox_core::Settle;

use super::{LONG, Steps, bodies, needs, queue_of};
use crate::Subject;

/// One by one and in batches.
pub async fn messages_are_delivered_in_the_order_sent(s: &Subject) {
    needs!(s: fifo);
    let queue = s.queue();
    let bodies_sent: Vec<String> = (0..30).map(|n| n.to_string()).collect();
    for chunk in bodies_sent.chunks(7) {
        let batch = chunk.iter().cloned().map(pillarbox_core::Outgoing::new).collect();
        queue.send(batch).await.expect("stored");
    }
    let mut received = Vec::new();
    while received.len() < 30 {
        let deliveries = queue.take(4, LONG).await;
        assert!(!deliveries.is_empty());
        received.extend(bodies(&deliveries).into_iter().map(str::to_owned));
    }
    assert_eq!(received, bodies_sent);
}

/// A nacked message is behind those that were ready.
pub async fn a_nacked_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    let pair = queue.take(2, LONG).await;
    queue.nack(&pair[1].receipt, Duration::ZERO).await.expect("nacked");
    queue.nack(&pair[0].receipt, Duration::ZERO).await.expect("nacked");
    assert_eq!(bodies(&queue.take(10, LONG).await), ["c", "b", "a"]);
}

/// An expired message is behind those that were ready.
pub async fn an_expired_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b"]).await;
    queue.take_one(s.ticks(1)).await;
    s.pass(2).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["b", "a"]);
}

/// A message sent or nacked with a delay is behind those that were ready.
pub async fn a_due_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b"]).await;
    queue.put_delayed("delayed", s.ticks(4)).await;
    let first = queue.take_one(LONG).await;
    queue.nack(&first.receipt, s.ticks(8)).await.expect("nacked");
    s.pass(10).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["b", "delayed", "a"]);
}

/// Of those that become ready at the same moment, the one delivered first is first.
pub async fn leases_that_end_together_are_requeued_in_order_of_delivery(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b", "c"]).await;
    let first = queue.take_one(LONG).await;
    queue.nack(&first.receipt, Duration::ZERO).await.expect("nacked");
    assert_eq!(bodies(&queue.take(10, s.ticks(2)).await), ["b", "c", "a"]);
    s.pass(4).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["b", "c", "a"]);
}

/// In the order of the entries, for any action.
pub async fn messages_settled_in_one_batch_are_requeued_in_its_order(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["a", "b", "c", "d"]).await;
    let all = queue.take(4, LONG).await;
    let receipt = |place: usize| all[place].receipt.clone();
    let batch = vec![
        Settle::extend(receipt(2), Duration::ZERO),
        Settle::nack(receipt(0), Duration::ZERO),
        Settle::extend(receipt(1), Duration::ZERO),
        Settle::nack(receipt(3), Duration::ZERO),
    ];
    let settled = queue.settle(batch).await.expect("answered");
    assert!(settled.iter().all(Result::is_ok), "{settled:?}");
    assert_eq!(bodies(&queue.take(10, LONG).await), ["c", "a", "b", "d"]);
}

/// The time of becoming ready counts, not that of noticing it.
pub async fn messages_are_ordered_by_when_they_became_ready(s: &Subject) {
    needs!(s: fifo);
    let queue = queue_of(s, &["expires at 12", "due again at 8", "never left"]).await;
    let pair = queue.take(2, s.ticks(12)).await;
    queue.nack(&pair[1].receipt, s.ticks(8)).await.expect("nacked");
    queue.put_delayed("due at 4", s.ticks(4)).await;
    s.pass(15).await;
    queue.put("sent at 15").await;
    assert_eq!(
        bodies(&queue.take(10, LONG).await),
        ["never left", "due at 4", "due again at 8", "expires at 12", "sent at 15"]
    );
}
