//! Clients and servers that are killed at any moment, and connections that break in the middle of a reply.
//!
//! `make crash-redis` runs the long version: `PILLARBOX_KILLS` is the number of kills of each kind.

use std::time::Duration;

use pillarbox_redis::redis;
use pillarbox_testing::campaign::Record;
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, setting};
use pillarbox_testing::server::RedisServer;
use rand::RngExt;

use crate::common::proxy::Proxy;
use crate::common::stored::Stored;
use crate::common::{open, queue};

const QUEUE: &str = "campaign";

/// Entry point of the child processes. Not a test by itself.
#[test]
#[ignore = "runs in a process of its own, started by the campaigns"]
fn client() {
    crate::common::client(QUEUE);
}

fn client_of(url: &str, seed: usize) -> Child {
    Child::start("crash::client", url, &seed.to_string())
}

/// Sleeps for a random time of at most this many milliseconds.
fn sleep_up_to(at_most: u64) {
    std::thread::sleep(Duration::from_micros(rand::rng().random_range(0..at_most * 1000)));
}

/// Checks that the keys are consistent and match the record.
#[track_caller]
fn check(server: &RedisServer, record: &Record, what: &str) -> String {
    assert_eq!(record.failures(), [""; 0], "{what}");
    on_threads(async {
        let backend = open(&server.url()).await;
        let queue = queue(&backend, QUEUE);
        let client = redis::Client::open(server.url()).expect("a client");
        let stored = Stored::read(&client, queue.name()).await;
        stored.check().unwrap_or_else(|problem| panic!("{what}: {problem}"));
        let checked = record.check(&queue).await;
        let summary = checked.unwrap_or_else(|wrong| panic!("{what}: {wrong}"));
        backend.close().await;
        assert!(summary.sent > 0 && summary.acknowledged > 0, "{summary:?}");
        let cut = record.sends_cut_short();
        format!("{what}, {cut} sends cut short, nothing lost, nothing back: {summary:?}")
    })
}

/// One client is killed and started again, while another goes on.
#[test]
fn nothing_is_lost_or_resurrected_when_a_client_is_killed() {
    let server = RedisServer::start();
    let kills = setting("PILLARBOX_KILLS", 15);
    let mut record = Record::new();
    let survivor = client_of(&server.url(), 0);
    survivor.wait_for("s", 0);
    for kill in 1..=kills {
        let child = client_of(&server.url(), kill);
        if kill % 8 != 0 {
            child.wait_for("s", 0);
        }
        sleep_up_to(150);
        record.add(&child.kill());
    }
    survivor.wait_for("s", survivor.reported("s"));
    record.add(&survivor.kill());
    println!("clients: {}", check(&server, &record, &format!("{kills} kills")));
}

/// The server is killed while clients work, and restarts from its disk.
#[test]
fn nothing_is_lost_or_resurrected_when_the_server_is_killed() {
    let mut server = RedisServer::builder().appendonly("always").start();
    let kills = setting("PILLARBOX_KILLS", 12);
    let mut record = Record::new();
    let clients = [1, 2].map(|seed| client_of(&server.url(), seed));
    for _ in 0..kills {
        // All clients work again.
        for client in &clients {
            client.wait_for("s", client.reported("s"));
            client.wait_for("x", client.reported("x"));
        }
        sleep_up_to(60);
        server.kill();
        sleep_up_to(20);
        server.restart();
    }
    for client in &clients {
        client.wait_for("x", client.reported("x"));
    }
    clients.into_iter().for_each(|client| record.add(&client.kill()));
    println!("server: {}", check(&server, &record, &format!("{kills} kills")));
}

/// Connections break off in the middle of replies, and before them.
#[test]
fn nothing_is_lost_or_resurrected_when_replies_are_cut() {
    let server = RedisServer::start();
    let cuts = setting("PILLARBOX_KILLS", 40);
    let mut record = Record::new();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().expect("a runtime");
    let proxy = runtime.block_on(Proxy::to(server.port()));
    // One client has no proxy: it may have settled meanwhile what the others repeat.
    let urls = [proxy.url(), proxy.url(), server.url()];
    let clients = [0, 1, 2].map(|seed| client_of(&urls[seed], seed));
    for cut in 1..=cuts {
        proxy.cut_answer("EVALSHA", rand::rng().random_range(0..400));
        runtime.block_on(proxy.injected(cut));
        for client in &clients {
            client.wait_for("x", client.reported("x"));
        }
    }
    clients.into_iter().for_each(|client| record.add(&client.kill()));
    println!("replies: {}", check(&server, &record, &format!("{cuts} cuts")));
}
