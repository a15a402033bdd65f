//! Sentinels that do not know the service, are dead or out of date, and two servers that both believe to be the
//! primary.

use std::net::TcpListener;
use std::time::Duration;

use pillarbox_core::{Error, Receive, Settle};
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_testing::server::{RedisSentinels, RedisServer};
use std::io::{BufRead, BufReader, Read, Write};
use tokio::task::block_in_place;

use crate::common::steps::{
    TIMEOUT, acknowledge, body, counts, drain, eventually, receive, send, settle,
};
use crate::common::{open, queue};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the error of a backend that cannot be opened.
async fn refused(url: &str) -> String {
    let options = RedisOptions::from_url(url).expect("options");
    let opening = tokio::time::timeout(TIMEOUT, RedisBackend::open(options));
    opening.await.expect("an answer").expect_err("it cannot be opened").to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_that_sentinels_do_not_know_is_named() {
    let all = RedisSentinels::builder().replicas(0).start();
    // At once, since a retry does not help.
    let url = all.url().replace("/pillarbox", "/pigeonhole?retry_for=600");
    let text = refused(&url).await;
    assert!(text.contains("know no service \"pigeonhole\""), "{text}");
    assert!(text.contains(&format!("127.0.0.1:{}", all.sentinel(0).port())), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinels_are_needed_to_find_the_primary_and_not_to_use_it() {
    let mut all = RedisSentinels::builder().replicas(0).start();
    let backend = open(&format!("{}?retry_for=60", all.url())).await;
    let jobs = queue(&backend, "q");
    send(&jobs, "one").await.expect("sent");
    (0..3).for_each(|sentinel| all.kill_sentinel(sentinel));
    send(&jobs, "two").await.expect("sent");
    let text = refused(&format!("{}?retry_for=1", all.url())).await;
    assert!(text.contains("redis-sentinel://") && text.contains("is it running there?"), "{text}");
    assert!(text.contains("tried for 1s"), "{text}");

    // A client that must find the primary again waits for a sentinel.
    all.server(0).command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let sender = jobs.clone();
    let sending = tokio::spawn(async move { send(&sender, "three").await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!sending.is_finished());
    block_in_place(|| all.restart_sentinel(1));
    sending.await.expect("a task").expect("sent");
    assert_eq!(drain(&jobs).await, ["one", "two", "three"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passwords_are_those_of_the_servers() {
    let mut all = RedisSentinels::builder().replicas(1).password("pass-word").start();
    let backend = open(&format!("{}?retry_for=60", all.url())).await;
    let jobs = queue(&backend, "q");
    send(&jobs, "one").await.expect("sent");
    block_in_place(|| {
        all.wait_until_replicated();
        let old = all.kill_primary();
        all.wait_for_promotion(old);
    });
    assert_eq!(drain(&jobs).await, ["one"]);
    let text = refused(&all.url().replace("pass-word", "other-word")).await;
    assert!(text.contains("user or password is wrong") && !text.contains("-word"), "{text}");
    let text = refused(&all.url().replace(":pass-word@", "")).await;
    assert!(text.contains("requires a password"), "{text}");
}

/// Starts a sentinel that still names a former primary, and returns its port.
fn outdated_sentinel(primary: &RedisServer) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let own = listener.local_addr().expect("an address").port();
    let list = |words: &[&str]| {
        let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
        let words: Vec<_> = words.collect();
        format!("*{}\r\n{}", words.len(), words.concat())
    };
    let port = primary.port().to_string();
    let about = list(&["name", "pillarbox", "ip", "127.0.0.1", "port", &port, "config-epoch", "0"]);
    let named = list(&["127.0.0.1", &port]);
    let serve = move |stream: std::net::TcpStream| {
        let mut answers = stream.try_clone().expect("a stream");
        let mut requests = BufReader::new(stream);
        loop {
            let mut line = String::new();
            if requests.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let mut words = Vec::new();
            for _ in 0..line.trim()[1..].parse().expect("a number") {
                line.clear();
                requests.read_line(&mut line).expect("a length");
                let mut word = vec![0; line.trim()[1..].parse::<usize>().expect("a length") + 2];
                requests.read_exact(&mut word).expect("a word");
                words.push(String::from_utf8_lossy(&word).trim().to_uppercase());
            }
            let answer = match words.get(1).map(String::as_str) {
                Some("MASTER") => &about,
                Some("GET-MASTER-ADDR-BY-NAME") => &named,
                _ => "+OK\r\n",
            };
            if answers.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(std::result::Result::ok) {
            std::thread::spawn({
                let serve = serve.clone();
                move || serve(stream)
            });
        }
    });
    own
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outdated_sentinel_does_not_mislead_clients() {
    let mut all = RedisSentinels::builder().replicas(1).start();
    let old = all.kill_primary();
    let new = block_in_place(|| {
        let new = all.wait_for_promotion(old);
        all.restart(old);
        all.wait_until_whole();
        new
    });
    let stale = format!("127.0.0.1:{}", outdated_sentinel(all.server(old)));
    let first = format!("127.0.0.1:{}", all.sentinel(0).port());
    let url = all.url().replace(&first, &stale);
    for _ in 0..10 {
        let backend = open(&url).await;
        send(&queue(&backend, "q"), "found").await.expect("sent");
        backend.close().await;
    }
    assert_eq!(all.server(new).command(&["LLEN", "{queue:q}:pending"]), "10");
    // If it is the only sentinel, the server that it names answers that it is not the primary.
    let text = refused(&format!("redis-sentinel://{stale}/pillarbox?retry_for=1")).await;
    assert!(text.contains("not a primary"), "{text}");
}

/// Two servers believe to be the primary: sentinels have replaced one that hung, and cannot reach it when it
/// resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receipts_of_two_primaries_are_not_taken_for_each_other() {
    let all = RedisSentinels::builder().replicas(1).start();
    // With a timeout so long that they stay with the old primary.
    let patient = "response_timeout=120&retry_for=60";
    let plain = open(&format!("{}?{patient}", all.url())).await;
    let safe = open(&format!("{}?{patient}&replicas=1&replicas_timeout=3", all.url())).await;
    let (at_old, safe_at_old) = (queue(&plain, "q"), queue(&safe, "q"));
    for body in ["one", "two"] {
        send(&safe_at_old, body).await.expect("sent");
    }
    assert_eq!(counts(&at_old).await, (2, 0, 0, 2));
    let old = all.primary();
    let new = block_in_place(|| {
        all.wait_until_replicated();
        all.server(old).pause();
        let new = all.wait_for_promotion(old);
        all.sentinels().iter().for_each(RedisServer::pause);
        all.server(old).resume();
        new
    });
    let backend = open(&all.server(new).url()).await;
    let at_new = queue(&backend, "q");

    // Both sides deliver the same message.
    let request = Receive::one().visibility(HOUR);
    let by_old = at_old.receive(request).await.expect("received").pop().expect("a message");
    let by_new = at_new.receive(request).await.expect("received").pop().expect("a message");
    assert_eq!((by_old.message.id, body(&by_old)), (by_new.message.id, body(&by_new)));
    for action in [Settle::acknowledge, |receipt| Settle::nack(receipt, Duration::ZERO)] {
        for (queue, other) in [(&at_old, &by_new), (&at_new, &by_old)] {
            let settled = settle(queue, action(other.receipt.clone())).await;
            assert!(matches!(settled, Err(Error::ReceiptHandleExpired { .. })), "{settled:?}");
        }
    }

    // Nothing is confirmed that only the old primary has.
    let sent = send(&safe_at_old, "three").await.expect_err("no replica has it");
    let settled = acknowledge(&safe_at_old, &by_old).await.expect_err("no replica has it");
    for error in [sent, settled] {
        let text = error.to_string();
        assert!(text.contains("only 0 of 1 replicas confirmed"), "{text}");
        assert!(error.is_transient(), "{text}");
    }
    assert_eq!(counts(&at_new).await, (1, 1, 0, 2));

    // The sentinels reconfigure the old primary, and its clients find the new one.
    all.sentinels().iter().for_each(RedisServer::resume);
    block_in_place(|| all.wait_until_whole());
    eventually("the clients have moved over", async || {
        counts(&at_old).await == (1, 1, 0, 2) && counts(&safe_at_old).await == (1, 1, 0, 2)
    })
    .await;
    let settled = acknowledge(&at_old, &by_old).await;
    assert!(matches!(settled, Err(Error::ReceiptHandleExpired { .. })), "{settled:?}");
    acknowledge(&safe_at_old, &by_new).await.expect("acknowledged");
    send(&safe_at_old, "three").await.expect("sent");
    assert_eq!(drain(&at_old).await, ["two", "three"]);
    assert!(receive(&at_new).await.expect("received").is_none());
}
