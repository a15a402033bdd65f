//! Ways to connect to a server, and what a backend costs it: connections, keys, commands.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pillarbox_core::{Mailboxes, MessageId, Outgoing, Queue, QueueOptions, Receive};
use pillarbox_redis::{RedisBackend, RedisOptions, redis};
use pillarbox_testing::server::RedisServer;

use crate::common::steps::{
    TIMEOUT, acknowledge, body, channels, counts, drain, eventually, send, send_later, take,
    wait_for,
};
use crate::common::{open, queue, start, start_queue};

/// Sends and receives one message.
async fn works(backend: &Mailboxes) {
    let queue = queue(backend, "q");
    send(&queue, "hello").await.expect("sent");
    assert_eq!(drain(&queue).await, ["hello"]);
}

/// Returns the number of TCP connections of the server.
fn connections(server: &RedisServer) -> usize {
    let list = server.command(&["CLIENT", "LIST"]);
    // This query uses the Unix socket.
    list.lines().filter(|client| client.contains("addr=127.0.0.1:")).count()
}

fn keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    server.command(&["KEYS", pattern]).lines().map(str::to_owned).collect()
}

fn number(text: &str) -> i64 {
    text.parse().unwrap_or_else(|_| panic!("no number: {text}"))
}

/// Starts a receive that waits for one message.
fn waiting(queue: &Arc<dyn Queue>, time: Duration) -> tokio::task::JoinHandle<Option<String>> {
    let queue = queue.clone();
    tokio::spawn(async move {
        let found = wait_for(&queue, time).await.unwrap_or_else(|error| panic!("{error}"));
        found.as_ref().map(body)
    })
}

/// Waits until this number of queues is subscribed and no more commands arrive.
async fn until_idle(server: &RedisServer, queues: usize) {
    eventually("all queues are listened for", async || channels(server).len() == queues).await;
    eventually("no receive polls", async || {
        let before = number(&server.info("total_commands_processed"));
        tokio::time::sleep(Duration::from_millis(200)).await;
        // The queries of this test itself, perhaps with a password.
        number(&server.info("total_commands_processed")) <= before + 2
    })
    .await;
}

/// Receives one message by a wake-up.
async fn is_woken(server: &RedisServer, queue: &Arc<dyn Queue>) {
    let waits = waiting(queue, TIMEOUT);
    until_idle(server, 1).await;
    send(queue, "news").await.expect("sent");
    assert_eq!(waits.await.expect("a task").as_deref(), Some("news"));
}

// Connecting.

#[tokio::test]
async fn a_url_may_have_a_user_a_password_and_a_database() {
    let server = RedisServer::start();
    server.command(&["ACL", "SETUSER", "worker", "on", ">p@ss/word", "+@all", "~*", "&*"]);
    let place = format!("127.0.0.1:{}", server.port());
    let backend = open(&format!("redis://worker:p%40ss%2Fword@{place}/3")).await;
    let queue = queue(&backend, "q");
    send(&queue, "kept").await.expect("sent");
    assert_eq!(backend.queues().await.expect("a list").len(), 1);
    let list = server.command(&["CLIENT", "LIST"]);
    assert!(list.contains("user=worker") && list.contains("db=3"), "{list}");
    assert!(server.info("db3").starts_with("keys="));
    assert_eq!(server.command(&["DBSIZE"]), "0", "nothing is in another database");
    assert!(open(&format!("redis://{place}")).await.queues().await.expect("a list").is_empty());
}

#[tokio::test]
async fn two_databases_of_a_server_do_not_see_each_other() {
    let server = RedisServer::start();
    let one = open(&format!("{}/1", server.url())).await;
    let two = open(&format!("{}/2", server.url())).await;
    let (first, second) = (queue(&one, "q"), queue(&two, "q"));
    let other = waiting(&second, Duration::from_millis(500));
    send(&first, "for one").await.expect("sent");
    assert_eq!(other.await.expect("a task"), None);
    assert_eq!(counts(&second).await, (0, 0, 0, 0));
    assert_eq!(second.purge().await.expect("purged"), 0);
    let found = two.diagnose(true).await.expect("a diagnosis").findings;
    assert_eq!(found, []);
    send(&second, "for two").await.expect("sent");
    assert_eq!(drain(&first).await, ["for one"]);
    assert_eq!(drain(&second).await, ["for two"]);
}

#[tokio::test]
async fn a_server_is_reached_by_its_unix_socket() {
    let server = RedisServer::start();
    let socket = server.socket();
    let backend = open(&format!("redis+unix://{}?db=2", socket.display())).await;
    works(&backend).await;
    let queue = queue(&backend, "q");
    is_woken(&server, &queue).await;
    assert!(server.info("db2").starts_with("keys="));
    assert_eq!(connections(&server), 0);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_server_is_reached_by_tls_if_its_certificate_is_trusted() {
    let server = RedisServer::builder().tls().password("hunter2").start();
    let authority = server.ca_file().expect("an authority");
    let backend = open(&format!("{}?ca={}", server.url(), authority.display())).await;
    works(&backend).await;
    let queue = queue(&backend, "q");
    is_woken(&server, &queue).await;
    let by_name = server.url().replace("127.0.0.1", "localhost");
    let options = RedisOptions::from_url(&by_name).expect("options").ca_file(&authority);
    works(&Mailboxes::new(RedisBackend::open(options).await.expect("opened"))).await;

    let start = Instant::now();
    let options = RedisOptions::from_url(&server.url()).expect("options");
    let error = RedisBackend::open(options.retry_for(Duration::from_secs(2))).await;
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("certificate") && text.contains(&server.port().to_string()), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
    assert!(start.elapsed() < TIMEOUT, "it took {:?}", start.elapsed());
    let plain = server.url().replace("rediss://", "redis://");
    let options = RedisOptions::from_url(&plain).expect("options");
    RedisBackend::open(options.retry_for(Duration::ZERO)).await.expect_err("refused");
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_file_for_tls_that_cannot_be_read_is_named() {
    let options = RedisOptions::from_url("rediss://localhost?ca=/no/such/file.pem");
    let error = RedisBackend::open(options.expect("options")).await.expect_err("refused");
    assert!(error.to_string().contains("cannot read /no/such/file.pem"), "{error}");
}

#[tokio::test]
async fn a_client_of_the_program_can_be_used() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).expect("a client");
    let backend = Mailboxes::new(RedisBackend::from_client(client).expect("opened"));
    assert_eq!(connections(&server), 0, "it connects when first used");
    works(&backend).await;
    let queue = queue(&backend, "q");
    is_woken(&server, &queue).await;
    assert_eq!(connections(&server), 2);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    works(&backend).await;
}

#[tokio::test]
async fn a_client_of_the_newer_protocol_can_be_used() {
    let server = RedisServer::start();
    let url = format!("{}?protocol=resp3", server.url());
    let client = redis::Client::open(url).expect("a client");
    let backend = Mailboxes::new(RedisBackend::from_client(client).expect("opened"));
    works(&backend).await;
    let queue = queue(&backend, "q");
    is_woken(&server, &queue).await;
    send_later(&queue, "later", Duration::from_secs(60)).await.expect("sent");
    assert_eq!(backend.queues().await.expect("listed").len(), 1);
    let diagnosis = backend.diagnose(false).await.expect("diagnosed");
    assert_eq!(diagnosis.problems().count(), 0, "{diagnosis:?}");
    assert!(diagnosis.promise.contains("stores nothing"), "{}", diagnosis.promise);
}

#[tokio::test]
async fn a_connection_of_the_program_can_be_used() {
    let server = RedisServer::start();
    let client = redis::Client::open(server.url()).expect("a client");
    let connection = client.get_multiplexed_async_connection().await.expect("connected");
    let backend = Mailboxes::new(RedisBackend::from_connection(connection).expect("opened"));
    works(&backend).await;
    let ours = queue(&backend, "q");

    // A message of this process is found at once; once or twice it may coincide with a poll.
    let mut times = Vec::new();
    for _ in 0..5 {
        let waits = waiting(&ours, TIMEOUT);
        tokio::time::sleep(Duration::from_millis(50)).await;
        let start = Instant::now();
        send(&ours, "ours").await.expect("sent");
        assert_eq!(waits.await.expect("a task").as_deref(), Some("ours"));
        times.push(start.elapsed());
    }
    times.sort();
    assert!(times[2] < Duration::from_millis(250), "it took {times:?}");

    // A message of another process is found by polling.
    let others = open(&server.url()).await;
    let waits = waiting(&ours, TIMEOUT);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let start = Instant::now();
    send(&queue(&others, "q"), "theirs").await.expect("sent");
    assert_eq!(waits.await.expect("a task").as_deref(), Some("theirs"));
    assert!(start.elapsed() < Duration::from_secs(5), "it took {:?}", start.elapsed());
    assert_eq!(channels(&server), [""; 0]);
    assert!(backend.diagnose(false).await.is_ok());
    backend.close().await;
}

#[test]
fn opening_outside_of_a_runtime_is_an_error() {
    let client = redis::Client::open("redis://localhost").expect("a client");
    let error = RedisBackend::from_client(client).expect_err("no runtime");
    assert!(error.to_string().contains("no reactor running"), "{error}");
}

// Costs.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousands_of_mailboxes_share_two_connections() {
    const QUEUES: usize = 3000;
    const WAITING: usize = 500;
    let (server, backend) = start().await;
    let queues: Vec<_> = (0..QUEUES).map(|n| queue(&backend, &format!("q{n}"))).collect();
    let waits: Vec<_> = queues[..WAITING].iter().map(|queue| waiting(queue, TIMEOUT * 2)).collect();
    until_idle(&server, WAITING).await;
    assert!((1..=2).contains(&connections(&server)), "{}", connections(&server));
    for (n, queue) in queues.iter().enumerate() {
        send(queue, &n.to_string()).await.expect("sent");
    }
    for (n, wait) in waits.into_iter().enumerate() {
        assert_eq!(wait.await.expect("a task"), Some(n.to_string()));
    }
    assert_eq!(counts(&queues[WAITING]).await, (1, 0, 0, 1));
    assert_eq!(backend.queues().await.expect("a list").len(), QUEUES);
    assert_eq!(connections(&server), 2);
    backend.close().await;
    eventually("no client is connected", async || connections(&server) == 0).await;
}

#[tokio::test]
async fn queues_are_listed_in_order_and_without_a_scan_of_all_keys() {
    let (server, backend) = start().await;
    let names = ["zebra", "a/b", "middle", "a.b", "Capital"];
    for name in names {
        send(&queue(&backend, name), "here").await.expect("sent");
    }
    server.command(&["SET", "of another program", "key"]);
    let mut expected = names.map(str::to_owned);
    expected.sort();
    let other = open(&server.url()).await;
    let listed: Vec<_> =
        other.queues().await.expect("a list").iter().map(ToString::to_string).collect();
    assert_eq!(listed, expected);
    let stats = server.command(&["INFO", "commandstats"]);
    assert!(stats.contains("cmdstat_evalsha"), "{stats}");
    for command in ["keys", "scan", "randomkey"] {
        assert!(!stats.contains(&format!("cmdstat_{command}:")), "{stats}");
    }
}

#[tokio::test]
async fn a_queue_that_was_drained_and_dropped_leaves_nothing_but_records_that_expire() {
    let (server, backend) = start().await;
    for name in ["short", "purged", "kept"] {
        let queue = queue(&backend, name);
        for n in 0..20 {
            send(&queue, &n.to_string()).await.expect("sent");
        }
        let some = queue.receive(Receive::up_to(5)).await.expect("received");
        acknowledge(&queue, &some[0]).await.expect("acknowledged");
        match name {
            "short" => {
                for delivery in &some[1..] {
                    acknowledge(&queue, delivery).await.expect("acknowledged");
                }
                assert_eq!(drain(&queue).await.len(), 15);
            }
            "purged" => assert_eq!(queue.purge().await.expect("purged"), 19),
            _ => {}
        }
    }
    for name in ["short", "purged"] {
        eventually("it is forgotten", async || {
            let left = keys(&server, &format!("{{queue:{name}}}*"));
            left.iter().all(|key| key.contains(":call:"))
        })
        .await;
    }
    let records = keys(&server, "{queue:*}:call:*");
    assert!(records.len() >= 6, "{records:?}");
    for record in records {
        let left = number(&server.command(&["PTTL", &record]));
        assert!((1..=600_000).contains(&left), "{record} lives for {left} ms");
    }
    assert_eq!(keys(&server, "{queue:kept}:[pidm]*").len(), 4);
    let listed = backend.queues().await.expect("a list");
    assert_eq!(listed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["kept"]);
}

/// The server remembers the callers of a queue for longer than the queue lives.
#[tokio::test]
async fn a_queue_can_be_opened_used_and_dropped_again_and_again() {
    let (server, backend) = start().await;
    for round in 0..60 {
        let queue = queue(&backend, "again");
        let (one, two) = (format!("{round} one"), format!("{round} two"));
        send(&queue, &one).await.unwrap_or_else(|error| panic!("{round}: {error}"));
        send(&queue, &two).await.unwrap_or_else(|error| panic!("{round}: {error}"));
        let delivery = take(&queue).await;
        assert_eq!((body(&delivery), delivery.message.delivery_count), (one, 1));
        acknowledge(&queue, &delivery).await.unwrap_or_else(|error| panic!("{round}: {error}"));
        if round % 3 == 0 {
            assert_eq!(queue.purge().await.expect("purged"), 1, "round {round}");
        } else {
            assert_eq!(drain(&queue).await, [two], "round {round}");
        }
        if round % 2 == 0 {
            drop(queue);
            eventually("it is forgotten", async || {
                server.command(&["EXISTS", "{queue:again}:meta"]) == "0"
            })
            .await;
        }
    }
}

const FOUR: [&str; 4] = ["pending", "invisible", "data", "meta"];

/// Returns the time to live of each key of a queue in milliseconds; -1 for none, -2 if the key is missing.
fn left(server: &RedisServer, queue: &str) -> [i64; 4] {
    FOUR.map(|key| number(&server.command(&["PTTL", &format!("{{queue:{queue}}}:{key}")])))
}

/// Checks that all existing keys expire at nearly the same time.
#[track_caller]
fn assert_expires_together(left: &[i64; 4]) {
    let there: Vec<_> = left.iter().copied().filter(|left| *left != -2).collect();
    let (first, last) = (there.iter().min(), there.iter().max());
    assert!(first > Some(&0) && last.zip(first).is_some_and(|(l, f)| l - f < 200), "{left:?}");
}

#[tokio::test]
async fn keys_have_no_time_to_live_by_default() {
    let (server, _backend, queue) = start_queue().await;
    for text in ["held", "ready"] {
        send(&queue, text).await.expect("sent");
    }
    take(&queue).await;
    assert_eq!(left(&server, "q"), [-1; 4]);
}

#[tokio::test]
async fn a_time_to_live_is_renewed_by_use_and_ends_a_queue_that_is_not_used() {
    let server = RedisServer::start();
    let backend = open(&format!("{}?default_ttl=1000", server.url())).await;
    let queue = queue(&backend, "q");
    let soon = |what: &str| {
        for key in FOUR {
            server.command(&["PEXPIRE", &format!("{{queue:q}}:{key}"), "60000"]);
        }
        let left = left(&server, "q");
        assert!(left.iter().all(|left| *left <= 60_000), "before {what}: {left:?}");
    };
    let renewed = |what: &str| {
        let left = left(&server, "q");
        let is_good = |left: &i64| *left == -2 || (900_000..=1_000_000).contains(left);
        assert!(left.iter().all(is_good), "after {what}: {left:?}");
        assert!(left[3] > 0, "after {what}: {left:?}");
    };
    for text in ["one", "two", "three"] {
        send(&queue, text).await.expect("sent");
        renewed("a send");
        soon("a send");
    }
    let one = take(&queue).await;
    renewed("a receive");
    soon("an acknowledgement");
    acknowledge(&queue, &one).await.expect("acknowledged");
    renewed("an acknowledgement");
    queue.purge().await.expect("purged");
    renewed("a purge");

    let brief = open(&format!("{}?default_ttl=0.3", server.url())).await;
    let brief = crate::common::queue(&brief, "brief");
    send(&brief, "lost").await.expect("sent");
    eventually("it is gone", async || left(&server, "brief") == [-2; 4]).await;
    assert_eq!(counts(&brief).await, (0, 0, 0, 0));
}

/// Opens a queue with a time to live in seconds.
fn with_ttl(backend: &Mailboxes, name: &str, seconds: u64) -> Arc<dyn Queue> {
    let options = QueueOptions::new().default_ttl(Duration::from_secs(seconds));
    backend.queue(name, options).expect("opened")
}

/// Checks that all existing keys have at least nine tenths of this time left.
#[track_caller]
fn assert_ttl(server: &RedisServer, queue: &str, seconds: i64) {
    let left = left(server, queue);
    assert_expires_together(&left);
    assert!((seconds * 900..=seconds * 1000).contains(&left[3]), "{left:?}");
}

#[tokio::test]
async fn each_queue_may_have_a_time_to_live_of_its_own() {
    const DAY: u64 = 86_400;
    let server = RedisServer::start();
    let backend = open(&format!("{}?default_ttl=1000", server.url())).await;
    let requests = with_ttl(&backend, "requests", 3 * DAY);
    let dead = with_ttl(&backend, "requests-dlq", 30 * DAY);
    let usual = queue(&backend, "usual");
    for queue in [&requests, &dead, &usual] {
        send(queue, "x").await.expect("sent");
    }
    assert_ttl(&server, "requests", 3 * DAY as i64);
    assert_ttl(&server, "requests-dlq", 30 * DAY as i64);
    assert_ttl(&server, "usual", 1000);

    let endless = with_ttl(&backend, "endless", u64::MAX);
    send(&endless, "x").await.expect("sent");
    assert!(left(&server, "endless")[3] > 100 * 365 * 86_400_000);
}

#[tokio::test]
async fn the_longest_time_to_live_of_a_handle_is_that_of_the_queue() {
    let (server, backend) = start().await;
    let silent = queue(&backend, "q");
    send(&silent, "x").await.expect("sent");
    assert_eq!(left(&server, "q")[3], -1);

    // Also for handles without one, so that no use of a queue shortens its time to live.
    let brief = with_ttl(&backend, "q", 1000);
    send(&silent, "x").await.expect("sent");
    assert_ttl(&server, "q", 1000);
    let long = with_ttl(&backend, "q", 5000);
    let briefest = with_ttl(&backend, "q", 10);
    for (n, queue) in [&brief, &long, &briefest, &silent].into_iter().enumerate() {
        server.command(&["PEXPIRE", "{queue:q}:meta", "60000"]);
        send(queue, &n.to_string()).await.expect("sent");
        assert_ttl(&server, "q", 5000);
    }
    // Until the last of them is closed.
    drop((silent, brief, long));
    send(&briefest, "x").await.expect("sent");
    assert_ttl(&server, "q", 5000);
    drop(briefest);
    let briefest = with_ttl(&backend, "q", 10);
    send(&briefest, "x").await.expect("sent");
    assert_ttl(&server, "q", 10);
}

/// The time to live that one program sets must not delete a queue that another one uses without it.
#[tokio::test]
async fn a_program_without_a_time_to_live_removes_that_of_a_queue() {
    let server = RedisServer::start();
    let (owner, other) = (open(&server.url()).await, open(&server.url()).await);
    let (brief, plain) = (with_ttl(&owner, "q", 1000), queue(&other, "q"));
    let held = async || {
        send_later(&brief, "later", Duration::from_secs(60)).await.expect("sent");
        send(&brief, "held").await.expect("sent");
        let held = take(&brief).await;
        assert_ttl(&server, "q", 1000);
        held
    };
    let held_first = held().await;
    send(&plain, "x").await.expect("sent");
    assert_eq!(left(&server, "q"), [-1; 4], "after a send");
    let _ = held().await;
    let taken = take(&plain).await;
    assert!(left(&server, "q").iter().all(|left| *left < 0), "after a receive");
    send(&brief, "x").await.expect("sent");
    assert_ttl(&server, "q", 1000);
    acknowledge(&plain, &taken).await.expect("acknowledged");
    assert_eq!(left(&server, "q"), [-1; 4], "after an acknowledgement");
    drop(held_first);

    // A duplicate counts as use as well.
    let same = Outgoing::with_id(MessageId::from_key("same"), "x");
    let send_it = async |queue: &Arc<dyn Queue>| {
        queue.send(vec![same.clone()]).await.expect("sent").remove(0).expect("sent")
    };
    assert!(send_it(&brief).await.is_new);
    assert_ttl(&server, "q", 1000);
    assert!(!send_it(&plain).await.is_new);
    assert_eq!(left(&server, "q"), [-1; 4], "after a send that stored nothing");
    assert!(!send_it(&brief).await.is_new);
    assert_ttl(&server, "q", 1000);
}

#[tokio::test]
async fn no_key_outlives_a_queue_with_a_time_to_live() {
    let server = RedisServer::start();
    let backend = open(&format!("{}?default_ttl=1000", server.url())).await;
    let looked_at = queue(&backend, "looked-at");
    send_later(&looked_at, "soon", Duration::from_millis(400)).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(420)).await;
    assert_eq!(counts(&looked_at).await, (1, 0, 0, 1));
    assert_expires_together(&left(&server, "looked-at"));

    // Dropped receives release their deliveries; repeated until one had some.
    let dropped = queue(&backend, "dropped");
    for round in 0..40 {
        send(&dropped, "once").await.expect("sent");
        let start = Instant::now();
        let receive = dropped.receive(Receive::one());
        let _ = tokio::time::timeout(Duration::from_micros(50 * round), receive).await;
        eventually("it is given back or held", async || {
            let (ready, in_flight, ..) = counts(&dropped).await;
            ready == 1 || in_flight == 1 && start.elapsed() > Duration::from_millis(100)
        })
        .await;
        assert_expires_together(&left(&server, "dropped"));
        dropped.purge().await.expect("purged");
    }
}

#[tokio::test]
async fn waiters_poll_each_queue_once_in_ten_seconds() {
    const QUEUES: usize = 20;
    const WATCHED: Duration = Duration::from_secs(6);
    let (server, backend) = start().await;
    let queues: Vec<_> = (0..QUEUES).map(|n| queue(&backend, &format!("q{n}"))).collect();
    let waits: Vec<_> = queues.iter().map(|queue| waiting(queue, 3 * TIMEOUT)).collect();
    until_idle(&server, QUEUES).await;
    let before = number(&server.info("total_commands_processed"));
    tokio::time::sleep(WATCHED).await;
    // Each polls at most once, with at most ten commands. The last command is of this test.
    let commands = number(&server.info("total_commands_processed")) - before - 1;
    assert!(commands <= 10 * QUEUES as i64, "{commands} commands in {WATCHED:?}");
    let names: BTreeSet<_> = queues.iter().map(|queue| queue.name().to_string()).collect();
    assert_eq!(names.len(), QUEUES);
    for queue in &queues {
        send(queue, queue.name().as_str()).await.expect("sent");
    }
    for (wait, queue) in waits.into_iter().zip(&queues) {
        assert_eq!(wait.await.expect("a task").as_deref(), Some(queue.name().as_str()));
    }
}

/// A user with the permissions that the documentation lists, and one without channels.
#[tokio::test]
async fn a_user_with_the_documented_permissions_can_do_everything() {
    let server = RedisServer::start();
    let text = include_str!("../../../../docs/redis.md");
    let line = text.lines().find(|line| line.contains("+@scripting")).expect("the rights");
    let rights = line.split('`').nth(1).expect("in quotes");
    for (user, channels) in [("heard", "&{queue:*"), ("deaf", "resetchannels")] {
        let mut words =
            vec!["ACL", "SETUSER", user, "on", ">hunter2", "resetkeys", "resetchannels"];
        words.extend(["~{queue:*", "~pillarbox:*", channels]);
        words.extend(rights.split(' '));
        server.command(&words);
        let url = format!("redis://{user}:hunter2@127.0.0.1:{}", server.port());
        let backend = open(&url).await;
        let queue = queue(&backend, user);
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.receive(Receive::one().wait(Duration::from_secs(20))).await }
        });
        tokio::time::sleep(Duration::from_millis(50)).await;
        send(&queue, "one").await.expect("sent");
        let received = waiting.await.expect("a task").expect("received");
        assert_eq!(received.len(), 1, "{user}");
        acknowledge(&queue, &received[0]).await.expect("acknowledged");
        send_later(&queue, "later", Duration::from_secs(60)).await.expect("sent");
        assert_eq!(backend.queues().await.expect("listed").len(), 1);
        assert_eq!(queue.peek(10, None).await.expect("a page").messages.len(), 1);
        let diagnosis = backend.diagnose(true).await.expect("diagnosed");
        assert_eq!(diagnosis.problems().count(), 0, "{diagnosis:?}");
        assert_eq!(queue.purge().await.expect("purged"), 1);
        backend.close().await;
        drop(queue);
    }
}

#[tokio::test]
async fn a_backend_says_whether_it_coalesces() {
    let server = RedisServer::start();
    for (options, coalesces) in [
        ("", true),
        ("?partitions=3", true),
        ("?coalesce=false", false),
        ("?coalesce=false&partitions=3", false),
    ] {
        let backend = open(&format!("{}{options}", server.url())).await;
        let opened = queue(&backend, "q");
        for capabilities in [backend.capabilities(), opened.capabilities()] {
            assert_eq!(capabilities.coalesces, coalesces, "{options}");
            assert_eq!(capabilities.fifo, !options.contains("partitions"), "{options}");
        }
    }
}
