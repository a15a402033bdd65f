//! Dead letters: policies, replays, passes, consumers and retention.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use pillarbox_core::{
    BoxFuture, Capabilities, Cursor, Delivery, Error, Factory, Json, Mailbox, Mailboxes,
    ManualClock, MemoryBackend, MessageId, NoReplies, PeekPage, Queue, QueueOptions, Raw, Receive,
    Result, SendOptions, Timestamp,
};
use pillarbox_redis::{RedisBackend, RedisOptions};
use pillarbox_runtime::dead_letters::{
    Classify, DeadLetter, DeadLetterCodec, Decision, Dlq, DlqLimits, DlqPolicy, DlqStatus,
    ErrorClass, FailedDelivery,
};
use pillarbox_runtime::handler::Attempt;
use pillarbox_runtime::{
    Backoff, BoxError, DlqAction, DlqConsumer, Event, FailureKind, Outcome, Runnable, Worker,
};
use pillarbox_testing::server::RedisServer;
use pillarbox_testing::{Fault, FaultQueue, Faults, Operation, forward_queue};

use tokio::time::Instant;

use crate::common::memory::backend;

const DAY: Duration = Duration::from_secs(24 * 3600);

#[derive(Debug, thiserror::Error)]
#[error("order {0} is invalid")]
struct Invalid(u32);
#[derive(Debug, thiserror::Error)]
#[error("too many requests")]
struct Limited;
#[derive(Debug, thiserror::Error)]
#[error("cannot charge")]
struct Charge(#[source] io::Error);

/// Returns the dead letters in a mailbox.
async fn letters<T: 'static>(mailbox: &Mailbox<DeadLetter<T>>) -> Vec<DeadLetter<T>> {
    let letters = mailbox.peek(1000).await.expect("dead letters");
    letters.into_iter().map(|letter| letter.body.expect("a dead letter")).collect()
}

/// Options of a message that was sent this many days ago, by the system clock.
fn days_ago(days: u32) -> SendOptions {
    let at = Timestamp::now().as_nanos() - (DAY * days).as_nanos() as i64;
    SendOptions::new().enqueued_at(Timestamp::from_nanos(at))
}

/// Returns a mailbox with a dead letter for each of these orders, all of which were rejected.
async fn dead_orders(backend: &Mailboxes, orders: &[u32]) -> Mailbox<DeadLetter<u32>> {
    let jobs: Mailbox<u32> = backend.mailbox("orders").expect("a mailbox");
    jobs.send_batch(orders).await.expect("sent").all().expect("sent");
    // One worker keeps the order.
    let worker = Worker::new(jobs)
        .workers(1)
        .dead_letters(DlqPolicy::new())
        .handler(|order: u32| async move { Outcome::reject(format!("{order} is not wanted")) });
    worker.run_until_empty().await.expect("empty");
    backend.mailbox("orders-dlq").expect("a mailbox")
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_records_the_message_and_its_failure() {
    let backend = backend();
    let jobs: Mailbox<serde_json::Value> = backend.mailbox("orders").unwrap();
    let request = "0193b1f4-0000-7000-8000-000000000000";
    let options = SendOptions::new()
        .reply_to("clients")
        .attribute("tenant", "acme")
        .attribute("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let body = serde_json::json!({"request_id": request, "amount": 7});
    let id = jobs.send_with(&body, options).await.unwrap();
    let before = Timestamp::now();
    let worker = Worker::new(jobs)
        .named("tills")
        .retry(Backoff::none())
        .max_deliveries(3)
        .dead_letters(DlqPolicy::new())
        .handler(|_: serde_json::Value| async {
            Err::<(), _>(Charge(io::Error::new(io::ErrorKind::TimedOut, "the bank is silent")))
        });
    worker.run_until_empty().await.unwrap();
    let dead: Mailbox<DeadLetter<serde_json::Value>> = backend.mailbox("orders-dlq").unwrap();
    let letter = letters(&dead).await.remove(0);
    assert_eq!((letter.message_id, &letter.body), (id, &body));
    assert_eq!((letter.source_mailbox.as_str(), letter.delivery_count), ("orders", 3));
    assert_eq!(letter.last_error, "cannot charge");
    assert_eq!(letter.last_error_type, std::any::type_name::<Charge>());
    assert_eq!(letter.failure, FailureKind::Error);
    assert_eq!(letter.error_chain, ["the bank is silent"]);
    assert!(letter.dead_lettered_at >= before.max(letter.first_received_at));
    assert_eq!(letter.request_id.map(|id| id.to_string()).as_deref(), Some(request));
    assert_eq!(letter.reply_to.as_deref(), Some("clients"));
    assert_eq!(letter.trace_id.as_deref(), Some("0af7651916cd43dd8448eb211c80319c"));
    assert_eq!((letter.attributes.get("tenant"), letter.replay_count), (Some("acme"), 0));
    assert!(letter.worker.starts_with("tills/"), "{}", letter.worker);
    assert!(letter.worker.ends_with(&format!(":{}", std::process::id())), "{}", letter.worker);
}

#[tokio::test(start_paused = true)]
async fn errors_decide_by_their_type_and_have_mailboxes_of_their_own() {
    let (here, elsewhere) = (backend(), backend());
    let jobs: Mailbox<u32> = here.mailbox("orders").unwrap();
    let dead: Mailbox<DeadLetter<u32>> = here.mailbox("orders-dlq").unwrap();
    let invalid: Mailbox<DeadLetter<u32>> = elsewhere.mailbox("invalid").unwrap();
    let panics: Mailbox<DeadLetter<u32>> = here.mailbox("panics").unwrap();
    jobs.send_batch(&[0, 1, 2, 3]).await.unwrap().all().unwrap();
    let limited = Arc::new(AtomicU32::new(0));
    let count = limited.clone();
    let policy = DlqPolicy::to(&dead)
        .include::<Invalid>()
        .exclude::<Limited>()
        .route::<Invalid>(&invalid)
        .route_kind(FailureKind::Panic, &panics);
    let worker = Worker::new(jobs.clone())
        .max_deliveries(2)
        .retry(Backoff::none())
        .dead_letters(policy)
        .handler(move |order: u32| {
            let count = count.clone();
            async move {
                match order {
                    0 => Err::<(), BoxError>(Box::new(Invalid(order))),
                    1 if count.fetch_add(1, Ordering::SeqCst) < 50 => Err(Limited.into()),
                    1 => Ok(()),
                    2 => panic!("out of order"),
                    _ => Err("some other".into()),
                }
            }
        });
    let mut events = worker.control().events();
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.dead_lettered), (1, 3));
    assert_eq!(limited.load(Ordering::SeqCst), 51, "excluded errors are always retried");
    let of = async |mailbox| -> Vec<_> {
        let letters: Vec<DeadLetter<u32>> = letters(mailbox).await;
        letters
            .into_iter()
            .map(|one| (one.body, one.delivery_count, one.info.last_error_type))
            .collect()
    };
    assert_eq!(of(&invalid).await, [(0, 1, std::any::type_name::<Invalid>().to_owned())]);
    assert_eq!(of(&panics).await, [(2, 2, "panic".to_owned())]);
    assert_eq!(of(&dead).await.len(), 1);
    let mut places = Vec::new();
    while let Some(event) = events.next().await {
        if let Event::DeadLettered { to, error_type, .. } = event {
            places.push((to.to_string(), error_type));
        }
    }
    places.sort();
    assert_eq!(places[0], ("invalid".to_owned(), std::any::type_name::<Invalid>()));
    assert_eq!(places[2], ("panics".to_owned(), "panic"));
}

#[derive(Debug, thiserror::Error)]
enum Bank {
    #[error("there is no such account")]
    NoAccount,
    #[error("too many requests")]
    TooMany { retry_after: Option<Duration> },
}

impl Classify for Bank {
    fn class(&self) -> ErrorClass {
        match *self {
            Self::NoAccount => ErrorClass::Permanent,
            Self::TooMany { retry_after } => ErrorClass::RateLimited { retry_after },
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_error_has_a_class_and_a_delay_before_the_retry() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    jobs.send_batch(&[0, 1]).await.unwrap().all().unwrap();
    let policy = DlqPolicy::new().classify::<Bank>().include_permanent().exclude_retriable();
    let start = tokio::time::Instant::now();
    let times = Arc::new(Mutex::new(Vec::new()));
    let noted = times.clone();
    let worker = Worker::new(jobs)
        .max_deliveries(2)
        .dead_letters(policy)
        .retry(Backoff::constant(Duration::from_secs(60)))
        .handler(move |order: u32, Attempt(attempt): Attempt| {
            noted.lock().unwrap().push((order, start.elapsed().as_secs()));
            async move {
                // In a box, as `?` returns it.
                let error = match (order, attempt) {
                    (0, _) => Bank::NoAccount,
                    (_, 1) => Bank::TooMany { retry_after: Some(Duration::from_secs(7)) },
                    (_, 2 | 3) => Bank::TooMany { retry_after: None },
                    _ => return Ok(()),
                };
                Err(BoxError::from(error))
            }
        });
    let stats = worker.run_until_empty().await.unwrap();
    let mut times = times.lock().unwrap().clone();
    times.sort_unstable();
    assert_eq!(times, [(0, 0), (1, 0), (1, 7), (1, 67), (1, 127)]);
    assert_eq!((stats.succeeded, stats.dead_lettered, stats.retried), (1, 1, 3));
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
    assert_eq!(letters(&dead).await[0].last_error_type, std::any::type_name::<Bank>());
}

#[tokio::test(start_paused = true)]
async fn a_function_with_an_error_budget_can_decide() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    jobs.send_batch(&(0..10).collect::<Vec<_>>()).await.unwrap().all().unwrap();
    let failed = AtomicU32::new(0);
    let policy = DlqPolicy::new().decide(move |delivery: &FailedDelivery<'_>| {
        let body: u32 = delivery.json().expect("a number");
        match failed.fetch_add(1, Ordering::SeqCst) {
            n if n < 5 && body < 10 => Decision::Retry,
            _ => Decision::DeadLetter,
        }
    });
    let worker = Worker::new(jobs)
        .retry(Backoff::none())
        .dead_letters(policy)
        .handler(|_: u32| async { Err::<(), _>(Limited) });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.retried, stats.dead_lettered), (5, 10));
}

#[tokio::test(start_paused = true)]
async fn an_error_reply_is_sent_for_a_dead_letter_and_not_for_a_retry() {
    let backend = backend();
    let jobs = backend.builder("sums").allow_reply_to("answers");
    let jobs: Mailbox<u32, Result<u32, String>> = jobs.open().unwrap();
    let answers: Mailbox<Result<u32, String>> = backend.mailbox("answers").unwrap();
    let to_answers = || SendOptions::new().reply_to("answers");
    jobs.send_with(&1, to_answers()).await.unwrap();
    jobs.send(&2).await.unwrap();
    jobs.send_with(&3, SendOptions::new().reply_to("no such: place!")).await.unwrap();
    let raw: Mailbox<Bytes> = backend.builder("sums").codec(Raw).open().unwrap();
    raw.send_with(&Bytes::from_static(b"no number"), to_answers()).await.unwrap();
    let worker = Worker::new(jobs)
        .retry(Backoff::none())
        .dead_letters(DlqPolicy::new())
        .error_reply(|letter| {
            assert_ne!(letter.failure, FailureKind::Undecodable, "one that panics sends none");
            Err(format!("after {}: {}", letter.delivery_count, letter.last_error))
        })
        .handler(|n: u32| async move { Err::<(), _>(Invalid(n)) });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!(stats.dead_lettered, 4);
    let answers = answers.receive(Receive::up_to(10)).await.unwrap();
    let replies: Vec<_> = answers.into_iter().map(|answer| answer.body().clone()).collect();
    assert_eq!(replies, [Err("after 5: order 1 is invalid".to_owned())]);
}

#[tokio::test(start_paused = true)]
async fn a_replay_is_the_same_message_under_another_id_up_to_a_limit() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let options = SendOptions::new().reply_to("clients").attribute("tenant", "acme");
    let id = jobs.send_with(&7, options).await.unwrap();
    let sent = jobs.peek(1).await.unwrap().remove(0).message;
    let work = async || {
        let worker = Worker::new(jobs.clone())
            .dead_letters(DlqPolicy::new())
            .handler(|_: u32| async { Outcome::reject("no") });
        worker.run_until_empty().await.unwrap();
    };
    let dlq = Dlq::open(&backend, "orders-dlq").unwrap();
    let mut ids = vec![id];
    for replays in 1..=3 {
        work().await;
        assert_eq!(dlq.find(id).await.unwrap().unwrap().letter.unwrap().message_id, id);
        let report = dlq.replay().run().await.unwrap();
        assert_eq!((report.done, report.exhausted), (1, 0));
        let message = jobs.peek(2).await.unwrap().remove(0).message;
        assert!(!ids.contains(&message.id), "each replay has an id of its own");
        ids.push(message.id);
        assert_eq!(message.body, sent.body);
        assert_eq!(message.attributes.get("pillarbox.original_id"), Some(&*id.to_string()));
        assert_eq!(message.reply_to, sent.reply_to);
        assert_eq!(message.enqueued_at, sent.enqueued_at);
        assert_eq!(message.attributes.get("tenant"), Some("acme"));
        assert_eq!(message.attributes.get("pillarbox.replays"), Some(&*replays.to_string()));
    }
    work().await;
    let report = dlq.replay().run().await.unwrap();
    assert_eq!((report.done, report.exhausted), (0, 1), "three times is enough");
    let found = dlq.find(id).await.unwrap().unwrap().letter.unwrap();
    assert_eq!((found.replay_count, found.attributes.len()), (3, 1));
    assert!(found.replayed_at.is_some());
    assert_eq!(dlq.replay().max_replays(9).run().await.unwrap().done, 1);
}

#[tokio::test(start_paused = true)]
async fn a_filtered_replay_leaves_the_others_in_their_order() {
    let backend = backend();
    let all: Vec<u32> = (0..1_300).collect();
    let dead = dead_orders(&backend, &all).await;
    let dlq = Dlq::of(&dead);
    let kept = dead.receive(Receive::one()).await.unwrap().into_iter().next().unwrap();
    let odd = |letter: &DeadLetter| letter.body.last().is_some_and(|digit| digit % 2 == 1);
    let report = dlq.replay().matching(odd).run().await.unwrap();
    assert_eq!((report.done, report.skipped, report.unseen), (650, 649, 1), "{report:?}");
    kept.nack(Duration::ZERO).await.unwrap();
    let left: Vec<_> = letters(&dead).await.into_iter().map(|letter| letter.body).collect();
    assert_eq!(left.len(), 650);
    assert!(left.iter().all(|order| order % 2 == 0));
    assert!(left[..649].is_sorted() && left[649] == 0, "{left:?}");
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    assert_eq!(jobs.approximate_count().await.unwrap(), 650);
}

#[tokio::test(start_paused = true)]
async fn a_pass_replays_at_most_its_maximum() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..100).collect::<Vec<_>>()).await;
    let dlq = Dlq::of(&dead);
    assert_eq!(dlq.replay().max(33).run().await.unwrap().done, 33);
    let first = |letter: &DeadLetter| letter.body[..] == b"99"[..];
    assert_eq!(dlq.replay().matching(first).max(33).run().await.unwrap().done, 1);
    assert_eq!(dlq.discard().max(60).run().await.unwrap().done, 60);
    assert_eq!(dead.counts().await.unwrap().ready, 6);
}

#[tokio::test(start_paused = true)]
async fn a_replay_keeps_its_rate_and_its_leases() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..400).collect::<Vec<_>>()).await;
    let start = tokio::time::Instant::now();
    let half = |letter: &DeadLetter| letter.body.len() == 3 && letter.body[0] >= b'2';
    let seen = Arc::new(AtomicU32::new(0));
    let count = seen.clone();
    let pass = Dlq::of(&dead).replay().matching(half).rate(1, Duration::from_secs(10)).progress(
        move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        },
    );
    let report = pass.run().await.unwrap();
    assert_eq!((report.done, report.skipped), (200, 200));
    let took = start.elapsed().as_secs();
    assert!((1980..=2000).contains(&took), "{took} s for 200 at one in 10 s");
    assert!(seen.load(Ordering::SeqCst) >= 200);
    assert_eq!(dead.approximate_count().await.unwrap(), 200);
    assert_eq!(dead.peek(1).await.unwrap()[0].message.unsettled, 0, "no lease ended meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_stopped_releases_everything() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..50).collect::<Vec<_>>()).await;
    let dlq = Dlq::of(&dead);
    let pass = dlq.replay().matching(|letter| letter.body[..] != b"3"[..]);
    let stop = tokio::time::sleep(Duration::from_secs(10));
    let report = pass.rate(1, Duration::from_secs(1)).run_until(stop).await.unwrap();
    assert!((5..15).contains(&report.done), "{report:?}");
    let counts = dead.counts().await.unwrap();
    assert_eq!((counts.ready, counts.total()), (50 - report.done, 50 - report.done));
}

#[tokio::test(start_paused = true)]
async fn two_passes_at_a_time_replay_each_message_once() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..500).collect::<Vec<_>>()).await;
    let dlq = Dlq::of(&dead);
    let (one, other) = tokio::join!(dlq.replay().run(), dlq.replay().run());
    assert_eq!(one.unwrap().done + other.unwrap().done, 500);
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    assert_eq!(jobs.approximate_count().await.unwrap(), 500);
}

#[tokio::test(start_paused = true)]
async fn unreadable_or_refused_messages_stay() {
    let backend = backend();
    let dead = dead_orders(&backend, &[1, 2]).await;
    let mut odd = letters(&dead).await.remove(0);
    let raw: Mailbox<Bytes> = dead.with_codec(Raw);
    raw.send(&Bytes::from_static(b"{\"no\": \"dead letter\"}")).await.unwrap();
    odd.message_id = MessageId::new();
    odd.source_mailbox = "orders".parse().unwrap();
    odd.attributes.insert("", "an attribute without a name");
    dead.send(&odd).await.unwrap();
    let dlq = Dlq::of(&dead);
    let summary = dlq.summary(|_| true).await.unwrap();
    assert_eq!((summary.dead_letters, summary.unreadable), (3, 1));
    let report = dlq.replay().run().await.unwrap();
    assert_eq!((report.done, report.unreadable, report.refused), (2, 1, 1), "{report:?}");
    assert!(report.reasons[0].to_string().contains("attribute"), "{:?}", report.reasons);
    assert_eq!(dlq.discard().run().await.unwrap().done, 1);
    assert_eq!(dead.approximate_count().await.unwrap(), 1, "nobody knows what it is");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_fails_reports_what_it_has_done_and_can_be_run_again() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..100).collect::<Vec<_>>()).await;
    let queue = backend.queue("orders", QueueOptions::new()).unwrap();
    let faulty = FaultQueue::new(queue, Faults::none(), 1);
    let jobs: Mailbox<u32> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let dlq = Dlq::of(&dead).replay_to(&jobs);
    // The first batch has 16 messages.
    let calls = AtomicU32::new(0);
    let breaking = faulty.clone();
    let pass = dlq.replay().progress(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            breaking.next(Operation::Send, Fault::FailAfter);
        }
    });
    let failed = pass.run().await.unwrap_err();
    assert_eq!(failed.report.done, 16);
    assert!(matches!(failed.error, Error::Connection { .. }), "{failed}");
    assert_eq!(dead.counts().await.unwrap().ready, 84, "all that was received went back");
    let report = dlq.replay().run().await.unwrap();
    assert_eq!(report.done, 84);
    assert_eq!(jobs.approximate_count().await.unwrap(), 100, "none is there twice");
}

/// The replay is sent, and its dead letter not yet acknowledged, when the message fails again. If the new dead letter
/// had the id of the old one, acknowledging the old one would delete the message for good.
#[tokio::test(start_paused = true)]
async fn a_message_that_fails_again_while_it_is_being_replayed_has_a_dead_letter_of_its_own() {
    let backend = backend();
    let dead = dead_orders(&backend, &[7]).await;
    let queue = backend.queue("orders-dlq", QueueOptions::new()).unwrap();
    let slow = FaultQueue::new(queue, Faults::none(), 1);
    slow.next(Operation::Settle, Fault::Delay(Duration::from_secs(60)));
    let slow: Mailbox<DeadLetter<u32>> = Mailbox::new(slow, Json, NoReplies);
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let pass = Dlq::of(&slow).replay_to(&jobs).replay();
    let again = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        dead_orders(&backend, &[]).await;
        assert_eq!(jobs.approximate_count().await.unwrap(), 0, "it has failed again");
    };
    let (report, ()) = tokio::join!(pass.run(), again);
    let report = report.unwrap();
    assert_eq!((report.done, report.failed_again), (1, 1), "it does not go round and round");
    let left = letters(&dead).await;
    assert_eq!((left.len(), left[0].replay_count), (1, 1));
}

/// Source and dead letters are on one backend, although each has its own time to live.
#[tokio::test]
async fn dead_letters_may_be_kept_longer_than_their_source_keeps_messages() {
    let server = RedisServer::start();
    let options = RedisOptions::from_url(&server.url()).unwrap();
    let backend = Mailboxes::new(RedisBackend::open(options).await.unwrap());
    let jobs: Mailbox<u32> = backend.builder("requests").default_ttl(3 * DAY).open().unwrap();
    let dead = backend.builder("requests-dlq").default_ttl(30 * DAY);
    let dead: Mailbox<DeadLetter<u32>> = dead.open().unwrap();
    jobs.send(&7).await.unwrap();
    let worker = Worker::new(jobs.clone())
        .dead_letters(DlqPolicy::to(&dead))
        .handler(|_: u32| async { Outcome::reject("no") });
    worker.run_until_empty().await.unwrap();
    assert_eq!(letters(&dead).await[0].source_backend, None, "it is not elsewhere");

    let days = |queue: &str| {
        let left = server.command(&["PTTL", &format!("{{queue:{queue}}}:meta")]);
        left.parse::<f64>().unwrap() / 86_400_000.0
    };
    assert!((2.9..=3.0).contains(&days("requests")), "{}", days("requests"));
    assert!((29.9..=30.0).contains(&days("requests-dlq")), "{}", days("requests-dlq"));
    let report = Dlq::of(&dead).replay().run().await.unwrap();
    assert_eq!((report.done, jobs.approximate_count().await.unwrap()), (1, 1));
    assert!((2.9..=3.0).contains(&days("requests")), "also where a replay sent");
}

/// Delays the dead letters of some orders by a number of minutes each. The others stay ready.
async fn delay(dead: &Mailbox<DeadLetter<u32>>, minutes: &[(u32, u64)]) {
    let batch = dead.receive(Receive::up_to(100)).await.expect("dead letters");
    for letter in batch {
        let order = letter.body().body;
        let minutes = minutes.iter().find(|(of, _)| *of == order).map_or(0, |(_, time)| *time);
        letter.nack(Duration::from_secs(60 * minutes)).await.expect("delayed");
    }
}

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn a_pass_may_wait_for_dead_letters_that_are_delayed() {
    let backend = backend();
    let dead = dead_orders(&backend, &[1, 2, 3, 4, 5]).await;
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    delay(&dead, &[(2, 10), (3, 50), (4, 50), (5, 90)]).await;

    let begun = Instant::now();
    let reports = Arc::new(Mutex::new(Vec::new()));
    let waits = reports.clone();
    let pass = Dlq::of(&dead).replay().delayed(HOUR).progress(move |report| {
        waits.lock().unwrap().push((report.done, report.awaited, report.waiting));
    });
    let report = pass.run().await.unwrap();
    assert_eq!((report.done, report.unseen, report.awaited), (4, 1, 3));
    assert_eq!(report.waiting, None);
    assert_eq!(begun.elapsed().as_secs(), 50 * 60 + 1, "it ends with the last of them");
    assert_eq!(letters(&dead).await[0].body, 5);
    assert_eq!(jobs.approximate_count().await.unwrap(), 4);
    let reports = reports.lock().unwrap().clone();
    let before = |time: u64| Some(Duration::from_secs(60 * time + 1));
    assert!(
        reports.contains(&(1, 3, before(50))) && reports.contains(&(2, 3, before(40))),
        "{reports:?}"
    );

    // A discard waits as well.
    assert_eq!(Dlq::of(&dead).discard().run().await.unwrap().done, 0);
    assert_eq!(Dlq::of(&dead).discard().delayed(HOUR).run().await.unwrap().done, 1);
    assert_eq!(begun.elapsed().as_secs(), 90 * 60 + 1);
    let begun = Instant::now();
    assert_eq!(Dlq::of(&dead).discard().delayed(HOUR).run().await.unwrap().done, 0);
    assert!(begun.elapsed().is_zero(), "there is nothing to wait for");
}

#[tokio::test(start_paused = true)]
async fn a_pass_does_not_wait_for_delayed_dead_letters_that_it_would_leave() {
    let backend = backend();
    let dead = dead_orders(&backend, &[1, 2, 3, 4]).await;
    let (first, ids): (Vec<_>, Vec<_>) =
        letters(&dead).await.iter().map(|letter| (letter.body, letter.message_id)).unzip();
    assert_eq!(first, [1, 2, 3, 4]);
    delay(&dead, &[(2, 10), (3, 20), (4, 30)]).await;
    let waited = async |pass: pillarbox_runtime::dead_letters::Pass| {
        let begun = Instant::now();
        let report = pass.delayed(HOUR).run().await.unwrap();
        (report.done, report.skipped, begun.elapsed().as_secs() / 60)
    };
    let dlq = Dlq::of(&dead);
    assert_eq!(waited(dlq.replay().max_replays(0)).await, (0, 0, 0));
    let pass = dlq.replay().matching(|letter| letter.body[..] == b"9"[..]);
    assert_eq!(waited(pass).await, (0, 1, 0));
    assert_eq!(waited(dlq.replay().ids([ids[1]])).await, (1, 1, 10));
    // A dead letter that has an id but is not selected is ready before one that is selected.
    let pass = dlq.replay().ids([ids[2], ids[3]]).matching(|letter| letter.body[..] == b"4"[..]);
    assert_eq!(waited(pass).await, (1, 2, 20));
    assert_eq!(waited(dlq.discard().max(1)).await, (1, 0, 0));
    assert_eq!(letters(&dead).await.len(), 1);
    assert_eq!(dead.peek(9).await.unwrap()[0].message.unsettled, 0, "no lease ended meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_pass_that_is_stopped_while_it_waits_releases_what_it_held() {
    let backend = backend();
    let dead = dead_orders(&backend, &[1, 2, 3]).await;
    delay(&dead, &[(2, 10), (3, 30)]).await;
    let dlq = Dlq::of(&dead);
    let pass = dlq.replay().delayed(HOUR).matching(|letter| letter.body[..] != b"1"[..]);
    let report = pass.run_until(tokio::time::sleep(HOUR / 3)).await.unwrap();
    assert_eq!((report.done, report.skipped, report.waiting), (1, 1, None));
    let counts = dead.counts().await.unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.delayed), (1, 0, 1));
    let report = dlq.replay().delayed(HOUR).run().await.unwrap();
    assert_eq!((report.done, report.unseen), (2, 0));
}

/// Without peek it is not known what is delayed, or for how long.
#[tokio::test(start_paused = true)]
async fn a_pass_without_peek_waits_for_the_whole_time() {
    let inner = backend();
    let dead = dead_orders(&inner, &[1, 2]).await;
    delay(&dead, &[(2, 10)]).await;
    let jobs: Mailbox<u32> = inner.mailbox("orders").unwrap();
    let blind = Blind::over(dead.queue());
    let blind: Mailbox<DeadLetter<u32>> = Mailbox::new(blind, Json, NoReplies);
    let dlq = Dlq::of(&blind).replay_to(&jobs);
    let begun = Instant::now();
    let report = dlq.replay().delayed(HOUR / 4).run().await.unwrap();
    assert_eq!((report.done, report.unseen), (2, 0));
    assert_eq!(begun.elapsed().as_secs() / 60, 15);
    let begun = Instant::now();
    assert_eq!(dlq.replay().delayed(HOUR).run().await.unwrap().done, 0);
    assert!(begun.elapsed().is_zero(), "there is nothing to wait for");
}

/// In real time, so that the rest of a wait is not a whole number of seconds.
#[tokio::test]
async fn a_consumer_works_on_a_backend_whose_waits_are_whole_seconds() {
    let inner = backend();
    let dead = dead_orders(&inner, &[]).await;
    let blind: Mailbox<DeadLetter<u32>> = Mailbox::new(Blind::over(dead.queue()), Json, NoReplies);
    let (said, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let consumer = DlqConsumer::new(blind, move |letter: DeadLetter<u32>| {
        said.send(letter.body).expect("a receiver");
        async {}
    });
    let mut events = consumer.control().events();
    let running = consumer.start();
    for body in 1..4 {
        dead_orders(&inner, &[body]).await;
        assert_eq!(heard.recv().await, Some(body));
    }
    running.stop().await.unwrap();
    while let Some(event) = events.next().await {
        assert!(!matches!(event, Event::ReceiveFailed { .. }), "{event:?}");
    }
}

/// A queue without peek and with waits of whole seconds.
#[derive(Debug)]
struct Blind {
    inner: Arc<dyn Queue>,
    capabilities: Capabilities,
}

impl Blind {
    fn over(inner: &Arc<dyn Queue>) -> Arc<dyn Queue> {
        let mut capabilities = inner.capabilities().clone();
        capabilities.peek = false;
        capabilities.sub_second = false;
        capabilities.max_wait = Some(Duration::from_secs(20));
        Arc::new(Self { inner: inner.clone(), capabilities })
    }
}

impl Queue for Blind {
    forward_queue!(inner: name send settle counts purge close is_closed);

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        if let Err(error) = self.capabilities.check_receive(self.name(), &request) {
            return Box::pin(async { Err(error) });
        }
        self.inner.receive(request)
    }

    fn peek(&self, max: usize, _: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        let refused = self.capabilities.check_peek(self.name(), max);
        Box::pin(async { refused.map(|()| PeekPage::new(Vec::new(), None)) })
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_replayed_to_another_backend_only_if_it_is_named() {
    let (here, elsewhere) = (backend(), backend());
    let jobs: Mailbox<u32> = here.mailbox("orders").unwrap();
    jobs.send_batch(&[1, 2]).await.unwrap().all().unwrap();
    let dead: Mailbox<DeadLetter<u32>> = elsewhere.mailbox("fraud").unwrap();
    let usual: Mailbox<DeadLetter<u32>> = here.mailbox("orders-dlq").unwrap();
    let policy = DlqPolicy::new().route_if(|failure| failure.to_string() == "1", &dead);
    let worker = Worker::new(jobs.clone())
        .dead_letters(policy)
        .handler(|n: u32| async move { Outcome::reject(n.to_string()) });
    worker.run_until_empty().await.unwrap();
    assert_eq!(letters(&dead).await[0].source_backend.as_deref(), Some("memory"));
    assert_eq!(letters(&usual).await[0].source_backend, None);

    let report = Dlq::of(&dead).replay().run().await.unwrap();
    assert_eq!((report.done, report.refused), (0, 1));
    assert!(report.reasons[0].to_string().contains("sources_on"), "{:?}", report.reasons);
    let replay = |_: DeadLetter<u32>| async { DlqAction::replay() };
    let consumer = DlqConsumer::new(dead.clone(), replay);
    let stats = consumer.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!((stats.succeeded, stats.failed), (0, 1));
    assert_eq!(dead.approximate_count().await.unwrap(), 1, "it is kept");
    assert_eq!(elsewhere.queues().await.unwrap().len(), 1, "and nothing is sent elsewhere");

    tokio::time::sleep(Duration::from_secs(3600)).await;
    let dlq = Dlq::of(&dead).sources_on(&here);
    assert_eq!(dlq.replay().run().await.unwrap().done, 1);
    assert_eq!(Dlq::of(&usual).replay().run().await.unwrap().done, 1);
    assert_eq!(jobs.approximate_count().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_error_reply_is_retried_and_its_function_may_panic() {
    let backend = backend();
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("sums-dlq").unwrap();
    let queue = backend.queue("sums", QueueOptions::new()).unwrap();
    let answers: Mailbox<String> = backend.mailbox("answers").unwrap();
    let faulty = FaultQueue::new(answers.queue().clone(), Faults::none(), 1);
    for _ in 0..4 {
        faulty.next(Operation::Send, Fault::FailAfter);
    }
    let replies = Mailbox::new(faulty.clone(), Json, NoReplies);
    let find = Factory::new(move |address: &str| {
        assert_ne!(address, "nowhere", "the program's own code panics");
        Ok(replies.clone())
    });
    let jobs: Mailbox<u32, String> = Mailbox::new(queue, Json, find);
    for to in ["answers", "nowhere"] {
        jobs.send_with(&1, SendOptions::new().reply_to(to)).await.unwrap();
    }
    let worker = Worker::new(jobs.clone())
        .dead_letters(DlqPolicy::to(&dead))
        .error_reply(|letter| letter.last_error.clone())
        .handler(|_: u32| async { Outcome::reject("no") });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!(stats.dead_lettered, 2);
    let replies = answers.peek(9).await.unwrap();
    assert_eq!(replies.len(), 1, "five attempts, one reply");
    let calls = faulty.injected();
    assert_eq!(calls, 4, "and the fifth went well");

    let useless = Worker::new(jobs).error_reply(|_| String::new()).handler(|_: u32| async {});
    let error = useless.run_until_empty().await.unwrap_err().to_string();
    assert!(error.contains("error_reply") && error.contains("dead_letters"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_message_does_not_prevent_the_expiry_of_others() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2]).await;
    let all = letters(&dead).await;
    dead.purge().await.unwrap();
    let raw: Mailbox<Bytes> = dead.with_codec(Raw);
    let junk: Vec<_> = (0..40).map(|n: u32| Bytes::from(n.to_string())).collect();
    raw.send_batch(&junk).await.unwrap().all().unwrap();
    dead.send_with(&all[0], days_ago(40)).await.unwrap();
    raw.send_batch(&junk[..3]).await.unwrap().all().unwrap();
    dead.send_with(&all[1], days_ago(35)).await.unwrap();
    dead.send_with(&all[2], days_ago(2)).await.unwrap();
    let dlq = Dlq::of(&dead);
    assert_eq!(dlq.expire(30 * DAY).await.unwrap(), 2);
    assert_eq!(dlq.expire(30 * DAY).await.unwrap(), 0);
    let counts = dead.counts().await.unwrap();
    assert_eq!((counts.ready, counts.total()), (44, 44), "43 that cannot be read, and a young one");
}

#[tokio::test(start_paused = true)]
async fn a_pass_for_some_ids_ends_when_it_has_found_them() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..300).collect::<Vec<_>>()).await;
    let all = letters(&dead).await;
    let dlq = Dlq::of(&dead);
    let report = dlq.replay().ids([all[3].message_id]).run().await.unwrap();
    assert_eq!((report.done, report.skipped), (1, 15), "the first batch has 16");
    let report = dlq.discard().ids([MessageId::new()]).run().await.unwrap();
    assert_eq!((report.done, report.skipped), (0, 0), "there is none");
    // All dead letters of a message, of which there may be several.
    dead.send(&all[4]).await.unwrap();
    let report = dlq.discard().ids([all[4].message_id]).run().await.unwrap();
    assert_eq!(report.done, 2);
    assert_eq!(dead.counts().await.unwrap().ready, 298);
}

#[tokio::test(start_paused = true)]
async fn invalid_rates_and_leases_are_refused_and_extreme_ones_work() {
    let backend = backend();
    let dead = dead_orders(&backend, &[1, 2]).await;
    let dlq = Dlq::of(&dead);
    let failed = dlq.replay().rate(0, Duration::from_secs(1)).run().await.unwrap_err();
    assert!(matches!(failed.error, Error::InvalidParameter { .. }), "{failed}");
    let pass = dlq.replay().rate(1, Duration::MAX).max(1);
    assert_eq!(pass.run().await.unwrap().done, 1);
    // A lease that is too long is up to the queue.
    let _ = dlq.replay().visibility(Duration::MAX).max(0).run().await;

    // A message that was sent counts even if its dead letter was not acknowledged.
    let slow = FaultQueue::new(dead.queue().clone(), Faults::none(), 1);
    slow.next(Operation::Settle, Fault::Delay(Duration::from_secs(2)));
    let slow: Mailbox<DeadLetter<u32>> = Mailbox::new(slow, Json, NoReplies);
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let pass = Dlq::of(&slow).replay_to(&jobs).replay().visibility(Duration::from_secs(1));
    let start = tokio::time::Instant::now();
    let stop = tokio::time::sleep(Duration::from_secs(99));
    let report = pass.rate(1, Duration::from_secs(100)).run_until(stop).await.unwrap();
    assert_eq!((report.done, report.unacknowledged), (0, 1), "after {:?}", start.elapsed());
}

/// One crash of a process says nothing about its messages.
#[tokio::test(start_paused = true)]
async fn one_crash_of_a_process_makes_no_dead_letter_even_with_one_attempt() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    jobs.send_batch(&[1, 2, 3]).await.unwrap().all().unwrap();
    let worker = || Worker::new(jobs.clone()).max_deliveries(1).dead_letters(DlqPolicy::new());
    let hangs = worker().handler(|_: u32| std::future::pending::<()>());
    let life = hangs.run_until(std::future::pending());
    assert!(tokio::time::timeout(Duration::from_secs(5), life).await.is_err(), "it is killed");
    tokio::time::sleep(Duration::from_secs(30)).await;
    let seen = jobs.peek(1).await.unwrap().remove(0).message;
    assert_eq!((seen.unsettled, seen.uncounted), (0, 1), "nobody is known to have started on it");
    let stats = worker().handler(|_: u32| async {}).run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.dead_lettered), (3, 0));
}

/// Messages that were prefetched by a process that crashed were not attempted, however often that happens.
#[tokio::test(start_paused = true)]
async fn a_message_that_no_handler_has_started_is_never_dead_lettered() {
    let queue = backend().queue("orders", QueueOptions::new()).unwrap();
    let faulty = FaultQueue::new(queue, Faults::none(), 0);
    let jobs: Mailbox<u32> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let dead: Mailbox<DeadLetter<u32>> = backend().mailbox("dead").unwrap();
    jobs.send_batch(&[1, 2, 3, 4]).await.unwrap().all().unwrap();
    let worker = || {
        let worker = Worker::new(jobs.clone()).workers(1);
        worker.max_deliveries(3).dead_letters(DlqPolicy::to(&dead))
    };
    let runs = Arc::new(Mutex::new(Vec::new()));
    for _life in 0..4 {
        let runs = runs.clone();
        let is_first = Arc::new(AtomicBool::new(true));
        // It ends at once for the first message, and fetches are slow: so the others are prefetched.
        let hangs = worker().handler(move |job: u32| {
            let is_first = is_first.swap(false, Ordering::SeqCst);
            if !is_first {
                runs.lock().unwrap().push(job);
            }
            async move {
                if !is_first {
                    std::future::pending::<()>().await;
                }
                Outcome::release()
            }
        });
        for _ in 0..2 {
            faulty.next(Operation::Receive, Fault::Delay(Duration::from_secs(2)));
        }
        let run = hangs.run_until(std::future::pending());
        let ended = tokio::time::timeout(Duration::from_millis(4500), run).await;
        assert!(ended.is_err(), "it is killed");
        let counts = jobs.counts().await.unwrap();
        assert_eq!(counts.in_flight, 4, "one runs, and three wait");
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let runs = runs.lock().unwrap().clone();
    for peeked in jobs.peek(4).await.unwrap() {
        let times =
            runs.iter().filter(|job| **job == *peeked.body.as_ref().unwrap()).count() as u32;
        let message = peeked.message;
        assert!(message.delivery_count >= 4, "{message:?}");
        // The first run of a message may not be recorded, since that would cost every message a call.
        let unsettled = message.unsettled;
        assert!(unsettled == times || unsettled + 1 == times, "{times}: {message:?}");
        assert_eq!(message.attempt(), message.unsettled.max(1), "{message:?}");
    }
    let stats = worker().handler(|_: u32| async {}).run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.dead_lettered), (4, 0), "{runs:?}");
}

/// The queue counts releases, so that other processes know of them.
#[tokio::test(start_paused = true)]
async fn releases_use_up_no_attempt_of_a_process_that_did_not_see_them() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    jobs.send(&1).await.unwrap();
    for release in 0..25 {
        // Each by a worker of its own.
        let later = |_: u32| async { Outcome::release_for(Duration::from_secs(1)) };
        let worker = Worker::new(jobs.clone()).handler(later);
        worker.run_until(tokio::time::sleep(Duration::from_millis(500))).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(jobs.peek(1).await.unwrap()[0].message.uncounted, release + 1);
    }
    let attempts = Arc::new(Mutex::new(Vec::new()));
    let worker =
        Worker::new(jobs.clone()).max_deliveries(3).dead_letters(DlqPolicy::new()).handler({
            let attempts = attempts.clone();
            move |_: u32, Attempt(attempt): Attempt| {
                attempts.lock().unwrap().push(attempt);
                async move { if attempt < 3 { Outcome::retry() } else { Outcome::done() } }
            }
        });
    let stats = worker.run_until_empty().await.unwrap();
    assert_eq!((stats.succeeded, stats.dead_lettered), (1, 0));
    assert_eq!(*attempts.lock().unwrap(), [1, 2, 3]);
}

/// A dead letter is stored before its message is acknowledged. Replayed in between under the same id, the message would
/// not be stored, and the acknowledgement would delete it for good.
#[tokio::test(start_paused = true)]
async fn a_message_that_is_replayed_before_it_is_acknowledged_is_not_lost() {
    for by_consumer in [false, true] {
        let backend = backend();
        let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
        let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
        jobs.send(&7).await.unwrap();
        let slow = FaultQueue::new(jobs.queue().clone(), Faults::none(), 1);
        slow.next(Operation::Settle, Fault::Delay(Duration::from_secs(5)));
        let worker = Worker::new(Mailbox::<u32>::new(slow, Json, NoReplies))
            .workers(1)
            .prefetch(0)
            .dead_letters(DlqPolicy::to(&dead))
            .handler(|_: u32| async { Outcome::reject("no") })
            .start();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!((jobs.counts().await.unwrap().in_flight, letters(&dead).await.len()), (1, 1));
        if by_consumer {
            let replay = |_: DeadLetter<u32>| async { DlqAction::replay() };
            let consumer = DlqConsumer::new(dead.clone(), replay).max_replays(1);
            consumer.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
        } else {
            assert_eq!(Dlq::of(&dead).replay().run().await.unwrap().done, 1);
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        worker.stop().await.unwrap();
        let left = letters(&dead).await;
        assert_eq!(left.len(), 1, "it has failed again (by a consumer: {by_consumer})");
        assert_eq!((left[0].body, left[0].replay_count), (7, 1));
        assert_eq!(jobs.approximate_count().await.unwrap(), 0);
    }
}

/// A pass is killed after it has sent a message, which fails again: there are two dead letters of it. The next pass
/// replays both, and the message fails a third time before that pass has acknowledged them.
#[tokio::test(start_paused = true)]
async fn two_dead_letters_of_one_message_are_two_replays() {
    let backend = backend();
    let dead = dead_orders(&backend, &[7]).await;
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let faulty = FaultQueue::new(dead.queue().clone(), Faults::none(), 1);
    let letters_of: Mailbox<DeadLetter<u32>> = Mailbox::new(faulty.clone(), Json, NoReplies);
    let dlq = Dlq::of(&letters_of).replay_to(&jobs);
    faulty.next(Operation::Settle, Fault::FailBefore);
    assert_eq!(dlq.replay().run().await.unwrap_err().report.unacknowledged, 1);
    // The first is ready again when the second is stored.
    tokio::time::sleep(Duration::from_secs(120)).await;
    dead_orders(&backend, &[]).await;
    let lives: Vec<_> = letters(&dead).await.iter().map(|letter| letter.replay_count).collect();
    assert_eq!(lives, [0, 1]);

    faulty.next(Operation::Settle, Fault::Delay(Duration::from_secs(60)));
    let again = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        dead_orders(&backend, &[]).await;
        assert_eq!(jobs.approximate_count().await.unwrap(), 0, "all have failed again");
    };
    let (report, ()) = tokio::join!(dlq.replay().run(), again);
    assert_eq!(report.unwrap().done, 2);
    let left = letters(&dead).await;
    assert_eq!(left.iter().map(|letter| letter.replay_count).collect::<Vec<_>>(), [2]);
}

/// A handler that forwards messages with their attributes makes messages that look like replays.
#[tokio::test(start_paused = true)]
async fn messages_with_the_attributes_of_a_replay_are_not_confused() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let first = MessageId::new().to_string();
    let at = Timestamp::now();
    let copies: Vec<_> = ["1", "2"]
        .map(|body| {
            let mut copy = pillarbox_core::Outgoing::new(body);
            copy.attributes.insert("pillarbox.original_id", &*first);
            copy.attributes.insert("pillarbox.replays", "1");
            copy.enqueued_at = Some(at);
            copy
        })
        .into();
    jobs.queue().send(copies).await.unwrap();
    let dead = dead_orders(&backend, &[]).await;
    assert_eq!(letters(&dead).await.len(), 2);
    assert_eq!(Dlq::of(&dead).replay().run().await.unwrap().done, 2);
    assert_eq!(jobs.approximate_count().await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_does_what_its_handler_returns() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2, 3, 4]).await;
    let (said, mut heard) = tokio::sync::mpsc::channel(99);
    let start = tokio::time::Instant::now();
    let consumer = DlqConsumer::new(dead.clone(), move |letter: DeadLetter<u32>| {
        let said = said.clone();
        async move {
            let time = start.elapsed().as_secs();
            said.send((letter.body, time)).await.unwrap();
            match letter.body {
                0 => Ok(DlqAction::done()),
                1 => Ok(DlqAction::replay()),
                2 => Ok(DlqAction::discard()),
                3 if time == 0 => Ok(DlqAction::keep_for(Duration::from_secs(600))),
                4 if time == 0 => Err("the pager is off"),
                _ => Ok(DlqAction::done()),
            }
        }
    });
    let stats = consumer.run_until_empty().await.unwrap();
    let mut handled = Vec::new();
    heard.recv_many(&mut handled, 99).await;
    assert_eq!(handled, [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (3, 600), (4, 3600)]);
    assert_eq!((stats.succeeded, stats.failed, stats.dead_lettered), (5, 1, 0));
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let replayed = jobs.peek(9).await.unwrap();
    assert_eq!(replayed.into_iter().map(|one| one.body.unwrap()).collect::<Vec<_>>(), [1]);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_fails_never_makes_a_dead_letter_of_a_dead_letter() {
    let backend = backend();
    let dead = dead_orders(&backend, &[7]).await;
    let text: Mailbox<DeadLetter<String>> = dead.with_codec(DeadLetterCodec(Json));
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let fails = DlqConsumer::new(dead.clone(), move |_: DeadLetter<u32>| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Err::<(), _>("no") }
    });
    // Regardless of the options of the worker.
    let fails = fails.worker(|worker| {
        let other: Mailbox<DeadLetter<u32>> = backend.mailbox("dead-dead").unwrap();
        worker.max_deliveries(1).dead_letters(DlqPolicy::to(&other))
    });
    let cannot_read = DlqConsumer::new(text, |_: DeadLetter<String>| async {});
    fails.run_until(tokio::time::sleep(2 * DAY)).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 48, "once an hour");
    let stats = cannot_read.run_until(tokio::time::sleep(DAY)).await.unwrap();
    assert!(stats.parked >= 23 && stats.dead_lettered == 0, "{stats:?}");
    assert_eq!(dead.approximate_count().await.unwrap(), 1);
    assert_eq!(backend.queues().await.unwrap().len(), 1, "no other queue has come to be");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_replays_a_message_up_to_a_limit() {
    let backend = backend();
    let dead = dead_orders(&backend, &[7]).await;
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let worker = Worker::new(jobs)
        .dead_letters(DlqPolicy::new())
        .handler(|_: u32| async { Outcome::reject("never") });
    let consumer =
        DlqConsumer::new(dead.clone(), |_: DeadLetter<u32>| async { DlqAction::replay() })
            .max_replays(2);
    assert_eq!(consumer.name(), "orders-dlq");
    let (worker, consumer) = (worker.start(), consumer.start());
    tokio::time::sleep(DAY).await;
    let stats = worker.stop().await.unwrap();
    assert_eq!(stats.dead_lettered, 2, "after each replay");
    consumer.stop().await.unwrap();
    assert_eq!(letters(&dead).await[0].replay_count, 2);
}

/// A consumer that leaves its dead letters, and sends their bodies to a channel.
fn leaving(
    dead: &Mailbox<DeadLetter<u32>>,
) -> (DlqConsumer<u32>, tokio::sync::mpsc::UnboundedReceiver<u32>) {
    let (said, heard) = tokio::sync::mpsc::unbounded_channel();
    let consumer = DlqConsumer::new(dead.clone(), move |letter: DeadLetter<u32>| {
        said.send(letter.body).expect("a receiver");
        async { DlqAction::leave() }
    });
    (consumer, heard)
}

#[tokio::test(start_paused = true)]
async fn what_a_consumer_leaves_is_ready_for_others_and_not_handled_again_by_it() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2]).await;
    let (consumer, mut heard) = leaving(&dead);
    let running = consumer.start();
    for body in 0..3 {
        assert_eq!(heard.recv().await, Some(body));
    }
    tokio::time::sleep(DAY).await;
    assert!(heard.try_recv().is_err(), "none is handled again");
    let counts = dead.counts().await.unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.delayed), (3, 0, 0));
    // It does not receive them again and again.
    let deliveries = dead.peek(9).await.unwrap().into_iter().map(|one| one.message.delivery_count);
    assert!(deliveries.max().unwrap() < 500, "a round is made every ten minutes");

    // A dead letter that is sent later is handled soon, although it is behind those that were left.
    let begun = tokio::time::Instant::now();
    dead_orders(&backend, &[3]).await;
    assert_eq!(heard.recv().await, Some(3));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());

    // Passes and other consumers receive them while it runs.
    assert_eq!(Dlq::of(&dead).replay().max(1).run().await.unwrap().done, 1);
    assert_eq!(running.stop().await.unwrap().released, 4);
    let (consumer, mut heard) = leaving(&dead);
    consumer.run_until_empty().await.unwrap();
    let mut handled = Vec::new();
    heard.recv_many(&mut handled, 99).await;
    handled.sort_unstable();
    let mut bodies: Vec<_> = letters(&dead).await.iter().map(|letter| letter.body).collect();
    bodies.sort_unstable();
    assert_eq!((handled.len(), handled), (3, bodies), "each of the others once");
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_leaves_some_ends_when_only_those_remain() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2, 3, 4, 5]).await;
    let calls = Arc::new(AtomicU32::new(0));
    let count = calls.clone();
    let consumer = DlqConsumer::new(dead.clone(), move |letter: DeadLetter<u32>| {
        let call = count.fetch_add(1, Ordering::SeqCst);
        async move {
            match letter.body {
                0 | 1 => DlqAction::leave(),
                2 => DlqAction::replay(),
                // A delayed one is waited for.
                3 if call < 6 => DlqAction::keep_for(Duration::from_secs(60)),
                _ => DlqAction::done(),
            }
        }
    });
    let stats = consumer.worker(|worker| worker.workers(3)).run_until_empty().await.unwrap();
    assert_eq!((calls.load(Ordering::SeqCst), stats.succeeded, stats.released), (7, 4, 3));
    assert_eq!(dead.counts().await.unwrap().ready, 2);
    let mut bodies: Vec<_> = letters(&dead).await.iter().map(|letter| letter.body).collect();
    bodies.sort_unstable();
    assert_eq!(bodies, [0, 1]);
}

#[tokio::test(start_paused = true)]
async fn a_number_of_iterations_handles_that_number_of_dead_letters() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2, 3, 4]).await;
    let done = || DlqConsumer::new(dead.clone(), |_: DeadLetter<u32>| async {});
    assert_eq!(done().run_iterations(2).await.unwrap().succeeded, 2);
    assert_eq!(done().run_iterations(0).await.unwrap().processed, 0);
    // Those that are left, delayed or failed are not waited for.
    let sort = |letter: DeadLetter<u32>| async move {
        match letter.body {
            2 => Ok(DlqAction::leave()),
            3 => Ok(DlqAction::keep_for(DAY)),
            _ => Err("the pager is off"),
        }
    };
    let stats = DlqConsumer::new(dead.clone(), sort).run_iterations(10).await.unwrap();
    assert_eq!((stats.processed, stats.released, stats.failed), (3, 2, 1));
    let counts = dead.counts().await.unwrap();
    assert_eq!((counts.ready, counts.delayed), (1, 2));
    assert_eq!(done().run_iterations(10).await.unwrap().succeeded, 1);
    assert_eq!(done().run_iterations(10).await.unwrap().processed, 0);
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_stopped_at_any_moment_has_released_what_it_left() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2]).await;
    for steps in 0..60 {
        let (consumer, _heard) = leaving(&dead);
        let stop = async {
            for _ in 0..steps {
                tokio::task::yield_now().await;
            }
        };
        consumer.run_until(stop).await.unwrap();
        assert_eq!(dead.counts().await.unwrap().ready, 3, "after {steps} steps");
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_of_a_consumer_is_its_lease() {
    let backend = backend();
    let seconds = Duration::from_secs;
    let takes = async |time: Duration, change: fn(DlqConsumer<u32>) -> DlqConsumer<u32>| {
        let dead = dead_orders(&backend, &[7]).await;
        let consumer =
            DlqConsumer::new(dead.clone(), move |_: DeadLetter<u32>| tokio::time::sleep(time));
        let stats = change(consumer).run_iterations(1).await.unwrap();
        dead.purge().await.unwrap();
        (stats.succeeded, stats.timeouts)
    };
    assert_eq!(takes(seconds(299), |consumer| consumer).await, (1, 0));
    assert_eq!(takes(seconds(301), |consumer| consumer).await, (0, 1));
    let longer: fn(DlqConsumer<u32>) -> DlqConsumer<u32> =
        |consumer| consumer.visibility(Duration::from_secs(900));
    assert_eq!(takes(seconds(899), longer).await, (1, 0));
    let unlimited: fn(DlqConsumer<u32>) -> DlqConsumer<u32> =
        |consumer| consumer.worker(Worker::without_timeout).visibility(Duration::from_secs(60));
    assert_eq!(takes(seconds(9000), unlimited).await, (1, 0));
    let short: fn(DlqConsumer<u32>) -> DlqConsumer<u32> =
        |consumer| consumer.worker(|worker| worker.timeout(Duration::from_secs(5)));
    assert_eq!(takes(seconds(6), short).await, (0, 1));
}

#[tokio::test(start_paused = true)]
async fn old_dead_letters_are_deleted_by_retention_consumers_and_passes() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2, 3]).await;
    let all = letters(&dead).await;
    let fill = async || {
        dead.purge().await.unwrap();
        let aged = all.iter().zip([40, 35, 3, 1].map(days_ago));
        dead.send_batch_with(aged).await.unwrap().all().unwrap();
    };
    let left = async || -> Vec<u32> {
        letters(&dead).await.into_iter().map(|letter| letter.body).collect()
    };
    let dlq = Dlq::of(&dead);
    fill().await;
    assert_eq!(dlq.expire(30 * DAY).await.unwrap(), 2);
    assert_eq!(left().await, [2, 3]);
    assert_eq!(dlq.expire(30 * DAY).await.unwrap(), 0);
    assert_eq!(dlq.expire(Duration::ZERO).await.unwrap(), 2);

    fill().await;
    assert_eq!(dlq.discard().older_than(2 * DAY).run().await.unwrap().done, 3);
    assert_eq!(left().await, [3]);

    fill().await;
    let keep = |_: DeadLetter<u32>| async { DlqAction::keep_for(100 * DAY) };
    let consumer = DlqConsumer::new(dead.clone(), keep).retain_for(30 * DAY);
    consumer.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(left().await.len(), 2);

    fill().await;
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let worker = Worker::new(jobs)
        .dead_letters(DlqPolicy::new().retain_for(30 * DAY))
        .handler(|_: u32| async {});
    worker.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(left().await, [2, 3]);
}

#[tokio::test(start_paused = true)]
async fn a_worker_whose_clock_is_a_month_ahead_deletes_no_dead_letter_that_is_young_by_its_backend()
{
    // The dead letters were just sent by others. By the clock of this process, that was 40 days ago.
    let mut all = letters(&dead_orders(&backend(), &[0, 1]).await).await;
    for letter in &mut all {
        let at = Timestamp::now().as_nanos() - (40 * DAY).as_nanos() as i64;
        letter.dead_lettered_at = Timestamp::from_nanos(at);
    }
    let clock = Arc::new(ManualClock::new());
    let backend = Mailboxes::new(MemoryBackend::with_clock(clock.clone()));
    let dead: Mailbox<DeadLetter<u32>> = backend.mailbox("orders-dlq").unwrap();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    let dlq = Dlq::of(&dead);
    // Runs each of the ways to delete old dead letters, and returns the number that are left.
    let expire = async || {
        dlq.expire(30 * DAY).await.unwrap();
        dead.approximate_count().await.unwrap()
    };
    let discard = async || {
        dlq.discard().older_than(30 * DAY).run().await.unwrap();
        dead.approximate_count().await.unwrap()
    };
    let consume = async || {
        let keep = |_: DeadLetter<u32>| async { DlqAction::keep_for(DAY) };
        let consumer = DlqConsumer::new(dead.clone(), keep).retain_for(30 * DAY);
        consumer.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
        dead.approximate_count().await.unwrap()
    };
    let work = async || {
        let policy = DlqPolicy::new().retain_for(30 * DAY);
        let worker = Worker::new(jobs.clone()).dead_letters(policy).handler(|_: u32| async {});
        worker.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
        dead.approximate_count().await.unwrap()
    };
    let fill = async || {
        dead.purge().await.unwrap();
        dead.send_batch(&all).await.unwrap().all().unwrap();
    };
    fill().await;
    assert_eq!([expire().await, discard().await, consume().await, work().await], [2; 4]);
    for one in 0..4 {
        fill().await;
        clock.advance(31 * DAY);
        let left = match one {
            0 => expire().await,
            1 => discard().await,
            2 => consume().await,
            _ => work().await,
        };
        assert_eq!(left, 0, "by {one}");
    }
}

#[tokio::test(start_paused = true)]
async fn health_is_degraded_by_too_many_or_too_old_dead_letters() {
    let backend = backend();
    let dead = dead_orders(&backend, &[0, 1, 2]).await;
    let dlq = Dlq::of(&dead);
    let health = dlq.health(DlqLimits::default()).await.unwrap();
    assert_eq!((health.status, health.depth, health.threshold), (DlqStatus::Healthy, 3, 100));
    let few = dlq.health(DlqLimits::default().depth(3)).await.unwrap();
    assert_eq!(few.status, DlqStatus::Degraded);
    tokio::time::sleep(DAY).await;
    let old = dlq.health(DlqLimits::default().age(DAY)).await.unwrap();
    assert_eq!(old.status, DlqStatus::Degraded);
    let text = serde_json::to_string(&old).unwrap();
    let degraded = "{\"status\":\"degraded\",\"name\":\"orders-dlq\",\"depth\":3";
    assert!(text.starts_with(degraded), "{text}");
    dlq.discard().run().await.unwrap();
    assert_eq!(dlq.health(DlqLimits::default().depth(1)).await.unwrap().status, DlqStatus::Healthy);
}

#[tokio::test(start_paused = true)]
async fn a_summary_groups_dead_letters_by_their_errors() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..20).collect::<Vec<_>>()).await;
    let mut other = letters(&dead).await.remove(0);
    other.last_error = "the disk is full".to_owned();
    other.last_error_type = "std::io::Error".to_owned();
    dead.send(&other).await.unwrap();
    let summary = Dlq::of(&dead).summary(|_| true).await.unwrap();
    assert_eq!((summary.dead_letters, summary.errors.len()), (21, 2));
    assert_eq!((summary.errors[0].count, summary.errors[0].error_type.as_str()), (20, "rejected"));
    assert_eq!(summary.errors[1].error, "the disk is full");
    assert!(summary.first_at <= summary.last_at);
    let some = Dlq::of(&dead).summary(|letter| letter.body[..] == b"7"[..]).await.unwrap();
    assert_eq!((some.dead_letters, some.others), (1, 20));
}

#[tokio::test(start_paused = true)]
async fn a_pass_reports_what_was_in_flight_when_it_ended() {
    let backend = backend();
    let dead = dead_orders(&backend, &(0..100).collect::<Vec<_>>()).await;
    // Another consumer receives forty of them once the pass has begun.
    let (other, calls) = (dead.clone(), AtomicU32::new(0));
    let (taken, take) = std::sync::mpsc::channel();
    let pass = Dlq::of(&dead).discard().matching(|_| false).progress(move |_| {
        if calls.fetch_add(1, Ordering::SeqCst) == 0 {
            let receive = other.receive(Receive::up_to(40).visibility(DAY / 2));
            let received = futures_util::FutureExt::now_or_never(receive);
            taken
                .send(received.expect("no wait in memory").expect("received"))
                .expect("a receiver");
        }
    });
    let report = pass.run().await.unwrap();
    assert_eq!((report.skipped, report.unseen, take.recv().unwrap().len()), (60, 40, 40));
}

#[tokio::test(start_paused = true)]
async fn the_text_of_an_error_is_truncated_everywhere() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("orders").unwrap();
    jobs.send(&7).await.unwrap();
    let worker = Worker::new(jobs)
        .dead_letters(DlqPolicy::new())
        .handler(|_: u32| async { Outcome::reject("long ".repeat(100_000)) });
    let mut events = worker.control().events();
    worker.run_until_empty().await.unwrap();
    let failed = events.wait_for(|event| matches!(event, Event::Failed { .. })).await;
    let Some(Event::Failed { error, .. }) = failed else { panic!("it failed") };
    assert_eq!(error.len(), 2_000);
}
