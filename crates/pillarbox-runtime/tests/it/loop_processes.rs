//! Clients and loops in separate processes that are killed: every request that is waited for is answered, and the
//! mailboxes of clients that are gone are emptied.
//!
//! Each test runs on a SQLite file and on a Redis server.

use std::time::{Duration, Instant};

use pillarbox_core::{Mailbox, Mailboxes};
use pillarbox_runtime::Runnable;
use pillarbox_runtime::loops::{Client, MainLoop, MainLoopRequest, MainLoopResult, sweep_replies};
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, assignment};

use crate::common::shared_backend::{SharedBackend, on_both, open};
use crate::common::worker_process::{end_with_the_parent, report};

type Requests = Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>>;

/// Timeout of every step, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Duration of leases, which is waited for after each kill.
const LEASE: Duration = Duration::from_secs(1);
/// Time after which unreceived answers are deleted.
const KEEP: Duration = Duration::from_secs(3);

/// The process that runs the loop. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn answering() {
    let Some((url, millis)) = assignment() else { return };
    end_with_the_parent();
    let pause = Duration::from_millis(millis.parse().expect("a number"));
    on_threads(async move {
        let backend = open(&url).await;
        let main_loop = MainLoop::new(requests(&backend), move |n: u64| async move {
            report(&format!("begun {n}."));
            tokio::time::sleep(pause).await;
            n * 10
        });
        main_loop.visibility(LEASE).keep_replies_for(KEEP).run().await.expect("it works");
        backend.close().await;
        report("ended");
    });
}

/// The process that calls the loop forever. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn asking() {
    let Some((url, _)) = assignment() else { return };
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let client = Client::new(&requests(&backend)).expect("a client");
        report(&format!("address {}", client.address()));
        for n in 0.. {
            let requests: Vec<_> =
                (0..16).map(|more| MainLoopRequest::new(n * 16 + more)).collect();
            let mut submission = client.submit(&requests).await.expect("submitted");
            while let Some(answer) = submission.next().await {
                answer.expect("an answer");
                report("answered");
            }
        }
    });
}

fn requests(backend: &Mailboxes) -> Requests {
    backend.mailbox("requests").expect("a mailbox")
}

/// Returns the names of all reply mailboxes.
async fn reply_mailboxes(backend: &Mailboxes) -> Vec<String> {
    let names = backend.queues().await.expect("listed").into_iter().map(|name| name.to_string());
    names.filter(|name| name.starts_with("pillarbox-replies-")).collect()
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !is_so().await {
        assert!(Instant::now() < end, "not {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

on_both! {
    a_request_may_be_called_again_at_once_and_is_answered_each_time;
    one_iteration_handles_the_only_request;
    loops_that_are_killed_leave_no_call_without_its_answer;
    mailboxes_of_clients_that_are_killed_are_swept;
    a_client_that_waits_is_not_disturbed_by_a_sweep_of_another_process;
}

fn a_request_may_be_called_again_at_once_and_is_answered_each_time(shared: SharedBackend) {
    on_threads(async move {
        let backend = open(&shared.url).await;
        let requests = requests(&backend);
        let running = MainLoop::new(requests.clone(), |n: u64| async move { n }).start();
        let client = Client::new(&requests).expect("a client");
        // Each time before the previous request and its answer are acknowledged.
        let request = MainLoopRequest::new(7);
        for _ in 0..200 {
            assert_eq!(client.call(&request, TIMEOUT).await.expect("an answer"), 7);
        }
        client.close().await;
        running.stop().await.expect("it ends");
        backend.close().await;
    });
}

fn one_iteration_handles_the_only_request(shared: SharedBackend) {
    on_threads(async move {
        let backend = open(&shared.url).await;
        let requests = requests(&backend);
        for _ in 0..20 {
            requests.send(&MainLoopRequest::new(7)).await.expect("sent");
            let main_loop = MainLoop::new(requests.clone(), |n: u64| async move { n });
            assert_eq!(main_loop.run_iterations(1).await.expect("it ends").succeeded, 1);
        }
        backend.close().await;
    });
}

fn loops_that_are_killed_leave_no_call_without_its_answer(shared: SharedBackend) {
    on_threads(async move {
        let backend = open(&shared.url).await;
        let client = Client::new(&requests(&backend)).expect("a client");
        let asked: Vec<_> = (0..60).map(MainLoopRequest::new).collect();
        let mut submission = client.submit(&asked).await.expect("submitted");
        let mut kills = 0;
        let mut answers = 0;
        let mut child = Child::start("loop_processes::answering", &shared.url, "20");
        // Killed again and again, each time with requests in flight.
        while submission.remaining() > 0 {
            let answer = tokio::time::timeout(TIMEOUT, submission.next()).await.expect("in time");
            let answer = answer.expect("one is left").expect("an answer");
            let n = asked
                .iter()
                .find(|one| one.request_id == answer.request_id)
                .expect("one of ours")
                .request;
            assert_eq!(answer.output(), Some(&(n * 10)));
            answers += 1;
            if answers % 12 == 0 && submission.remaining() > 0 {
                child.kill();
                kills += 1;
                child = Child::start("loop_processes::answering", &shared.url, "20");
            }
        }
        assert_eq!((answers, kills), (60, 4));
        let left = async || requests(&backend).approximate_count().await.expect("counted") == 0;
        until("all requests are done with", left).await;
        child.signal("TERM");
        let (status, said) = child.end_within(TIMEOUT);
        assert!(status.success() && said.iter().any(|line| line == "ended"), "{said:?}");
        client.close().await;
        drop(client);
        backend.close().await;
    });
}

fn mailboxes_of_clients_that_are_killed_are_swept(shared: SharedBackend) {
    on_threads(async move {
        let backend = open(&shared.url).await;
        let running = Child::start("loop_processes::answering", &shared.url, "5");
        for _ in 0..3 {
            let client = Child::start("loop_processes::asking", &shared.url, "");
            client.wait_for("answered", 20);
            client.kill();
        }
        // Answers to the killed clients are stored, and swept in the end.
        let clean = async || {
            reply_mailboxes(&backend).await.is_empty()
                && requests(&backend).approximate_count().await.expect("counted") == 0
        };
        until("nothing is left of clients that are gone", clean).await;
        // A live client is still served.
        let client = Client::new(&requests(&backend)).expect("a client");
        assert_eq!(client.call(&MainLoopRequest::new(7), TIMEOUT).await.expect("an answer"), 70);
        client.close().await;
        drop(client);
        running.kill();
        backend.close().await;
    });
}

fn a_client_that_waits_is_not_disturbed_by_a_sweep_of_another_process(shared: SharedBackend) {
    on_threads(async move {
        let backend = open(&shared.url).await;
        let requests = requests(&backend);
        let client = Client::new(&requests).expect("a client");
        let child = Child::start("loop_processes::answering", &shared.url, "1");
        assert_eq!(client.call(&MainLoopRequest::new(6), TIMEOUT).await.expect("an answer"), 60);
        child.kill();
        assert_eq!(reply_mailboxes(&backend).await, [client.address()]);
        let sweeper = Child::start("loop_processes::sweeping", &shared.url, "");
        // From now on the mailbox has been empty for long.
        tokio::time::sleep(KEEP).await;
        sweeper.wait_for("swept", sweeper.reported("swept") + 3);
        assert!(reply_mailboxes(&backend).await.is_empty(), "forgotten");
        let asking = tokio::spawn({
            let client = client.clone();
            async move { client.call(&MainLoopRequest::new(7), TIMEOUT).await }
        });
        sweeper.wait_for("swept", sweeper.reported("swept") + 3);
        let child = Child::start("loop_processes::answering", &shared.url, "300");
        assert_eq!(asking.await.expect("it ends").expect("an answer"), 70);
        child.kill();
        sweeper.kill();
        client.close().await;
        drop(client);
        backend.close().await;
    });
}

/// The process that sweeps forever. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn sweeping() {
    let Some((url, _)) = assignment() else { return };
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        loop {
            sweep_replies(&backend, KEEP).await.expect("swept");
            report("swept");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}
