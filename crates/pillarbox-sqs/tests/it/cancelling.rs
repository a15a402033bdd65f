//! Receives that are dropped: a request that is on its way cannot be called back, and strands nothing.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{Error, Mailboxes, Queue, Receive};
use pillarbox_testing::block_on;
use tokio::task::JoinHandle;

use crate::common::canned::{Answer, Canned};
use crate::common::{only, open_url, queue};

const POLL: Receive = Receive::up_to(10).wait(Duration::from_secs(20));

fn delivered() -> Answer {
    let message = r#"{"MessageId":"m","ReceiptHandle":"the-handle","Body":"late"}"#;
    Answer::ok(&format!(r#"{{"Messages":[{message}]}}"#)).held()
}

fn changed() -> Answer {
    Answer::ok(r#"{"Successful":[{"Id":"0"}],"Failed":[]}"#)
}

async fn open(answers: Vec<Answer>) -> (Canned, Mailboxes, Arc<dyn Queue>) {
    let server = Canned::start(answers).await;
    let backend = open_url(&server.url()).await;
    let jobs = queue(&backend, "jobs");
    (server, backend, jobs)
}

/// Starts a long poll, and drops it when it has reached the server.
async fn poll_and_drop(server: &Canned, jobs: &Arc<dyn Queue>) {
    let poll: JoinHandle<_> = tokio::spawn({
        let jobs = jobs.clone();
        async move { jobs.receive(POLL).await }
    });
    server.next_request().await;
    poll.abort();
    assert!(poll.await.expect_err("it was dropped").is_cancelled());
}

#[track_caller]
fn assert_given_back(server: &Canned) {
    let asked = server.asked();
    let (operation, body) = asked.last().expect("a request");
    assert_eq!(operation, "ChangeMessageVisibilityBatch");
    assert!(body.contains("the-handle") && body.contains(r#""VisibilityTimeout":0"#), "{body}");
}

#[test]
fn an_answer_that_comes_too_late_is_given_back() {
    block_on(async {
        let (server, _backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        server.let_go();
        server.next_request().await;
        assert_given_back(&server);
    });
}

#[test]
fn closing_waits_until_what_came_too_late_is_given_back() {
    block_on(async {
        let (server, backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        let closing = tokio::spawn(async move { backend.close().await });
        while !jobs.is_closed() {
            tokio::task::yield_now().await;
        }
        assert!(!closing.is_finished(), "the poll is still on its way");
        server.let_go();
        closing.await.expect("closed");
        assert_given_back(&server);
    });
}

#[test]
fn a_waiter_is_told_of_the_close_at_once_and_its_answer_given_back() {
    block_on(async {
        let (server, backend, jobs) = open(vec![delivered(), changed()]).await;
        let poll = tokio::spawn(async move { jobs.receive(POLL).await });
        server.next_request().await;
        let closing = tokio::spawn(async move { backend.close().await });
        let told = poll.await.expect("it ends");
        assert!(matches!(told, Err(Error::Closed { .. })), "{told:?}");
        server.let_go();
        closing.await.expect("closed");
        assert_given_back(&server);
    });
}

/// Or else a program that drops its receive every second has twenty of them, which take messages from each other.
#[test]
fn the_next_receive_goes_on_with_the_poll_of_one_that_was_dropped() {
    block_on(async {
        let (server, _backend, jobs) = open(vec![delivered(), changed()]).await;
        poll_and_drop(&server, &jobs).await;
        for _ in 0..10 {
            let none = tokio::time::timeout(Duration::from_millis(5), jobs.receive(POLL)).await;
            assert!(none.is_err(), "it waits");
        }
        // One that would wait less long ends in time, and leaves it to the next.
        let short = POLL.wait(Duration::from_secs(1));
        assert!(jobs.receive(short).await.expect("received").is_empty());
        let receive = tokio::spawn({
            let jobs = jobs.clone();
            async move { jobs.receive(POLL).await }
        });
        tokio::task::yield_now().await;
        server.let_go();
        let delivery = only(receive.await.expect("it ends").expect("received"));
        assert_eq!(&delivery.message.body[..], b"late");
        let asked = server.asked();
        assert_eq!(asked.len(), 1, "one poll, and nothing is given back: {asked:?}");
    });
}

/// A lease of another length, or more messages than there is room for, would not be what was asked for.
#[test]
fn a_poll_of_another_kind_is_not_gone_on_with() {
    block_on(async {
        let nothing = Answer::ok("{}");
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
        let asked = server.asked();
        assert!(asked.iter().all(|(operation, _)| operation == "ReceiveMessage"), "{asked:?}");
        assert_eq!(asked.len(), 3);
    });
}

#[test]
fn a_receive_whose_runtime_is_gone_says_so_and_does_not_wait_for_ever() {
    let of =
        || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let first = of();
    let jobs = first.block_on(async {
        let backend = open_url("sqs+http://127.0.0.1:1/").await;
        queue(&backend, "jobs")
    });
    drop(first);
    of().block_on(async {
        let receive = jobs.receive(POLL);
        let received = tokio::time::timeout(Duration::from_secs(60), receive).await;
        let error = received.expect("it ends").expect_err("nobody asks").to_string();
        assert!(error.contains("cut short"), "{error}");
    });
}
