//! FIFO by the moment of becoming ready.

use std::time::Duration;

use super::{LONG, Steps, bodies, needs};
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

/// Given back is behind those who waited.
pub async fn a_nacked_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = s.queue();
    queue.put_all(&["a", "b", "c"]).await;
    let pair = queue.take(2, LONG).await;
    queue.nack(&pair[1].receipt, Duration::ZERO).await.expect("nacked");
    queue.nack(&pair[0].receipt, Duration::ZERO).await.expect("nacked");
    assert_eq!(bodies(&queue.take(10, LONG).await), ["c", "b", "a"]);
}

/// So is what nobody settled.
pub async fn an_expired_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = s.queue();
    queue.put_all(&["a", "b"]).await;
    queue.take_one(s.ticks(1)).await;
    s.pass(2).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["b", "a"]);
}

/// So is what waited for its time, sent or nacked with a delay.
pub async fn a_due_message_joins_the_tail(s: &Subject) {
    needs!(s: fifo);
    let queue = s.queue();
    queue.put_delayed("delayed", s.ticks(1)).await;
    queue.put_all(&["a", "b"]).await;
    let first = queue.take_one(LONG).await;
    queue.nack(&first.receipt, s.ticks(3)).await.expect("nacked");
    s.pass(5).await;
    assert_eq!(bodies(&queue.take(10, LONG).await), ["b", "delayed", "a"]);
}

/// The moment itself counts, not when somebody noticed.
pub async fn messages_line_up_by_the_moment_they_became_ready(s: &Subject) {
    needs!(s: fifo);
    let queue = s.queue();
    queue.put_all(&["expires at 5", "due again at 3", "never left"]).await;
    let pair = queue.take(2, s.ticks(5)).await;
    queue.nack(&pair[1].receipt, s.ticks(3)).await.expect("nacked");
    queue.put_delayed("due at 1", s.ticks(1)).await;
    s.pass(7).await;
    queue.put("sent at 7").await;
    assert_eq!(
        bodies(&queue.take(10, LONG).await),
        ["never left", "due at 1", "due again at 3", "expires at 5", "sent at 7"]
    );
}
