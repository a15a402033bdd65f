//! Clients of main loops: calls, submissions, sweeps.

use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::{
    Error, Json, Mailbox, Mailboxes, MemoryBackend, QueueOptions, Receive, SendOptions,
};
use pillarbox_runtime::dead_letters::DlqPolicy;
use pillarbox_runtime::loops::{
    CallError, Client, MainLoop, MainLoopRequest, MainLoopResult, RemoteErrorKind, sweep_replies,
};
use pillarbox_runtime::{Runnable, Running};
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};

type Requests = Mailbox<MainLoopRequest<u64>, MainLoopResult<u64>>;

const SECOND: Duration = Duration::from_secs(1);

fn open() -> (Mailboxes, Requests) {
    let backend = Mailboxes::new(MemoryBackend::new());
    let requests = backend.mailbox("requests").expect("a mailbox");
    (backend, requests)
}

/// A loop that takes the requested number of milliseconds, and refuses odd numbers.
fn start(requests: &Requests) -> Running {
    MainLoop::new(requests.clone(), |n: u64| async move {
        tokio::time::sleep(Duration::from_millis(n)).await;
        if n.is_multiple_of(2) { Ok(n * 10) } else { Err(format!("{n} is odd")) }
    })
    .workers(64)
    .start()
}

/// Returns the names of all reply mailboxes.
async fn reply_mailboxes(backend: &Mailboxes) -> Vec<String> {
    let names = backend.queues().await.expect("listed").into_iter().map(|name| name.to_string());
    names.filter(|name| name.starts_with("pillarbox-replies-")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_call_has_the_output_or_the_error_of_the_loop() {
    let (_, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    assert_eq!(client.call(&MainLoopRequest::new(4), 5 * SECOND).await.unwrap(), 40);
    let request = MainLoopRequest::new(3);
    let failed = client.call(&request, 5 * SECOND).await.unwrap_err();
    assert_eq!(failed.to_string(), format!("request {} failed: 3 is odd", request.request_id));
    let CallError::Remote { request_id, error } = failed else { panic!("{failed:?}") };
    assert_eq!((request_id, error.kind), (request.request_id, RemoteErrorKind::Failed));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn many_calls_in_progress_each_get_their_own_answer() {
    let (_, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    // The first request is answered last.
    let calls = (0..50_u64).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            let n = 2 * (50 - n);
            (n, client.call(&MainLoopRequest::new(n), 60 * SECOND).await)
        })
    });
    for call in calls.collect::<Vec<_>>() {
        let (n, output) = call.await.unwrap();
        assert_eq!(output.unwrap(), n * 10);
    }
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_times_out_is_not_handled_later() {
    let (_, requests) = open();
    let client = Client::new(&requests).unwrap();
    let request = MainLoopRequest::new(2);
    // The deadline goes by the system clock, which is not paused.
    let failed = client.call(&request, Duration::ZERO).await.unwrap_err();
    assert!(matches!(failed, CallError::Timeout { after: Duration::ZERO, .. }), "{failed:?}");
    let start = tokio::time::Instant::now();
    let failed = client.call(&MainLoopRequest::new(2), 3 * SECOND).await.unwrap_err();
    assert!(matches!(failed, CallError::Timeout { .. }), "{failed:?}");
    assert_eq!(start.elapsed(), 3 * SECOND);
    // Neither is one that a loop receives too late.
    let real = Duration::from_millis(100);
    tokio::time::resume();
    assert!(client.call(&MainLoopRequest::new(2), real).await.is_err());
    tokio::time::sleep(real).await;
    requests.purge().await.unwrap();
    let late = MainLoopRequest::new(4);
    assert!(client.call(&late, real).await.is_err());
    tokio::time::sleep(real).await;
    let endless = |_: u64| async move { std::future::pending::<u64>().await };
    let main_loop = MainLoop::new(requests.clone(), endless);
    let stats = main_loop.run_until_empty().await.unwrap();
    assert_eq!((stats.processed, stats.timeouts), (1, 0), "answered, and not run");
    drop(client);
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_a_dropped_call_is_discarded() {
    let (backend, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    for _ in 0..100 {
        let request = MainLoopRequest::new(1_000);
        let dropped = tokio::time::timeout(SECOND / 2, client.call(&request, 60 * SECOND)).await;
        assert!(dropped.is_err());
        assert!(format!("{client:?}").contains("waiting: 0"), "{client:?}");
    }
    // Their answers are received and discarded.
    tokio::time::sleep(5 * SECOND).await;
    let address = client.address().to_owned();
    let replies = backend.queue(&*address, QueueOptions::new()).unwrap();
    assert_eq!(replies.counts().await.unwrap().total(), 0);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_in_progress_is_not_called_twice_at_once_but_may_be_again() {
    let (_, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    let request = MainLoopRequest::new(1_000);
    let (first, second) =
        tokio::join!(client.call(&request, 60 * SECOND), client.call(&request, 60 * SECOND));
    assert_eq!(first.unwrap(), 10_000);
    let refused = second.unwrap_err().to_string();
    assert!(refused.contains("already in progress"), "{refused}");
    assert_eq!(client.call(&request, 60 * SECOND).await.unwrap(), 10_000);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_received_twice_answers_one_call() {
    let (backend, requests) = open();
    let client = Client::new(&requests).unwrap();
    let request = MainLoopRequest::new(2);
    let answers: Mailbox<MainLoopResult<u64>> = backend.mailbox(client.address()).unwrap();
    let answering = async {
        let message = requests
            .receive(Receive::one().wait(5 * SECOND))
            .await
            .unwrap()
            .into_iter()
            .next()
            .unwrap();
        let replies = message.reply_mailbox().unwrap();
        for n in [1, 2] {
            replies.send(&MainLoopResult::new(message.body().request_id, Ok(n))).await.unwrap();
        }
        message.acknowledge().await.unwrap();
    };
    let (output, ()) = tokio::join!(client.call(&request, 5 * SECOND), answering);
    assert_eq!(output.unwrap(), 1);
    tokio::time::sleep(SECOND).await;
    assert_eq!(answers.approximate_count().await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_decoded_fails_its_call_and_no_other() {
    let (backend, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    let request = MainLoopRequest::new(60_000);
    let answers: Mailbox<serde_json::Value> = backend.mailbox(client.address()).unwrap();
    let foreign = serde_json::json!({"request_id": request.request_id, "output": "not a number"});
    let (failed, good, _) = tokio::join!(
        client.call(&request, 600 * SECOND),
        async { client.call(&MainLoopRequest::new(4), 5 * SECOND).await },
        async {
            tokio::time::sleep(SECOND).await;
            answers.send(&serde_json::json!("no answer at all")).await.unwrap();
            answers.send(&foreign).await.unwrap();
        },
    );
    let failed = failed.unwrap_err();
    let CallError::Backend { error, .. } = failed else { panic!("{failed:?}") };
    assert!(matches!(error, Error::Serialization { .. }), "{error:?}");
    assert_eq!(good.unwrap(), 40);
    running.control().stop_now();
    running.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_closed_fails_every_call_at_once() {
    let (backend, requests) = open();
    let client = Client::new(&requests).unwrap();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.call(&MainLoopRequest::new(2), 3600 * SECOND).await }
    });
    tokio::time::sleep(SECOND).await;
    backend.close().await;
    let failed = waiting.await.unwrap().unwrap_err();
    assert!(matches!(failed, CallError::Backend { error: Error::Closed { .. }, .. }), "{failed:?}");
    let failed = client.call(&MainLoopRequest::new(2), SECOND).await.unwrap_err();
    assert!(matches!(failed, CallError::Backend { .. }), "{failed:?}");
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn an_unreachable_backend_and_a_silent_loop_are_different_errors() {
    let (backend, requests) = open();
    let queue = backend.queue("answers", QueueOptions::new()).unwrap();
    let broken =
        FaultQueue::new(queue, Faults::none().fail_before(1.0).only(&[Operation::Receive]), 1);
    let replies = broken.clone();
    let requests = requests.with_replies(move |_: &str| {
        Ok(Mailbox::new(replies.clone(), Json, pillarbox_core::NoReplies))
    });
    let client = Client::new(&requests).unwrap();
    let failed = client.call(&MainLoopRequest::new(2), 5 * SECOND).await.unwrap_err();
    let CallError::Backend { error, .. } = failed else { panic!("{failed:?}") };
    assert!(matches!(error, Error::Connection { .. }), "{error:?}");
    let collected =
        client.submit(&[MainLoopRequest::new(2)]).await.unwrap().collect(5 * SECOND).await;
    assert!(matches!(collected[0], Err(CallError::Backend { .. })), "{collected:?}");
    assert!(broken.injected() > 3, "it was tried again and again");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_cannot_be_sent_fails_its_call() {
    let backend = Mailboxes::new(MemoryBackend::new());
    let requests: Requests = backend.builder("requests").max_size(1).open().unwrap();
    let client = Client::new(&requests).unwrap();
    requests.send(&MainLoopRequest::new(0)).await.unwrap();
    let failed = client.call(&MainLoopRequest::new(2), 5 * SECOND).await.unwrap_err();
    let CallError::Backend { error, .. } = failed else { panic!("{failed:?}") };
    assert!(matches!(error, Error::MailboxFull { .. }), "{error:?}");
    // The requests of a batch that could be sent are answered.
    requests.purge().await.unwrap();
    let submitted = [MainLoopRequest::new(2), MainLoopRequest::new(4)];
    let submission = client.submit(&submitted).await.unwrap();
    let running = start(&requests);
    let answers = submission.collect(5 * SECOND).await;
    assert_eq!(answers[0].as_ref().unwrap().output(), Some(&20));
    assert!(matches!(answers[1], Err(CallError::Backend { .. })), "{answers:?}");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_submission_is_collected_in_order_with_an_error_for_each_missing_answer() {
    let (_, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    // The last two take longer than the timeout.
    let submitted: Vec<_> = [300, 200, 101, 100, 9_000, 8_000].map(MainLoopRequest::new).into();
    let mut submission = client.submit(&submitted).await.unwrap();
    assert_eq!((submission.ids().len(), submission.remaining()), (6, 6));
    let first = submission.next().await.unwrap().unwrap();
    assert_eq!(
        (first.output(), submission.remaining()),
        (Some(&1_000), 5),
        "the quickest comes first"
    );
    let answers = submission.collect(5 * SECOND).await;
    let outputs: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().ok().and_then(|a| a.output().copied()))
        .collect();
    // Answers that `next` has returned are not collected again.
    assert_eq!(outputs, [Some(3_000), Some(2_000), None, None, None]);
    assert_eq!(answers[2].as_ref().unwrap().error().unwrap().text, "101 is odd");
    assert!(answers[3..].iter().all(|answer| matches!(answer, Err(CallError::Timeout { .. }))));
    assert!(format!("{client:?}").contains("waiting: 0"), "{client:?}");
    assert!(client.submit(&[]).await.unwrap().collect(SECOND).await.is_empty());
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_error_of_a_dead_letter_is_the_answer_to_its_call() {
    let (_, requests) = open();
    let running = MainLoop::new(requests.clone(), |_: u64| async { Err::<u64, _>("never") })
        .worker(|worker| worker.retry(pillarbox_runtime::Backoff::constant(SECOND)))
        .max_deliveries(3)
        .dead_letters(DlqPolicy::new())
        .start();
    let client = Client::new(&requests).unwrap();
    let failed = client.call(&MainLoopRequest::new(2), 60 * SECOND).await.unwrap_err();
    let CallError::Remote { error, .. } = failed else { panic!("{failed:?}") };
    assert_eq!(error.kind, RemoteErrorKind::DeadLettered);
    assert_eq!(error.text, "dead-lettered after 3 attempts: never");
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_closed_or_dropped_leaves_no_mailbox_behind() {
    let (backend, requests) = open();
    let running = start(&requests);
    for close in [true, false] {
        let client = Client::new(&requests).unwrap();
        client.call(&MainLoopRequest::new(2), 5 * SECOND).await.unwrap();
        assert_eq!(reply_mailboxes(&backend).await, [client.address()]);
        let other = client.clone();
        // An answer that nobody waits for.
        let answers: Mailbox<MainLoopResult<u64>> =
            requests.resolve_reply(client.address()).unwrap();
        answers.send(&MainLoopResult::new(Default::default(), Ok(1))).await.unwrap();
        drop(answers);
        if close {
            client.close().await;
            let failed = other.call(&MainLoopRequest::new(2), 5 * SECOND).await.unwrap_err();
            assert!(matches!(failed, CallError::Backend { error: Error::Closed { .. }, .. }));
            other.close().await;
        }
        drop((client, other));
        tokio::time::sleep(SECOND).await;
        assert_eq!(reply_mailboxes(&backend).await, [""; 0]);
    }
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mailboxes_of_clients_that_are_gone_are_swept_and_those_of_others_are_not() {
    let (backend, requests) = open();
    let client = Client::new(&requests).unwrap();
    let vanished = "pillarbox-replies-0193b1f46b1a7c008f4e3a52c0ffee00";
    let other: Mailbox<u32> = backend.mailbox("pillarbox-replies-of-mine").unwrap();
    other.send(&1).await.unwrap();
    requests
        .resolve_reply(vanished)
        .unwrap()
        .send(&MainLoopResult::new(Default::default(), Ok(1)))
        .await
        .unwrap();
    requests.forget_reply(vanished);
    let fresh = sweep_replies(&backend, 3600 * SECOND).await.unwrap();
    assert_eq!((fresh.checked, fresh.emptied.len()), (2, 0), "it may still be fetched");
    // The loop sweeps at an interval.
    let running = MainLoop::new(requests.clone(), |n: u64| async move { n })
        .keep_replies_for(4 * SECOND)
        .start();
    tokio::time::sleep(20 * SECOND).await;
    assert_eq!(reply_mailboxes(&backend).await, [client.address(), "pillarbox-replies-of-mine"]);
    assert_eq!(client.call(&MainLoopRequest::new(2), 5 * SECOND).await.unwrap(), 2);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_sweep_deletes_the_answers_that_are_old_and_no_younger_one_behind_them() {
    let (backend, requests) = open();
    // Its client was suspended, and has just resumed.
    let suspended = "pillarbox-replies-0193b1f46b1a7c008f4e3a52c0ffee00";
    let answers = requests.resolve_reply(suspended).unwrap();
    let answer = |n| MainLoopResult::new(Default::default(), Ok(n));
    let old: Vec<_> = (0..300).map(answer).collect();
    answers.send_batch(&old).await.unwrap().all().unwrap();
    tokio::time::sleep(7200 * SECOND).await;
    let young: Vec<_> = (300..303).map(answer).collect();
    answers.send_batch(&young).await.unwrap().all().unwrap();
    let swept = sweep_replies(&backend, 3600 * SECOND).await.unwrap();
    assert_eq!((swept.emptied.len(), swept.answers), (1, 300));
    let left = answers.receive(Receive::up_to(10)).await.unwrap();
    let left: Vec<_> = left.into_iter().map(|one| *one.body().output().unwrap()).collect();
    assert_eq!(left, [300, 301, 302]);
    assert_eq!(sweep_replies(&backend, 3600 * SECOND).await.unwrap().answers, 0);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_forgets_an_empty_mailbox_that_the_loop_still_has_open() {
    let (backend, requests) = open();
    let old = "pillarbox-replies-0193b1f46b1a7c008f4e3a52c0ffee00";
    requests.send_with(&MainLoopRequest::new(2), SendOptions::new().reply_to(old)).await.unwrap();
    let running = MainLoop::new(requests.clone(), |n: u64| async move { n })
        .keep_replies_for(4 * SECOND)
        .start();
    tokio::time::sleep(SECOND).await;
    // Its client receives the answer, and is killed.
    let answers: Mailbox<MainLoopResult<u64>> = backend.mailbox(old).unwrap();
    answers.receive(Receive::one()).await.unwrap().acknowledge().await.unwrap().all().unwrap();
    drop(answers);
    assert_eq!(reply_mailboxes(&backend).await, [old]);
    tokio::time::sleep(5 * SECOND).await;
    assert_eq!(reply_mailboxes(&backend).await, [""; 0]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn answers_are_kept_for_a_second_at_least() {
    let (backend, requests) = open();
    let refused = sweep_replies(&backend, Duration::from_millis(999)).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused}");
    let main_loop = MainLoop::new(requests, |n: u64| async move { n });
    let refused = main_loop.keep_replies_for(Duration::ZERO).run().await.unwrap_err();
    assert!(matches!(refused, Error::InvalidParameter { .. }), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_called_again_outlives_its_dropped_submission() {
    let (_, requests) = open();
    let running = start(&requests);
    let client = Client::new(&requests).unwrap();
    let request = MainLoopRequest::new(1_001);
    let mut submission = client.submit(std::slice::from_ref(&request)).await.unwrap();
    assert!(submission.next().await.unwrap().unwrap().error().is_some());
    let again = client.call(&request, 60 * SECOND);
    let dropping = async {
        tokio::time::sleep(SECOND / 2).await;
        drop(submission);
    };
    let (failed, ()) = tokio::join!(again, dropping);
    assert!(matches!(failed, Err(CallError::Remote { .. })), "{failed:?}");
    running.stop().await.unwrap();
}

/// An answer whose decoding panics.
#[derive(Debug)]
struct Rude;

impl serde::Serialize for Rude {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(1)
    }
}

impl<'de> serde::Deserialize<'de> for Rude {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("not today")
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_whose_decoding_panics_fails_its_call_and_the_client_goes_on() {
    let backend = Mailboxes::new(MemoryBackend::new());
    let requests: Mailbox<MainLoopRequest<u64>, MainLoopResult<Rude>> =
        backend.mailbox("requests").unwrap();
    let running = MainLoop::new(requests.clone(), |_: u64| async { Rude }).start();
    let client = Client::new(&requests).unwrap();
    for _ in 0..2 {
        let failed =
            client.call(&MainLoopRequest::new(1), 5 * SECOND).await.unwrap_err().to_string();
        assert!(failed.contains("not today"), "{failed}");
    }
    running.stop().await.unwrap();
}

#[test]
fn a_client_whose_runtime_has_ended_fails_at_once() {
    let (_, requests) = open();
    let make = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = make();
    let client = first.block_on(async { Client::new(&requests).unwrap() });
    drop(first);
    let failed = make().block_on(client.call(&MainLoopRequest::new(2), 3600 * SECOND)).unwrap_err();
    assert!(matches!(failed, CallError::Backend { error: Error::Closed { .. }, .. }), "{failed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_mailbox_without_replies_has_no_clients() {
    let (backend, _) = open();
    let queue = backend.queue("requests", QueueOptions::new()).unwrap();
    let requests: Requests = Mailbox::new(queue, Json, pillarbox_core::NoReplies);
    let refused = Client::new(&requests).unwrap_err();
    assert!(refused.to_string().contains("without a way to reply"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn faults_of_every_kind_lose_no_answer() {
    let (backend, plain) = open();
    for seed in 0..20 {
        let faults = Faults::none().fail_before(0.1).fail_after(0.1).delay(0.2, SECOND / 5);
        let wrap = |name: &str, only: &[Operation]| -> Arc<FaultQueue> {
            FaultQueue::new(
                backend.queue(name, QueueOptions::new()).unwrap(),
                faults.clone().only(only),
                seed,
            )
        };
        let replies = wrap("answers", &[Operation::Send, Operation::Receive, Operation::Settle]);
        let asked = wrap("requests", &[Operation::Receive, Operation::Settle]);
        let resolver =
            move |_: &str| Ok(Mailbox::new(replies.clone(), Json, pillarbox_core::NoReplies));
        let requests: Requests = Mailbox::new(asked, Json, resolver.clone());
        let running = MainLoop::new(requests, |n: u64| async move { n * 10 })
            .worker(|worker| worker.retry(pillarbox_runtime::Backoff::constant(SECOND)))
            .visibility(5 * SECOND)
            .start();
        let client = Client::new(&plain.clone().with_replies(resolver)).unwrap();
        let submitted: Vec<_> = (0..40).map(MainLoopRequest::new).collect();
        let answers = client.submit(&submitted).await.unwrap().collect(3600 * SECOND).await;
        for (n, answer) in (0..).zip(answers) {
            assert_eq!(answer.unwrap().output(), Some(&(n * 10)), "seed {seed}");
        }
        client.close().await;
        running.stop().await.unwrap();
    }
}

#[tokio::test]
async fn a_call_with_a_timeout_of_zero_ends_at_once() {
    let (backend, _) = open();
    let queue = backend.queue("requests", QueueOptions::new()).unwrap();
    let silent = FaultQueue::new(queue, Faults::none(), 1);
    silent.next(Operation::Send, Fault::DropReply);
    let replies: Mailbox<MainLoopResult<u64>> = backend.mailbox("answers").unwrap();
    let requests: Requests = Mailbox::new(silent, Json, move |_: &str| Ok(replies.clone()));
    let client = Client::new(&requests).unwrap();
    let failed =
        client.call(&MainLoopRequest::new(2), Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(failed, CallError::Timeout { .. }), "{failed:?}");
}
