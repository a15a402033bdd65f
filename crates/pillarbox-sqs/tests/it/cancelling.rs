//! Receives that are dropped: their requests cannot be cancelled, and strand nothing.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailboxes, Queue, Receive};
use pillarbox_testing::block_on;
use tokio::task::JoinHandle;

use crate::common::fake_server::{FakeServer, Response};
use crate::common::{only, open_url, queue};

const POLL: Receive = Receive::up_to(10).wait(Duration::from_secs(20));

fn delivered() -> Response {
    let message = r#"{"MessageId":"m","ReceiptHandle":"the-handle","Body":"late"}"#;
    Response::ok(&format!(r#"{{"Messages":[{message}]}}"#)).delayed()
}

fn changed() -> Response {
    Response::ok(r#"{"Successful":[{"Id":"0"}],"Failed":[]}"#)
}

async fn open(responses: Vec<Response>) -> (FakeServer, Mailboxes, Arc<dyn Queue>) {
    let server = FakeServer::start(responses).await;
    let backend = open_url(&server.url()).await;
    let jobs = queue(&backend, "jobs");
    (server, backend, jobs)
}

/// Starts a long poll, and drops it when it has reached the server.
async fn poll_and_drop(server: &FakeServer, jobs: &Arc<dyn Queue>) {
    let poll: JoinHandle<_> = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.receive(POLL).await }
    });
    server.next_request().await;
    poll.abort();
    assert!(poll.await.expect_err("it was dropped").is_cancelled());
}

#[track_caller]
fn assert_released(server: &FakeServer) {
    let requests = server.requests();
    let (operation, body) = requests.last().expect("a request");
    assert_eq!(operation, "ChangeMessageVisibilityBatch");
    assert!(body.contains("the-handle") && body.contains(r#""VisibilityTimeout":0"#), "{body}");
}

#[test]
fn messages_that_come_too_late_are_released() {
    block_on(async {
        let (server, _backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        server.release();
        server.next_request().await;
        assert_released(&server);
    });
}

#[test]
fn closing_waits_until_late_messages_are_released() {
    block_on(async {
        let (server, backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        let closing = tokio::spawn(async move { backend.close().await });
        while !jobs.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished(), "the poll is in progress");
        server.release();
        closing.await.expect("closed");
        assert_released(&server);
    });
}

#[test]
fn closing_fails_a_waiter_at_once_and_releases_its_messages() {
    block_on(async {
        let (server, backend, jobs) = open(vec![delivered(), changed()]).await;
        let poll = tokio::spawn(async move { jobs.receive(POLL).await });
        server.next_request().await;
        let closing = tokio::spawn(async move { backend.close().await });
        let received = poll.await.expect("it ends");
        assert!(matches!(received, Err(Error::Closed { .. })), "{received:?}");
        server.release();
        closing.await.expect("closed");
        assert_released(&server);
    });
}

/// Otherwise a program that drops its receive every second has twenty polls, which take messages from each other.
#[test]
fn the_next_receive_attaches_to_the_poll_of_a_dropped_one() {
    block_on(async {
        let (server, _backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        for _ in 0..10 {
            let none = tokio::time::timeout(Duration::from_millis(5), jobs.receive(POLL)).await;
            assert!(none.is_err(), "it waits");
        }
        // A receive with a shorter wait ends in time, and detaches from the poll.
        let short = POLL.wait(Duration::from_secs(1));
        assert!(jobs.receive(short).await.expect("received").is_empty());
        let receive = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.receive(POLL).await }
        });
        tokio::task::yield_now().await;
        server.release();
        let delivery = only(receive.await.expect("it ends").expect("received"));
        assert_eq!(&delivery.message.body[..], b"late");
        let requests = server.requests();
        assert_eq!(requests.len(), 1, "one poll, and no release: {requests:?}");
    });
}

/// The visibility and the maximum of a receive must be respected.
#[test]
fn a_receive_does_not_attach_to_a_poll_of_another_kind() {
    block_on(async {
        let nothing = Response::ok("{}");
        let (server, _backend, jobs) = open(vec![delivered(), nothing.clone(), nothing]).await;
        poll_and_drop(&server, &jobs).await;
        for other in [
            Receive::up_to(9).wait(Duration::from_secs(1)),
            POLL.visibility(Duration::from_secs(5)).wait(Duration::from_secs(1)),
        ] {
            let jobs = jobs.clone();
            let receive = tokio::spawn(async move { jobs.receive(other).await });
            server.next_request().await;
            receive.abort();
        }
        let requests = server.requests();
        assert!(
            requests.iter().all(|(operation, _)| operation == "ReceiveMessage"),
            "{requests:?}"
        );
        assert_eq!(requests.len(), 3);
    });
}

#[test]
fn a_receive_whose_runtime_has_shut_down_fails() {
    let runtime =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = runtime();
    let jobs = first.block_on(async {
        let backend = open_url("sqs+http://127.0.0.1:1/").await;
        queue(&backend, "jobs")
    });
    drop(first);
    runtime().block_on(async {
        let receive = jobs.receive(POLL);
        let received = tokio::time::timeout(Duration::from_secs(60), receive).await;
        let error = received.expect("it ends").expect_err("the runtime is gone").to_string();
        assert!(error.contains("the request was cancelled"), "{error}");
    });
}
