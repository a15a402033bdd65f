//! Clusters with dead nodes: the rest works, and errors name what is missing.

use std::time::Duration;

use pillarbox_core::{Error, Receive, Settle};
use pillarbox_testing::server::{RedisCluster, slot_of};
use tokio::task::block_in_place;

use crate::common::steps::{
    TIMEOUT, acknowledge, body, counts, drain, eventually, send, send_later, settle, take, wait_for,
};
use crate::common::{open, queue};

/// Key of the list of queues.
const REGISTRY: &str = "pillarbox:queues";

/// Returns names of queues at this node.
fn names_at(cluster: &RedisCluster, node: usize, some: usize) -> Vec<String> {
    let names = (0..).map(|n| format!("queue-{n}"));
    let is_there =
        |name: &String| cluster.primary_of_slot(slot_of(&format!("{{queue:{name}}}"))) == node;
    names.filter(is_there).take(some).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queues_at_a_dead_node_wait_for_it_and_others_work() {
    let builder = RedisCluster::builder().replicas(0).appendonly("always");
    let mut cluster = builder.setting("cluster-require-full-coverage", "no").start();
    // This node also has the list of queues.
    let dead = cluster.primary_of(REGISTRY);
    let alive = cluster.primaries().into_iter().find(|node| *node != dead).expect("another");
    let names = names_at(&cluster, dead, 1);
    let [known, new, newer] = names_at(&cluster, alive, 3).try_into().expect("three names");
    let hasty = open(&format!("{}?retry_for=2", cluster.url())).await;
    let patient = open(&format!("{}?retry_for=120", cluster.url())).await;
    let (gone, gone_hasty) = (queue(&patient, &names[0]), queue(&hasty, &names[0]));
    let known = queue(&patient, &known);
    for queue in [&gone, &known] {
        send(queue, "before").await.expect("sent");
    }

    cluster.kill(dead);
    let started = std::time::Instant::now();
    let refused = send(&gone_hasty, "too late").await.expect_err("the node is down");
    assert!(matches!(refused, Error::Connection { .. }) && refused.is_transient(), "{refused}");
    let (text, place) = (refused.to_string(), cluster.node(dead).url());
    for part in [place.as_str(), names[0].as_str(), "tried for 2s", "is it running there?"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(started.elapsed() < TIMEOUT, "the timeout of another backend applied");

    // The unreachable list of queues does not delay these for long.
    let others = async {
        assert_eq!(drain(&known).await, ["before"]);
        let (new, newer) = (queue(&patient, &new), queue(&patient, &newer));
        for queue in [&known, &new] {
            send(queue, "one").await.expect("sent");
            send(queue, "two").await.expect("sent");
            assert_eq!(drain(queue).await, ["one", "two"]);
            send(queue, "stays").await.expect("sent");
        }
        let receiver = newer.clone();
        let waiting = tokio::spawn(async move { wait_for(&receiver, 2 * TIMEOUT).await });
        send(&newer, "arrives").await.expect("sent");
        let delivery = waiting.await.expect("a task").expect("received").expect("a message");
        acknowledge(&newer, &delivery).await.expect("acknowledged");
        new
    };
    let new = tokio::time::timeout(2 * TIMEOUT, others).await.expect("not delayed");

    let sender = gone.clone();
    let sending = tokio::spawn(async move { send(&sender, "meanwhile").await });
    let receiver = gone.clone();
    let receiving = tokio::spawn(async move { wait_for(&receiver, 6 * TIMEOUT).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!sending.is_finished() && !receiving.is_finished());
    block_in_place(|| {
        cluster.restart(dead);
        cluster.wait_until_whole();
    });
    sending.await.expect("a task").expect("sent");
    let before = receiving.await.expect("a task").expect("received").expect("a message");
    acknowledge(&gone, &before).await.expect("acknowledged");
    assert_eq!(drain(&gone).await, ["meanwhile"]);
    take(&new).await;
    // The list is updated in the background.
    eventually("the queue is on the list", async || {
        let listed = patient.queues().await.expect("a list");
        listed.iter().any(|name| name == new.name())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_that_is_down_is_reported_and_used_again_after_recovery() {
    let mut cluster = RedisCluster::builder().replicas(0).appendonly("always").start();
    let dead = cluster.primary_of(REGISTRY);
    let alive = cluster.primaries().into_iter().find(|node| *node != dead).expect("another");
    let name = names_at(&cluster, alive, 1).remove(0);
    let backend = open(&format!("{}?retry_for=0.5", cluster.url())).await;
    let queue = queue(&backend, &name);
    send(&queue, "before").await.expect("sent");
    cluster.kill(dead);
    eventually("the others know", async || match queue.counts().await {
        Ok(_) => false,
        Err(error) => {
            let text = error.to_string();
            assert!(
                text.contains("CLUSTERDOWN") && text.contains("slots have no primary"),
                "{text}"
            );
            true
        }
    })
    .await;
    assert!(send(&queue, "no").await.is_err());
    block_in_place(|| {
        cluster.restart(dead);
        cluster.wait_until_whole();
    });
    assert_eq!(drain(&queue).await, ["before"]);
    assert_eq!(counts(&queue).await, (0, 0, 0, 1));
}

/// A script that pops the last ready message finds the list gone, and a node that is giving its slot away refuses
/// access to missing keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_that_empties_the_list_while_the_slot_moves_loses_nothing() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let slot = slot_of("{queue:q}");
    let from = cluster.primary_of_slot(slot);
    let to = cluster.primaries().into_iter().find(|node| *node != from).expect("another");
    let backend = open(&format!("{}?retry_for=60", cluster.url())).await;
    let queue = queue(&backend, "q");
    // The caller has a record there from now on.
    send(&queue, "first").await.expect("sent");
    let first = take(&queue).await;
    settle(&queue, Settle::nack(first.receipt, Duration::ZERO)).await.expect("given back");
    let soon = Duration::from_millis(100);
    send_later(&queue, "due", soon).await.expect("sent");
    tokio::time::sleep(2 * soon).await;
    cluster.begin_move(slot, to);
    let request = Receive::up_to(10).visibility(Duration::from_secs(3600));
    let mut received = queue.receive(request).await.expect("received");
    block_in_place(|| cluster.move_slot(slot, to));
    received.extend(queue.receive(request).await.expect("received"));
    assert_eq!(received.iter().map(body).collect::<Vec<_>>(), ["first", "due"]);
    for delivery in &received {
        acknowledge(&queue, delivery).await.expect("acknowledged");
    }
    assert_eq!(counts(&queue).await, (0, 0, 0, 2));
}

/// Messages beyond the maximum size of a call go back to the list, or become due again if it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receive_of_too_many_bytes_while_the_slot_moves_loses_nothing() {
    let cluster = RedisCluster::builder().replicas(0).start();
    let slot = slot_of("{queue:q}");
    let from = cluster.primary_of_slot(slot);
    let to = cluster.primaries().into_iter().find(|node| *node != from).expect("another");
    let backend = open(&format!("{}?retry_for=60", cluster.url())).await;
    let queue = queue(&backend, "q");
    // The caller has a record there from now on.
    send(&queue, "first").await.expect("sent");
    let first = take(&queue).await;
    acknowledge(&queue, &first).await.expect("acknowledged");
    for character in ["a", "b", "c"] {
        send(&queue, &character.repeat(700 << 10)).await.expect("sent");
    }
    cluster.begin_move(slot, to);
    let request = Receive::up_to(3).visibility(Duration::from_secs(3600));
    let mut received = queue.receive(request).await.expect("received");
    assert_eq!(received.len(), 1, "only one fits");
    block_in_place(|| cluster.move_slot(slot, to));
    while received.len() < 3 {
        let more = queue.receive(request).await.expect("received");
        assert!(!more.is_empty(), "{} of 3 messages are left", received.len());
        received.extend(more);
    }
    let characters: Vec<_> =
        received.iter().map(|delivery| body(delivery)[..1].to_owned()).collect();
    assert_eq!(characters, ["a", "b", "c"]);
    for delivery in &received {
        acknowledge(&queue, delivery).await.expect("acknowledged");
    }
    assert_eq!(counts(&queue).await, (0, 0, 0, 4));
}
