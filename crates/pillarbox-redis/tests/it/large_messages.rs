//! Messages that are large together or alone: a call transfers and reads only as many bytes as it may.

use std::time::Duration;

use pillarbox_core::{Delivery, Outgoing, Queue, Receive};
use pillarbox_testing::server::RedisServer;

use crate::common::steps::{body, counts};
use crate::common::{queue, start, start_queue};

const HOUR: Duration = Duration::from_secs(3600);

/// Creates a message that is identified by its first character.
fn large(order: usize, bytes: usize) -> Outgoing {
    let character = char::from(b'a' + order as u8);
    Outgoing::new(character.to_string().repeat(bytes))
}

fn characters(deliveries: &[Delivery]) -> String {
    deliveries.iter().filter_map(|delivery| body(delivery).chars().next()).collect()
}

#[tokio::test]
async fn a_receive_takes_only_as_many_bytes_as_get_through_a_slow_network() {
    let (_server, backend) = start().await;
    const KB: usize = 1 << 10;
    // Equal sizes, a small one first, and one that is too large by itself.
    let sizes: [(&[usize], &[&str]); 4] = [
        (&[300 * KB; 7], &["abc", "def", "g"]),
        (&[1, 500 * KB, 500 * KB, 500 * KB, 1], &["abc", "de"]),
        (&[4 << 20, 4 << 20, 1, 1], &["a", "b", "cd"]),
        (&[KB; 20], &["abcdefghijklmnopqrst"]),
    ];
    for (n, (sizes, expected)) in sizes.into_iter().enumerate() {
        let queue = queue(&backend, &format!("q{n}"));
        for (order, bytes) in sizes.iter().enumerate() {
            queue.send(vec![large(order, *bytes)]).await.expect("sent");
        }
        let mut received = Vec::new();
        while received.len() < expected.len() {
            let deliveries = queue.receive(Receive::up_to(100).visibility(HOUR)).await;
            received.push(characters(&deliveries.expect("received")));
        }
        assert_eq!(received, expected, "{sizes:?}");
        let all = sizes.len() as u64;
        assert_eq!(counts(&queue).await, (0, all, 0, all));
    }
}

#[tokio::test]
async fn attributes_and_addresses_count_among_the_bytes_of_a_receive() {
    let (_server, _backend, queue) = start_queue().await;
    for order in 0..6 {
        let mut message = large(order, 1);
        message.attributes.insert("note", "x".repeat(200 << 10));
        message.reply_to = Some("y".repeat(150 << 10).into());
        queue.send(vec![message]).await.expect("sent");
    }
    for expected in ["ab", "cd", "ef"] {
        let deliveries = queue.receive(Receive::up_to(6).visibility(HOUR)).await;
        assert_eq!(characters(&deliveries.expect("received")), expected);
    }
}

/// Concurrent receives share a call, and its limit of bytes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receives_that_share_a_call_all_get_a_message() {
    let (_server, _backend, queue) = start_queue().await;
    for order in 0..24 {
        queue.send(vec![large(order, 700 << 10)]).await.expect("sent");
    }
    let receives = (0..24).map(|_| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.receive(Receive::one().visibility(HOUR)).await })
    });
    for receive in receives.collect::<Vec<_>>() {
        assert_eq!(receive.await.expect("a task").expect("received").len(), 1);
    }
    assert_eq!(counts(&queue).await, (0, 24, 0, 24));
}

// The server reads only what fits.

/// Returns a figure of the server's memory, in bytes.
fn memory(server: &RedisServer, name: &str) -> usize {
    let info = server.command(&["INFO", "memory"]);
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or_else(|| panic!("no {name}: {info}"))
}

/// Sends some small messages and then 100 of 1 MiB; runs `read`, and asserts that the server has read few of the
/// large ones for it.
async fn reads_few(small: usize, read: impl AsyncFnOnce(&dyn Queue)) {
    const LARGE: usize = 1 << 20;
    let (server, _backend, queue) = start_queue().await;
    queue.send((0..small).map(|_| large(0, 10)).collect()).await.expect("sent");
    for _ in 0..100 {
        queue.send(vec![large(1, LARGE)]).await.expect("sent");
    }
    let before = memory(&server, "used_memory_peak");
    read(&*queue).await;
    let more = memory(&server, "used_memory_peak") - before;
    assert!(more < 40 * LARGE, "the server needed {} MiB more", more / LARGE);
}

#[tokio::test]
async fn a_receive_reads_few_of_the_large_messages_that_follow_small_ones() {
    for small in [1, 16, 100] {
        reads_few(small, async |queue| {
            let received = queue.receive(Receive::up_to(256).visibility(HOUR)).await;
            assert_eq!(characters(&received.expect("received")), "a".repeat(small));
            let received = queue.receive(Receive::up_to(256).visibility(HOUR)).await;
            assert_eq!(characters(&received.expect("received")), "b");
        })
        .await;
    }
}

#[tokio::test]
async fn a_page_of_large_messages_is_short_and_the_next_one_goes_on() {
    reads_few(3, async |queue| {
        // Some are in flight, and so are shown last.
        queue.receive(Receive::up_to(3).visibility(HOUR)).await.expect("received");
        queue.receive(Receive::one().visibility(HOUR)).await.expect("received");
        let (mut shown, mut after) = (Vec::new(), None);
        loop {
            let page = queue.peek(1000, after).await.expect("shown");
            let bytes: usize = page.messages.iter().map(|peeked| peeked.message.body.len()).sum();
            assert!(page.messages.len() == 1 || bytes <= 1 << 20, "{bytes} bytes");
            shown.extend(page.messages.into_iter().map(|peeked| peeked.message.id));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let all = shown.len();
        shown.sort();
        shown.dedup();
        assert_eq!((shown.len(), all), (103, 103), "each is shown once");
    })
    .await;
}
