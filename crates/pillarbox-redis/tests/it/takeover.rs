//! Failovers of sentinels and clusters: waiters are woken by the new primary, and calls that hang in the old one
//! are not taken for done.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Delivery, Mailboxes, Queue, Receive, Result, Settle};
use pillarbox_testing::server::{Flavour, RedisCluster, RedisServer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, block_in_place};

use crate::common::family::Family;
use crate::common::steps::{
    TIMEOUT, acknowledge, body, channels, counts, eventually, send, settle, wait_for,
};
use crate::common::{open, queue};

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than a failover takes on any machine.
const LONG: Duration = Duration::from_secs(120);
/// Option for retries longer than any failover takes.
const LONG_RETRY: &str = "?retry_for=90";

/// Number of other queues with a waiter.
///
/// The more there are, the longer is the poll interval: with this number, longer than any test waits.
const OTHERS: usize = 30;

/// Starts a receive with a long wait.
fn waiting(queue: &Arc<dyn Queue>) -> JoinHandle<Result<Option<Delivery>>> {
    let queue = queue.clone();
    tokio::spawn(async move { wait_for(&queue, LONG).await })
}

/// Starts waiters on other queues, so that only a wake-up can bring a message in time.
fn others(backend: &Mailboxes) -> Vec<JoinHandle<Result<Option<Delivery>>>> {
    (0..OTHERS).map(|n| waiting(&queue(backend, &format!("other-{n}")))).collect()
}

/// Waits until the queue `q` is subscribed at its primary.
async fn subscribed(family: &Family) {
    eventually("the queue is subscribed", async || {
        let channels = channels(family.server(family.primary()));
        channels.iter().any(|channel| channel.starts_with("{queue:q}"))
    })
    .await;
}

/// Sends a message and checks that a wake-up brings it to the waiter.
async fn arrives(
    sender: &Arc<dyn Queue>,
    waiting: JoinHandle<Result<Option<Delivery>>>,
    text: &str,
) -> Delivery {
    assert!(!waiting.is_finished(), "it no longer waits");
    send(sender, text).await.unwrap_or_else(|error| panic!("{error}"));
    let delivery = tokio::time::timeout(TIMEOUT, waiting).await;
    let delivery = delivery.unwrap_or_else(|_| panic!("{text}: no wake-up arrived"));
    let delivery = delivery.expect("a task").unwrap_or_else(|error| panic!("{error}"));
    let delivery = delivery.expect("a message");
    assert_eq!((body(&delivery).as_str(), delivery.message.delivery_count), (text, 1));
    delivery
}

/// Checks that waiters are woken by the new primary, whose number `take_over` returns.
async fn long_polls_go_on(mut family: Family, take_over: impl Fn(&mut Family) -> usize) {
    let url = format!("{}{LONG_RETRY}", family.url());
    let (backend, elsewhere) = (open(&url).await, open(&url).await);
    let (receiver, sender) = (queue(&backend, "q"), queue(&elsewhere, "q"));
    let _others = others(&backend);
    for round in 0..2 {
        let before = waiting(&receiver);
        subscribed(&family).await;
        let new = block_in_place(|| take_over(&mut family));
        assert_eq!(family.primary(), new);
        subscribed(&family).await;
        let delivery = arrives(&sender, before, &format!("after failover {round}")).await;
        acknowledge(&receiver, &delivery).await.expect("acknowledged");
        let after = waiting(&receiver);
        let delivery = arrives(&sender, after, &format!("later {round}")).await;
        acknowledge(&receiver, &delivery).await.expect("acknowledged");
        block_in_place(|| family.wait_until_whole());
    }
    assert_eq!(counts(&receiver).await, (0, 0, 0, 4));
}

fn kill(family: &mut Family) -> usize {
    family.wait_until_replicated();
    let old = family.primary();
    family.kill(old);
    let new = family.wait_for_promotion(old);
    family.restart(old);
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_when_sentinels_replace_a_dead_primary() {
    long_polls_go_on(Family::sentinels(), kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_after_an_orderly_failover_of_sentinels() {
    let hand_over = |family: &mut Family| {
        let new = family.hand_over();
        // Until then the old primary accepts messages as well, which are lost.
        family.wait_until_whole();
        new
    };
    long_polls_go_on(Family::sentinels(), hand_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_when_a_cluster_replaces_a_dead_primary() {
    long_polls_go_on(Family::cluster("q"), kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_after_an_orderly_failover_of_a_node() {
    long_polls_go_on(Family::cluster("q"), |family| family.hand_over()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_when_their_slot_moves() {
    let family = Family::cluster("q");
    let slot_moves = |family: &mut Family| {
        let Family::Cluster(cluster, slot) = family else { panic!("no cluster") };
        let old = cluster.primary_of_slot(*slot);
        let new = cluster.primaries().into_iter().find(|node| *node != old).expect("another");
        cluster.move_slot(*slot, new);
        new
    };
    long_polls_go_on(family, slot_moves).await;
}

async fn long_polls_go_on_in_a_cluster_of(flavour: Flavour) {
    if !flavour.is_installed() {
        println!("skipped: {} is not installed", flavour.name());
        return;
    }
    let cluster = RedisCluster::builder().flavour(flavour).start();
    long_polls_go_on(Family::of_cluster(cluster, "q"), kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_when_a_cluster_of_valkey_replaces_a_dead_primary() {
    long_polls_go_on_in_a_cluster_of(Flavour::Valkey).await;
}

/// Redis 6.2 has no sharded channels.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_polls_go_on_when_a_cluster_of_redis_6_2_replaces_a_dead_primary() {
    long_polls_go_on_in_a_cluster_of(Flavour::Redis62).await;
}

/// A primary hangs: another takes over, the clients follow by themselves, and when the old one resumes, it
/// settles nothing.
async fn a_hung_primary_is_left(family: Family) {
    let url = format!("{}{LONG_RETRY}&response_timeout=1", family.url());
    let backend = open(&url).await;
    let receiver = queue(&backend, "q");
    let old = family.primary();
    let old_url = format!(
        "{}?replicas=1&replicas_timeout=0.2&retry_for=2&response_timeout=60",
        family.server(old).url()
    );
    let at_old_backend = open(&old_url).await;
    let at_old = queue(&at_old_backend, "q");
    send(&receiver, "passed on").await.expect("sent");
    assert_eq!(counts(&at_old).await, (1, 0, 0, 1));
    let request = Receive::one().visibility(HOUR);
    let first = receiver.receive(request).await.expect("received").pop().expect("a message");
    block_in_place(|| family.wait_until_replicated());

    family.server(old).pause();
    // The hung primary answers none of these.
    let long_poll = waiting(&receiver);
    let sender = receiver.clone();
    let sending = tokio::spawn(async move { send(&sender, "meanwhile").await });
    settle(&receiver, Settle::nack(first.receipt.clone(), HOUR)).await.expect("given back");
    sending.await.expect("a task").expect("sent");
    let delivery = long_poll.await.expect("a task").expect("received").expect("a message");
    assert_eq!(body(&delivery), "meanwhile");
    let new = block_in_place(|| family.wait_for_promotion(old));
    assert_ne!(new, old);

    family.server(old).resume();
    // Whether or not it knows that it is no longer the primary.
    let late = settle(&at_old, Settle::acknowledge(first.receipt.clone())).await;
    assert!(late.is_err(), "a stale receipt was accepted");
    block_in_place(|| family.wait_until_whole());
    let late = acknowledge(&receiver, &first).await;
    assert!(late.is_err(), "a stale receipt was accepted");
    acknowledge(&receiver, &delivery).await.expect("acknowledged");
    assert_eq!(counts(&receiver).await, (0, 0, 1, 2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_leave_a_primary_that_hangs_when_sentinels_replace_it() {
    a_hung_primary_is_left(Family::sentinels()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_leave_a_primary_that_hangs_when_a_cluster_replaces_it() {
    a_hung_primary_is_left(Family::cluster("q")).await;
}

/// All servers hang for a while: the calls made meanwhile succeed when they resume.
async fn clients_survive_a_hang(family: Family, servers: usize) {
    let backend = open(&format!("{}{LONG_RETRY}&response_timeout=1", family.url())).await;
    let receiver = queue(&backend, "q");
    send(&receiver, "before").await.expect("sent");
    let before = wait_for(&receiver, LONG).await.expect("received").expect("a message");
    let long_poll = waiting(&receiver);
    subscribed(&family).await;
    (0..servers).for_each(|server| family.server(server).pause());
    let (sender, settler) = (receiver.clone(), receiver.clone());
    let sending = tokio::spawn(async move { send(&sender, "meanwhile").await });
    let settling = tokio::spawn(async move { acknowledge(&settler, &before).await });
    // Longer than the response timeout.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!sending.is_finished() && !settling.is_finished() && !long_poll.is_finished());
    (0..servers).for_each(|server| family.server(server).resume());
    sending.await.expect("a task").expect("sent");
    settling.await.expect("a task").expect("acknowledged");
    let delivery = long_poll.await.expect("a task").expect("received").expect("a message");
    assert_eq!(body(&delivery), "meanwhile");
    acknowledge(&receiver, &delivery).await.expect("acknowledged");
    assert_eq!(counts(&receiver).await.0, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_after_all_servers_hung() {
    clients_survive_a_hang(Family::sentinels(), 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_goes_on_after_all_nodes_of_a_cluster_hung() {
    clients_survive_a_hang(Family::cluster("q"), 6).await;
}

/// A call is answered by a server that is replaced before the confirmation. The next one has a replica that is up
/// to date, but neither has the message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_the_effect_of_a_call_does_not_confirm_it() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let replica = RedisServer::builder().setting("repl-diskless-sync-delay", "0").start();
    let port = new.port().to_string();
    replica.command(&["REPLICAOF", "127.0.0.1", &port]);
    eventually("it is a replica", async || replica.info("master_link_status") == "up").await;
    // The first connection, which is for calls, leads to the old server, and all others to the new one.
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("its number"));
    let ports = [old.port(), new.port()];
    let proxy = tokio::spawn(async move {
        for connection in 0.. {
            let (mut client, _) = listener.accept().await.expect("a connection");
            let port = ports[usize::from(connection > 0)];
            let mut server = TcpStream::connect(("127.0.0.1", port)).await.expect("a server");
            tokio::spawn(async move { copy_bidirectional(&mut client, &mut server).await });
        }
    });
    let backend = open(&format!("{url}?replicas=1&replicas_timeout=5&retry_for=1")).await;
    let queue = queue(&backend, "q");
    let text = send(&queue, "only at the old one").await.expect_err("unconfirmed").to_string();
    assert!(text.contains("0 of 1 replicas confirmed"), "{text}");
    assert_eq!(old.command(&["LLEN", "{queue:q}:pending"]), "1");
    assert_eq!(new.command(&["DBSIZE"]), "0");
    proxy.abort();
}
