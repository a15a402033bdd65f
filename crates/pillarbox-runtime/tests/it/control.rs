//! Pausing, resuming, stopping, changing the number of workers; several mailboxes; outages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{Error, Mailbox, MessageId, Raw, Receive, SendOptions};
use pillarbox_runtime::dead_letters::{DeadLetter, DeadLetterCodec, DlqPolicy};
use pillarbox_runtime::handler::{Context, WorkerId};
use pillarbox_runtime::service::ServiceStackOptions;
use pillarbox_runtime::stats::State;
use pillarbox_runtime::{Event, ProducerHandle, Runnable, Running, Worker};
use pillarbox_testing::{Fault, Faults, Operation};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::common::memory::{
    at_once_then_in, backend, faulty, jobs, slow_to_fetch, start_listening, started,
    wait_for_starts,
};

async fn send(jobs: &Mailbox<u32>, count: u32) {
    let bodies: Vec<_> = (0..count).collect();
    jobs.send_batch(&bodies).await.and_then(|sent| sent.all()).expect("sent");
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_the_fetching_until_resumed() {
    let jobs = jobs();
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let control = worker.control();
    let mut events = control.events();
    control.pause();
    let running = worker.start();
    events.wait_for(|event| matches!(event, Event::Paused)).await.unwrap();
    send(&jobs, 3).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(jobs.counts().await.unwrap().ready, 3);
    assert_eq!(control.stats().borrow().state, State::Paused);
    control.resume();
    let mut stats = control.stats();
    stats.wait_for(|stats| stats.succeeded == 3).await.unwrap();
    // While it waits for messages: the fetch under way is given up at once.
    control.pause();
    events.wait_for(|event| matches!(event, Event::Paused)).await.unwrap();
    send(&jobs, 1).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
    running.stop().await.unwrap();
    assert_eq!(jobs.counts().await.unwrap().ready, 1, "a stop needs no resume");
}

#[tokio::test(start_paused = true)]
async fn a_stop_returns_unstarted_messages_at_once_and_finishes_the_rest() {
    let jobs = slow_to_fetch();
    send(&jobs, 22).await;
    let is_last = Arc::new(AtomicBool::new(false));
    let worker = Worker::new(jobs.clone())
        .workers(2)
        .prefetch(6)
        .handler(at_once_then_in(2, Duration::from_secs(5)))
        .on_shutdown({
            let is_last = is_last.clone();
            || async move { is_last.store(true, Ordering::SeqCst) }
        });
    let (running, mut events) = start_listening(worker);
    let control = running.control().clone();
    wait_for_starts(&mut events, 4).await;
    let start = Instant::now();
    control.stop();
    events.wait_for(|event| matches!(event, Event::Draining)).await.unwrap();
    let mut names = Vec::new();
    while let Some(event) = events.next().await {
        names.push((event.name(), start.elapsed().as_secs()));
        if matches!(event, Event::Drained) {
            break;
        }
    }
    assert!(!names.iter().any(|(name, _)| *name == "started" || *name == "received"), "{names:?}");
    assert_eq!(names.iter().filter(|(name, at)| *name == "succeeded" && *at == 5).count(), 2);
    assert_eq!(names.iter().filter(|(name, _)| *name == "returned").count(), 6);
    assert_eq!(names.last(), Some(&("drained", 5)));
    let stats = running.join().await.unwrap();
    assert!(is_last.load(Ordering::SeqCst));
    assert_eq!((stats.succeeded, stats.returned, stats.in_flight), (4, 6, 0));
    assert_eq!(stats.state, State::Stopped);
    let counts = jobs.counts().await.unwrap();
    assert_eq!((counts.ready, counts.in_flight, counts.delayed), (18, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn unstarted_messages_go_back_before_running_ones_end() {
    let jobs = slow_to_fetch();
    send(&jobs, 5).await;
    let worker =
        Worker::new(jobs.clone()).workers(1).handler(at_once_then_in(1, Duration::from_secs(20)));
    let (running, mut events) = start_listening(worker);
    let control = running.control().clone();
    wait_for_starts(&mut events, 2).await;
    let start = Instant::now();
    control.stop();
    for _ in 0..3 {
        events.wait_for(|event| matches!(event, Event::Returned(_))).await.unwrap();
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    let received = jobs.receive(Receive::up_to(10)).await.unwrap();
    assert_eq!(received.len(), 3, "others have them already");
    assert_eq!(running.join().await.unwrap().succeeded, 2);
}

/// Results of handlers that end at once are collected, but not for as long as the next handler takes.
#[tokio::test(start_paused = true)]
async fn a_result_does_not_wait_for_the_next_handler() {
    let jobs = slow_to_fetch();
    send(&jobs, 10).await;
    let worker = Worker::new(jobs.clone())
        .workers(1)
        .without_timeout()
        .handler(at_once_then_in(5, Duration::from_secs(3600)));
    let (running, mut events) = start_listening(worker);
    wait_for_starts(&mut events, 6).await;
    let start = Instant::now();
    running.control().stats().wait_for(|stats| stats.succeeded == 5).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    running.control().stop_now();
    running.join().await.unwrap();
}

/// In real time, since the next handler blocks its thread.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_took_its_time_does_not_wait_for_a_handler_that_blocks() {
    let (queue, jobs) = faulty("jobs", Faults::none(), 0);
    for _ in 0..100 {
        queue.next(Operation::Receive, Fault::Delay(Duration::from_millis(20)));
    }
    send(&jobs, 10).await;
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let ended = Arc::new(std::sync::Mutex::new(ended));
    let worker = Worker::new(jobs.clone()).workers(1).without_timeout().handler(move |job: u32| {
        let ended = ended.clone();
        async move {
            match job {
                // As a computation would.
                1 => std::thread::sleep(Duration::from_millis(1)),
                2 => drop(ended.lock().expect("the receiver").recv()),
                _ => {}
            }
        }
    });
    let running = worker.start();
    let mut stats = running.control().stats();
    let settled = stats.wait_for(|stats| stats.succeeded >= 2);
    tokio::time::timeout(Duration::from_secs(30), settled).await.expect("settled").unwrap();
    drop(end);
    running.control().stats().wait_for(|stats| stats.succeeded == 10).await.unwrap();
    running.stop().await.unwrap();
}

/// What waits behind them goes back, but stays in their channels until they end.
#[tokio::test(start_paused = true)]
async fn workers_with_very_slow_handlers_do_not_keep_messages_from_the_others() {
    let jobs = slow_to_fetch();
    send(&jobs, 20).await;
    let worker = Worker::new(jobs.clone()).workers(4).prefetch(8).without_timeout().handler(
        |job: u32| async move {
            match job {
                0..4 => {}
                4..7 => tokio::time::sleep(Duration::from_secs(2 * 3600)).await,
                _ => tokio::time::sleep(Duration::from_secs(60)).await,
            }
        },
    );
    let running = worker.start();
    let start = Instant::now();
    running.control().stats().wait_for(|stats| stats.succeeded == 17).await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(3600), "{:?}", start.elapsed());
    running.control().stop_now();
    running.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn two_pools_share_slow_messages_and_keep_none_waiting() {
    let jobs = jobs();
    send(&jobs, 400).await;
    let pools = [(); 2].map(|()| {
        let slow = |_: u32| async { tokio::time::sleep(Duration::from_millis(100)).await };
        Worker::new(jobs.clone()).workers(4).handler(slow).start()
    });
    let mut most = 0;
    while jobs.approximate_count().await.unwrap() > 0 {
        for pool in &pools {
            most = most.max(pool.control().stats().borrow().in_flight);
        }
        tokio::time::sleep(Duration::from_millis(7)).await;
    }
    let mut succeeded = Vec::new();
    for pool in pools {
        succeeded.push(pool.stop().await.unwrap().succeeded);
    }
    assert_eq!(succeeded.iter().sum::<u64>(), 400);
    assert!(succeeded.iter().all(|one| (180..=220).contains(one)), "{succeeded:?}");
    assert!(most <= 5, "{most} in a pool of 4");
}

#[tokio::test(start_paused = true)]
async fn a_drain_that_takes_too_long_is_cancelled_and_its_messages_go_back() {
    let jobs = jobs();
    send(&jobs, 2).await;
    let worker = Worker::new(jobs.clone())
        .without_timeout()
        .drain_for(Duration::from_secs(7))
        .handler(|_: u32| async { std::future::pending::<()>().await });
    let (running, mut events) = start_listening(worker);
    let control = running.control().clone();
    wait_for_starts(&mut events, 2).await;
    let start = Instant::now();
    let stats = running.stop().await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 7);
    assert_eq!((stats.released, stats.in_flight, stats.unconfirmed), (2, 0, 0));
    assert_eq!(jobs.counts().await.unwrap().ready, 2);
    control.stop();
    control.pause();
}

#[tokio::test(start_paused = true)]
async fn a_second_stop_ends_a_drain() {
    let jobs = jobs();
    send(&jobs, 1).await;
    let worker = Worker::new(jobs.clone())
        .without_timeout()
        .handler(|_: u32| async { std::future::pending::<()>().await });
    let (running, mut events) = start_listening(worker);
    let control = running.control().clone();
    started(&mut events).await;
    control.stop();
    events.wait_for(|event| matches!(event, Event::Draining)).await.unwrap();
    let start = Instant::now();
    control.stop_now();
    running.join().await.unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_workers_can_change_while_they_run() {
    let jobs = jobs();
    let (now, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let worker = Worker::new(jobs.clone()).workers(2).context((now.clone(), gate.clone())).handler(
        |_: u32,
         Context(shared): Context<(Arc<AtomicUsize>, Arc<Semaphore>)>,
         WorkerId(id): WorkerId| async move {
            shared.0.fetch_add(1, Ordering::SeqCst);
            shared.1.acquire().await.unwrap().forget();
            shared.0.fetch_sub(1, Ordering::SeqCst);
            assert!(id < 6);
        },
    );
    send(&jobs, 100).await;
    let (running, mut events) = start_listening(worker);
    let control = running.control().clone();
    wait_for_starts(&mut events, 2).await;
    control.set_workers(6);
    wait_for_starts(&mut events, 4).await;
    assert_eq!(now.load(Ordering::SeqCst), 6);
    control.set_workers(1);
    // Those that are too many finish what they are at.
    gate.add_permits(6);
    wait_for_starts(&mut events, 1).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(now.load(Ordering::SeqCst), 1);
    let mut stats = control.stats();
    let stats = stats.wait_for(|stats| stats.active_workers == 1).await.unwrap().clone();
    assert_eq!((stats.succeeded, stats.workers.len()), (6, 6));
    gate.add_permits(1000);
    let stats = running.stop().await.unwrap();
    assert_eq!(stats.failed, 0);
    let left = jobs.counts().await.unwrap();
    assert_eq!((left.ready + stats.succeeded, left.in_flight), (100, 0));
}

#[tokio::test(start_paused = true)]
async fn several_mailboxes_share_the_workers_by_weight() {
    let backend = backend();
    let heavy: Mailbox<u32> = backend.mailbox("heavy").unwrap();
    let light: Mailbox<String> = backend.mailbox("light").unwrap();
    send(&heavy, 900).await;
    let texts: Vec<_> = (0..900).map(|n| n.to_string()).collect();
    light.send_batch(&texts).await.unwrap().all().unwrap();
    let time = || tokio::time::sleep(Duration::from_millis(10));
    let worker = Worker::new(heavy)
        .weight(3)
        .handler(move |_: u32| time())
        .and(Worker::new(light.clone()).handler(move |_: String| time()));
    let running = worker.start();
    let mut stats = running.control().stats();
    let stats = stats.wait_for(|stats| stats.processed >= 800).await.unwrap().clone();
    let received: Vec<_> = stats.mailboxes.iter().map(|mailbox| mailbox.received).collect();
    let ratio = received[0] as f64 / received[1] as f64;
    assert!((2.7..3.3).contains(&ratio), "{received:?}");
    // One that is empty leaves all places to the other.
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.succeeded == 1800).await.unwrap();
    light.send(&"at once".to_owned()).await.unwrap();
    stats.wait_for(|stats| stats.succeeded == 1801).await.unwrap();
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_idle_worker_gets_a_message_at_once_without_polling() {
    let jobs = jobs();
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let (running, mut events) = start_listening(worker);
    tokio::time::sleep(Duration::from_secs(3605)).await;
    let start = Instant::now();
    jobs.send(&1).await.unwrap();
    started(&mut events).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_waits_for_the_end_of_an_outage_and_reports_it() {
    let (faulty, jobs) = faulty("jobs", Faults::none(), 0);
    for _ in 0..10 {
        faulty.next(Operation::Receive, Fault::FailBefore);
    }
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let (running, mut events) = start_listening(worker);
    let start = Instant::now();
    events.wait_for(|event| matches!(event, Event::ReceiveFailed { .. })).await.unwrap();
    let stats = running.control().stats();
    assert!(!stats.borrow().is_ready(Duration::from_secs(30)));
    jobs.send(&1).await.unwrap();
    events.wait_for(|event| matches!(event, Event::Recovered { .. })).await.unwrap();
    // 50 ms, twice as long each time, at most 5 s.
    assert_eq!(start.elapsed().as_millis(), 50 * 127 + 3 * 5000);
    events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await.unwrap();
    assert!(running.control().stats().borrow().is_ready(Duration::from_secs(30)));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_never_answered_is_given_up() {
    let (faulty, jobs) = faulty("jobs", Faults::none(), 0);
    jobs.send(&1).await.unwrap();
    faulty.next(Operation::Settle, Fault::DropReply);
    faulty.next(Operation::Receive, Fault::DropReply);
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let (running, mut events) = start_listening(worker);
    events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await.unwrap();
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.leases_lost), (1, 0), "the first call acknowledged it");
}

#[tokio::test(start_paused = true)]
async fn a_closed_mailbox_ends_the_worker_with_an_error() {
    let jobs = jobs();
    send(&jobs, 1).await;
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let (running, mut events) = start_listening(worker);
    events.wait_for(|event| matches!(event, Event::Succeeded { .. })).await.unwrap();
    jobs.close().await;
    assert!(matches!(running.join().await, Err(Error::Closed { .. })));
}

#[tokio::test(start_paused = true)]
async fn options_out_of_range_are_refused_before_any_message_is_received() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    send(&jobs, 1).await;
    let handler = |_: u32| async {};
    let worker = || Worker::new(jobs.clone());
    let refused = async |ended: pillarbox_core::Result<_>, what: &str| {
        let error: Error = ended.map(|_: pillarbox_runtime::stats::StatsSnapshot| ()).unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains(what), "{error}");
    };
    let same: Mailbox<DeadLetter> = jobs.with_codec(DeadLetterCodec(Raw));
    for odd in [
        worker().workers(0),
        worker().prefetch(usize::MAX),
        worker().result_buffer(0),
        worker().producer_buffer(0),
        worker().producer_buffer(usize::MAX),
        worker().dequeue_backoff(Duration::ZERO),
        worker().depth_every(Duration::ZERO),
        worker().quarantine_after(0),
        worker().on_dead_letter(|_, _| {}),
        worker().park_for(Duration::ZERO),
        worker().dead_letters(DlqPolicy::to(&same)),
        worker().max_deliveries(0).dead_letters(DlqPolicy::new()),
        worker().max_deliveries(0),
        worker().stack(ServiceStackOptions::none().concurrency_limit(0)),
        worker().stack(ServiceStackOptions::none().buffer(usize::MAX)),
    ] {
        refused(odd.handler(handler).run().await, "allowed").await;
    }
    refused(worker().weight(0).handler(handler).run().await, "weight").await;
    let long = Duration::from_secs(50_000);
    refused(worker().visibility(long).handler(handler).run().await, "visibility").await;
    refused(worker().visibility(Duration::ZERO).handler(handler).run().await, "visibility").await;
    refused(worker().poll(Duration::ZERO).handler(handler).run().await, "poll").await;
    assert_eq!(jobs.peek(1).await.unwrap()[0].message.delivery_count, 0);
}

#[tokio::test(start_paused = true)]
async fn producers_send_through_the_dispatcher_until_the_end() {
    let backend = backend();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    let other: Mailbox<String> = backend.mailbox("other").unwrap();
    let worker =
        Worker::new(jobs.clone()).context(other.clone()).handler(
            |depth: u32,
             producer: ProducerHandle<u32>,
             Context(other): Context<Mailbox<String>>| async move {
                if depth > 0 {
                    producer.send_with(&(depth - 1), SendOptions::new()).await?;
                    producer.send_to(&other, &format!("{depth}"), SendOptions::new()).await?;
                }
                Ok::<_, Error>(())
            },
        );
    let control = worker.control();
    let producer = control.producer(&jobs);
    let running = worker.start();
    producer.send(&5).await.unwrap();
    let mut stats = control.stats();
    stats.wait_for(|stats| stats.succeeded == 6).await.unwrap();
    assert_eq!(other.approximate_count().await.unwrap(), 5);
    // What was asked for before the end is done, and what is asked for after it is refused.
    control.pause();
    let pending = tokio::spawn({
        let producer = producer.clone();
        async move { producer.send(&0).await }
    });
    tokio::task::yield_now().await;
    running.stop().await.unwrap();
    pending.await.unwrap().unwrap();
    assert_eq!(jobs.approximate_count().await.unwrap(), 1);
    assert!(matches!(producer.send(&0).await, Err(Error::Closed { .. })));
}

/// Sends a number in a task of its own.
type Sending = Box<dyn Fn(u32) -> JoinHandle<pillarbox_core::Result<MessageId>>>;

/// Workers with room for three messages of producers, a queue whose next sends take that long, and what sends to it.
fn three_may_wait(calls: &[Duration]) -> (Running, Mailbox<u32>, Sending) {
    let (faulty, others) = faulty("jobs", Faults::none(), 0);
    calls.iter().for_each(|time| faulty.next(Operation::Send, Fault::Delay(*time)));
    let jobs: Mailbox<u32> = backend().mailbox("jobs").expect("a mailbox");
    let worker = Worker::new(jobs).producer_buffer(3).handler(|_: u32| async {});
    let producer = worker.control().producer(&others);
    let send = move |body| {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&body).await })
    };
    (worker.start(), others, Box::new(send))
}

#[tokio::test(start_paused = true)]
async fn the_number_of_messages_of_producers_that_wait_is_bounded() {
    let second = Duration::from_secs(1);
    let (running, others, send) = three_may_wait(&[5 * second]);
    let first = send(0);
    tokio::time::sleep(second).await;
    let rest: Vec<_> = (1..=10).map(&send).collect();
    tokio::time::sleep(second).await;
    // A send with a permit takes effect although its caller is gone; one that waits for a permit does not.
    rest.iter().for_each(JoinHandle::abort);
    first.await.unwrap().unwrap();
    send(11).await.unwrap().unwrap();
    let stored: Vec<_> =
        others.peek(20).await.unwrap().into_iter().map(|it| it.body.unwrap()).collect();
    assert_eq!(stored, [0, 1, 2, 3, 11]);
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_full_buffer_makes_producers_wait_and_loses_nothing() {
    let second = Duration::from_secs(1);
    let (running, others, send) = three_may_wait(&[5 * second, second, second]);
    let sends: Vec<_> = (0..50).map(&send).collect();
    let mut ids = std::collections::HashSet::new();
    for sent in sends {
        ids.insert(sent.await.unwrap().unwrap());
    }
    assert_eq!((ids.len(), others.approximate_count().await.unwrap()), (50, 50));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_stop_answers_every_producer() {
    let second = Duration::from_secs(1);
    let (running, others, send) = three_may_wait(&[5 * second]);
    let first = send(0);
    tokio::time::sleep(second).await;
    let rest: Vec<_> = (1..=10).map(&send).collect();
    tokio::time::sleep(second).await;
    running.stop().await.unwrap();
    first.await.unwrap().unwrap();
    let mut answers = Vec::new();
    for sent in rest {
        answers.push(sent.await.unwrap());
    }
    let (stored, refused) = answers.split_at(3);
    assert!(stored.iter().all(Result::is_ok), "{stored:?}");
    let is_refused = |answer: &_| matches!(answer, Err(Error::Closed { .. }));
    assert!(refused.iter().all(is_refused), "{refused:?}");
    assert_eq!(others.approximate_count().await.unwrap(), 4);

    // Nor does anybody wait for workers that never run.
    let jobs = jobs();
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let producer = worker.control().producer(&jobs);
    let sent = tokio::spawn(async move { producer.send(&0).await });
    tokio::time::sleep(second).await;
    assert!(!sent.is_finished());
    drop(worker);
    assert!(matches!(sent.await.unwrap(), Err(Error::Closed { .. })));
}

#[tokio::test(start_paused = true)]
async fn run_until_stops_when_its_future_ends_and_a_drop_stops_now() {
    let jobs = jobs();
    send(&jobs, 3).await;
    let worker = Worker::new(jobs.clone()).handler(|_: u32| async {});
    let stats = worker.run_until(tokio::time::sleep(Duration::from_secs(5))).await.unwrap();
    assert_eq!(stats.succeeded, 3);

    send(&jobs, 1).await;
    let worker = Worker::new(jobs.clone())
        .without_timeout()
        .handler(|_: u32| async { std::future::pending::<()>().await });
    let (running, mut events) = start_listening(worker);
    started(&mut events).await;
    drop(running);
    events.wait_for(|event| matches!(event, Event::Drained)).await.unwrap();
    assert_eq!(jobs.counts().await.unwrap().ready, 1);
}

#[tokio::test(start_paused = true)]
async fn the_depth_of_a_queue_is_in_the_stats_if_requested() {
    let jobs = jobs();
    send(&jobs, 9).await;
    let worker = Worker::new(jobs.clone())
        .workers(1)
        .prefetch(0)
        .depth_every(Duration::from_secs(1))
        .handler(|_: u32| async { tokio::time::sleep(Duration::from_secs(1)).await });
    let running = worker.start();
    let mut stats = running.control().stats();
    for depth in [9, 5, 0] {
        stats.wait_for(|stats| stats.mailboxes[0].depth == Some(depth)).await.unwrap();
    }
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn listeners_get_the_end_whatever_its_reason() {
    let jobs = jobs();
    let drained = async |mut events: pillarbox_runtime::Events| {
        assert!(matches!(events.next().await, Some(Event::Drained)));
        assert!(events.next().await.is_none());
    };
    let refused = Worker::new(jobs.clone()).workers(0).handler(|_: u32| async {});
    // Who controls the workers does not keep those who listen waiting.
    let control = refused.control();
    let events = control.events();
    refused.run().await.unwrap_err();
    drained(events).await;
    let never_run = Worker::new(jobs.clone());
    let events = never_run.control().events();
    drop(never_run);
    drained(events).await;
    let killed = Worker::new(jobs).handler(|_: u32| async {});
    let events = killed.control().events();
    let task = tokio::spawn(killed.run_until(std::future::pending()));
    tokio::task::yield_now().await;
    task.abort();
    drained(events).await;
}

#[tokio::test(start_paused = true)]
async fn run_until_empty_waits_for_delayed_messages_and_those_that_handlers_send() {
    let jobs = jobs();
    jobs.send_with(&3, SendOptions::new().delay(Duration::from_secs(60))).await.unwrap();
    let worker =
        Worker::new(jobs).handler(|depth: u32, producer: ProducerHandle<u32>| async move {
            if depth > 0 {
                producer.send(&(depth - 1)).await?;
            }
            Ok::<_, Error>(())
        });
    let start = Instant::now();
    assert_eq!(worker.run_until_empty().await.unwrap().succeeded, 4);
    assert_eq!(start.elapsed().as_secs(), 60);
}

#[tokio::test(start_paused = true)]
async fn infinite_durations_are_accepted() {
    let jobs = jobs();
    send(&jobs, 3).await;
    let worker = Worker::new(jobs.clone())
        .drain_for(Duration::MAX)
        .timeout(Duration::MAX)
        .poll(Duration::MAX)
        .call_timeout(Duration::MAX)
        .dequeue_backoff(Duration::MAX)
        .quarantine_after(u32::MAX)
        .depth_every(Duration::MAX)
        .park_for(Duration::MAX)
        .retry(pillarbox_runtime::Backoff::constant(Duration::MAX))
        .max_deliveries(2)
        .handler(|job: u32| async move { if job == 1 { Err("no") } else { Ok(()) } });
    let running = worker.start();
    let mut stats = running.control().stats();
    stats.wait_for(|stats| stats.processed == 3 && stats.in_flight == 0).await.unwrap();
    let stats = running.stop().await.unwrap();
    assert_eq!((stats.succeeded, stats.retried), (2, 1));
    assert_eq!(jobs.counts().await.unwrap().delayed, 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_fast_with_any_number_of_prefetched_messages() {
    let jobs = jobs();
    send(&jobs, 900).await;
    let worker = Worker::new(jobs.clone())
        .workers(8)
        .prefetch(64)
        .handler(|_: u32| async { tokio::time::sleep(Duration::from_millis(100)).await });
    let (running, mut events) = start_listening(worker);
    started(&mut events).await;
    let start = Instant::now();
    running.stop().await.unwrap();
    assert!(start.elapsed() <= Duration::from_millis(100), "{:?}", start.elapsed());
    assert_eq!(jobs.counts().await.unwrap().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_does_not_answer_is_counted_once_at_a_time() {
    let (faulty, jobs) = faulty("jobs", Faults::none(), 0);
    for _ in 0..100 {
        faulty.next(Operation::Counts, Fault::DropReply);
    }
    let worker =
        Worker::new(jobs).depth_every(Duration::from_millis(100)).handler(|_: u32| async {});
    let running = worker.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(faulty.injected() <= 4, "{} counts in three times the time limit", faulty.injected());
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn workers_that_are_busy_for_long_stay_ready() {
    let jobs = jobs();
    send(&jobs, 20).await;
    let worker = Worker::new(jobs)
        .without_timeout()
        .handler(|_: u32| async { tokio::time::sleep(Duration::from_secs(600)).await });
    let running = worker.start();
    let stats = running.control().stats();
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_secs(31)).await;
        assert!(stats.borrow().is_ready(Duration::from_secs(30)));
    }
    running.control().stop_now();
    running.join().await.unwrap();
    assert_eq!(stats.borrow().state, State::Stopped);
}
