//! Single operations on a queue.

use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Delivery, MessageId, Outgoing, Peeked, Queue, Receive, Result, Settle};
use pillarbox_testing::server::RedisServer;

/// Time within which what a test waits for must happen, on a busy machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Sends a message with this body.
pub(crate) async fn send(queue: &Arc<dyn Queue>, body: &str) -> Result<MessageId> {
    queue.send(vec![Outgoing::new(body.to_owned())]).await?.remove(0).map(|sent| sent.id)
}

/// Sends a delayed message.
pub(crate) async fn send_later(queue: &Arc<dyn Queue>, body: &str, delay: Duration) -> Result<()> {
    let mut message = Outgoing::new(body.to_owned());
    message.delay = delay;
    queue.send(vec![message]).await?.remove(0).map(|_| ())
}

/// Receives a message, if one is ready.
pub(crate) async fn receive(queue: &Arc<dyn Queue>) -> Result<Option<Delivery>> {
    Ok(queue.receive(Receive::one()).await?.pop())
}

/// Receives a message that must be ready.
pub(crate) async fn take(queue: &Arc<dyn Queue>) -> Delivery {
    receive(queue).await.unwrap_or_else(|error| panic!("{error}")).expect("a message")
}

/// Waits for a message.
pub(crate) async fn wait_for(queue: &Arc<dyn Queue>, time: Duration) -> Result<Option<Delivery>> {
    Ok(queue.receive(Receive::one().wait(time)).await?.pop())
}

/// Pages through all messages.
pub(crate) async fn peek_all(queue: &Arc<dyn Queue>) -> Vec<Peeked> {
    let (mut shown, mut after) = (Vec::new(), None);
    loop {
        let page = queue.peek(1000, after).await.expect("a page");
        shown.extend(page.messages);
        after = page.next;
        if after.is_none() {
            return shown;
        }
    }
}

/// Settles one delivery.
pub(crate) async fn settle(queue: &Arc<dyn Queue>, settle: Settle) -> Result<()> {
    queue.settle(vec![settle]).await?.remove(0)
}

/// Acknowledges one delivery.
pub(crate) async fn acknowledge(queue: &Arc<dyn Queue>, delivery: &Delivery) -> Result<()> {
    settle(queue, Settle::acknowledge(delivery.receipt.clone())).await
}

/// Returns the body of a delivery as text.
pub(crate) fn body(delivery: &Delivery) -> String {
    String::from_utf8_lossy(&delivery.message.body).into_owned()
}

/// Receives and acknowledges all ready messages, and returns their bodies in order.
pub(crate) async fn drain(queue: &Arc<dyn Queue>) -> Vec<String> {
    let mut bodies = Vec::new();
    while let Some(delivery) = receive(queue).await.unwrap_or_else(|error| panic!("{error}")) {
        acknowledge(queue, &delivery).await.unwrap_or_else(|error| panic!("{error}"));
        bodies.push(body(&delivery));
    }
    bodies
}

/// Returns the numbers of messages ready, in flight, delayed and ever sent.
pub(crate) async fn counts(queue: &Arc<dyn Queue>) -> (u64, u64, u64, u64) {
    let counts = queue.counts().await.unwrap_or_else(|error| panic!("{error}"));
    (counts.ready, counts.in_flight, counts.delayed, counts.sent.expect("a count"))
}

/// Waits until a condition holds, and panics if that takes too long.
pub(crate) async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < TIMEOUT, "timed out before {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the channels with subscribers: sharded ones, which servers before 7 do not have, and others.
pub(crate) fn channels(server: &RedisServer) -> Vec<String> {
    let channels = |kind| server.try_command(&["PUBSUB", kind]).unwrap_or_default();
    let both = [channels("SHARDCHANNELS"), channels("CHANNELS")];
    both.iter().flat_map(|channels| channels.lines()).map(str::to_owned).collect()
}
