//! Exact wake-ups, and cleanup of unused queues. The conformance suite of `pillarbox-testing` tests the contract.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::waiters::RESERVATION_TIME;
use super::*;
use crate::message::{Delivery, Outgoing};
use crate::options::Receive;
use crate::settle::Settle;

const MINUTE: Duration = Duration::from_secs(60);

struct Fixture {
    queue: Arc<MemoryQueue>,
}

impl Fixture {
    fn new() -> Self {
        let queue = MemoryQueue {
            name: "q".parse().unwrap(),
            options: QueueOptions::new(),
            state: Arc::default(),
            storage: MemoryBackend::new().storage,
            gate: Gate::new(),
        };
        Self { queue: Arc::new(queue) }
    }

    /// Starts a receiver and lets it begin to wait.
    async fn waiter(&self, max: usize) -> tokio::task::JoinHandle<Vec<Delivery>> {
        let queue = self.queue.clone();
        let request = Receive::up_to(max).wait(10 * MINUTE);
        let waiter = tokio::spawn(async move { Queue::receive(&*queue, request).await.unwrap() });
        run_tasks().await;
        waiter
    }

    async fn send(&self, messages: usize) {
        self.queue.send((0..messages).map(|_| Outgoing::new("x")).collect()).await.unwrap();
    }
}

/// Lets every task that can run do so, without advancing the paused time.
async fn run_tasks() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_message_wakes_the_first_waiter_and_no_other() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(10).await, fixture.waiter(10).await);
    fixture.send(1).await;
    run_tasks().await;
    assert!(first.is_finished() && !second.is_finished());
    fixture.send(1).await;
    assert_eq!(second.await.unwrap().len(), 1);
    assert!(lock(&fixture.queue.state).waiters.is_idle());
}

/// Counts the polls of a future: one at the start, and one for each wake-up.
struct CountPolls<F> {
    future: Pin<Box<F>>,
    polls: Arc<AtomicUsize>,
}

impl<F: Future> Future for CountPolls<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(context)
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_wakes_no_other_waiters() {
    let fixture = Fixture::new();
    let polls = Arc::new(AtomicUsize::new(0));
    let mut waiters = JoinSet::new();
    for _ in 0..100 {
        let (queue, polls) = (fixture.queue.clone(), polls.clone());
        let wait = async move {
            Queue::receive(&*queue, Receive::one().wait(10 * MINUTE)).await.unwrap();
        };
        waiters.spawn(CountPolls { future: Box::pin(wait), polls });
    }
    run_tasks().await;
    assert_eq!(polls.swap(0, Ordering::Relaxed), 100);

    // After five of the ten minutes, no waiter was polled.
    tokio::time::advance(5 * MINUTE).await;
    run_tasks().await;
    assert_eq!(polls.swap(0, Ordering::Relaxed), 0);

    // The first message: one waiter gets it, and the next waiter sets a timer for its lease.
    fixture.send(1).await;
    run_tasks().await;
    assert_eq!((polls.swap(0, Ordering::Relaxed), waiters.len()), (2, 100));

    // From then on, each message wakes its receiver and the new first waiter.
    for _ in 0..10 {
        fixture.send(1).await;
    }
    run_tasks().await;
    let polls = polls.swap(0, Ordering::Relaxed);
    assert!((10..=20).contains(&polls), "{polls} polls for 10 messages");
}

#[tokio::test(start_paused = true)]
async fn a_batch_wakes_as_many_waiters_as_it_takes() {
    let fixture = Fixture::new();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(fixture.waiter(10).await);
    }
    fixture.send(25).await;
    run_tasks().await;
    let got: Vec<_> = waiters.iter().map(|waiter| waiter.is_finished()).collect();
    assert_eq!(got, [true, true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_passes_its_wake_up_on() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    fixture.send(1).await;
    // The first waiter is woken but has not run yet.
    first.abort();
    assert_eq!(second.await.unwrap().len(), 1);
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(lock(&fixture.queue.state).waiters.is_idle());
}

#[tokio::test(start_paused = true)]
async fn a_woken_waiter_that_does_not_run_loses_its_reservation() {
    let fixture = Fixture::new();
    // A waiter that takes its message in time leaves no reservation behind.
    let prompt = fixture.waiter(10).await;
    fixture.send(1).await;
    assert_eq!(prompt.await.unwrap().len(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;

    let request = Receive::up_to(10).wait(10 * MINUTE);
    let mut busy = std::pin::pin!(Queue::receive(&*fixture.queue, request));
    assert!(poll_once(busy.as_mut()).await.is_pending());
    let (second, third) = (fixture.waiter(10).await, fixture.waiter(10).await);

    // The busy waiter is the first and is woken, but not polled.
    let start = Instant::now();
    fixture.send(10).await;
    assert_eq!(second.await.unwrap().len(), 10);
    let waited = start.elapsed();
    assert!((RESERVATION_TIME..=2 * RESERVATION_TIME).contains(&waited), "{waited:?}");

    // Its reservation has expired, so the next waiter receives at once.
    fixture.send(3).await;
    run_tasks().await;
    assert_eq!(third.await.unwrap().len(), 3);
    assert!(start.elapsed() <= 3 * RESERVATION_TIME, "{:?}", start.elapsed());

    fixture.send(1).await;
    assert_eq!(busy.await.unwrap().len(), 1);
    assert!(lock(&fixture.queue.state).waiters.is_idle());
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await
}

#[tokio::test(start_paused = true)]
async fn an_expired_lease_wakes_a_waiter_at_its_deadline() {
    let fixture = Fixture::new();
    fixture.send(1).await;
    let request = Receive::one().visibility(Duration::from_secs(7));
    assert_eq!(Queue::receive(&*fixture.queue, request).await.unwrap().len(), 1);
    let start = Instant::now();
    let waiter = fixture.waiter(1).await;
    assert_eq!(waiter.await.unwrap()[0].message.delivery_count, 2);
    assert_eq!(start.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn an_earlier_deadline_reaches_the_waiter_that_holds_the_timer() {
    let fixture = Fixture::new();
    fixture.send(1).await;
    let request = Receive::one().visibility(MINUTE);
    let delivery = Queue::receive(&*fixture.queue, request).await.unwrap().remove(0);
    let start = Instant::now();
    let waiter = fixture.waiter(1).await;
    let nearer = Settle::extend(delivery.receipt, Duration::from_secs(3));
    fixture.queue.settle(vec![nearer]).await.unwrap()[0].as_ref().unwrap();
    assert_eq!(waiter.await.unwrap().len(), 1);
    assert_eq!(start.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn the_next_waiter_takes_over_the_timer_when_the_first_leaves() {
    let fixture = Fixture::new();
    let start = Instant::now();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    let late = Outgoing { delay: Duration::from_secs(5), ..Outgoing::new("late") };
    fixture.queue.send(vec![late]).await.unwrap();
    run_tasks().await;
    first.abort();
    assert_eq!(second.await.unwrap().len(), 1);
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_message_was_taken_keeps_its_position() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    fixture.send(1).await;
    // A receiver that does not wait is faster than the woken waiter.
    assert_eq!(Queue::receive(&*fixture.queue, Receive::one()).await.unwrap().len(), 1);
    run_tasks().await;
    fixture.send(1).await;
    run_tasks().await;
    assert!(first.is_finished() && !second.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_empty_when_its_time_is_up() {
    let fixture = Fixture::new();
    let start = Instant::now();
    let request = Receive::one().wait(Duration::from_secs(20));
    assert!(Queue::receive(&*fixture.queue, request).await.unwrap().is_empty());
    assert_eq!(start.elapsed().as_secs(), 20);
    assert!(lock(&fixture.queue.state).waiters.is_idle());
}

#[tokio::test]
async fn an_endless_wait_is_allowed() {
    let fixture = Fixture::new();
    let request = Receive::one().wait(Duration::MAX);
    let queue = fixture.queue.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { Queue::receive(&*queue, request).await.unwrap() });
    tokio::task::yield_now().await;
    fixture.send(1).await;
    assert_eq!(tasks.join_next().await.unwrap().unwrap().len(), 1);
}

#[tokio::test]
async fn an_unused_queue_is_forgotten_and_a_used_one_is_not() {
    let backend = MemoryBackend::new();
    let name = |text: &str| text.parse::<QueueName>().unwrap();
    let used = backend.queue(&name("used"), QueueOptions::new()).unwrap();
    let unused = backend.queue(&name("unused"), QueueOptions::new()).unwrap();
    used.send(vec![Outgoing::new("x")]).await.unwrap();
    assert_eq!(backend.queues().await.unwrap(), [name("unused"), name("used")]);
    drop((used, unused));
    assert_eq!(backend.queues().await.unwrap(), [name("used")]);
    let again = backend.queue(&name("used"), QueueOptions::new()).unwrap();
    assert_eq!(again.counts().await.unwrap().ready, 1);
}

#[test]
fn handles_that_are_dropped_at_the_same_time_leave_no_queue_behind() {
    let backend = MemoryBackend::new();
    for round in 0..2000 {
        let name: QueueName = format!("reply-{round}").parse().unwrap();
        std::thread::scope(|scope| {
            let handles = [(); 2].map(|()| backend.queue(&name, QueueOptions::new()).unwrap());
            for handle in handles {
                scope.spawn(move || drop(handle));
            }
        });
    }
    assert_eq!(lock(&backend.storage.queues).len(), 0);
}

#[tokio::test]
async fn a_named_backend_is_shared_until_its_last_handle_is_dropped() {
    let name: QueueName = "q".parse().unwrap();
    let one = MemoryBackend::named("shared by this test");
    let queue = one.queue(&name, QueueOptions::new()).unwrap();
    queue.send(vec![Outgoing::new("x")]).await.unwrap();
    one.close().await;
    assert!(queue.counts().await.is_err());

    let other = MemoryBackend::named("shared by this test");
    let same = other.queue(&name, QueueOptions::new()).unwrap();
    assert_eq!(same.counts().await.unwrap().ready, 1);

    // Another name is another backend.
    let stranger = MemoryBackend::named("another name of this test");
    assert!(stranger.queues().await.unwrap().is_empty());
    let third = MemoryBackend::named("shared by this test");
    assert_eq!(third.queues().await.unwrap().len(), 1);

    drop((one, other, third, queue, same));
    let fresh = MemoryBackend::named("shared by this test");
    assert!(fresh.queues().await.unwrap().is_empty());
}
