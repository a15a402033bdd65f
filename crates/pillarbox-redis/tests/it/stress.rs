//! Many concurrent clients, and the keys that are left afterwards.
//!
//! `make stress-tests` runs the long version: `PILLARBOX_MESSAGES` is the number of messages.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Outgoing, Queue, Receive, Settle};
use pillarbox_redis::redis;
use pillarbox_testing::on_threads;
use pillarbox_testing::process::setting;
use pillarbox_testing::server::{Flavour, RedisServer};
use pillarbox_testing::stress::Stress;

use crate::common::stored::Stored;
use crate::common::{open, queue, start};

async fn assert_empty(server: &RedisServer, queue: &Arc<dyn Queue>) {
    let client = redis::Client::open(server.url()).expect("a client");
    let stored = Stored::read(&client, queue.name()).await;
    stored.check().unwrap_or_else(|problem| panic!("{problem}"));
    assert!(stored.data.is_empty(), "{stored:?}");
}

fn four_producers_and_four_consumers(flavour: Flavour) {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return;
    }
    on_threads(async move {
        let server = RedisServer::builder().flavour(flavour).start();
        let backend = open(&server.url()).await;
        let queue = queue(&backend, "stress");
        let messages = setting("PILLARBOX_MESSAGES", 6000);
        let stress = Stress { messages, may_go_unseen: true, ..Stress::default() };
        let summary = stress.run(queue.clone()).await;
        assert_empty(&server, &queue).await;
        println!("{}: {summary:?}", flavour.name());
    });
}

#[test]
fn four_producers_and_four_consumers_lose_nothing_on_redis() {
    four_producers_and_four_consumers(Flavour::Redis);
}

#[test]
fn four_producers_and_four_consumers_lose_nothing_on_valkey() {
    four_producers_and_four_consumers(Flavour::Valkey);
}

/// Consumers slower than their leases: every message is delivered again, and no old receipt is valid.
#[test]
fn leases_that_end_under_load_are_all_delivered_again() {
    on_threads(async {
        let (server, backend) = start().await;
        let queue = queue(&backend, "reaper");
        let messages = setting("PILLARBOX_MESSAGES", 6000) / 2;
        let lease = Duration::from_millis(200);
        for _ in 0..messages / 100 {
            let batch = (0..100).map(|n| Outgoing::new(n.to_string())).collect();
            queue.send(batch).await.expect("sent");
        }
        let mut held = Vec::new();
        loop {
            let request = Receive::up_to(50).visibility(lease);
            let some = queue.receive(request).await.expect("received");
            // A second delivery shows that leases have begun to expire.
            let again = some.iter().any(|delivery| delivery.message.delivery_count > 1);
            if some.is_empty() || again {
                break;
            }
            held.extend(some);
        }
        // Others send meanwhile.
        let busy = tokio::spawn({
            let queue = queue.clone();
            async move {
                for _ in 0..200 {
                    queue.send(vec![Outgoing::new("more")]).await.expect("sent");
                }
            }
        });
        tokio::time::sleep(lease * 2).await;
        busy.await.expect("sent");
        let counts = queue.counts().await.expect("counts");
        assert_eq!((counts.total(), counts.in_flight), (messages as u64 + 200, 0));
        for held in held.chunks(100) {
            let late = held.iter().map(|held| Settle::acknowledge(held.receipt.clone()));
            for answer in queue.settle(late.collect()).await.expect("answered") {
                assert!(matches!(answer, Err(Error::ReceiptHandleExpired { .. })), "{answer:?}");
            }
        }
        let mut done = 0;
        while done < messages + 200 {
            let some = queue.receive(Receive::up_to(1000)).await.expect("received");
            let settles: Vec<_> =
                some.into_iter().map(|some| Settle::acknowledge(some.receipt)).collect();
            assert!(!settles.is_empty(), "{done} done");
            done += settles.len();
            queue.settle(settles).await.expect("acknowledged");
        }
        assert_empty(&server, &queue).await;
    });
}
