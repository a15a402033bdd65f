//! Queues with partitions, which behave as one queue.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pillarbox_core::{
    Error, Mailbox, Mailboxes, MessageId, Outgoing, Partitions, Queue, QueueOptions, Receive,
    SendOptions, Settle,
};
use pillarbox_testing::campaign::Record;
use pillarbox_testing::on_threads;
use pillarbox_testing::process::Child;
use pillarbox_testing::server::{RedisCluster, RedisServer};

use crate::common::steps::{
    TIMEOUT, acknowledge, body, channels, counts, drain, eventually, receive, send, take, wait_for,
};
use crate::common::{open, queue, start};

const LONG: Duration = Duration::from_secs(60);

fn queue_with_partitions(backend: &Mailboxes, partitions: u32) -> Arc<dyn Queue> {
    backend.queue("spread", QueueOptions::new().partitions(partitions)).expect("a queue")
}

/// A message without a group.
fn new(body: impl Into<String>) -> Outgoing {
    Outgoing::new(body.into())
}

fn of_group(group: &str, body: impl Into<String>) -> Outgoing {
    let mut message = new(body);
    message.attributes.insert(Outgoing::GROUP, group);
    message
}

async fn send_all(queue: &Arc<dyn Queue>, batch: Vec<Outgoing>) {
    for sent in queue.send(batch).await.expect("sent") {
        sent.expect("stored");
    }
}

/// Returns the partitions that hold messages, by their keys.
fn partitions_with_messages(server: &RedisServer) -> BTreeSet<String> {
    server.command(&["KEYS", "*:data"]).lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn twelve_partitions_are_on_all_nodes_and_one_queue() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let backend = open(&cluster.url()).await;
    let queue = queue_with_partitions(&backend, 12);
    for batch in 0..24 {
        // Each in a run of ids of its own, as by many programs.
        let batch = std::thread::spawn(move || {
            (0..64).map(|n| new(format!("{batch}-{n}"))).collect::<Vec<_>>()
        });
        send_all(&queue, batch.join().expect("a batch")).await;
    }
    send_all(&queue, (0..64).map(|n| of_group(&n.to_string(), "grouped")).collect()).await;
    let keys = cluster.keys_by_node("{queue:spread*}:data");
    assert!(keys.iter().all(|keys| *keys > 0) && keys.iter().sum::<usize>() == 12, "{keys:?}");
    assert_eq!(counts(&queue).await, (25 * 64, 0, 0, 25 * 64));
    assert_eq!(backend.queues().await.expect("a list").len(), 1);
    let mut shown = BTreeSet::new();
    let mut after = None;
    loop {
        let page = queue.peek(100, after).await.expect("a page");
        shown.extend(page.messages.iter().map(|peeked| peeked.message.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(shown.len(), 25 * 64);
    assert_eq!(queue.purge().await.expect("purged"), 25 * 64);
    assert_eq!(counts(&queue).await, (0, 0, 0, 25 * 64));
}

#[tokio::test]
async fn messages_of_one_group_keep_their_order_and_others_do_not_wait_for_them() {
    let (server, backend) = start().await;
    let queue = queue_with_partitions(&backend, 7);
    for n in 0..40 {
        let batch = (0..20).map(|group| of_group(&group.to_string(), n.to_string())).collect();
        send_all(&queue, batch).await;
    }
    assert!(
        partitions_with_messages(&server).len() >= 6,
        "{:?}",
        partitions_with_messages(&server)
    );
    let mut last: HashMap<String, i32> = HashMap::new();
    let mut seen = 0;
    loop {
        let batch = queue.receive(Receive::up_to(13)).await.expect("received");
        if batch.is_empty() {
            break;
        }
        for delivery in &batch {
            let group = delivery.message.attributes.get(Outgoing::GROUP).expect("a group");
            let number: i32 = body(delivery).parse().expect("a number");
            let before = last.insert(group.to_owned(), number).unwrap_or(-1);
            assert_eq!(number, before + 1, "group {group}");
            seen += 1;
        }
        let settles = batch.into_iter().map(|delivery| Settle::acknowledge(delivery.receipt));
        for settled in queue.settle(settles.collect()).await.expect("settled") {
            settled.expect("acknowledged");
        }
    }
    assert_eq!((seen, counts(&queue).await.0), (800, 0));
}

#[tokio::test]
async fn a_mailbox_sets_its_partitions_and_the_groups_of_messages() {
    let (server, backend) = start().await;
    let jobs: Mailbox<u32> = backend.builder("jobs").partitions(4).open().expect("a mailbox");
    for n in 0..100 {
        jobs.send_with(&n, SendOptions::new().group(format!("{}", n % 10))).await.expect("sent");
    }
    assert_eq!(backend.partitions("jobs").await.expect("known"), Partitions::new(4, 4));
    assert!(partitions_with_messages(&server).len() > 1);
    let mut last = [None; 10];
    for _ in 0..100 {
        let batch = jobs.receive(Receive::one()).await.expect("received");
        for message in batch {
            let n = *message.body();
            assert!(last[n as usize % 10] < Some(n));
            last[n as usize % 10] = Some(n);
            message.acknowledge().await.expect("acknowledged");
        }
    }
    assert_eq!(jobs.approximate_count().await.expect("counted"), 0);
}

#[tokio::test]
async fn an_id_that_is_sent_again_goes_to_the_same_partition() {
    let (server, backend) = start().await;
    let queue = queue_with_partitions(&backend, 5);
    // Independent ids: new ids come in few runs, so that a partition may get none.
    let one = |n: u32| Outgoing::with_id(MessageId::from_key(&n.to_string()), n.to_string());
    let batch: Vec<_> = (0..5000).map(one).collect();
    for some in batch.chunks(1000) {
        send_all(&queue, some.to_vec()).await;
    }
    let again = open(&format!("{}?partitions=5", server.url())).await;
    let again = crate::common::queue(&again, "spread");
    for some in batch.chunks(700) {
        send_all(&again, some.iter().rev().cloned().collect()).await;
    }
    assert_eq!(counts(&queue).await, (5000, 0, 0, 5000));
    assert_eq!(partitions_with_messages(&server).len(), 5);
}

#[tokio::test]
async fn a_receipt_names_its_partition_and_no_other_accepts_it() {
    let (server, backend) = start().await;
    let whole = queue(&backend, "spread");
    send(&whole, "before").await.expect("sent");
    let before = take(&whole).await;
    backend.set_partitions("spread", 6).await.expect("spread");
    let queue = queue(&backend, "spread");
    let batch = (0..120).map(|n| of_group(&n.to_string(), n.to_string())).collect();
    send_all(&queue, batch).await;
    let mut deliveries = vec![before];
    while deliveries.len() < 121 {
        deliveries.extend(queue.receive(Receive::up_to(50)).await.expect("received"));
    }
    // By another process, which has never received from these partitions.
    let other = open(&server.url()).await;
    let other = crate::common::queue(&other, "spread");
    let settles: Vec<_> =
        deliveries.iter().map(|delivery| Settle::acknowledge(delivery.receipt.clone())).collect();
    for settled in other.settle(settles.clone()).await.expect("settled") {
        settled.expect("acknowledged");
    }
    for settled in queue.settle(settles).await.expect("settled") {
        assert!(matches!(settled, Err(Error::ReceiptHandleExpired { .. })), "{settled:?}");
    }
    assert_eq!(counts(&queue).await.1, 0);
}

/// No queries while nothing happens, and one receive per message.
#[tokio::test]
async fn waiters_are_woken_for_every_partition_without_querying_all() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let backend = open(&cluster.url()).await;
    let queue = queue_with_partitions(&backend, 12);
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move {
            let mut bodies = Vec::new();
            while bodies.len() < 30 {
                let found = wait_for(&queue, LONG).await.expect("received").expect("a message");
                acknowledge(&queue, &found).await.expect("acknowledged");
                bodies.push(body(&found));
            }
            bodies
        }
    });
    let heard = || cluster.nodes().iter().map(|node| channels(node).len()).sum::<usize>();
    eventually("all partitions are listened for", async || heard() == 12).await;
    let asked = || {
        let calls = |node: &RedisServer| {
            let stats = node.command(&["INFO", "commandstats"]);
            let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
            let calls = line.and_then(|line| line.split("calls=").nth(1)?.split(',').next());
            calls.and_then(|calls| calls.parse::<u64>().ok()).unwrap_or(0)
        };
        cluster.nodes().iter().map(calls).sum::<u64>()
    };
    eventually("no receive polls", async || {
        let before = asked();
        tokio::time::sleep(Duration::from_millis(300)).await;
        asked() == before
    })
    .await;
    let other = open(&cluster.url()).await;
    let sender = queue_with_partitions(&other, 12);
    send_all(&sender, vec![of_group("warm up", "0")]).await;
    eventually("it is settled", async || counts(&sender).await.3 == 1).await;
    let before = asked();
    for n in 1..30 {
        send_all(&sender, vec![of_group(&n.to_string(), n.to_string())]).await;
    }
    assert_eq!(waiting.await.expect("a task").len(), 30);
    // A send, a receive that finds it, an acknowledgement, and a receive that finds nothing; and not twelve of
    // them. New partitions are enlisted, and the layout is read.
    let calls = asked() - before;
    assert!(calls < 29 * 7 + 40, "{calls} calls for 29 messages");
}

/// Entry point of the child processes. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the campaign"]
fn client() {
    crate::common::client("spread");
}

/// The number of partitions is raised and lowered while clients work that do not know it.
#[test]
fn nothing_is_lost_while_partitions_come_and_go() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let mut record = Record::new();
    let clients = [1, 2]
        .map(|seed: u32| Child::start("partitions::client", cluster.url(), &seed.to_string()));
    let at_work = || {
        for client in &clients {
            client.wait_for("s", client.reported("s"));
            client.wait_for("x", client.reported("x"));
        }
    };
    at_work();
    let layouts = on_threads(async {
        let backend = open(&cluster.url()).await;
        let mut layouts = Vec::new();
        for partitions in [12, 3, 8, 1, 12] {
            layouts.push(backend.set_partitions("spread", partitions).await.expect("spread"));
            for _ in 0..5 {
                tokio::task::block_in_place(at_work);
            }
        }
        backend.close().await;
        layouts
    });
    // Ids come in runs that share a partition, so it takes a while until all nodes are used.
    let by_node = || cluster.keys_by_node("{queue:spread*}:meta");
    for _ in 0..1_000 {
        if by_node().iter().all(|keys| *keys > 0) {
            break;
        }
        at_work();
    }
    assert!(by_node().iter().all(|keys| *keys > 0), "{:?}", by_node());
    clients.into_iter().for_each(|client| record.add(&client.kill()));
    assert_eq!(record.failures(), [""; 0]);
    let summary = on_threads(async {
        let backend = open(&cluster.url()).await;
        let queue = queue(&backend, "spread");
        let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
        assert_eq!(diagnosis.problems().count(), 0, "{diagnosis:?}");
        record.check(&queue).await.unwrap_or_else(|wrong| panic!("{wrong}"))
    });
    assert!(summary.sent > 100 && summary.acknowledged > 100, "{summary:?}");
    println!("layouts {layouts:?}: nothing lost, nothing back: {summary:?}");
}

/// The number is raised from 1 to 12 under load: every new group keeps its order.
#[test]
fn groups_that_begin_after_the_queue_is_spread_keep_their_order() {
    let cluster = RedisCluster::builder().replicas(0).start();
    on_threads(async {
        let backend = open(&cluster.url()).await;
        let (sender, receiver) = (queue(&backend, "spread"), queue(&backend, "spread"));
        let is_done = Arc::new(AtomicBool::new(false));
        let sending = tokio::spawn({
            let is_done = is_done.clone();
            async move {
                let mut sent = 0_u32;
                // 40 rounds of 10 new groups with 10 messages each.
                for round in 0..40 {
                    for n in 0..10 {
                        let batch =
                            (0..10).map(|g| of_group(&format!("{round}-{g}"), n.to_string()));
                        send_all(&sender, batch.collect()).await;
                        sent += 10;
                    }
                    if round == 10 {
                        let admin = open(&cluster.url()).await;
                        let spread = admin.set_partitions("spread", 12).await.expect("spread");
                        assert_eq!(spread, Partitions::new(12, 12));
                        admin.close().await;
                        // Until this program knows the layout: an earlier group may be in two partitions.
                        let start = Instant::now();
                        while sender.capabilities().fifo {
                            assert!(start.elapsed() < TIMEOUT, "the sender does not know");
                            send_all(&sender, vec![new("between")]).await;
                        }
                    }
                }
                is_done.store(true, Ordering::Release);
                (sent, cluster)
            }
        });
        let mut last: HashMap<String, i32> = HashMap::new();
        let mut received = 0;
        loop {
            let was_done = is_done.load(Ordering::Acquire);
            let batch = receiver.receive(Receive::up_to(20)).await.expect("received");
            if batch.is_empty() && was_done {
                break;
            }
            for delivery in batch {
                if let Some(group) = delivery.message.attributes.get(Outgoing::GROUP) {
                    let number: i32 = body(&delivery).parse().expect("a number");
                    let before = last.insert(group.to_owned(), number).unwrap_or(-1);
                    assert_eq!(number, before + 1, "group {group}");
                    received += 1;
                }
                acknowledge(&receiver, &delivery).await.expect("acknowledged");
            }
        }
        let (sent, cluster) = sending.await.expect("a task");
        assert_eq!(received, sent);
        let by_node = cluster.keys_by_node("{queue:spread*}:meta");
        assert!(by_node.iter().all(|keys| *keys > 0), "{by_node:?}");
    });
}

#[tokio::test]
async fn a_partition_that_is_created_late_is_received_from() {
    let (server, backend) = start().await;
    backend.set_partitions("spread", 9).await.expect("spread");
    let stale = queue(&backend, "spread");
    send_all(&stale, (0..50).map(|n| of_group(&n.to_string(), "x")).collect()).await;
    let other = open(&server.url()).await;
    other.set_partitions("spread", 1).await.expect("spread");
    let receiver = queue(&other, "spread");
    assert_eq!(drain(&receiver).await.len(), 50);
    eventually("the partitions are gone", async || {
        receive(&receiver).await.expect("received");
        other.partitions("spread").await.expect("known") == Partitions::SINGLE
    })
    .await;
    // Like a program that was suspended for hours and still assumes nine.
    let frozen = open(&server.url()).await;
    frozen.set_partitions("spread", 9).await.expect("spread");
    let late = queue(&frozen, "spread");
    send_all(&late, vec![of_group("first", "y")]).await;
    server.command(&["DEL", "{queue:spread}:partitions"]);
    send_all(&late, (0..50).map(|n| of_group(&n.to_string(), "z")).collect()).await;
    let newcomer = open(&server.url()).await;
    let newcomer = queue(&newcomer, "spread");
    eventually("all is received", async || {
        drain(&newcomer).await;
        partitions_with_messages(&server).is_empty()
    })
    .await;
}

/// The layout was changed when the clock of the server was a day ahead.
#[tokio::test]
async fn a_clock_that_was_set_back_hides_no_partition_from_receivers() {
    let (server, backend) = start().await;
    let receiver = queue(&backend, "spread");
    let time = server.command(&["TIME"]);
    let seconds: u64 = time.lines().next().and_then(|text| text.parse().ok()).expect("a time");
    let ahead = (seconds + 86_400) * 1_000_000;
    let key = "{queue:spread}:partitions";
    server.command(&["SET", key, &format!("2 2 {ahead} 1")]);
    assert_eq!(receive(&receiver).await.expect("received"), None);

    let other = open(&server.url()).await;
    other.set_partitions("spread", 9).await.expect("spread");
    let stored = server.command(&["GET", key]);
    assert_eq!(stored.trim(), format!("9 9 {} 1", ahead + 1));
    let sender = queue(&other, "spread");
    send_all(&sender, (0..50).map(|n| of_group(&n.to_string(), "x")).collect()).await;
    let mut received = 0;
    eventually("all is received", async || {
        received += drain(&receiver).await.len();
        received == 50
    })
    .await;

    // Neither does a layout without a predecessor: the key was deleted in between.
    server.command(&["SET", key, &format!("2 2 {} 1", ahead + 1000)]);
    let known = open(&server.url()).await;
    let known = queue(&known, "spread");
    assert_eq!(receive(&known).await.expect("received"), None);
    server.command(&["DEL", key]);
    other.set_partitions("spread", 9).await.expect("spread");
    send_all(&sender, (0..50).map(|n| of_group(&n.to_string(), "y")).collect()).await;
    let mut received = 0;
    eventually("all is received again", async || {
        received += drain(&known).await.len();
        received == 50
    })
    .await;
}

/// Each call has its own limit of bytes, and none is made once there is enough.
#[tokio::test]
async fn large_messages_of_several_partitions_come_a_few_at_a_time() {
    let (server, backend) = start().await;
    let queue = queue_with_partitions(&backend, 3);
    // If the first partition has none, all others are queried at once.
    for (size, most) in [(700 << 10, 3), (2 << 20, 2)] {
        let text = "x".repeat(size);
        for n in 0..12 {
            send_all(&queue, vec![of_group(&n.to_string(), &*text)]).await;
        }
        assert_eq!(partitions_with_messages(&server).len(), 3, "all partitions are used");
        let mut received = 0;
        while received < 12 {
            let deliveries = queue.receive(Receive::up_to(12).visibility(LONG)).await;
            let deliveries = deliveries.expect("received");
            assert!((1..=most).contains(&deliveries.len()), "{} of {size}", deliveries.len());
            received += deliveries.len();
            for delivery in &deliveries {
                acknowledge(&queue, delivery).await.expect("acknowledged");
            }
        }
        assert_eq!(counts(&queue).await.0, 0);
    }
}

#[tokio::test]
async fn a_limit_is_shared_out_and_new_messages_go_where_there_is_room() {
    let (_server, backend) = start().await;
    let options = QueueOptions::new().partitions(4).max_size(12);
    let queue = backend.queue("bounded", options).expect("a queue");
    let mut stored = 0;
    for n in 0..30 {
        let outcome = queue.send(vec![new(n.to_string())]).await.expect("known").remove(0);
        match outcome {
            Ok(_) => stored += 1,
            Err(error) => assert!(matches!(error, Error::MailboxFull { .. }), "{error}"),
        }
    }
    assert_eq!((stored, counts(&queue).await.0), (12, 12));
    for n in 0..30 {
        let outcome = queue.send(vec![of_group(&n.to_string(), "x")]).await.expect("known");
        assert!(matches!(outcome[0], Err(Error::MailboxFull { .. })));
    }
    drain(&queue).await;
    let batch = (0..30).map(|n| new(n.to_string())).collect();
    let outcomes = queue.send(batch).await.expect("known");
    assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 12);
}

#[tokio::test]
async fn invalid_options_are_refused() {
    let (server, backend) = start().await;
    for wrong in [0, 1001, u32::MAX] {
        let refused = backend.set_partitions("q", wrong).await.expect_err("refused");
        assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused}");
        let options = QueueOptions::new().partitions(wrong);
        assert!(backend.queue("q", options).is_err());
    }
    assert_eq!(server.command(&["DBSIZE"]), "0");
    let mortal = open(&format!("{}?default_ttl=60", server.url())).await;
    let refused = mortal.set_partitions("q", 2).await.expect_err("refused").to_string();
    assert!(refused.contains("default_ttl"), "{refused}");
    // A handle with a time to live may not use a queue to which others have added partitions.
    backend.set_partitions("spread", 3).await.expect("spread");
    let text = send(&queue(&mortal, "spread"), "x").await.expect_err("refused").to_string();
    assert!(text.contains("default_ttl"), "{text}");
    let text =
        send(&queue_with_ttl(&backend, "spread"), "x").await.expect_err("refused").to_string();
    assert!(text.contains("default_ttl"), "{text}");
    server.command(&["SET", "{queue:q}:partitions", "12 apples"]);
    let text = send(&queue(&backend, "q"), "x").await.expect_err("refused").to_string();
    assert!(text.contains("{queue:q}:partitions") || text.contains("of another type"), "{text}");
}

fn queue_with_ttl(backend: &Mailboxes, name: &str) -> Arc<dyn Queue> {
    let options = QueueOptions::new().default_ttl(Duration::from_secs(1000));
    backend.queue(name, options).expect("opened")
}

/// The second handle is refused, and the first one goes on.
#[tokio::test]
async fn a_queue_has_no_time_to_live_together_with_partitions() {
    let (server, backend) = start().await;
    let ttl = QueueOptions::new().default_ttl(Duration::from_secs(1000));
    let spread = QueueOptions::new().partitions(3);
    let refused = |name: &str, options: QueueOptions| {
        let error = backend.queue(name, options).expect_err("refused");
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains("partitions"), "{error}");
    };
    refused("q", ttl.partitions(3));

    let mortal = backend.queue("mortal", ttl.partitions(1)).expect("opened");
    refused("mortal", spread);
    let error = backend.set_partitions("mortal", 3).await.expect_err("refused");
    assert!(error.to_string().contains("default_ttl"), "{error}");
    send(&mortal, "x").await.expect("sent");
    assert!(server.command(&["PTTL", "{queue:mortal}:meta"]).parse::<i64>().expect("a number") > 0);

    let wide = backend.queue("wide", spread).expect("opened");
    refused("wide", ttl);
    send(&wide, "x").await.expect("sent");
    backend.set_partitions("known", 3).await.expect("spread");
    let known = queue(&backend, "known");
    send(&known, "x").await.expect("sent");
    refused("known", ttl);

    // A handle that is opened before the partitions of others are known fails later, by itself.
    backend.set_partitions("late", 3).await.expect("spread");
    let (late, silent) = (queue_with_ttl(&backend, "late"), queue(&backend, "late"));
    assert!(send(&late, "x").await.is_err());
    send(&silent, "x").await.expect("sent");
    let keys = server.command(&["KEYS", "{queue:late*"]);
    // Records of calls expire by themselves.
    for key in keys.lines().filter(|key| !key.contains("call")) {
        assert_eq!(server.command(&["PTTL", key]), "-1", "{key}");
    }
    let everywhere = open(&format!("{}?partitions=3", server.url())).await;
    assert!(everywhere.queue("q", ttl).is_err());
}

/// Another program adds partitions to a queue with a time to live: from then on, nothing of it expires.
#[tokio::test]
async fn a_queue_that_gets_partitions_loses_its_time_to_live() {
    let server = RedisServer::start();
    let (owner, other) = (open(&server.url()).await, open(&server.url()).await);
    let lasts = |name: &str| {
        ["pending", "invisible", "data", "meta"]
            .map(|key| server.command(&["PTTL", &format!("{{queue:{name}}}:{key}")]))
            .iter()
            .all(|left| ["-1", "-2"].contains(&left.as_str()))
    };
    for name in ["by-a-program", "by-a-person"] {
        send(&queue_with_ttl(&owner, name), "x").await.expect("sent");
        assert!(!lasts(name), "{name}");
    }
    let spread = other.queue("by-a-program", QueueOptions::new().partitions(4)).expect("opened");
    assert_eq!(spread.counts().await.expect("counted").ready, 1);
    send(&spread, "y").await.expect("sent");
    other.set_partitions("by-a-person", 4).await.expect("spread");
    assert!(lasts("by-a-program") && lasts("by-a-person"));
}

#[tokio::test]
async fn a_queue_with_partitions_set_by_a_program_leaves_nothing_behind() {
    let server = RedisServer::start();
    let backend = open(&format!("{}?partitions=3", server.url())).await;
    let short_lived = queue(&backend, "reply-1");
    for n in 0..20 {
        send(&short_lived, &n.to_string()).await.expect("sent");
    }
    assert_eq!(drain(&short_lived).await.len(), 20);
    drop(short_lived);
    let is_left = || server.command(&["KEYS", "{queue:reply*"]);
    let is_left = || is_left().lines().filter(|key| !key.contains(":call:")).count();
    eventually("nothing is left", async || is_left() == 0).await;
    // The number that an operator has set stays, whatever programs request; even if it is 1.
    let made_whole = queue(&backend, "whole");
    for n in 0..20 {
        send(&made_whole, &n.to_string()).await.expect("sent");
    }
    backend.set_partitions("whole", 1).await.expect("spread");
    eventually("it is whole", async || {
        drain(&made_whole).await;
        backend.partitions("whole").await.expect("known") == Partitions::SINGLE
    })
    .await;
    for n in 0..20 {
        send(&made_whole, &n.to_string()).await.expect("sent");
    }
    assert_eq!(backend.partitions("whole").await.expect("known"), Partitions::SINGLE);
    backend.set_partitions("kept", 2).await.expect("spread");
    let kept = queue(&backend, "kept");
    send(&kept, "x").await.expect("sent");
    drain(&kept).await;
    drop(kept);
    backend.close().await;
    let backend = open(&server.url()).await;
    assert_eq!(backend.partitions("kept").await.expect("known"), Partitions::new(2, 2));
}

#[tokio::test]
async fn a_partition_that_is_missing_in_the_layout_is_found_and_restored() {
    let (server, backend) = start().await;
    backend.set_partitions("spread", 5).await.expect("spread");
    let queue = queue(&backend, "spread");
    send_all(&queue, (0..50).map(|n| of_group(&n.to_string(), "x")).collect()).await;
    backend.close().await;
    server.command(&["DEL", "{queue:spread}:partitions"]);
    // Of another program: this number of partitions is impossible.
    server.command(&["HSET", "{queue:spread#5000}:data", "x", "y"]);
    let backend = open(&server.url()).await;
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    let texts: Vec<_> = diagnosis.problems().map(|finding| finding.text.clone()).collect();
    assert!(texts.iter().any(|text| text.contains("there is a partition 4")), "{texts:?}");
    backend.diagnose(true).await.expect("a diagnosis");
    assert_eq!(backend.diagnose(false).await.expect("a diagnosis").problems().count(), 0);
    assert_eq!(drain(&crate::common::queue(&backend, "spread")).await.len(), 50);
}

/// One of three servers is stopped: messages on the others are received, and new ones go there.
#[tokio::test]
async fn partitions_go_on_while_one_of_them_does_not_answer() {
    let cluster =
        RedisCluster::builder().replicas(0).setting("cluster-require-full-coverage", "no");
    // With a long timeout, the other nodes do not consider it failed.
    let cluster = cluster.node_timeout(Duration::from_secs(60)).start();
    let backend = open(&format!("{}?response_timeout=60", cluster.url())).await;
    let queue = queue_with_partitions(&backend, 12);
    send_all(&queue, (0..120).map(|n| of_group(&n.to_string(), n.to_string())).collect()).await;
    let lost = cluster.primary_of("{queue:spread#3}:data");
    let on_it = |number: u32| {
        let tag = if number == 0 { String::new() } else { format!("#{number}") };
        cluster.primary_of(&format!("{{queue:spread{tag}}}:data")) == lost
    };
    let silent = (0..12).filter(|number| on_it(*number)).count();
    assert!((1..12).contains(&silent), "{silent} partitions on one node");
    let held = cluster.node(lost).command(&[
        "EVAL",
        "local n = 0 for _, key in \
        ipairs(redis.call('KEYS', '*:data')) do n = n + redis.call('HLEN', key) end return n",
        "0",
    ]);
    let held: usize = held.parse().expect("a number");
    cluster.node(lost).pause();
    let mut bodies = BTreeSet::new();
    eventually("the others are drained", async || {
        for delivery in queue.receive(Receive::up_to(10)).await.expect("received") {
            acknowledge(&queue, &delivery).await.expect("acknowledged");
            bodies.insert(body(&delivery));
        }
        bodies.len() == 120 - held
    })
    .await;
    for n in 0..2000 {
        let sent = queue.send(vec![new(n.to_string())]);
        tokio::time::timeout(TIMEOUT, sent).await.expect("not at the silent one").expect("sent");
    }
    eventually("the others are drained again", async || {
        let batch = queue.receive(Receive::up_to(1000)).await.expect("received");
        let settles = batch.iter().map(|delivery| Settle::acknowledge(delivery.receipt.clone()));
        queue.settle(settles.collect()).await.expect("settled");
        batch.is_empty()
    })
    .await;
    // A waiter is woken for the others, and does not fail.
    let healthy = (0..).map(|n| of_group(&n.to_string(), "news"));
    let other = queue_with_partitions(&backend, 12);
    for message in healthy.take(3) {
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { wait_for(&queue, LONG).await }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let other = other.clone();
        let send = async move {
            // Some groups are on the stopped server; messages without a group go to others after a while.
            let _ = tokio::join!(other.send(vec![message]), async {
                for n in 0..200 {
                    let _ = other.send(vec![new(n.to_string())]).await;
                }
            });
        };
        let sending = tokio::spawn(async move { tokio::time::timeout(TIMEOUT, send).await });
        let found = tokio::time::timeout(TIMEOUT, waiting).await.expect("in time");
        let found = found.expect("a task").expect("received").expect("a message");
        acknowledge(&queue, &found).await.expect("acknowledged");
        sending.abort();
    }
    cluster.node(lost).resume();
    eventually("it is heard again", async || {
        drain(&queue).await;
        counts(&queue).await.0 == 0
    })
    .await;
}

#[tokio::test]
async fn a_purge_covers_all_partitions_including_new_ones() {
    let (server, backend) = start().await;
    let old = queue(&backend, "spread");
    send(&old, "before").await.expect("sent");
    let other = open(&server.url()).await;
    other.set_partitions("spread", 8).await.expect("spread");
    send_all(&queue(&other, "spread"), (0..50).map(|n| of_group(&n.to_string(), "x")).collect())
        .await;
    assert_eq!(old.purge().await.expect("purged"), 51);
    assert_eq!(counts(&queue(&other, "spread")).await.0, 0);
}
