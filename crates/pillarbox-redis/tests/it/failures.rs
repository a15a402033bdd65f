//! Failures of one real server: what a retry can fix is retried, and takes effect once; everything else is a clear
//! error, and nothing is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pillarbox_core::{
    Diagnosis, Error, Mailboxes, MessageState, Outgoing, Queue, QueueOptions, Receive, Repair,
    Settle, Severity, Timestamp,
};
use pillarbox_redis::{RedisBackend, RedisOptions, redis};
use pillarbox_testing::server::{Flavour, RedisServer, RedisServerBuilder};

use crate::common::proxy::{Mode, Proxy};
use crate::common::steps::{
    TIMEOUT, acknowledge, body, channels, counts, drain, eventually, peek_all, receive, send,
    send_later, settle, take, wait_for,
};
use crate::common::{open, queue, start, start_queue};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns the text of a call that must fail because of the server.
#[track_caller]
fn refusal<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::Connection { .. }) => {
            assert!(error.is_transient(), "{error}");
            error.to_string()
        }
        other => panic!("expected an error about the server, got {other:?}"),
    }
}

/// Returns the text of a send for which the server must have no room.
#[track_caller]
fn full<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(error @ Error::MailboxFull { id: Some(_), max_size: None, .. }) => {
            assert!(error.is_transient(), "{error}");
            error.to_string()
        }
        other => panic!("expected a mailbox that is full, got {other:?}"),
    }
}

/// Opens a queue through a proxy, connected and with all scripts loaded.
async fn behind(proxy: &Proxy, options: &str) -> (Mailboxes, Arc<dyn Queue>) {
    let backend = open(&format!("{}{options}", proxy.url())).await;
    let queue = queue(&backend, "q");
    warm_up(&queue).await;
    (backend, queue)
}

/// Starts a server behind a proxy, and opens a queue through it.
async fn start_proxied(options: &str) -> (RedisServer, Proxy, Mailboxes, Arc<dyn Queue>) {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    let (backend, queue) = behind(&proxy, options).await;
    (server, proxy, backend, queue)
}

/// Uses every script once, so that the next calls are one command each. Leaves one message in `sent`.
async fn warm_up(queue: &Arc<dyn Queue>) {
    send(queue, "warm-up").await.expect("sent");
    let delivery = take(queue).await;
    acknowledge(queue, &delivery).await.expect("acknowledged");
    queue.purge().await.expect("purged");
    counts(queue).await;
}

fn flavours() -> impl Iterator<Item = Flavour> {
    Flavour::ALL.into_iter().filter(|flavour| flavour.is_installed())
}

// Unknown scripts.

#[tokio::test]
async fn scripts_that_the_server_has_flushed_are_sent_again() {
    let (server, _backend, queue) = start_queue().await;
    let forget = || server.command(&["SCRIPT", "FLUSH"]);
    for round in 1..=3 {
        forget();
        send(&queue, "one").await.expect("sent");
        forget();
        let one = take(&queue).await;
        forget();
        settle(&queue, Settle::nack(one.receipt, Duration::ZERO)).await.expect("given back");
        forget();
        assert_eq!(counts(&queue).await, (1, 0, 0, round));
        forget();
        assert_eq!(queue.peek(10, None).await.expect("a page").messages.len(), 1);
        forget();
        assert_eq!(queue.purge().await.expect("purged"), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_may_be_flushed_under_load() {
    let (server, _backend, queue) = start_queue().await;
    let stop = StopOnDrop::default();
    let forgetting = tokio::task::spawn_blocking({
        let is_over = stop.0.clone();
        move || {
            while !is_over.load(Ordering::Relaxed) {
                server.command(&["SCRIPT", "FLUSH"]);
            }
            server
        }
    });
    work(&queue, 200).await;
    drop(stop);
    forgetting.await.expect("a server");
}

/// Stops a thread that injects faults when dropped, also by a failing test.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs four senders and four receivers: every call succeeds, and every message is delivered once and
/// acknowledged once.
async fn work(queue: &Arc<dyn Queue>, messages: usize) {
    let (_, _, _, before) = counts(queue).await;
    let left = Arc::new(AtomicUsize::new(messages));
    let start = Instant::now();
    let seen = Arc::new(Mutex::new(BTreeSet::new()));
    let mut tasks = Vec::new();
    for worker in 0..4 {
        let sends = queue.clone();
        tasks.push(tokio::spawn(async move {
            for number in (worker..messages).step_by(4) {
                send(&sends, &number.to_string()).await.expect("sent");
            }
        }));
        let (receives, left, seen) = (queue.clone(), left.clone(), seen.clone());
        tasks.push(tokio::spawn(async move {
            while left.load(Ordering::Relaxed) > 0 {
                assert!(start.elapsed() < 2 * TIMEOUT, "{left:?} messages do not come");
                let wait = Duration::from_millis(200);
                let Some(delivery) = wait_for(&receives, wait).await.expect("received") else {
                    continue;
                };
                assert_eq!(delivery.message.delivery_count, 1, "delivered again: {delivery:?}");
                acknowledge(&receives, &delivery).await.expect("acknowledged");
                let is_new = seen.lock().expect("what was seen").insert(body(&delivery));
                assert!(is_new, "delivered twice: {delivery:?}");
                left.fetch_sub(1, Ordering::Relaxed);
            }
        }));
    }
    for task in tasks {
        task.await.expect("a worker without complaints");
    }
    assert_eq!(seen.lock().expect("what was seen").len(), messages);
    assert_eq!(counts(queue).await, (0, 0, 0, before + messages as u64));
}

// Broken connections.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_may_be_killed_under_load() {
    let (server, _backend, queue) = start_queue().await;
    let stop = StopOnDrop::default();
    let killing = tokio::task::spawn_blocking({
        let is_over = stop.0.clone();
        move || {
            let mut killed = 0;
            while !is_over.load(Ordering::Relaxed) {
                for kind in ["normal", "pubsub"] {
                    let answer = server.command(&["CLIENT", "KILL", "TYPE", kind]);
                    killed += answer.parse::<usize>().expect("a number");
                    // Time to connect and make some progress.
                    std::thread::sleep(Duration::from_millis(10));
                }
            }
            (server, killed)
        }
    });
    work(&queue, 300).await;
    drop(stop);
    let (_server, killed) = killing.await.expect("a server");
    assert!(killed > 2, "{killed} connections were killed");
}

/// Bytes after which answers are cut: none, and several numbers.
const CUTS: [usize; 4] = [0, 1, 4, 6];

#[tokio::test]
async fn a_send_whose_answer_was_cut_off_is_stored_once() {
    let (_server, proxy, _backend, queue) = start_proxied("").await;
    for (n, after) in CUTS.into_iter().enumerate() {
        let text = format!("cut after {after}");
        proxy.cut_answer(&text, after);
        send(&queue, &text).await.expect("sent");
        proxy.injected(n + 1).await;
        assert_eq!(counts(&queue).await, (1, 0, 0, n as u64 + 2));
        assert_eq!(drain(&queue).await, [text]);
    }
}

#[tokio::test]
async fn a_receive_whose_answer_was_cut_off_delivers_at_once_and_counts_once() {
    let (_server, proxy, _backend, queue) = start_proxied("").await;
    for (n, after) in [0, 1, 10, 100, 200].into_iter().enumerate() {
        let bodies: Vec<_> = (0..10).map(|n| format!("body {n}")).collect();
        for body in &bodies {
            send(&queue, body).await.expect("sent");
        }
        // Some were delivered before, and expired: the repeated receive counts that as well.
        let before = n as u32 % 2;
        if before == 1 {
            let left_alone = Receive::up_to(10).visibility(Duration::ZERO);
            assert_eq!(queue.receive(left_alone).await.expect("received").len(), 10);
        }
        proxy.cut_answer("EVALSHA", after);
        let deliveries = queue.receive(Receive::up_to(10).visibility(HOUR)).await;
        proxy.injected(n + 1).await;
        let deliveries = deliveries.expect("received");
        assert_eq!(deliveries.iter().map(body).collect::<Vec<_>>(), bodies, "after {after}");
        for delivery in &deliveries {
            let message = &delivery.message;
            let counted = (message.delivery_count, message.uncounted);
            assert_eq!(counted, (before + 1, before), "after {after}");
            acknowledge(&queue, delivery).await.expect("acknowledged");
        }
    }
}

#[tokio::test]
async fn a_long_poll_whose_answer_was_cut_off_delivers() {
    let (server, proxy, _backend, queue) = start_proxied("").await;
    let direct = open(&server.url()).await;
    let sender = crate::common::queue(&direct, "q");
    warm_up(&sender).await;
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { wait_for(&queue, TIMEOUT).await }
    });
    eventually("it listens", async || !channels(&server).is_empty()).await;
    // It queries again when it has subscribed.
    eventually("it waits", async || {
        let before = server.info("total_commands_processed");
        tokio::time::sleep(Duration::from_millis(100)).await;
        let after = server.info("total_commands_processed");
        after.parse::<u64>().expect("a number") <= before.parse::<u64>().expect("a number") + 1
    })
    .await;
    proxy.cut_answer("EVALSHA", 20);
    send(&sender, "at last").await.expect("sent");
    let delivery = waiting.await.expect("a task").expect("received").expect("a message");
    proxy.injected(1).await;
    assert_eq!((body(&delivery).as_str(), delivery.message.delivery_count), ("at last", 1));
    acknowledge(&queue, &delivery).await.expect("acknowledged");
}

/// The lease is an hour, so only a release makes the messages ready.
#[tokio::test]
async fn messages_of_a_receive_without_an_answer_are_ready_when_the_server_is_back() {
    let (server, proxy, _backend, receiver) =
        start_proxied("?retry_for=0.2&response_timeout=0.2").await;
    let direct = open(&server.url()).await;
    let direct = queue(&direct, "q");
    for text in ["one", "two", "three"] {
        send(&direct, text).await.expect("sent");
    }
    for round in 1..=4 {
        proxy.cut_answer_and_hold("EVALSHA", 20);
        let lost = receiver.receive(Receive::up_to(2).visibility(HOUR)).await;
        proxy.injected(round).await;
        refusal(lost);
        assert_eq!(counts(&direct).await, (1, 2, 0, 4), "the server has delivered them");
        // The record names what it has delivered.
        let keys = server.command(&["KEYS", "{queue:q}:call:*"]);
        let left = |key: &str| server.command(&["PTTL", key]).trim().parse::<u64>().unwrap_or(0);
        let longest = keys.lines().map(left).max().unwrap_or(0);
        assert!(longest > 3_000_000, "a record is forgotten after {longest} ms");
        // Other receives that fail meanwhile have delivered nothing.
        for _ in 0..3 {
            refusal(receive(&receiver).await);
        }
        proxy.set(Mode::Forward);
        eventually("they are ready", async || counts(&direct).await == (3, 0, 0, 4)).await;
    }
    let deliveries = receiver.receive(Receive::up_to(3)).await.expect("received");
    assert_eq!(deliveries.iter().map(body).collect::<Vec<_>>(), ["one", "two", "three"]);
    for delivery in deliveries {
        let message = &delivery.message;
        assert_eq!((message.delivery_count, message.unsettled), (1, 0));
    }
}

#[tokio::test]
async fn closing_releases_messages_of_a_receive_without_an_answer() {
    let (server, proxy, backend, receiver) = start_proxied("?retry_for=600").await;
    let direct = open(&server.url()).await;
    let direct = queue(&direct, "q");
    send(&direct, "one").await.expect("sent");
    // Answers are cut until it is closed.
    proxy.set(Mode::Forward);
    proxy.cut_answer_and_refuse("EVALSHA", 20);
    let receiving = tokio::spawn(async move {
        receiver.receive(Receive::one().visibility(HOUR)).await.map(|deliveries| deliveries.len())
    });
    proxy.injected(1).await;
    assert_eq!(counts(&direct).await, (0, 1, 0, 2));
    let closing = tokio::spawn(async move { backend.close().await });
    let closed = receiving.await.expect("a task");
    assert!(matches!(closed, Err(Error::Closed { .. })), "{closed:?}");
    proxy.set(Mode::Forward);
    closing.await.expect("closed");
    assert_eq!(counts(&direct).await, (1, 0, 0, 2));
}

#[tokio::test]
async fn a_settle_whose_answer_was_cut_off_is_answered_as_done() {
    let (_server, proxy, _backend, queue) = start_proxied("").await;
    for after in CUTS {
        for text in ["acknowledge", "give back", "give back later", "extend"] {
            send(&queue, text).await.expect("sent");
        }
        let request = Receive::up_to(4).visibility(HOUR);
        let deliveries = queue.receive(request).await.expect("received");
        let receipt = |n: usize| deliveries[n].receipt.clone();
        for action in [
            Settle::acknowledge(receipt(0)),
            Settle::nack(receipt(1), Duration::ZERO),
            Settle::nack(receipt(2), HOUR),
            Settle::extend(receipt(3), HOUR),
        ] {
            proxy.cut_answer("EVALSHA", after);
            let kind = action.action;
            let settled = settle(&queue, action).await;
            settled.unwrap_or_else(|error| panic!("{kind:?} after {after}: {error}"));
        }
        let (ready, in_flight, delayed, _) = counts(&queue).await;
        assert_eq!((ready, in_flight, delayed), (1, 1, 1), "after {after}");
        let again = take(&queue).await;
        assert_eq!((body(&again).as_str(), again.message.delivery_count), ("give back", 2));
        acknowledge(&queue, &deliveries[3]).await.expect("the receipt is still good");
        // The answer is a number of 4 bytes.
        proxy.cut_answer("EVALSHA", after.min(3));
        assert_eq!(queue.purge().await.expect("purged"), 2, "after {after}");
    }
    proxy.injected(5 * CUTS.len()).await;
}

#[tokio::test]
async fn a_send_that_is_repeated_late_does_not_bring_back_what_was_acknowledged() {
    let (server, proxy, _backend, sender) = start_proxied("").await;
    let direct = open(&server.url()).await;
    let receiver = queue(&direct, "q");
    for round in 1..=3 {
        proxy.cut_answer_and_hold("only once", 3);
        let sending = tokio::spawn({
            let sender = sender.clone();
            async move { send(&sender, "only once").await }
        });
        proxy.injected(round).await;
        let delivery = take(&receiver).await;
        acknowledge(&receiver, &delivery).await.expect("acknowledged");
        assert!(!sending.is_finished(), "the repetition was not held back");
        proxy.set(Mode::Forward);
        let id = sending.await.expect("a task").expect("sent");
        assert_eq!(id, delivery.message.id);
        assert_eq!(counts(&receiver).await, (0, 0, 0, round as u64 + 1));
    }
}

#[tokio::test]
async fn refused_connections_are_retried() {
    let (server, proxy, _backend, queue) = start_proxied("").await;
    proxy.set(Mode::Refuse);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let sending = tokio::spawn({
        let queue = queue.clone();
        async move { send(&queue, "slow").await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!sending.is_finished());
    proxy.set(Mode::Forward);
    sending.await.expect("a task").expect("sent");
    assert_eq!(drain(&queue).await, ["slow"]);
}

/// The commands of a client that opens, in order.
const OPENING: [&str; 5] =
    ["AUTH", "INFO\r\n$6\r\nserver", "PING", "*1\r\n$4\r\nINFO\r\n", "CONFIG"];

/// Whichever answer is cut, the connection is made again, like one that was refused.
#[tokio::test]
async fn opening_is_retried_after_a_reset() {
    let server = RedisServer::builder().password("hunter2").start();
    for (n, command) in OPENING.into_iter().enumerate() {
        let proxy = Proxy::to(server.port()).await;
        let url = proxy.url().replace("redis://", "redis://:hunter2@");
        for (times, after) in [(1, 0), (2, 3)] {
            proxy.cut_answer(command, after);
            let backend = open(&url).await;
            proxy.injected(times).await;
            send(&queue(&backend, &format!("{n}-{after}")), "opened").await.expect("sent");
        }
    }
}

#[tokio::test]
async fn opening_is_retried_after_a_timeout() {
    let server = RedisServer::start();
    for (n, command) in OPENING.into_iter().enumerate().skip(1) {
        let proxy = Proxy::to(server.port()).await;
        proxy.delay_answer(command, Duration::from_secs(60));
        let backend = open(&format!("{}?response_timeout=0.3", proxy.url())).await;
        proxy.injected(1).await;
        send(&queue(&backend, &n.to_string()), "opened").await.expect("sent");
    }
}

#[tokio::test]
async fn opening_is_retried_while_all_connections_are_reset() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port()).await;
    proxy.set(Mode::Refuse);
    let url = format!("{}?retry_for=20", proxy.url());
    let opening = tokio::spawn(async move { open(&url).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!opening.is_finished());
    proxy.set(Mode::Forward);
    let backend = opening.await.expect("opened");
    send(&queue(&backend, "q"), "opened").await.expect("sent");
}

// Commands that arrive late.

#[tokio::test]
async fn a_call_that_times_out_is_repeated_and_takes_effect_once() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    // Longer than any response timeout of the test.
    let late = Duration::from_secs(60);
    proxy.delay_answer("slow", late);
    send(&queue, "slow").await.expect("sent");
    proxy.delay_answer("EVALSHA", late);
    let delivery = take(&queue).await;
    assert_eq!(delivery.message.delivery_count, 1);
    proxy.delay_answer("EVALSHA", late);
    acknowledge(&queue, &delivery).await.expect("acknowledged");
    proxy.injected(3).await;
    assert_eq!(counts(&queue).await, (0, 0, 0, 2));
}

#[tokio::test]
async fn a_send_that_arrives_after_its_repetition_changes_nothing() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    proxy.stall("stuck");
    send(&queue, "stuck").await.expect("sent");
    assert_eq!(drain(&queue).await, ["stuck"]);
    proxy.deliver().await;
    assert_eq!(counts(&queue).await, (0, 0, 0, 2));
}

#[tokio::test]
async fn a_receive_that_arrives_after_its_repetition_takes_nothing() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    send(&queue, "first").await.expect("sent");
    proxy.stall("EVALSHA");
    let first = take(&queue).await;
    assert_eq!(first.message.delivery_count, 1);
    send(&queue, "second").await.expect("sent");
    proxy.deliver().await;
    acknowledge(&queue, &first).await.expect("acknowledged");
    let second = take(&queue).await;
    assert_eq!((body(&second).as_str(), second.message.delivery_count), ("second", 1));
}

#[tokio::test]
async fn a_receive_that_arrives_after_its_repetition_found_nothing_takes_nothing() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    proxy.stall("EVALSHA");
    assert_eq!(receive(&queue).await.expect("received"), None);
    send(&queue, "later").await.expect("sent");
    proxy.deliver().await;
    assert_eq!(counts(&queue).await, (1, 0, 0, 2), "a message is in flight without a receiver");
    assert_eq!(take(&queue).await.message.delivery_count, 1);
}

#[tokio::test]
async fn a_receive_that_arrives_after_it_has_failed_takes_nothing() {
    let (server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3&retry_for=0").await;
    send(&queue, "later").await.expect("sent");
    let direct = open(&server.url()).await;
    let direct = crate::common::queue(&direct, "q");
    let records = || {
        let keys = server.command(&["KEYS", "{queue:q}:call:*"]);
        keys.lines().map(|key| server.command(&["GET", key])).collect::<Vec<_>>()
    };
    proxy.stall("EVALSHA");
    refusal(receive(&queue).await);
    // The number of the call, and no ids.
    let is_recalled = |record: &String| record.trim().len() == 12;
    eventually("it is recalled", async || records().iter().any(is_recalled)).await;
    proxy.deliver().await;
    assert_eq!(counts(&direct).await, (1, 0, 0, 2), "a message is in flight without a receiver");
    assert_eq!(take(&queue).await.message.delivery_count, 1);
}

#[tokio::test]
async fn a_send_that_arrives_after_its_repetition_was_refused_stores_nothing() {
    let (_server, proxy, backend, queue) = start_proxied("?response_timeout=0.3").await;
    send(&queue, "first").await.expect("sent");
    let options = pillarbox_core::QueueOptions::new().max_size(1);
    let small = backend.queue("q", options).expect("a queue");
    proxy.stall("no room");
    let full = send(&small, "no room").await;
    assert!(matches!(full, Err(Error::MailboxFull { .. })), "{full:?}");
    assert_eq!(drain(&queue).await, ["first"]);
    proxy.deliver().await;
    assert_eq!(counts(&queue).await, (0, 0, 0, 2), "stored although the send has failed");
}

#[tokio::test]
async fn a_nack_that_arrives_after_its_repetition_changes_nothing() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    send(&queue, "again").await.expect("sent");
    let first = take(&queue).await;
    proxy.stall("EVALSHA");
    settle(&queue, Settle::nack(first.receipt, Duration::ZERO)).await.expect("given back");
    let second = take(&queue).await;
    proxy.deliver().await;
    assert_eq!(counts(&queue).await, (0, 1, 0, 2));
    assert_eq!(second.message.delivery_count, 2);
    acknowledge(&queue, &second).await.expect("acknowledged");
}

#[tokio::test]
async fn a_purge_that_arrives_after_its_repetition_deletes_nothing() {
    let (_server, proxy, _backend, queue) = start_proxied("?response_timeout=0.3").await;
    send(&queue, "old").await.expect("sent");
    proxy.stall("EVALSHA");
    assert_eq!(queue.purge().await.expect("purged"), 1);
    send(&queue, "new").await.expect("sent");
    proxy.deliver().await;
    assert_eq!(drain(&queue).await, ["new"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_stuck_in_a_paused_server_take_effect_once() {
    let server = RedisServer::start();
    let backend = open(&format!("{}?response_timeout=0.3", server.url())).await;
    let queue = queue(&backend, "q");
    warm_up(&queue).await;
    /// Longer than the response timeout.
    const PAUSE: Duration = Duration::from_millis(800);
    let paused = async |call: tokio::task::JoinHandle<Result<bool, Error>>| {
        tokio::time::sleep(PAUSE).await;
        assert!(!call.is_finished());
        server.resume();
        call.await.expect("a task").expect("an answer")
    };

    server.pause();
    let sender = queue.clone();
    let call = tokio::spawn(async move { send(&sender, "stuck").await.map(|_| true) });
    paused(call).await;
    assert_eq!(counts(&queue).await, (1, 0, 0, 2));

    server.pause();
    let receiver = queue.clone();
    let call = tokio::spawn(async move {
        let delivery = receive(&receiver).await?.expect("a message");
        assert_eq!(delivery.message.delivery_count, 1);
        settle(&receiver, Settle::nack(delivery.receipt, Duration::ZERO)).await.map(|()| true)
    });
    paused(call).await;

    let delivery = take(&queue).await;
    assert_eq!(delivery.message.delivery_count, 2);
    server.pause();
    let settler = queue.clone();
    let call = tokio::spawn(async move { acknowledge(&settler, &delivery).await.map(|()| true) });
    paused(call).await;
    assert_eq!(counts(&queue).await, (0, 0, 0, 2));
}

// Servers that stop and come back.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_the_server_goes_unnoticed() {
    let mut server = RedisServer::builder().appendonly("always").start();
    let url = format!("{}?retry_for=30", server.url());
    let backend = open(&url).await;
    let (busy, quiet) = (queue(&backend, "busy"), queue(&backend, "quiet"));
    let waiting = tokio::spawn({
        let quiet = quiet.clone();
        async move { wait_for(&quiet, 3 * TIMEOUT).await }
    });
    let stop = StopOnDrop::default();
    let restarting = tokio::task::spawn_blocking({
        let is_over = stop.0.clone();
        move || {
            let mut restarts = 0;
            while restarts < 3 || !is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(100));
                server.kill();
                server.restart();
                restarts += 1;
            }
            server
        }
    });
    work(&busy, 300).await;
    drop(stop);
    let _server = restarting.await.expect("a server");
    assert!(!waiting.is_finished());
    send(&quiet, "after the restart").await.expect("sent");
    let delivery = waiting.await.expect("a task").expect("received").expect("a message");
    assert_eq!(body(&delivery), "after the restart");
    assert_eq!(delivery.message.delivery_count, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_loads_its_data_is_waited_for() {
    for flavour in flavours() {
        let mut server = RedisServer::builder()
            .flavour(flavour)
            .setting("key-load-delay", "1000")
            .setting("rdbcompression", "no")
            .start();
        let backend = open(&server.url()).await;
        let queue = queue(&backend, "q");
        send(&queue, "kept").await.expect("sent");
        let fill =
            "for n = 1, 1000 do redis.call('SET', 'filler:' .. n, string.rep('x', 20000)) end";
        server.command(&["EVAL", fill, "0"]);
        server.command(&["SAVE"]);
        server.start_again();
        let is_loading = || server.try_command(&["PING"]).is_err_and(|e| e.contains("LOADING"));
        eventually("the server loads", async || is_loading()).await;
        let opening = tokio::spawn({
            let url = server.url();
            async move { crate::common::queue(&open(&url).await, "q") }
        });
        assert_eq!(body(&take(&queue).await), "kept", "{flavour:?}");
        assert_eq!(counts(&opening.await.expect("opened")).await, (0, 1, 0, 1), "{flavour:?}");
    }
}

#[tokio::test]
async fn a_replica_is_waited_for_until_it_is_a_primary() {
    for flavour in flavours() {
        let server = RedisServer::builder().flavour(flavour).start();
        let (patient, hasty) =
            (open(&server.url()).await, open(&format!("{}?retry_for=0.4", server.url())).await);
        let (patient, hasty_queue) = (queue(&patient, "q"), queue(&hasty, "q"));
        warm_up(&patient).await;
        server.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let sending = tokio::spawn({
            let patient = patient.clone();
            async move { send(&patient, "slow").await }
        });
        let text = refusal(send(&hasty_queue, "haste").await);
        assert!(text.contains("READONLY") && text.contains("it is a replica"), "{text}");
        let text = refusal(receive(&hasty_queue).await);
        assert!(text.contains("it is a replica: connect to the primary"), "{text}");
        let diagnosis = hasty.diagnose(false).await.expect("a diagnosis");
        assert!(texts(&diagnosis).contains("is a replica, which refuses"), "{diagnosis:?}");
        assert!(!sending.is_finished());
        server.command(&["REPLICAOF", "NO", "ONE"]);
        sending.await.expect("a task").expect("sent");
        assert_eq!(drain(&hasty_queue).await, ["slow"], "{flavour:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_end_and_the_handle_works_when_the_server_is_back() {
    let mut server = RedisServer::builder().appendonly("always").start();
    let url = server.url();
    let backend = open(&format!("{url}?retry_for=1")).await;
    let queue = queue(&backend, "q");
    send(&queue, "before").await.expect("sent");
    server.kill();
    let start = Instant::now();
    let calls = tokio::join!(send(&queue, "lost"), receive(&queue), queue.counts(), queue.purge());
    for text in [refusal(calls.0), refusal(calls.1), refusal(calls.2), refusal(calls.3)] {
        assert!(text.contains("on queue 'q'") && text.contains(&url), "{text}");
        assert!(text.contains("refused") && text.contains("is it running there?"), "{text}");
    }
    let listing = refusal(backend.queues().await);
    assert!(listing.contains("list queues") && listing.contains(&url), "{listing}");
    let waiting = refusal(wait_for(&queue, HOUR).await);
    assert!(waiting.contains("cannot receive") && waiting.contains(&url), "{waiting}");
    assert!(start.elapsed() > Duration::from_millis(500), "it was not tried again");
    assert!(start.elapsed() < TIMEOUT, "retries took {:?}", start.elapsed());
    server.restart();
    send(&queue, "after").await.expect("sent");
    assert_eq!(drain(&queue).await, ["before", "after"]);
}

#[tokio::test]
async fn an_unreachable_server_is_named_when_opening() {
    let server = RedisServer::start();
    let url = server.url();
    drop(server);
    let options = RedisOptions::from_url(&format!("{url}?retry_for=0.2")).expect("options");
    let text = refusal(RedisBackend::open(options).await);
    assert!(text.contains(&url) && text.contains("is it running there?"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_can_be_closed_while_its_server_is_gone() {
    closes_soon(RedisServer::kill).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_can_be_closed_while_its_server_does_not_answer() {
    closes_soon(|server| server.pause()).await;
}

async fn closes_soon(outage: impl Fn(&mut RedisServer)) {
    let mut server = RedisServer::start();
    let url = format!("{}?retry_for=600&response_timeout=1", server.url());
    let backend = open(&url).await;
    let queue = queue(&backend, "q");
    warm_up(&queue).await;
    let long_poll = tokio::spawn({
        let queue = queue.clone();
        async move { wait_for(&queue, HOUR).await.map(|_| ()) }
    });
    eventually("it listens", async || !channels(&server).is_empty()).await;
    outage(&mut server);
    let mut calls = vec![long_poll];
    for n in 0..4 {
        let queue = queue.clone();
        calls.push(tokio::spawn(async move {
            match n {
                0 => send(&queue, "lost").await.map(|_| ()),
                1 => receive(&queue).await.map(|_| ()),
                2 => queue.counts().await.map(|_| ()),
                _ => queue.purge().await.map(|_| ()),
            }
        }));
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let start = Instant::now();
    backend.close().await;
    assert!(start.elapsed() < Duration::from_secs(10), "closing took {:?}", start.elapsed());
    for call in calls {
        let answer = tokio::time::timeout(TIMEOUT, call).await.expect("an answer");
        let answer = answer.expect("a task");
        assert!(matches!(answer, Err(Error::Closed { .. })), "{answer:?}");
    }
    let late = send(&queue, "late").await;
    assert!(matches!(late, Err(Error::Closed { .. })), "{late:?}");
    server.resume();
}

// Full memory.

#[tokio::test]
async fn out_of_memory_stops_sends_and_nothing_else() {
    out_of_memory(Flavour::Redis).await;
}

#[tokio::test]
async fn out_of_memory_stops_sends_and_nothing_else_on_redis_6_2() {
    out_of_memory(Flavour::Redis62).await;
}

#[tokio::test]
async fn out_of_memory_stops_sends_and_nothing_else_on_valkey() {
    out_of_memory(Flavour::Valkey).await;
}

async fn out_of_memory(flavour: Flavour) {
    if !flavour.is_installed() {
        println!("left out: {} is not installed", flavour.name());
        return;
    }
    let server =
        RedisServer::builder().flavour(flavour).setting("maxmemory-policy", "noeviction").start();
    let backend = open(&server.url()).await;
    let queue = queue(&backend, "q");
    warm_up(&queue).await;
    let used: u64 = server.info("used_memory").parse().expect("a number");
    let limit = used + (4 << 20);
    server.command(&["CONFIG", "SET", "maxmemory", &limit.to_string()]);
    // Fills the server to half a MiB beyond its limit.
    let big = "x".repeat(64 << 10);
    let mut sent = 0;
    let text = loop {
        match send(&queue, &big).await {
            Ok(_) => sent += 1,
            refused => break full(refused),
        }
        assert!(sent < 200, "the server takes more than it may hold");
    };
    let lower = (limit - (512 << 10)).to_string();
    server.command(&["CONFIG", "SET", "maxmemory", &lower]);
    for part in ["queue 'q' is full", "no memory left", "was not stored", "receive and settle"] {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!(counts(&queue).await, (sent, 0, 0, sent + 1), "nothing was stored");
    for fresh in ["q", "another"] {
        let other = crate::common::queue(&backend, fresh);
        let text = full(send(&other, "small").await);
        assert!(text.contains("no memory left"), "{text}");
    }
    full(send_later(&queue, "small", HOUR).await);
    // In a batch, each message has the error.
    let batch: Vec<_> = (0..3).map(|_| Outgoing::new("small")).collect();
    let ids: Vec<_> = batch.iter().map(|message| message.id).collect();
    let answers = queue.send(batch).await.expect("answers");
    let about = |answer: &Result<_, Error>| answer.as_ref().err().and_then(Error::message_id);
    assert!(answers.iter().map(about).eq(ids.into_iter().map(Some)), "{answers:?}");
    let spread = pillarbox_core::QueueOptions::new().partitions(3);
    full(send(&backend.queue("spread", spread).expect("a queue"), "small").await);

    let request = Receive::up_to(5).visibility(HOUR);
    let held = queue.receive(request).await.expect("received");
    let receipt = |n: usize| held[n].receipt.clone();
    settle(&queue, Settle::extend(receipt(0), HOUR)).await.expect("extended");
    settle(&queue, Settle::nack(receipt(1), HOUR)).await.expect("given back for later");
    settle(&queue, Settle::nack(receipt(2), Duration::ZERO)).await.expect("given back");
    settle(&queue, Settle::nack(receipt(3), Duration::from_millis(1))).await.expect("given back");
    let shown = peek_all(&queue).await;
    assert_eq!(shown.len() as u64, sent);
    assert!(matches!(shown.last().expect("one").state, MessageState::Delayed { .. }));
    tokio::time::sleep(Duration::from_millis(5)).await;
    // Expired messages are moved, which needs no memory either.
    assert_eq!(counts(&queue).await, (sent - 3, 2, 1, sent + 1));
    full(send(&queue, "small").await);
    settle(&queue, Settle::extend(receipt(0), Duration::ZERO)).await.expect("ended");
    acknowledge(&queue, &held[4]).await.expect("acknowledged");

    let drained = drain(&queue).await.len() as u64;
    assert_eq!(drained, sent - 2, "all but the one for later and the one acknowledged before");
    send(&queue, "room again").await.expect("sent");
    assert_eq!(drain(&queue).await, ["room again"]);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    full(send(&queue, "small").await);
    assert_eq!(queue.purge().await.expect("purged"), 1);
    assert_eq!(counts(&queue).await, (0, 0, 0, sent + 2));
    let diagnosis = backend.diagnose(true).await.expect("a diagnosis");
    let texts: Vec<_> = diagnosis.findings.iter().map(|finding| &*finding.text).collect();
    assert!(matches!(texts[..], [only] if only.contains("nearly full")), "{texts:?}");
}

// Refused logins and missing permissions.

/// Returns the error of opening, which must be about the server and without secrets.
async fn refused_at(url: &str, secret: &str) -> String {
    let error = RedisBackend::open(RedisOptions::from_url(url).expect("options")).await;
    let error = error.expect_err("refused");
    assert!(
        !format!("{error:#?} {error:?} {error}").contains(secret),
        "a password is printed: {error:?}"
    );
    refusal::<()>(Err(error))
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_reported() {
    for flavour in flavours() {
        let server = RedisServer::builder().flavour(flavour).password("hunter2").start();
        open(&server.url()).await;
        let place = format!("127.0.0.1:{}", server.port());
        let text = refused_at(&format!("redis://:hunter3@{place}"), "hunter3").await;
        assert!(text.contains("user or password is wrong") && text.contains(&place), "{text}");
        let text = refused_at(&format!("redis://nobody:hunter3@{place}"), "hunter3").await;
        assert!(text.contains("user or password is wrong"), "{text}");
        let text = refused_at(&format!("redis://{place}"), "hunter2").await;
        assert!(text.contains("NOAUTH") && text.contains("requires a password"), "{text}");
    }
}

#[tokio::test]
async fn the_error_of_a_user_without_permission_names_what_is_missing() {
    for flavour in flavours() {
        let server = RedisServer::builder().flavour(flavour).start();
        let place = format!("127.0.0.1:{}", server.port());
        let user = |name: &str, rules: &str| {
            let mut words = vec!["ACL", "SETUSER", name, "on", ">hunter2"];
            words.extend(rules.split(' '));
            server.command(&words);
            format!("redis://{name}:hunter2@{place}")
        };
        let nothing = open(&user("nothing", "+ping")).await;
        let text = refusal(send(&queue(&nothing, "q"), "no").await);
        assert!(text.contains("NOPERM") && text.contains("the user needs"), "{text}");
        let elsewhere = open(&user("elsewhere", "+@all ~other:* allchannels")).await;
        let text = refusal(send(&queue(&elsewhere, "q"), "no").await);
        assert!(text.contains("the user needs") && !text.contains("hunter2"), "{text}");
        let no_scripts = open(&user("scriptless", "+@all -@scripting ~* allchannels")).await;
        let text = refusal(send(&queue(&no_scripts, "q"), "no").await);
        assert!(text.contains("NOPERM") && text.contains("the user needs"), "{text}");

        // The permissions in the advice are enough, also for long polls.
        let rules = "+@all -@dangerous +info ~{queue:* ~pillarbox:* resetchannels &{queue:*";
        let url = user("least", rules);
        let least = queue(&open(&url).await, "q");
        warm_up(&least).await;
        let waiting = tokio::spawn({
            let least = least.clone();
            async move { wait_for(&least, TIMEOUT).await }
        });
        eventually("it listens", async || !channels(&server).is_empty()).await;
        send(&least, "yes").await.expect("sent");
        let found = waiting.await.expect("a task").expect("received");
        assert_eq!(body(&found.expect("a message")), "yes", "{flavour:?}");
    }
}

/// Redis 7 gives new users no channels.
#[tokio::test]
async fn a_user_who_may_not_publish_is_warned_of() {
    for flavour in flavours() {
        let log = Log::default();
        let _collecting = log.collect();
        let server = RedisServer::builder().flavour(flavour).start();
        let user = |name: &str, rules: &str| {
            let mut words =
                vec!["ACL", "SETUSER", name, "on", ">hunter2", "resetchannels", "+@all"];
            words.extend(rules.split(' '));
            server.command(&words);
            format!("redis://{name}:hunter2@127.0.0.1:{}", server.port())
        };
        let warnings = || {
            let log = log.text();
            log.lines().filter(|line| line.contains("WARN")).map(str::to_owned).collect::<Vec<_>>()
        };
        let sound = open(&user("sound", "~{queue:* ~pillarbox:* &{queue:*")).await;
        send(&queue(&sound, "sound"), "one").await.expect("sent");
        let diagnosis = sound.diagnose(false).await.expect("a diagnosis");
        assert_eq!((warnings(), diagnosis.findings), (vec![], vec![]), "{flavour:?}");

        // A user with the keys of all queues, and no channel.
        let mute = open(&user("mute", "~{queue:* ~pillarbox:*")).await;
        let [warning] = &warnings()[..] else { panic!("{flavour:?}: {}", log.text()) };
        assert!(warning.contains("may not publish") && warning.contains("channels {queue:*"));
        let diagnosis = mute.diagnose(false).await.expect("a diagnosis");
        let [finding] = &diagnosis.findings[..] else { panic!("{diagnosis:?}") };
        assert_eq!(finding.severity, Severity::Warning);
        assert!(finding.text.contains("queue 'sound'") && finding.text.contains("may not publish"));

        // A user with the keys of one queue, which is noticed when it sends, and reported once.
        let one = open(&user("one", "~{queue:only}* ~pillarbox:*")).await;
        assert_eq!(warnings().len(), 1, "{}", log.text());
        for _ in 0..2 {
            send(&queue(&one, "only"), "one").await.expect("sent");
            assert_eq!(drain(&queue(&one, "only")).await, ["one"]);
        }
        let [_, warning] = &warnings()[..] else { panic!("{flavour:?}: {}", log.text()) };
        assert!(warning.contains("may not publish") && warning.contains("only"), "{warning}");
        // Otherwise what they do last may warn of a server that is gone, in the log of the next flavour.
        for backend in [sound, mute, one] {
            backend.close().await;
        }
    }
}

/// The proxy changes the version of a real server.
#[tokio::test]
async fn a_server_that_is_too_old_is_refused() {
    let server = RedisServer::start();
    let version = server.info("redis_version");
    let old = format!("{:0<width$}", "6.0.", width = version.len());
    let proxy = Proxy::to(server.port()).await;
    proxy.rewrite(&format!("redis_version:{version}"), &format!("redis_version:{old}"));
    let start = Instant::now();
    let text = refused_at(&proxy.url(), "hunter2").await;
    assert!(text.contains(&format!("it is Redis {old}")), "{text}");
    assert!(text.contains("needs 6.2 or later, or Valkey"), "{text}");
    assert!(start.elapsed() < Duration::from_secs(10), "a retry does not help");
}

// Keys of other programs.

#[tokio::test]
async fn a_key_of_another_type_is_named_as_the_reason_and_loses_nothing() {
    let (server, backend) = start().await;
    for key in ["pending", "invisible", "data", "meta"] {
        for other in
            ["SET key value", "RPUSH key value", "HSET key field value", "ZADD key 1 value"]
        {
            let is_right = matches!(
                (key, other.split(' ').next()),
                ("pending", Some("RPUSH"))
                    | ("invisible", Some("ZADD"))
                    | ("data" | "meta", Some("HSET"))
            );
            if !is_right {
                let queue = queue(&backend, &format!("{key}.{}", &other[..4].trim()));
                another_type(&server, &queue, key, other).await;
            }
        }
    }
    let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
    assert_eq!(diagnosis.findings, []);
}

async fn another_type(server: &RedisServer, queue: &Arc<dyn Queue>, key: &str, other: &str) {
    let case = format!("{key} by {other}");
    let key = format!("{{queue:{}}}:{key}", queue.name());
    let mut expected: BTreeSet<_> =
        ["held", "a", "b", "c", "due", "due, too"].map(str::to_owned).into();
    send(queue, "held").await.expect("sent");
    let held = queue.receive(Receive::one().visibility(HOUR)).await.expect("received").remove(0);
    for text in ["a", "b", "c"] {
        send(queue, text).await.expect("sent");
    }
    // Both are due within the next moments, and are promoted together.
    let due = Duration::from_millis(1);
    send_later(queue, "due", due).await.expect("sent");
    send_later(queue, "due, too", due).await.expect("sent");
    tokio::time::sleep(Duration::from_millis(5)).await;

    server.command(&["RENAME", &key, "{aside}"]);
    let words: Vec<_> =
        other.split(' ').map(|word| if word == "key" { &*key } else { word }).collect();
    server.command(&words);
    let mut failed = Vec::new();
    let mut note = |what: &'static str, error: Option<Error>| {
        let Some(error) = error else { return false };
        let text = error.to_string();
        assert!(matches!(error, Error::Connection { .. }), "{case}: {what}: {text}");
        let named = format!("the key {key} is a ");
        assert!(text.contains(&named) && text.contains("another program"), "{case}: {text}");
        failed.push(what);
        true
    };
    if !note("send", send(queue, "d").await.err()) {
        expected.insert("d".into());
    }
    let pair = vec![Outgoing::new("e"), Outgoing::new("f")];
    if !note("send", queue.send(pair).await.err()) {
        expected.extend(["e".into(), "f".into()]);
    }
    if !note("send later", send_later(queue, "g", due).await.err()) {
        expected.insert("g".into());
    }
    let mut received = Vec::new();
    for max in [1, 10] {
        let deliveries = queue.receive(Receive::up_to(max).visibility(HOUR)).await;
        received.extend(deliveries.as_ref().ok().cloned().unwrap_or_default());
        note("receive", deliveries.err());
    }
    let nack = Settle::nack(held.receipt.clone(), Duration::ZERO);
    note("nack", settle(queue, nack).await.err());
    note("count", queue.counts().await.err());
    note("peek", queue.peek(10, None).await.err());
    assert!(failed.contains(&"receive"), "{case}: {failed:?} failed");
    assert_eq!(received, [], "{case}");

    server.command(&["DEL", &key]);
    server.command(&["RENAME", "{aside}", &key]);
    let sent = counts(queue).await.3;
    assert_eq!(sent, expected.len() as u64, "{case}: {failed:?} failed");
    // Succeeds only now if it had failed before.
    let nack = Settle::nack(held.receipt, Duration::ZERO);
    assert_eq!(settle(queue, nack).await.is_ok(), failed.contains(&"nack"), "{case}");
    let drained = drain(queue).await;
    assert_eq!(drained.len(), expected.len(), "{case}: {drained:?}");
    assert_eq!(drained.into_iter().collect::<BTreeSet<_>>(), expected, "{case}");
}

#[tokio::test]
async fn an_entry_with_an_invalid_id_is_skipped() {
    let (server, _backend, queue) = start_queue().await;
    send(&queue, "one").await.expect("sent");
    server.command(&["LPUSH", "{queue:q}:pending", "junk"]);
    send(&queue, "two").await.expect("sent");
    let deliveries = queue.receive(Receive::up_to(10)).await.expect("received");
    assert_eq!(deliveries.iter().map(body).collect::<Vec<_>>(), ["one", "two"]);
}

// Logs and diagnosis.

/// Collects what is logged on this thread.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().expect("the log")).into_owned()
    }

    /// Collects until the guard is dropped.
    fn collect(&self) -> tracing::subscriber::DefaultGuard {
        let log = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || log.clone())
            .finish();
        tracing::subscriber::set_default(subscriber)
    }
}

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("the log").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_server_that_evicts_keys_is_warned_of() {
    let log = Log::default();
    let _collecting = log.collect();
    let start = |policy: &str, limit: &str| {
        let server = RedisServer::builder().setting("maxmemory-policy", policy);
        server.setting("maxmemory", limit).start()
    };
    let sound = start("noeviction", "100mb");
    let diagnosis = open(&sound.url()).await.diagnose(false).await.expect("a diagnosis");
    assert_eq!(diagnosis.findings, []);
    let volatile = start("volatile-lru", "100mb");
    let diagnosis = open(&volatile.url()).await.diagnose(false).await.expect("a diagnosis");
    assert_eq!(diagnosis.findings, [], "keys without a time to live stay");
    assert!(!log.text().contains("WARN"), "{}", log.text());

    let backend = open(&volatile.url()).await;
    let brief = QueueOptions::new().default_ttl(Duration::from_secs(60));
    let brief = backend.queue("brief", brief).expect("opened");
    send(&brief, "x").await.expect("sent");
    let other = open(&volatile.url()).await.diagnose(false).await.expect("a diagnosis");
    assert!(texts(&other).contains("volatile-lru"), "a queue has one: {other:?}");
    let url = format!("{}?default_ttl=60", volatile.url());
    let diagnosis = open(&url).await.diagnose(false).await.expect("a diagnosis");
    assert!(texts(&diagnosis).contains("volatile-lru"), "{diagnosis:?}");
    for (limit, severity) in [("100mb", Severity::Problem), ("0", Severity::Warning)] {
        let server = start("allkeys-lru", limit);
        let backend = open(&server.url()).await;
        let log = log.text();
        let place = format!("127.0.0.1:{}", server.port());
        let warning = log.lines().find(|line| line.contains("WARN") && line.contains(&place));
        let warning = warning.unwrap_or_else(|| panic!("no warning: {log}"));
        assert!(warning.contains("maxmemory-policy allkeys-lru"), "{warning}");
        assert!(warning.contains("set maxmemory-policy to noeviction"), "{warning}");
        let diagnosis = backend.diagnose(false).await.expect("a diagnosis");
        assert_eq!(diagnosis.findings.len(), 1, "{diagnosis:?}");
        assert_eq!(diagnosis.findings[0].severity, severity);
        assert_eq!(diagnosis.findings[0].repair, Repair::Manual);
        assert!(texts(&diagnosis).contains("evicts keys"), "{diagnosis:?}");
    }
}

/// Before the retries end, and once for all calls that wait.
#[tokio::test]
async fn a_server_that_is_gone_is_warned_of_once() {
    let log = Log::default();
    let _collecting = log.collect();
    let mut server = RedisServer::start();
    let url = format!("{}?retry_for=4", server.url());
    let backend = open(&url).await;
    let queues = [queue(&backend, "q"), queue(&backend, "p")];
    warm_up(&queues[0]).await;
    server.kill();
    let (first, second) = tokio::join!(send(&queues[0], "lost"), send(&queues[1], "lost"));
    assert!(first.is_err() && second.is_err(), "the server is down");
    let text = log.text();
    let warnings: Vec<_> = text.lines().filter(|line| line.contains("WARN")).collect();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("a call fails; it is retried for 4s in all"), "{warnings:?}");
}

#[tokio::test]
async fn no_password_is_ever_shown() {
    const SECRET: &str = "correct-horse-battery";
    let log = Log::default();
    let _collecting = log.collect();
    let mut shown = String::new();
    let mut server = RedisServer::builder().password(SECRET).start();
    let url = format!("{}/0?retry_for=0.2", server.url());
    let options = RedisOptions::from_url(&url).expect("options");
    shown += &format!("{options:?} {options:#?}");
    let backend = RedisBackend::open(options).await.expect("opened");
    let client = redis::Client::open(server.url()).expect("a client");
    shown += &format!("{backend:?} {:?}", RedisBackend::from_client(client).expect("opened"));
    let backend = Mailboxes::new(backend);
    let queue = queue(&backend, "q");
    warm_up(&queue).await;
    wait_for(&queue, Duration::from_millis(50)).await.expect("received");
    shown += &format!("{queue:?} {backend:?} {:?}", backend.diagnose(false).await);
    server.kill();
    for error in [send(&queue, "lost").await.err(), wait_for(&queue, HOUR).await.err()] {
        let error = error.expect("refused");
        shown += &format!("{error} {error:?} {error:#?}");
    }
    server.restart();
    let wrong = format!("redis://:{SECRET}-not@127.0.0.1:{}", server.port());
    for url in [wrong, format!("{}/99", server.url()), format!("{}/x", server.url())] {
        let error = match RedisOptions::from_url(&url) {
            Ok(options) => RedisBackend::open(options).await.expect_err("refused"),
            Err(error) => error,
        };
        shown += &format!("{error} {error:?} {error:#?}");
    }
    backend.close().await;
    drop((queue, backend));
    assert!(log.text().contains("a call failed and is retried"), "{}", log.text());
    assert!(shown.contains("127.0.0.1") && !shown.contains(SECRET), "{shown}");
    assert!(!log.text().contains(SECRET), "{}", log.text());
}

/// Returns all findings as text.
fn texts(diagnosis: &Diagnosis) -> String {
    diagnosis.findings.iter().map(|finding| format!("{}\n", finding.text)).collect()
}

#[tokio::test]
async fn a_diagnosis_has_what_a_send_survives_and_the_time_of_the_server() {
    let builder = RedisServer::builder;
    let cases: [(RedisServerBuilder, &str); 5] = [
        (builder().appendonly("always"), "survives kill -9 and power failure"),
        (builder().appendonly("everysec"), "may lose the last one or two seconds"),
        (builder().appendonly("no"), "what the operating system has not written yet"),
        (builder().setting("save", "3600 1"), "since the last snapshot is lost"),
        (builder(), "messages are lost when the server stops"),
    ];
    for (builder, promise) in cases {
        let server = builder.start();
        let diagnosis = open(&server.url()).await.diagnose(false).await.expect("a diagnosis");
        assert!(diagnosis.promise.contains(promise), "{diagnosis:?}");
        assert_eq!(diagnosis.findings, []);
        let fact = |name: &str| {
            let fact = diagnosis.facts.iter().find(|fact| fact.name == name);
            fact.unwrap_or_else(|| panic!("no {name}: {diagnosis:?}")).value.clone()
        };
        assert_eq!(fact("server"), format!("Redis {}", server.info("redis_version")));
        assert!(fact("place").contains(&server.port().to_string()));
        let micros = |time: String| {
            let (seconds, micros) = time.split_once('\n').expect("two numbers");
            let number = |text: &str| text.parse::<i64>().expect("a number");
            Timestamp::from_micros(number(seconds) * 1_000_000 + number(micros))
        };
        let now = micros(server.command(&["TIME"]));
        let clock = diagnosis.clock.expect("a clock");
        assert!(clock <= now && now.since(clock) < TIMEOUT, "{clock:?} and {now:?}");
    }
}

#[tokio::test]
async fn inconsistent_keys_are_found_and_repaired() {
    for flavour in flavours() {
        let server = RedisServer::builder().flavour(flavour).start();
        let backend = open(&server.url()).await;
        let queue = queue(&backend, "q");
        let key = |name: &str| format!("{{queue:q}}:{name}");
        let (pending, invisible) = (key("pending"), key("invisible"));
        let (data, meta) = (key("data"), key("meta"));
        let far = "99999999999999999";

        let names = [
            "held",
            "lost",
            "lost while held",
            "ready and delayed",
            "twice",
            "held and ready",
            "sound",
            "delayed",
        ];
        let mut ids = BTreeMap::new();
        for name in &names[..7] {
            let before: BTreeSet<_> =
                server.command(&["HKEYS", &data]).lines().map(str::to_owned).collect();
            send(&queue, name).await.expect("sent");
            let after = server.command(&["HKEYS", &data]);
            let id = after.lines().find(|id| !before.contains(*id)).expect("its id").to_owned();
            ids.insert(*name, id);
        }
        send_later(&queue, names[7], Duration::from_millis(1500)).await.expect("sent");
        let request = Receive::one().visibility(HOUR);
        let held = queue.receive(request).await.expect("received").remove(0);
        // The next messages, two of which stay in flight.
        let mut held_too = Vec::new();
        for next in queue.receive(Receive::up_to(6).visibility(HOUR)).await.expect("received") {
            match &*body(&next) {
                "lost while held" | "held and ready" => held_too.push(next),
                _ => {
                    let nack = Settle::nack(next.receipt, Duration::ZERO);
                    settle(&queue, nack).await.expect("given back");
                }
            }
        }
        assert_eq!((body(&held).as_str(), held_too.len()), ("held", 2));
        assert_eq!(backend.diagnose(false).await.expect("a diagnosis").findings, []);

        server.command(&["LREM", &pending, "0", &ids["lost"]]);
        server.command(&["ZREM", &invisible, &ids["lost while held"]]);
        server.command(&["ZADD", &invisible, far, &ids["ready and delayed"]]);
        server.command(&["LPUSH", &pending, &ids["twice"], &ids["twice"]]);
        server.command(&["LPUSH", &pending, &ids["held and ready"]]);
        for (n, fake) in ["LPUSH", "ZADD", "HSET"].into_iter().enumerate() {
            let id = format!("00000000000000000000-{n}");
            match fake {
                "LPUSH" => server.command(&[fake, &pending, &id]),
                "ZADD" => server.command(&[fake, &invisible, far, &id]),
                _ => server.command(&[fake, &meta, &id, "3"]),
            };
        }
        server.command(&["LPUSH", &pending, "junk"]);
        server.command(&["HINCRBY", &meta, "#delayed", "5"]);

        let dump = || {
            ["LRANGE", "ZRANGE"].map(|command| {
                let key = if command == "LRANGE" { &pending } else { &invisible };
                server.command(&[command, key, "0", "-1"])
            })
        };
        let before = dump();
        let found = backend.diagnose(false).await.expect("a diagnosis");
        assert_eq!(before, dump(), "a diagnosis changes nothing");
        for part in [
            "queue 'q': 2 messages that are neither ready nor in flight nor delayed",
            "queue 'q': 3 messages in two states",
            "queue 'q': 4 entries that belong to no message",
            "delayed messages counted wrongly",
        ] {
            assert!(texts(&found).contains(part), "{flavour:?}: {found:?}");
        }
        assert!(found.findings.iter().all(|finding| finding.repair == Repair::Possible));
        assert_eq!(found.problems().count(), 2, "{found:?}");

        let repaired = backend.diagnose(true).await.expect("a diagnosis");
        assert!(repaired.findings.iter().all(|finding| finding.repair == Repair::Done));
        assert_eq!(repaired.findings.len(), 4, "{repaired:?}");
        let sound = backend.diagnose(false).await.expect("a diagnosis");
        assert_eq!(sound.findings, [], "{flavour:?}");

        let (ready, in_flight, delayed, sent) = counts(&queue).await;
        assert_eq!((ready + delayed, in_flight, sent), (6, 2, 8), "{flavour:?}");
        acknowledge(&queue, &held).await.expect("the lease of a consistent message runs on");
        let still_held = held_too.iter().find(|held| body(held) == "held and ready").expect("one");
        acknowledge(&queue, still_held).await.expect("the lease takes precedence");
        let mut all = drain(&queue).await;
        all.extend(wait_for(&queue, TIMEOUT).await.expect("received").iter().map(body));
        all.sort();
        let rest: BTreeSet<_> = names.iter().filter(|name| !name.starts_with("held")).collect();
        assert!(all.iter().eq(rest), "{flavour:?}: {all:?}");
    }
}

/// However many messages there are, at once, and in the order in which they were sent.
#[tokio::test]
async fn a_deleted_list_of_ready_messages_is_restored_in_order() {
    let (server, backend, queue) = start_queue().await;
    let mut sent = Vec::new();
    for _ in 0..3 {
        let batch: Vec<_> = (0..1000).map(|_| Outgoing::new("x")).collect();
        sent.extend(batch.iter().map(|message| message.id));
        queue.send(batch).await.expect("sent");
    }
    server.command(&["DEL", "{queue:q}:pending"]);
    let diagnosis = backend.diagnose(true).await.expect("diagnosed");
    let finding = diagnosis.findings.first().expect("a finding");
    assert!(finding.text.contains("3000 messages that are neither"), "{finding:?}");
    assert_eq!(backend.diagnose(false).await.expect("diagnosed").findings, []);
    let mut received = Vec::new();
    while received.len() < sent.len() {
        let some = queue.receive(Receive::up_to(1000)).await.expect("received");
        assert!(!some.is_empty(), "{} of {}", received.len(), sent.len());
        received.extend(some.iter().map(|delivery| delivery.message.id));
    }
    // The order of ids created in the same quarter of a microsecond is not known.
    sent.sort();
    assert!(received == sent, "they are out of order");
}

#[tokio::test]
async fn deleted_keys_without_messages_do_no_harm() {
    let (server, backend, queue) = start_queue().await;
    send(&queue, "one").await.expect("sent");
    server.command(&["DEL", "{queue:q}:meta"]);
    assert_eq!(counts(&queue).await, (1, 0, 0, 0));
    server.command(&["DEL", "pillarbox:queues"]);
    assert_eq!(backend.queues().await.expect("listed"), []);
    let diagnosis = backend.diagnose(true).await.expect("diagnosed");
    assert!(diagnosis.findings[0].text.contains("not on the list: 'q'"), "{diagnosis:?}");
    assert_eq!(backend.queues().await.expect("listed").len(), 1);
    assert_eq!(drain(&queue).await, ["one"]);
}

#[tokio::test]
async fn a_list_of_queues_of_another_type_is_found_and_hides_nothing_else() {
    let (server, backend) = start().await;
    let there = queue(&backend, "there");
    send(&there, "one").await.expect("sent");
    server.command(&["HSET", "{queue:there}:data", "no-id", "x"]);
    server.command(&["SET", "pillarbox:queues", "x"]);
    for repair in [false, true] {
        let diagnosis = backend.diagnose(repair).await.expect("diagnosed");
        let texts = texts(&diagnosis);
        assert!(texts.contains("the key pillarbox:queues is a string, not a zset"), "{texts}");
        assert!(texts.contains("queue 'there': 1 data with invalid ids"), "{texts}");
        assert!(!texts.contains("not on the list"), "{texts}");
        let finding = diagnosis.findings.iter().find(|it| it.text.contains("pillarbox:queues"));
        assert_eq!(
            finding.map(|it| (it.severity, it.repair)),
            Some((Severity::Problem, Repair::Manual))
        );
    }
    let text = refusal(backend.queues().await);
    assert!(text.contains("the key pillarbox:queues is a string, not a zset"), "{text}");
    let text = refusal(send(&queue(&backend, "new"), "one").await);
    assert!(text.contains("the key pillarbox:queues is a string, not a zset"), "{text}");
}

#[tokio::test]
async fn counting_names_the_key_of_another_type() {
    let (server, _backend, queue) = start_queue().await;
    send(&queue, "one").await.expect("sent");
    for key in ["meta", "pending", "invisible"] {
        let name = format!("{{queue:q}}:{key}");
        server.command(&["RENAME", &name, "aside"]);
        server.command(&["SET", &name, "x"]);
        let text = refusal(queue.counts().await);
        assert!(text.contains(&format!("the key {name} is a string")), "{text}");
        let text = refusal(receive(&queue).await);
        assert!(text.contains(&format!("the key {name} is a string")), "{text}");
        server.command(&["RENAME", "aside", &name]);
    }
    assert_eq!(drain(&queue).await, ["one"]);
}

#[tokio::test]
async fn one_queue_that_cannot_be_used_does_not_hide_the_others() {
    let (server, backend) = start().await;
    for name in ["good", "wrong"] {
        send(&queue(&backend, name), "one").await.expect("sent");
    }
    server.command(&["SET", "{queue:wrong}:meta", "x"]);
    server.command(&["HSET", "{queue:good}:data", "no-id", "x"]);
    let diagnosis = backend.diagnose(false).await.expect("diagnosed");
    let texts: Vec<_> = diagnosis.findings.iter().map(|finding| &*finding.text).collect();
    assert!(texts[0].contains("queue 'good': 1 data with invalid ids"), "{texts:?}");
    assert!(texts[1].contains("{queue:wrong}:meta is a string, not a hash"), "{texts:?}");
}
