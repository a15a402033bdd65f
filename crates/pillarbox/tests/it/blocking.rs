//! The blocking API keeps the contract, inside and outside runtimes.

#![cfg(all(feature = "blocking", feature = "sqlite"))]
#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Barrier, Mutex, PoisonError, RwLock, RwLockReadGuard, mpsc};
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use pillarbox::blocking::{self, Mailbox, Mailboxes, Message};
use pillarbox::codec::CodecError;
use pillarbox::{
    Codec, Error, ManualClock, MemoryBackend, MessageId, Raw, Receive, Registry, Result,
    SendOptions, Settle,
};
use tokio::runtime::{Builder, Runtime};

/// Longer than any test takes: a receive that waits this long was not woken.
const LONG: Receive = Receive::one().wait(Duration::from_secs(300));

fn memory() -> Mailboxes {
    blocking::open("memory:").unwrap()
}

fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A runtime with a single worker, so that blocking it blocks all tasks.
fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn only<T: 'static, R: 'static>(mailbox: &Mailbox<T, R>) -> Message<T, R> {
    let batch = mailbox.receive(LONG).unwrap();
    batch.into_iter().next().expect("a message")
}

/// Tests that count threads run alone if tests share a process.
static PROCESS: RwLock<()> = RwLock::new(());

fn shared() -> RwLockReadGuard<'static, ()> {
    PROCESS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Uses every operation on a backend.
fn check_contract(url: &str) {
    let backend = blocking::open(url).unwrap();
    let requests = backend.builder("requests").allow_reply_to("client-7");
    let requests: Mailbox<u64, String> = requests.open().unwrap();
    let replies: Mailbox<String> = backend.mailbox("client-7").unwrap();
    assert!(requests.receive(Receive::one()).unwrap().is_empty());

    // Single sends and batches are received in order.
    let id = MessageId::new();
    assert_eq!(requests.send_with(&1, SendOptions::new().id(id).reply_to("client-7")).unwrap(), id);
    requests.send_batch(&[2, 3]).unwrap().all().unwrap();
    let options = || SendOptions::new().attribute("tenant", "acme");
    requests.send_batch_with([(&4, options()), (&5, options())]).unwrap().all().unwrap();
    requests.send_with(&6, SendOptions::new().delay(Duration::from_secs(600))).unwrap();
    let counts = requests.counts().unwrap();
    assert_eq!((counts.ready, counts.delayed, requests.approximate_count().unwrap()), (5, 1, 6));
    let seen: Vec<_> =
        requests.peek(10).unwrap().into_iter().map(|peek| peek.body.unwrap()).collect();
    assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
    assert!(backend.queues().unwrap().contains(requests.name()));

    // A reply, a nack, a release, an extension, acknowledgements by message, receipt and batch.
    let first = only(&requests);
    assert_eq!((first.id(), *first.body(), first.delivery_count()), (id, 1, 1));
    first.extend_visibility(Duration::from_secs(600)).unwrap();
    first.reply_mailbox().unwrap().send(&"one".to_owned()).unwrap();
    let receipt = first.receipt().clone();
    first.acknowledge().unwrap();
    let stale = requests.acknowledge(&receipt).unwrap_err();
    assert!(matches!(stale, Error::ReceiptHandleExpired { .. }), "{stale}");

    let second = only(&requests);
    let no_address = second.reply_mailbox().unwrap_err();
    assert!(matches!(no_address, Error::ReplyMailboxUnavailable { .. }), "{no_address}");
    second.nack(Duration::ZERO).unwrap();
    only(&requests).release(Duration::from_secs(600)).unwrap(); // 3
    let batch = requests.receive(Receive::up_to(10)).unwrap();
    let bodies: Vec<_> = batch.messages().iter().map(|message| *message.body()).collect();
    assert_eq!((bodies, batch.len()), (vec![4, 5, 2], 3));
    assert_eq!(batch.messages()[0].attributes().get("tenant"), Some("acme"));
    assert_eq!(batch.messages()[2].delivery_count(), 2);
    batch.acknowledge().unwrap().all().unwrap();
    assert_eq!(requests.purge().unwrap(), 2);

    let reply = only(&replies);
    assert_eq!(reply.body(), "one");
    let settle = Settle::acknowledge(reply.receipt().clone());
    replies.settle([settle]).unwrap().all().unwrap();

    // A body that cannot be decoded is set apart.
    requests.with_codec::<Bytes>(Raw).send(&Bytes::from_static(b"not a number")).unwrap();
    requests.send(&7).unwrap();
    let mut batch = requests.receive(Receive::up_to(10)).unwrap();
    assert_eq!((batch.len(), batch.undecodable().len()), (1, 1));
    for undecodable in batch.take_undecodable() {
        assert!(matches!(undecodable.error(), Error::Serialization { .. }));
        assert_eq!(&undecodable.message().body()[..], b"not a number");
        undecodable.acknowledge().unwrap();
    }
    batch.acknowledge().unwrap().all().unwrap();
    assert_eq!(requests.approximate_count().unwrap(), 0);

    // Closing a mailbox does not close another one; closing the backend closes all.
    requests.close().unwrap();
    assert!(requests.is_closed() && !replies.is_closed());
    assert!(matches!(requests.send(&1), Err(Error::Closed { queue: Some(_) })));
    assert!(replies.backend().unwrap().is_same(&backend));
    backend.close().unwrap();
    assert!(matches!(replies.counts(), Err(Error::Closed { .. })));
}

#[test]
fn the_contract_holds_in_memory() {
    let _shared = shared();
    check_contract("memory:");
}

#[test]
fn the_contract_holds_on_sqlite_and_what_was_sent_outlives_the_handles() {
    let _shared = shared();
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("blocking.db").display());
    assert!(blocking::open_existing(&url).is_err());
    check_contract(&url);
    let send = || blocking::open(&url)?.mailbox::<u32, ()>("jobs")?.send(&7);
    send().unwrap();
    let jobs: Mailbox<u32> = blocking::open_existing(&url).unwrap().mailbox("jobs").unwrap();
    only(&jobs).acknowledge().unwrap();
}

#[cfg(feature = "redis")]
#[test]
fn the_contract_holds_on_redis_and_closing_wakes_a_receive_there() {
    let _shared = shared();
    let server = pillarbox_testing::server::RedisServer::start();
    check_contract(&server.url());
    closing_wakes(&blocking::open(&server.url()).unwrap());
}

#[test]
fn a_waiting_receive_is_woken_by_a_send_of_another_thread() {
    let _shared = shared();
    for url in ["memory:", "sqlite::memory:"] {
        let backend = blocking::open(url).unwrap();
        let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
        for n in 0..20 {
            let begins = Barrier::new(2);
            thread::scope(|scope| {
                let receiver = scope.spawn(|| {
                    begins.wait();
                    let message = only(&jobs);
                    let body = *message.body();
                    message.acknowledge().unwrap();
                    body
                });
                begins.wait();
                jobs.send(&n).unwrap();
                assert_eq!(receiver.join().unwrap(), n, "{url}");
            });
        }
    }
}

fn closing_wakes(backend: &Mailboxes) {
    for what in ["mailbox", "backend"] {
        let jobs: Mailbox<u32> = backend.mailbox(what).unwrap();
        let begins = Barrier::new(2);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                begins.wait();
                jobs.receive(LONG).map(|batch| batch.len())
            });
            begins.wait();
            match what {
                "mailbox" => jobs.clone().close().unwrap(),
                _ => backend.close().unwrap(),
            }
            let received = receiver.join().unwrap();
            assert!(matches!(received, Err(Error::Closed { .. })), "{received:?}");
        });
    }
}

#[test]
fn closing_wakes_a_waiting_receive_of_another_thread() {
    let _shared = shared();
    closing_wakes(&memory());
    closing_wakes(&blocking::open("sqlite::memory:").unwrap());
}

#[test]
fn a_call_on_the_thread_of_a_current_thread_runtime_is_refused_and_does_nothing() {
    let _shared = shared();
    let backend = memory();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    jobs.send(&7).unwrap();
    let message = only(&jobs);
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::InvalidParameter { .. }), "{error}");
        assert!(error.to_string().contains("spawn_blocking"), "{error}");
        error
    };
    current_thread().block_on(async {
        let error = refused(jobs.send(&8).map(drop));
        assert_eq!(error.queue(), Some(jobs.name()));
        refused(jobs.receive(LONG).map(drop));
        refused(backend.queues().map(drop));
        refused(blocking::open("memory:").map(drop));
        refused(jobs.close());
        // Calls that do not wait are allowed, and so is the async API.
        let same: Mailbox<u32> = backend.mailbox("jobs").unwrap();
        assert!(!same.is_closed());
        assert_eq!(same.as_async().counts().await.unwrap().total(), 1);
        let task = tokio::spawn(async move { same.counts().map(drop) });
        refused(task.await.unwrap());
        refused(message.acknowledge());
    });
    assert_eq!(jobs.counts().unwrap().in_flight, 1);
}

#[test]
fn a_call_inside_a_multi_thread_runtime_waits_while_other_tasks_go_on() {
    let _shared = shared();
    let jobs: Mailbox<u32> = memory().mailbox("jobs").unwrap();
    let runtime = multi_thread();
    runtime.block_on(async {
        let receive = |jobs: Mailbox<u32>| tokio::spawn(async move { *only(&jobs).body() });
        let receiver = receive(jobs.clone());
        // On the only worker, which the receiver has or will have.
        let sender = jobs.clone();
        tokio::spawn(async move { sender.as_async().send(&7).await }).await.unwrap().unwrap();
        assert_eq!(receiver.await.unwrap(), 7);
        // On the thread that waits for the runtime.
        let sender = jobs.clone();
        let sender = tokio::spawn(async move { sender.send(&8) });
        assert_eq!(*only(&jobs).body(), 8);
        sender.await.unwrap().unwrap();
    });
}

#[test]
fn a_call_inside_spawn_blocking_waits() {
    let _shared = shared();
    for runtime in [current_thread(), multi_thread()] {
        let jobs: Mailbox<u32> = memory().mailbox("jobs").unwrap();
        runtime.block_on(async {
            let receiver = jobs.clone();
            let receiver = tokio::task::spawn_blocking(move || *only(&receiver).body());
            jobs.as_async().send(&7).await.unwrap();
            assert_eq!(receiver.await.unwrap(), 7);
            let opened = tokio::task::spawn_blocking(|| blocking::open("memory:"));
            opened.await.unwrap().unwrap();
        });
    }
}

/// A task may use Tokio's channels 128 times without yielding; after that they return `Pending` until it is polled
/// again.
#[test]
fn a_task_may_make_any_number_of_calls_without_awaiting() {
    let _shared = shared();
    let jobs: Mailbox<u32> = blocking::open("sqlite::memory:").unwrap().mailbox("jobs").unwrap();
    let runtime = multi_thread();
    runtime.block_on(async {
        for n in 0..300 {
            jobs.send(&n).unwrap();
        }
        let same = jobs.clone();
        let task = tokio::spawn(async move { (0..300).try_for_each(|n| same.send(&n).map(drop)) });
        task.await.unwrap().unwrap();
    });
    assert_eq!(jobs.approximate_count().unwrap(), 600);
}

#[test]
fn a_call_leaves_the_token_of_thread_park_alone() {
    let _shared = shared();
    let jobs: Mailbox<u32> = memory().mailbox("jobs").unwrap();
    thread::current().unpark();
    let empty = jobs.receive(Receive::one().wait(Duration::from_millis(10))).unwrap();
    assert!(empty.is_empty());
    thread::park();
}

#[test]
fn many_threads_acknowledge_all_that_many_threads_send() {
    let _shared = shared();
    for url in ["memory:", "sqlite::memory:"] {
        let jobs: Mailbox<u32> = blocking::open(url).unwrap().mailbox("jobs").unwrap();
        let sent: Mutex<BTreeSet<MessageId>> = Mutex::default();
        let (acknowledge, acknowledged) = mpsc::channel();
        thread::scope(|scope| {
            for _ in 0..4 {
                let acknowledge = acknowledge.clone();
                let jobs = &jobs;
                scope.spawn(move || {
                    while let Ok(batch) = jobs.receive(Receive::up_to(5).wait(LONG.wait)) {
                        for message in batch {
                            let id = message.id();
                            message.acknowledge().unwrap();
                            acknowledge.send(id).unwrap();
                        }
                    }
                });
            }
            let senders = (0..4).map(|thread| {
                let (jobs, sent) = (&jobs, &sent);
                scope.spawn(move || {
                    for n in 0..100 {
                        let id = jobs.send(&(thread * 100 + n)).unwrap();
                        sent.lock().unwrap().insert(id);
                    }
                })
            });
            senders.collect::<Vec<_>>().into_iter().for_each(|sender| sender.join().unwrap());
            drop(acknowledge);
            let acknowledged: Vec<_> = acknowledged.iter().take(400).collect();
            assert_eq!(
                acknowledged.iter().copied().collect::<BTreeSet<_>>(),
                *sent.lock().unwrap()
            );
            assert_eq!(jobs.approximate_count().unwrap(), 0, "{url}");
            jobs.close().unwrap();
        });
    }
}

#[test]
fn a_message_received_by_a_thread_that_panics_is_delivered_again() {
    struct Broken;
    impl Codec<u32> for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }
        fn encode(&self, _: &u32) -> Result<Bytes, CodecError> {
            Ok(Bytes::new())
        }
        fn decode(&self, _: &Bytes) -> Result<u32, CodecError> {
            panic!("a codec with a bug")
        }
    }
    let _shared = shared();
    let clock = Arc::new(ManualClock::new());
    let backend = MemoryBackend::with_clock(clock.clone());
    let backend = blocking::open_with(async { Ok(pillarbox::Mailboxes::new(backend)) }).unwrap();
    let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
    jobs.send(&7).unwrap();
    let lease = Receive::one().visibility(Duration::from_secs(30));
    let broken = jobs.with_codec(Broken);
    catch_unwind(AssertUnwindSafe(|| broken.receive(lease))).unwrap_err();
    assert_eq!(jobs.counts().unwrap().in_flight, 1);
    clock.advance(Duration::from_secs(30));
    let message = only(&jobs);
    assert_eq!((*message.body(), message.delivery_count()), (7, 2));
}

#[test]
fn a_reply_goes_to_the_mailbox_that_a_registry_knows_on_another_backend() {
    let _shared = shared();
    let replies: Mailbox<String> = memory().mailbox("client-7").unwrap();
    let registry = Registry::new().with("client-7", replies.as_async().clone());
    let requests: Mailbox<u32, String> = memory().mailbox("requests").unwrap();
    let requests = requests.with_replies(registry);
    requests.send_with(&7, SendOptions::new().reply_to("client-7")).unwrap();
    let reply = only(&requests).reply_mailbox().unwrap();
    reply.send(&"seven".to_owned()).unwrap();
    assert!(reply.backend().is_none());
    assert_eq!(only(&replies).body(), "seven");
}

#[test]
fn the_async_mailbox_is_closed_when_the_last_blocking_handle_is_dropped() {
    let _shared = shared();
    let jobs: Mailbox<u32> = memory().mailbox("jobs").unwrap();
    jobs.send(&7).unwrap();
    let same = jobs.as_async().clone();
    let runtime = current_thread();
    assert_eq!(runtime.block_on(same.counts()).unwrap().total(), 1);
    drop(jobs);
    assert!(matches!(runtime.block_on(same.counts()), Err(Error::Closed { .. })));
}

#[cfg(target_os = "linux")]
mod threads {
    use std::sync::RwLockWriteGuard;
    use std::time::Instant;

    use super::*;

    fn alone() -> RwLockWriteGuard<'static, ()> {
        PROCESS.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of Pillarbox's threads in this process.
    fn threads() -> usize {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("pillarbox-")).count()
    }

    /// Waits until no such thread is left. The system still lists a thread for a short time after it was joined.
    fn wait_until_none_is_left() {
        let end = Instant::now() + LONG.wait;
        while threads() > 0 {
            assert!(Instant::now() < end, "{} threads are left", threads());
            thread::yield_now();
        }
    }

    #[test]
    fn no_thread_is_left_when_the_last_handle_is_dropped() {
        let _alone = alone();
        assert_eq!(threads(), 0);
        let backend = memory();
        assert_eq!(threads(), 1);
        let jobs: Mailbox<u32> = backend.mailbox("jobs").unwrap();
        jobs.send_batch(&[7, 8]).unwrap().all().unwrap();
        let (message, batch) = (only(&jobs), jobs.receive(Receive::one()).unwrap());
        drop((backend, jobs));
        // Messages and batches are handles, too.
        message.acknowledge().unwrap();
        assert_eq!(threads(), 1);
        drop(batch);
        wait_until_none_is_left();
    }

    #[test]
    fn no_thread_of_a_sqlite_file_is_left() {
        let _alone = alone();
        let jobs: Mailbox<u32> =
            blocking::open("sqlite::memory:").unwrap().mailbox("jobs").unwrap();
        jobs.send(&7).unwrap();
        // Peek reads on a thread of the pool.
        assert_eq!(jobs.peek(1).unwrap().len(), 1);
        assert!(threads() > 1);
        drop(jobs);
        wait_until_none_is_left();
    }

    #[test]
    fn a_backend_that_cannot_be_opened_leaves_no_thread() {
        let _alone = alone();
        assert!(blocking::open("smtp://localhost").is_err());
        wait_until_none_is_left();
    }

    #[test]
    fn the_last_handle_may_be_dropped_by_async_code() {
        let _alone = alone();
        for runtime in [current_thread(), multi_thread()] {
            for url in ["memory:", "sqlite::memory:"] {
                let jobs: Mailbox<u32> = blocking::open(url).unwrap().mailbox("jobs").unwrap();
                jobs.send(&7).unwrap();
                runtime.block_on(async { tokio::spawn(async { drop(jobs) }).await }).unwrap();
                let jobs: Mailbox<u32> = blocking::open(url).unwrap().mailbox("jobs").unwrap();
                runtime.block_on(async { drop(jobs) });
            }
        }
        // The threads are not joined, but end.
        wait_until_none_is_left();
    }

    #[test]
    fn the_last_handle_may_be_dropped_on_the_background_thread_and_its_pool() {
        let _alone = alone();
        for is_pooled in [false, true] {
            let (handle_sender, handle) = mpsc::channel();
            let open = async {
                handle_sender.send(tokio::runtime::Handle::current()).unwrap();
                pillarbox::open("memory:").await
            };
            let backend = blocking::open_with(open).unwrap();
            let background = handle.recv().unwrap();
            if is_pooled {
                drop(background.spawn_blocking(move || drop(backend)));
            } else {
                drop(background.spawn(async move { drop(backend) }));
            }
            wait_until_none_is_left();
        }
    }
}
