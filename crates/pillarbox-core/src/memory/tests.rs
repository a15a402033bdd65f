//! What is particular to memory: exact wake-ups and no leftovers. The rules of the contract are
//! tested by the conformance suite of `pillarbox-testing`.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::waiters::GRACE;
use super::*;
use crate::options::Receive;
use crate::queue::{Delivery, Outgoing, Settle};

const MINUTE: Duration = Duration::from_secs(60);

struct Fixture {
    queue: Arc<MemoryQueue>,
}

impl Fixture {
    fn new() -> Self {
        let shared =
            Arc::new(Shared { clock: Arc::new(SystemClock::new()), queues: Mutex::default() });
        let name: QueueName = "q".parse().unwrap();
        let gate = Gate::new();
        let queue = MemoryQueue::new(name, QueueOptions::new(), Arc::default(), shared, gate);
        Self { queue: Arc::new(queue) }
    }

    /// Starts a receiver and lets it get in line.
    async fn waiter(&self, max: usize) -> tokio::task::JoinHandle<Vec<Delivery>> {
        let queue = self.queue.clone();
        let request = Receive::up_to(max).wait(10 * MINUTE);
        let waiter = tokio::spawn(async move { Queue::receive(&*queue, request).await.unwrap() });
        settle_down().await;
        waiter
    }

    async fn send(&self, messages: usize) {
        self.queue.send((0..messages).map(|_| Outgoing::new("x")).collect()).await.unwrap();
    }
}

/// Lets every task that can run do so; paused time does not move.
async fn settle_down() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_message_wakes_the_first_waiter_and_no_other() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(10).await, fixture.waiter(10).await);
    fixture.send(1).await;
    settle_down().await;
    assert!(first.is_finished() && !second.is_finished());
    fixture.send(1).await;
    assert_eq!(second.await.unwrap().len(), 1);
    assert!(fixture.queue.nobody_waits());
}

/// Counts how often a future is polled: once to begin, and once for each wake-up.
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
async fn a_message_does_not_stir_those_it_is_not_for() {
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
    settle_down().await;
    assert_eq!(polls.swap(0, Ordering::Relaxed), 100);

    // Five of the ten minutes that they wait pass: nobody stirs.
    tokio::time::advance(5 * MINUTE).await;
    settle_down().await;
    assert_eq!(polls.swap(0, Ordering::Relaxed), 0);

    // The first message: one waiter gets it, and the next in line begins to watch its lease.
    fixture.send(1).await;
    settle_down().await;
    assert_eq!((polls.swap(0, Ordering::Relaxed), waiters.len()), (2, 100));

    // From then on, each message stirs the one it is for and the new first in line.
    for _ in 0..10 {
        fixture.send(1).await;
    }
    settle_down().await;
    let stirred = polls.swap(0, Ordering::Relaxed);
    assert!((10..=20).contains(&stirred), "{stirred} polls for 10 messages");
}

#[tokio::test(start_paused = true)]
async fn a_batch_wakes_as_many_waiters_as_it_takes() {
    let fixture = Fixture::new();
    let mut waiters = Vec::new();
    for _ in 0..5 {
        waiters.push(fixture.waiter(10).await);
    }
    fixture.send(25).await;
    settle_down().await;
    let got: Vec<_> = waiters.iter().map(|waiter| waiter.is_finished()).collect();
    assert_eq!(got, [true, true, true, false, false]);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_passes_its_wake_up_on() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    fixture.send(1).await;
    // The first is woken by now and has not run yet.
    first.abort();
    assert_eq!(second.await.unwrap().len(), 1);
    assert!(first.await.unwrap_err().is_cancelled());
    assert!(fixture.queue.nobody_waits());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_does_not_come_holds_up_the_next_for_a_moment_only() {
    let fixture = Fixture::new();
    // Somebody came in time before; that leaves nothing behind.
    let prompt = fixture.waiter(10).await;
    fixture.send(1).await;
    assert_eq!(prompt.await.unwrap().len(), 1);
    tokio::time::advance(Duration::from_secs(1)).await;

    let request = Receive::up_to(10).wait(10 * MINUTE);
    let mut busy = std::pin::pin!(Queue::receive(&*fixture.queue, request));
    assert!(poll_once(busy.as_mut()).await.is_pending());
    let (second, third) = (fixture.waiter(10).await, fixture.waiter(10).await);

    // The busy one is first in line, and is woken; but nobody polls it.
    let start = Instant::now();
    fixture.send(10).await;
    assert_eq!(second.await.unwrap().len(), 10);
    assert!((GRACE..=2 * GRACE).contains(&start.elapsed()), "{:?}", start.elapsed());

    // From now on its claim is void: the next in line gets what comes, at once.
    fixture.send(3).await;
    settle_down().await;
    assert_eq!(third.await.unwrap().len(), 3);
    assert!(start.elapsed() <= 3 * GRACE, "{:?}", start.elapsed());

    fixture.send(1).await;
    assert_eq!(busy.await.unwrap().len(), 1);
    assert!(fixture.queue.nobody_waits());
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
async fn a_nearer_deadline_reaches_the_waiter_that_watches_the_clock() {
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
async fn the_clock_is_watched_on_when_the_first_in_line_leaves() {
    let fixture = Fixture::new();
    let start = Instant::now();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    let mut late = Outgoing::new("late");
    late.delay = Duration::from_secs(5);
    fixture.queue.send(vec![late]).await.unwrap();
    settle_down().await;
    first.abort();
    assert_eq!(second.await.unwrap().len(), 1);
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_message_was_taken_keeps_its_place() {
    let fixture = Fixture::new();
    let (first, second) = (fixture.waiter(1).await, fixture.waiter(1).await);
    fixture.send(1).await;
    // Somebody who does not wait is quicker than the waiter that was woken.
    assert_eq!(Queue::receive(&*fixture.queue, Receive::one()).await.unwrap().len(), 1);
    settle_down().await;
    fixture.send(1).await;
    settle_down().await;
    assert!(first.is_finished() && !second.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_empty_when_its_time_is_up() {
    let fixture = Fixture::new();
    let start = Instant::now();
    let request = Receive::one().wait(Duration::from_secs(20));
    assert!(Queue::receive(&*fixture.queue, request).await.unwrap().is_empty());
    assert_eq!(start.elapsed().as_secs(), 20);
    assert!(fixture.queue.nobody_waits());
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
fn handles_that_go_at_once_leave_no_queue_behind() {
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
    assert_eq!(lock(&backend.shared.queues).len(), 0);
}

#[tokio::test]
async fn a_named_backend_is_shared_until_its_last_handle_goes() {
    let name: QueueName = "q".parse().unwrap();
    let one = MemoryBackend::named("shared by this test");
    let queue = one.queue(&name, QueueOptions::new()).unwrap();
    queue.send(vec![Outgoing::new("x")]).await.unwrap();
    one.close().await;
    assert!(queue.counts().await.is_err());

    let other = MemoryBackend::named("shared by this test");
    let same = other.queue(&name, QueueOptions::new()).unwrap();
    assert_eq!(same.counts().await.unwrap().ready, 1);

    // Another name neither shares nor disturbs.
    let stranger = MemoryBackend::named("another name of this test");
    assert!(stranger.queues().await.unwrap().is_empty());
    let third = MemoryBackend::named("shared by this test");
    assert_eq!(third.queues().await.unwrap().len(), 1);

    drop((one, other, third, queue, same));
    let fresh = MemoryBackend::named("shared by this test");
    assert!(fresh.queues().await.unwrap().is_empty());
}
