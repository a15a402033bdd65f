//! Main loops: answers, failures, deadlines.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use pillarbox_core::{
    Error, Json, Mailbox, Mailboxes, MemoryBackend, QueueOptions, Receive, SendOptions, Timestamp,
};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq, DlqPolicy};
use pillarbox_runtime::loops::{
    Budget, LoopCall, MainLoop, MainLoopRequest, MainLoopResult, RemoteErrorKind, Run, Uuid,
};
use pillarbox_runtime::stats::State;
use pillarbox_runtime::{Backoff, Event, Runnable};
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation};
use serde::Serialize;
use serde::de::DeserializeOwned;

type Requests<O = u32> = Mailbox<MainLoopRequest<u32>, MainLoopResult<O>>;

const SECOND: Duration = Duration::from_secs(1);

/// A mailbox of requests, and one of answers.
struct Office<O> {
    backend: Mailboxes,
    requests: Requests<O>,
    answers: Mailbox<MainLoopResult<O>>,
}

impl<O: Clone + Serialize + DeserializeOwned + 'static> Office<O> {
    fn open() -> Self {
        let backend = Mailboxes::new(MemoryBackend::new());
        let requests = backend.builder("requests").allow_reply_to("answers");
        let requests = requests.open().expect("a mailbox");
        let answers = backend.mailbox("answers").expect("a mailbox");
        Self { backend, requests, answers }
    }

    async fn ask(&self, request: &MainLoopRequest<u32>) {
        let options = SendOptions::new().reply_to("answers");
        self.requests.send_with(request, options).await.expect("sent");
    }

    /// Receives and acknowledges all answers.
    async fn take(&self) -> Vec<MainLoopResult<O>> {
        let batch = self.answers.receive(Receive::up_to(100)).await.expect("received");
        let mut answers = Vec::new();
        for message in batch {
            answers.push(message.body().clone());
            message.acknowledge().await.expect("acknowledged");
        }
        answers
    }

    async fn left(&self) -> u64 {
        self.requests.approximate_count().await.expect("counted")
    }
}

#[tokio::test(start_paused = true)]
async fn an_output_is_the_answer_with_the_id_of_the_request_and_its_session() {
    let office: Office<u32> = Office::open();
    let request = MainLoopRequest::new(7);
    office.ask(&request).await;
    let session = Uuid::from_u128(4711);
    let before = Timestamp::now();
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32, run: Run| async move {
        run.set_session_id(session);
        n * 2
    });
    main_loop.run_until_empty().await.unwrap();
    let answer = office.take().await.remove(0);
    assert_eq!((answer.request_id, answer.output()), (request.request_id, Some(&14)));
    assert_eq!(answer.session_id, Some(session));
    assert!(answer.completed_at >= before);
}

#[tokio::test(start_paused = true)]
async fn an_adapter_has_deadline_budget_resources_and_message() {
    struct Model(&'static str);
    struct Unknown;
    let office: Office<String> = Office::open();
    let request = MainLoopRequest::new(7)
        .deadline_in(60 * SECOND)
        .budget(Budget::new().limit("total_tokens", 100))
        .resource("temperature", 0.5);
    office.ask(&request).await;
    let (id, deadline) = (request.request_id, request.deadline);
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32, run: Run| async move {
        assert_eq!((n, run.request_id(), run.deadline()), (7, id, deadline));
        assert!(run.time_left().unwrap() <= 60 * SECOND);
        assert_eq!(run.budget().get("total_tokens"), Some(100));
        assert_eq!(run.resources().get::<f64>("temperature"), Some(0.5));
        assert_eq!(run.metadata().queue().as_str(), "requests");
        assert!(!run.heartbeat().is_lost());
        let unknown = run.live::<Unknown>().err().unwrap().to_string();
        assert!(unknown.contains("Unknown") && unknown.contains("MainLoop::resource"), "{unknown}");
        Ok::<_, pillarbox_runtime::loops::NotRegistered>(run.live::<Model>()?.0.to_owned())
    })
    .resource(Model("large"));
    main_loop.run_until_empty().await.unwrap();
    assert_eq!(office.take().await[0].output().unwrap(), "large");
}

#[tokio::test(start_paused = true)]
async fn any_tower_service_is_an_adapter() {
    let office: Office<u32> = Office::open();
    office.ask(&MainLoopRequest::new(7)).await;
    let service = tower::service_fn(|call: LoopCall<u32>| async move {
        Ok::<_, std::io::Error>(call.request + u32::from(call.run.deadline().is_none()))
    });
    let limited = tower::ServiceBuilder::new().concurrency_limit(1).service(service);
    MainLoop::service(office.requests.clone(), limited).run_until_empty().await.unwrap();
    assert_eq!(office.take().await[0].output(), Some(&8));
}

#[tokio::test(start_paused = true)]
async fn the_answer_is_stored_before_the_request_is_acknowledged() {
    let office: Office<u32> = Office::open();
    let queue = office.backend.queue("requests", QueueOptions::new()).unwrap();
    let slow = FaultQueue::new(queue, Faults::none(), 1);
    let answers = office.answers.clone();
    let requests = Mailbox::new(slow.clone(), Json, move |_: &str| Ok(answers.clone()));
    office.ask(&MainLoopRequest::new(7)).await;
    slow.next(Operation::Settle, Fault::Delay(5 * SECOND));
    let running = MainLoop::new(requests, |n: u32| async move { n }).start();
    tokio::time::sleep(SECOND).await;
    assert_eq!((office.take().await.len(), office.left().await), (1, 1));
    running.stop().await.unwrap();
    assert_eq!(office.left().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_is_handled_twice_is_answered_once() {
    let office: Office<u32> = Office::open();
    let queue = office.backend.queue("requests", QueueOptions::new()).unwrap();
    let broken = FaultQueue::new(queue, Faults::none(), 1);
    let answers = office.answers.clone();
    let requests = Mailbox::new(broken.clone(), Json, move |_: &str| Ok(answers.clone()));
    office.ask(&MainLoopRequest::new(7)).await;
    // Its acknowledgement is lost, as if the process had crashed.
    let first = MainLoop::new(requests, |n: u32| async move { n }).visibility(10 * SECOND);
    let mut events = first.control().events();
    for _ in 0..50 {
        broken.next(Operation::Settle, Fault::FailBefore);
    }
    let running = first.start();
    events.wait_for(|event| matches!(event, Event::LeaseLost(_) | Event::Unconfirmed(_))).await;
    running.control().stop_now();
    running.join().await.unwrap();
    assert_eq!(office.left().await, 1, "the request is still there");
    assert_eq!(office.answers.approximate_count().await.unwrap(), 1, "and is answered already");
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { n }
    });
    main_loop.run_until_empty().await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), office.left().await), (1, 0));
    assert_eq!(office.take().await.len(), 1, "answered twice, stored once");
}

#[tokio::test(start_paused = true)]
async fn a_request_without_a_reply_address_is_handled() {
    let office: Office<u32> = Office::open();
    for failing in [false, true] {
        office.requests.send(&MainLoopRequest::new(7)).await.unwrap();
        let main_loop = MainLoop::new(office.requests.clone(), move |n: u32| async move {
            if failing { Err("no") } else { Ok(n) }
        });
        let stats = main_loop.run_until_empty().await.unwrap();
        assert_eq!((stats.succeeded, office.left().await), (1, 0));
    }
    assert!(office.take().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_request_with_an_invalid_reply_address_is_handled_once() {
    let office: Office<u32> = Office::open();
    let options = SendOptions::new().reply_to("not a name");
    office.requests.send_with(&MainLoopRequest::new(7), options).await.unwrap();
    let stats = MainLoop::new(office.requests.clone(), |n: u32| async move { n });
    assert_eq!(stats.run_until_empty().await.unwrap().processed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_request_cannot_make_a_loop_send_to_a_queue_that_is_not_for_answers() {
    let backend = Mailboxes::new(MemoryBackend::new());
    let requests: Requests<u32> = backend.mailbox("requests").unwrap();
    let addresses = ["payments", "requests", "pillarbox-replies-of-mine", "eval-nightly"];
    for address in addresses {
        let options = SendOptions::new().reply_to(address);
        requests.send_with(&MainLoopRequest::new(7), options).await.unwrap();
    }
    let main_loop = MainLoop::new(requests, |n: u32| async move { n });
    assert_eq!(main_loop.run_until_empty().await.unwrap().processed, 4, "all are worked on");
    let mut answers = Vec::new();
    for address in addresses {
        let queue = backend.queue(address, QueueOptions::new()).unwrap();
        answers.push(queue.counts().await.unwrap().total());
    }
    assert_eq!(answers, [0, 0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_request_whose_deadline_has_passed_is_answered_with_an_error_and_not_run() {
    let office: Office<u32> = Office::open();
    let past = MainLoopRequest::new(7).deadline(Timestamp::from_secs(1_000));
    office.ask(&past).await;
    // Or the deadline of the client, which is an attribute.
    let options = SendOptions::new()
        .reply_to("answers")
        .attribute("pillarbox.deadline", "2001-01-01T00:00:00Z");
    office.requests.send_with(&MainLoopRequest::new(8), options).await.unwrap();
    for policy in [None, Some(DlqPolicy::new())] {
        office.ask(&past).await;
        let mut main_loop = MainLoop::new(office.requests.clone(), |_: u32| async move {
            assert_eq!(1, 2, "nobody wants the answer");
            0
        });
        if let Some(policy) = policy {
            main_loop = main_loop.dead_letters(policy);
        }
        let stats = main_loop.run_until_empty().await.unwrap();
        assert_eq!((stats.panics, stats.dead_lettered), (0, 0));
        let answers = office.take().await;
        assert_eq!(answers.len() as u64, stats.succeeded);
        for answer in answers {
            let error = answer.error().unwrap();
            assert_eq!(error.kind, RemoteErrorKind::Deadline);
            assert_eq!(error.text, "its deadline has passed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_is_cancelled_at_its_deadline() {
    struct Dropped(Arc<AtomicU32>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let office: Office<u32> = Office::open();
    office.ask(&MainLoopRequest::new(7).deadline_in(5 * SECOND)).await;
    let cancelled = Arc::new(AtomicU32::new(0));
    let count = cancelled.clone();
    let start = tokio::time::Instant::now();
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32| {
        let guard = Dropped(count.clone());
        async move {
            tokio::time::sleep(3600 * SECOND).await;
            drop(guard);
            n
        }
    });
    main_loop.run_until_empty().await.unwrap();
    assert!(start.elapsed() < 10 * SECOND, "{:?}", start.elapsed());
    assert_eq!(cancelled.load(Ordering::SeqCst), 1);
    assert_eq!(office.take().await[0].error().unwrap().kind, RemoteErrorKind::Deadline);
}

#[tokio::test(start_paused = true)]
async fn the_time_until_the_adapter_is_ready_counts_toward_the_timeout() {
    let office: Office<u32> = Office::open();
    for _ in 0..2 {
        office.ask(&MainLoopRequest::new(7).deadline_in(15 * SECOND)).await;
    }
    let service = tower::service_fn(|call: LoopCall<u32>| async move {
        tokio::time::sleep(10 * SECOND).await;
        Ok::<_, std::io::Error>(call.request)
    });
    let one_at_a_time = tower::ServiceBuilder::new().concurrency_limit(1).service(service);
    let start = tokio::time::Instant::now();
    MainLoop::service(office.requests.clone(), one_at_a_time).run_until_empty().await.unwrap();
    assert!(start.elapsed() < 16 * SECOND, "{:?}", start.elapsed());
    let answers = office.take().await;
    assert_eq!(answers[0].output(), Some(&7));
    assert_eq!(answers[1].error().unwrap().kind, RemoteErrorKind::Deadline);
}

#[tokio::test(start_paused = true)]
async fn a_request_without_an_id_has_the_id_of_its_message() {
    let office: Office<u32> = Office::open();
    let foreign: Mailbox<serde_json::Value> = office.backend.mailbox("requests").unwrap();
    let options = SendOptions::new().reply_to("answers");
    let id = foreign.send_with(&serde_json::json!({"request": 7}), options).await.unwrap();
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32, run: Run| async move {
        assert_eq!(run.request_id(), *id.as_uuid());
        n
    });
    main_loop.run_until_empty().await.unwrap();
    let answer = office.take().await.remove(0);
    assert_eq!((answer.request_id, answer.output()), (*id.as_uuid(), Some(&7)));
}

#[derive(Debug, thiserror::Error)]
#[error("{0} is odd")]
struct Odd(u32);

#[tokio::test(start_paused = true)]
async fn without_dead_letters_each_failure_is_the_answer() {
    let office: Office<u32> = Office::open();
    for n in [1, 2, 3] {
        office.ask(&MainLoopRequest::new(n)).await;
    }
    let main_loop = MainLoop::new(office.requests.clone(), |n: u32| async move {
        match n {
            1 => Err(Odd(n)),
            2 => panic!("two"),
            _ => std::future::pending().await,
        }
    })
    .timeout(5 * SECOND)
    .workers(1);
    let stats = main_loop.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.retried, office.left().await), (3, 0, 0));
    let answers = office.take().await;
    let errors: Vec<_> = answers.iter().map(|answer| answer.error().unwrap()).collect();
    assert_eq!((errors[0].kind, &*errors[0].text), (RemoteErrorKind::Failed, "1 is odd"));
    assert_eq!(errors[0].error_type.as_deref(), Some(std::any::type_name::<Odd>()));
    assert_eq!(errors[1].kind, RemoteErrorKind::Failed);
    assert_eq!(errors[1].text, "the handler panicked: two");
    assert_eq!(errors[2].kind, RemoteErrorKind::Timeout);
    assert_eq!(errors[2].text, "the adapter took longer than 5s");
}

#[tokio::test(start_paused = true)]
async fn with_dead_letters_a_failure_is_retried_and_only_the_last_one_is_the_answer() {
    let office: Office<u32> = Office::open();
    let runs = Arc::new(AtomicU32::new(0));
    for n in [1, 2] {
        office.ask(&MainLoopRequest::new(n)).await;
    }
    let count = runs.clone();
    // The first succeeds at its third attempt, the second never.
    let main_loop = MainLoop::new(office.requests.clone(), move |n: u32| {
        let count = count.clone();
        async move {
            if n == 1 && count.fetch_add(1, Ordering::SeqCst) == 2 { Ok(n) } else { Err(Odd(n)) }
        }
    })
    .worker(|worker| worker.retry(Backoff::constant(SECOND)))
    .max_deliveries(4)
    .dead_letters(DlqPolicy::new());
    main_loop.run_until_empty().await.unwrap();
    let answers = office.take().await;
    assert_eq!(answers.len(), 2, "retries are not answered: {answers:?}");
    assert_eq!(answers[0].output(), Some(&1));
    let error = answers[1].error().unwrap();
    assert_eq!(error.kind, RemoteErrorKind::DeadLettered);
    assert_eq!(error.text, "dead-lettered after 4 attempts: 2 is odd");
    let dead: Mailbox<DeadLetter<MainLoopRequest<u32>>> =
        office.backend.mailbox("requests-dlq").unwrap();
    let letter = dead.peek(1).await.unwrap().remove(0).body.unwrap();
    assert_eq!(letter.request_id, Some(answers[1].request_id));
    assert_eq!((letter.body.request, letter.reply_to.as_deref()), (2, Some("answers")));
}

#[tokio::test(start_paused = true)]
async fn a_replayed_request_is_answered_again_even_if_its_error_was_not_received() {
    let office: Office<u32> = Office::open();
    // The client does not wait that long.
    let until = (Timestamp::now() + Duration::from_millis(500)).to_string();
    let options = SendOptions::new().reply_to("answers").attribute("pillarbox.deadline", until);
    office.requests.send_with(&MainLoopRequest::new(7), options).await.unwrap();
    let requests = office.requests.clone();
    let main_loop = move |works: bool| {
        MainLoop::new(requests.clone(), move |n: u32| async move {
            if works { Ok(n) } else { Err(Odd(n)) }
        })
        .dead_letters(DlqPolicy::new().include::<Odd>())
        .run_until_empty()
    };
    main_loop(false).await.unwrap();
    let dlq = Dlq::open(&office.backend, "requests-dlq").unwrap();
    assert_eq!(dlq.replay().run().await.unwrap().done, 1);
    // The system clock does not follow the paused clock.
    std::thread::sleep(Duration::from_millis(510));
    main_loop(true).await.unwrap();
    let answers = office.take().await;
    assert_eq!(answers[0].error().unwrap().kind, RemoteErrorKind::DeadLettered);
    assert_eq!(answers[1].output(), Some(&7));
    assert_eq!(answers[0].request_id, answers[1].request_id);
}

#[tokio::test(start_paused = true)]
async fn an_undecodable_request_with_a_reply_address_is_a_dead_letter_and_answered() {
    let office: Office<u32> = Office::open();
    let id = pillarbox_core::MessageId::new();
    let raw: Mailbox<String> = office.backend.mailbox("requests").unwrap();
    let options = SendOptions::new().reply_to("answers").id(id);
    raw.send_with(&"no request".to_owned(), options).await.unwrap();
    let main_loop = MainLoop::new(office.requests.clone(), |n: u32| async move { n })
        .dead_letters(DlqPolicy::new());
    main_loop.run_until_empty().await.unwrap();
    let answers = office.take().await;
    // It has no request id, so the id of its message is used, which is the same for messages of a client.
    assert_eq!(answers[0].request_id, *id.as_uuid());
    assert_eq!(answers[0].error().unwrap().error_type.as_deref(), Some("undecodable"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_stored_is_sent_again_and_then_the_request_is_retried() {
    let office: Office<u32> = Office::open();
    let queue = office.backend.queue("answers", QueueOptions::new()).unwrap();
    let broken = FaultQueue::new(queue, Faults::none(), 1);
    let replies = broken.clone();
    let requests = office.requests.clone().with_replies(move |_: &str| {
        Ok(Mailbox::new(replies.clone(), Json, pillarbox_core::NoReplies))
    });
    let runs = Arc::new(AtomicU32::new(0));
    let count = runs.clone();
    office.ask(&MainLoopRequest::new(7)).await;
    // One failure that passes, and then an outage that outlasts all tries.
    for _ in 0..6 {
        broken.next(Operation::Send, Fault::FailBefore);
    }
    let main_loop = MainLoop::new(requests, move |n: u32| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { n }
    })
    .worker(|worker| worker.retry(Backoff::constant(SECOND)));
    let stats = main_loop.run_until_empty().await.unwrap();
    assert_eq!((runs.load(Ordering::SeqCst), stats.retried, stats.succeeded), (2, 1, 1));
    assert_eq!(office.take().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_output_that_cannot_be_serialized_is_answered_with_an_error() {
    /// Not valid JSON, since its keys are not strings.
    type Map = std::collections::BTreeMap<Vec<u8>, u8>;
    let backend = Mailboxes::new(MemoryBackend::new());
    let requests: Mailbox<MainLoopRequest<u32>, MainLoopResult<Map>> =
        backend.builder("requests").allow_reply_to("answers").open().unwrap();
    let options = SendOptions::new().reply_to("answers");
    requests.send_with(&MainLoopRequest::new(7), options).await.unwrap();
    MainLoop::new(requests, |_: u32| async { Map::from([(vec![1], 1)]) })
        .run_until_empty()
        .await
        .unwrap();
    let answers: Mailbox<MainLoopResult<u32>> = backend.mailbox("answers").unwrap();
    let answer = answers.peek(1).await.unwrap().remove(0).body.unwrap();
    assert!(answer.error().unwrap().text.contains("cannot encode"), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn a_number_of_iterations_handles_that_number_of_requests() {
    let office: Office<u32> = Office::open();
    for n in 0..5 {
        office.ask(&MainLoopRequest::new(n)).await;
    }
    let main_loop = || MainLoop::new(office.requests.clone(), |n: u32| async move { n });
    assert_eq!(main_loop().run_iterations(2).await.unwrap().succeeded, 2);
    assert_eq!((office.take().await.len(), office.left().await), (2, 3));
    assert_eq!(main_loop().run_iterations(0).await.unwrap().succeeded, 0);
    assert_eq!(main_loop().run_iterations(10).await.unwrap().succeeded, 3);
    assert_eq!(main_loop().run_iterations(1).await.unwrap().processed, 0);
    // The last one has the full timeout.
    office.ask(&MainLoopRequest::new(7)).await;
    let slow = MainLoop::new(office.requests.clone(), |n: u32| async move {
        tokio::time::sleep(200 * SECOND).await;
        n
    });
    assert_eq!(slow.run_iterations(1).await.unwrap().succeeded, 1);
}

#[tokio::test(start_paused = true)]
async fn a_loop_is_a_runnable_with_the_name_of_its_mailbox() {
    let office: Office<u32> = Office::open();
    let main_loop = MainLoop::new(office.requests.clone(), |n: u32| async move { n });
    assert_eq!(main_loop.name(), "requests");
    let control = main_loop.control();
    control.stop();
    assert_eq!(main_loop.run().await.unwrap().state, State::Stopped);
}

#[tokio::test(start_paused = true)]
async fn options_out_of_range_are_refused_before_any_request_is_touched() {
    let office: Office<u32> = Office::open();
    office.ask(&MainLoopRequest::new(7)).await;
    let refused =
        MainLoop::new(office.requests.clone(), |n: u32| async move { n }).workers(0).run().await;
    assert!(matches!(refused, Err(Error::InvalidParameter { .. })), "{refused:?}");
    assert_eq!(office.left().await, 1);
}
