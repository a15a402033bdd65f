//! Workers in separate processes that are stopped, killed, suspended, cut off from their server, and crashed by a
//! message.
//!
//! Each test runs on a SQLite file and on a Redis server. A handler has its effect as the last thing it does, in a
//! file that outlives the process.

use std::collections::{HashMap, HashSet};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use pillarbox_core::{Counts, Mailbox, MessageId, MessageState, Receive, SendOptions};
use pillarbox_runtime::FailureKind;
use pillarbox_runtime::dead_letters::DeadLetter;
use pillarbox_sqlite::rusqlite::{Connection, TransactionBehavior};
use pillarbox_testing::on_threads;
use pillarbox_testing::process::Child;

use crate::common::shared_backend::{SharedBackend, on_both, open};
use crate::common::worker_process::{Act, DEAD, Order, QUEUE, Setup, effects, start_worker};

/// The timeout of a step, long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(30);

const SETUP: Setup = Setup {
    workers: 4,
    prefetch: 4,
    results: 16,
    visibility: Duration::from_secs(2),
    retries: None,
};
/// One message in hand at a time.
const ALONE: Setup = Setup {
    workers: 1,
    prefetch: 0,
    results: 1,
    visibility: Duration::from_secs(1),
    retries: None,
};

on_both! {
    two_processes_with_slow_handlers_hold_little_and_share_the_work;
    sigterm_under_load_finishes_running_handlers_and_returns_the_rest_at_once;
    kill_9_under_load_loses_nothing_and_repeats_only_unsettled_messages;
    an_outage_is_survived_without_a_restart;
    a_worker_that_was_suspended_beyond_its_lease_cannot_settle_and_continues;
    a_second_signal_cancels_a_handler_and_releases_its_message;
    a_third_signal_ends_a_process_whose_handler_cannot_be_cancelled;
    a_third_signal_ends_a_process_whose_threads_are_all_blocked;
    a_message_that_crashes_its_process_is_quarantined;
    a_message_that_stops_returned_is_not_quarantined;
    a_signal_ends_a_process_that_has_left_a_handler_behind;
}

/// The parent's own look at the queue, by a handle of its own.
struct Queues {
    orders: Mailbox<Order>,
    dead: Mailbox<DeadLetter<Order>>,
}

impl Queues {
    async fn at(shared: &SharedBackend) -> Self {
        let backend = open(&shared.url).await;
        let orders = backend.mailbox(QUEUE).expect("a mailbox");
        Self { orders, dead: backend.mailbox(DEAD).expect("a mailbox") }
    }

    async fn send(&self, orders: impl IntoIterator<Item = Order>) -> Vec<MessageId> {
        let orders: Vec<_> = orders.into_iter().collect();
        self.orders.send_batch(&orders).await.and_then(|sent| sent.all()).expect("sent")
    }

    async fn counts(&self) -> Counts {
        self.orders.counts().await.expect("counts")
    }

    /// All that the queue holds, in whatever state.
    async fn peek(&self) -> Vec<(u64, MessageState)> {
        let mut all = Vec::new();
        let mut after = None;
        loop {
            let page = self.orders.queue().peek(500, after).await.expect("a page");
            let order = |message| self.orders.decode(message).expect("an order").number;
            all.extend(page.messages.iter().map(|peeked| (order(&peeked.message), peeked.state)));
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    }

    /// The numbers of all orders that the queue holds.
    async fn left(&self) -> HashSet<u64> {
        self.peek().await.into_iter().map(|(number, _)| number).collect()
    }

    /// All that the queue holds can be received at once.
    async fn is_all_ready(&self) {
        let mut all = self.peek().await;
        all.retain(|(_, state)| *state != MessageState::Ready);
        assert!(all.is_empty(), "not ready: {all:?}");
    }

    /// Waits until the queue holds nothing.
    #[track_caller]
    fn is_done(&self) -> impl Future<Output = ()> {
        let end = Instant::now() + TIMEOUT;
        async move {
            loop {
                let counts = self.counts().await;
                if counts.total() == 0 {
                    return;
                }
                assert!(Instant::now() < end, "not done: {counts:?}");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

fn work(count: u64, millis: u64) -> impl Iterator<Item = Order> {
    (0..count).map(move |number| Order { number, act: Act::Work(millis) })
}

/// Waits for a number of effects.
#[track_caller]
fn wait_for_effects(shared: &SharedBackend, count: usize) {
    wait_until(shared, &format!("{count} effects"), |effects| effects.len() >= count);
}

/// Waits until the effects are as they should be.
#[track_caller]
fn wait_until(shared: &SharedBackend, what: &str, are_there: impl Fn(&[u64]) -> bool) {
    let end = Instant::now() + TIMEOUT;
    while !are_there(&effects(shared)) {
        assert!(Instant::now() < end, "not {what}: {:?}", effects(shared));
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Tells a process to stop, and waits until it has.
#[track_caller]
fn dismiss(child: Child, signal: &str) -> (Vec<String>, Duration) {
    let start = Instant::now();
    child.signal(signal);
    let (status, said) = child.end_within(TIMEOUT);
    assert!(status.success(), "{status}");
    (said, start.elapsed())
}

/// Returns the number of times that each order was handled; fails if one was not.
#[track_caller]
fn all_handled(shared: &SharedBackend, count: u64) -> HashMap<u64, usize> {
    let mut times = HashMap::new();
    effects(shared).into_iter().for_each(|number| *times.entry(number).or_default() += 1);
    let lost: Vec<_> = (0..count).filter(|number| !times.contains_key(number)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}");
    assert_eq!(times.len() as u64, count, "something was carried out that nobody ordered");
    times
}

/// Returns the largest number of deliveries that a process had received and not settled, and the number that it
/// handled, by its events.
fn held_and_handled(said: &[String]) -> (usize, usize) {
    let (mut held, mut most, mut handled) = (0_usize, 0, 0);
    for line in said {
        if line.starts_with("event received") {
            held += 1;
            most = most.max(held);
        } else if line.starts_with("event succeeded") {
            held -= 1;
            handled += 1;
        } else if line.starts_with("event returned") || line.starts_with("event released") {
            held -= 1;
        }
    }
    (most, handled)
}

fn two_processes_with_slow_handlers_hold_little_and_share_the_work(shared: SharedBackend) {
    const FIRST: u64 = 8;
    const ORDERS: u64 = 48;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let slow = |number| Order { number, act: Act::Work(300) };
        // As they are by default.
        let setup =
            Setup { prefetch: 256, results: 128, visibility: Duration::from_secs(30), ..SETUP };
        let workers = [start_worker(&shared, &setup), start_worker(&shared, &setup)];
        // Both are up when the work comes.
        queues.send((0..FIRST).map(slow)).await;
        workers.iter().for_each(|worker| worker.wait_for("begun", 0));
        queues.send((FIRST..ORDERS).map(slow)).await;
        queues.is_done().await;
        for worker in workers {
            let (said, _) = dismiss(worker, "TERM");
            let (held, handled) = held_and_handled(&said);
            println!("{}: held {held} at most, handled {handled} of {ORDERS}", shared.name());
            // Those that run, one that waits, and those that have ended and are not settled yet: some more of them if
            // the machine is busy.
            assert!(held <= 3 * setup.workers, "held {held}");
            assert!(handled as u64 >= ORDERS * 2 / 5, "handled {handled} of {ORDERS}");
        }
        assert!(all_handled(&shared, ORDERS).values().all(|times| *times == 1));
    });
}

fn sigterm_under_load_finishes_running_handlers_and_returns_the_rest_at_once(
    shared: SharedBackend,
) {
    const ORDERS: u64 = 800;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        queues.send(work(ORDERS, 5)).await;
        // Leases as long as they are by default: nothing comes back by waiting.
        let setup = Setup { visibility: Duration::from_secs(30), ..SETUP };
        let mut stops = Vec::new();
        for stop in 1..=4 {
            let worker = start_worker(&shared, &setup);
            wait_for_effects(&shared, stop * 150);
            let (said, took) = dismiss(worker, "TERM");
            assert!(said.contains(&"stats leases_lost=0".to_owned()), "{:?}", said.last());
            let left = queues.left().await;
            let done: HashSet<_> = effects(&shared).into_iter().collect();
            let both: Vec<_> = left.intersection(&done).collect();
            assert!(both.is_empty(), "done and not settled after stop {stop}: {both:?}");
            queues.is_all_ready().await;
            assert_eq!((left.len() + done.len()) as u64, ORDERS, "after stop {stop}");
            stops.push((done.len(), took));
        }
        let last = start_worker(&shared, &setup);
        queues.is_done().await;
        dismiss(last, "INT");
        let times = all_handled(&shared, ORDERS);
        assert!(times.values().all(|times| *times == 1), "{times:?}");
        println!("{}: {ORDERS} orders once each; done, time to stop: {stops:?}", shared.name());
    });
}

fn kill_9_under_load_loses_nothing_and_repeats_only_unsettled_messages(shared: SharedBackend) {
    const ORDERS: u64 = 2000;
    const KILLS: usize = 5;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        queues.send(work(ORDERS, 3)).await;
        // Carried out, and still in the queue when their process was killed.
        let mut unsettled = HashSet::new();
        for kill in 1..=KILLS {
            let worker = start_worker(&shared, &SETUP);
            wait_for_effects(&shared, effects(&shared).len() + 70);
            worker.kill();
            let left = queues.left().await;
            assert!(!left.is_empty(), "killed too late, at {kill}");
            let before = unsettled.len();
            unsettled.extend(effects(&shared).into_iter().filter(|number| left.contains(number)));
            assert!(unsettled.len() - before <= SETUP.max_in_flight(), "{unsettled:?}");
        }
        let last = start_worker(&shared, &SETUP);
        queues.is_done().await;
        dismiss(last, "TERM");
        let mut times = all_handled(&shared, ORDERS);
        times.retain(|_, times| *times > 1);
        let wrong = times.keys().filter(|number| !unsettled.contains(number));
        assert_eq!(wrong.count(), 0, "{times:?} repeated, unsettled {unsettled:?}");
        let repeated: usize = times.values().map(|times| times - 1).sum();
        assert!(repeated <= KILLS * SETUP.max_in_flight(), "{times:?}");
        let unsettled = unsettled.len();
        println!(
            "{}: {ORDERS} orders, {KILLS} kills, {unsettled} unsettled, {repeated} repeated",
            shared.name()
        );
    });
}

/// The server is killed and comes back; or the file is locked for longer than a lease.
fn an_outage_is_survived_without_a_restart(mut shared: SharedBackend) {
    const ORDERS: u64 = 1000;
    const OUTAGE: Duration = Duration::from_millis(1500);
    on_threads(async {
        let queues = Queues::at(&shared).await;
        queues.send(work(ORDERS, 4)).await;
        let setup = Setup { visibility: Duration::from_secs(1), ..SETUP };
        let worker = start_worker(&shared, &setup);
        let mut pauses = Vec::new();
        for outage in 1..=2 {
            wait_for_effects(&shared, effects(&shared).len() + 100);
            match &mut shared.server {
                Some(server) => {
                    server.kill();
                    std::thread::sleep(OUTAGE);
                    server.restart();
                }
                None => {
                    let mut other =
                        Connection::open(shared.file("queues.db")).expect("a connection");
                    other.busy_timeout(TIMEOUT).expect("set");
                    let lock = other.transaction_with_behavior(TransactionBehavior::Immediate);
                    let lock = lock.expect("a lock");
                    std::thread::sleep(OUTAGE);
                    lock.rollback().expect("unlocked");
                }
            }
            let back = Instant::now();
            assert!(effects(&shared).len() < ORDERS as usize, "too late, at outage {outage}");
            wait_for_effects(&shared, effects(&shared).len() + 20);
            pauses.push(back.elapsed());
        }
        queues.is_done().await;
        let (said, took) = dismiss(worker, "TERM");
        let times = all_handled(&shared, ORDERS);
        let repeated: usize = times.values().map(|times| times - 1).sum();
        assert!(repeated <= 2 * setup.max_in_flight(), "{repeated} repeated");
        let count = |start: &str| said.iter().filter(|line| line.starts_with(start)).count();
        println!(
            "{}: {repeated} of {ORDERS} repeated, {} leases lost, {} unsettled, {} receives failed, \
             at work again after {pauses:?}, stopped in {took:?}",
            shared.name(),
            count("event lease_lost"),
            count("event unconfirmed"),
            count("event receive_failed"),
        );
    });
}

fn a_worker_that_was_suspended_beyond_its_lease_cannot_settle_and_continues(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let worker = start_worker(&shared, &ALONE);
        // The first waits to hear of its loss; the second is done as soon as the process runs again.
        for (number, act) in [(0, Act::UntilLost), (1, Act::Work(1200))] {
            let id = queues.send([Order { number, act }]).await[0];
            worker.wait_for(&format!("begun {number}."), 0);
            worker.signal("STOP");
            let request = Receive::one().visibility(TIMEOUT).wait(Duration::from_secs(10));
            let taken = queues.orders.receive(request).await.expect("received");
            let message = taken.into_iter().next().expect("the lease has ended");
            assert_eq!((message.id(), message.delivery_count()), (id, 2));
            worker.signal("CONT");
            worker.wait_for(&format!("event lease_lost {id}"), 0);
            if let Act::UntilLost = act {
                worker.wait_for(&format!("lost {number}."), 0);
            }
            // It continues, and has settled the last message before that.
            let next = number + 10;
            queues.send([Order { number: next, act: Act::Work(0) }]).await;
            wait_until(&shared, "the next one", |effects| effects.contains(&next));
            message.acknowledge().await.expect("it is held by us alone");
            assert_eq!(worker.reported(&format!("event succeeded {id}")), 0);
        }
        queues.is_done().await;
        let counts = queues.counts().await;
        assert_eq!(counts.removed(), Some(4), "{counts:?}");
        let (said, _) = dismiss(worker, "TERM");
        let stats = said.iter().find_map(|line| line.strip_prefix("stats leases_lost="));
        let lost: u64 = stats.and_then(|count| count.parse().ok()).expect("stats");
        assert!(lost >= 2, "{lost} leases lost");
        println!("{}: {lost} leases lost and reported, {counts:?}", shared.name());
    });
}

/// The lease begins when the server answers, and by then the receiver is gone. This cannot happen with a file, where
/// both are in the same process.
#[test]
fn a_message_that_arrives_while_a_worker_stops_is_not_left_in_flight() {
    let shared = SharedBackend::redis();
    let server = shared.server.as_ref().expect("a server");
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let worker = start_worker(&shared, &Setup { visibility: Duration::from_secs(30), ..SETUP });
        // It is at work, and knows of a message that becomes ready in a while.
        queues.send([Order { number: 0, act: Act::Work(0) }]).await;
        worker.wait_for("event succeeded", 0);
        let order = Order { number: 1, act: Act::Work(0) };
        let soon = SendOptions::new().delay(Duration::from_millis(400));
        queues.orders.send_with(&order, soon).await.expect("sent");
        server.pause();
        tokio::time::sleep(Duration::from_millis(800)).await;
        // It has asked, and has no answer.
        worker.signal("TERM");
        worker.wait_for("event draining", 0);
        server.resume();
        let (status, _) = worker.end_within(TIMEOUT);
        assert!(status.success(), "{status}");
        queues.is_all_ready().await;
    });
}

/// Starts a process, waits until it handles an order, and stops it.
async fn stopping_at(queues: &Queues, shared: &SharedBackend, act: Act, setup: &Setup) -> Child {
    queues.send([Order { number: 0, act }]).await;
    let worker = start_worker(shared, setup);
    worker.wait_for("begun 0.", 0);
    worker.signal("TERM");
    worker.wait_for("event draining", 0);
    worker
}

fn a_second_signal_cancels_a_handler_and_releases_its_message(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let setup = Setup { visibility: Duration::from_secs(30), ..SETUP };
        let worker = stopping_at(&queues, &shared, Act::Endless, &setup).await;
        assert_eq!(queues.counts().await.in_flight, 1);
        let (said, took) = dismiss(worker, "TERM");
        let counts = queues.counts().await;
        assert_eq!((counts.ready, counts.in_flight, counts.delayed), (1, 0, 0));
        assert_eq!(said.iter().filter(|line| line.starts_with("event released")).count(), 1);
        assert!(took < Duration::from_secs(10), "{took:?}");
        println!("{}: cancelled in {took:?}", shared.name());
    });
}

fn a_third_signal_ends_a_process_whose_handler_cannot_be_cancelled(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let worker = stopping_at(&queues, &shared, Act::Block(120), &ALONE).await;
        worker.signal("TERM");
        // Of another kind: two of the same kind may be heard as one.
        worker.signal("INT");
        let (status, _) = worker.end_within(TIMEOUT);
        assert!(matches!(status.code(), Some(130 | 143)), "{status}");
        // Nobody could give it back. It comes back by itself.
        let request = Receive::one().wait(Duration::from_secs(10));
        let taken = queues.orders.receive(request).await.expect("received");
        assert_eq!(taken.len(), 1);
    });
}

fn a_third_signal_ends_a_process_whose_threads_are_all_blocked(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        let count = 2 * threads as u64;
        queues.send((0..count).map(|number| Order { number, act: Act::Block(120) })).await;
        let worker = start_worker(&shared, &Setup { workers: count as usize, ..ALONE });
        worker.wait_for("begun", threads - 1);
        // Nothing in it can say that it has heard. Signals of one kind that come together may be one.
        for signal in ["TERM", "INT", "TERM", "INT", "TERM"] {
            worker.signal(signal);
            std::thread::sleep(Duration::from_millis(100));
        }
        let (status, _) = worker.end_within(TIMEOUT);
        assert!(matches!(status.code(), Some(130 | 143)), "{status}");
    });
}

fn a_message_that_crashes_its_process_is_quarantined(shared: SharedBackend) {
    const ORDERS: u64 = 40;
    const RETRIES: u32 = 4;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let bad = Order { number: ORDERS, act: Act::Abort };
        let orders: Vec<_> = work(ORDERS, 1).collect();
        queues.send(orders[..10].iter().copied()).await;
        let id = queues.send([bad]).await[0];
        queues.send(orders[10..].iter().copied()).await;

        // Four workers with prefetched messages: others are in flight beside it until it is isolated.
        let setup = Setup { retries: Some(RETRIES), workers: 4, prefetch: 8, ..ALONE };
        let aborts = restart_until_done(&queues, &shared, &setup).await;
        // The start of the first delivery is not recorded, but only those of later ones.
        assert_eq!(aborts.len() as u32, RETRIES + 2, "{aborts:?}");
        let times = all_handled(&shared, ORDERS);
        let repeated: usize = times.values().map(|times| times - 1).sum();
        assert!(repeated <= aborts.len() * setup.max_in_flight(), "{times:?}");

        let letters = queues.dead.peek(10).await.expect("dead letters");
        let [letter] = &letters[..] else { panic!("{} dead letters", letters.len()) };
        let letter = letter.body.as_ref().expect("a dead letter");
        assert_eq!((letter.message_id, letter.source_mailbox.as_str()), (id, QUEUE));
        assert_eq!(letter.failure, FailureKind::Quarantined);
        assert!(letter.delivery_count > RETRIES, "{letter:?}");
        println!("{}: {aborts:?}, then a dead letter; {repeated} repeated", shared.name());
    });
}

fn a_message_that_stops_returned_is_not_quarantined(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        queues.send([Order { number: 0, act: Act::Endless }]).await;
        let setup = Setup { retries: Some(1), ..ALONE };
        for stop in 1..=4 {
            let worker = start_worker(&shared, &setup);
            worker.wait_for("event received", 0);
            worker.signal("TERM");
            worker.wait_for("event draining", 0);
            dismiss(worker, "INT");
            let counts = queues.counts().await;
            let letters = queues.dead.peek(1).await.expect("dead letters");
            assert!(letters.is_empty(), "quarantined after {stop} stops: {:?}", letters[0].message);
            assert_eq!((counts.ready, counts.total()), (1, 1), "after stop {stop}");
        }
    });
}

fn a_signal_ends_a_process_that_has_left_a_handler_behind(shared: SharedBackend) {
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let worker = stopping_at(&queues, &shared, Act::Block(60), &ALONE).await;
        worker.signal("TERM");
        // It has waited for the handler until its timeout, and has printed all events.
        worker.wait_for("stats", 0);
        worker.signal("TERM");
        let (status, _) = worker.end_within(Duration::from_secs(10));
        assert_eq!(status.signal(), Some(15), "{status}");
    });
}

/// A shared for what is booked.
fn create_booked_table(shared: &SharedBackend) {
    let bank = Connection::open(shared.file("queues.db")).expect("a connection");
    bank.execute_batch("CREATE TABLE booked (number INTEGER)").expect("a table");
}

/// The numbers of the orders that were booked, by number.
fn booked(shared: &SharedBackend) -> Vec<u64> {
    let bank = Connection::open(shared.file("queues.db")).expect("a connection");
    let mut rows = bank.prepare("SELECT number FROM booked ORDER BY number").expect("a statement");
    let rows = rows.query_map([], |row| row.get::<_, i64>(0)).expect("rows");
    rows.map(|number| number.expect("a number") as u64).collect()
}

#[test]
fn kill_9_around_the_commit_of_a_handlers_own_transaction_does_the_work_once() {
    let shared = SharedBackend::sqlite();
    on_threads(async {
        let queues = Queues::at(&shared).await;
        create_booked_table(&shared);
        for commits in [false, true] {
            let number = u64::from(commits);
            queues.send([Order { number, act: Act::BookAndHold { commits } }]).await;
            let worker = start_worker(&shared, &ALONE);
            worker.wait_for(&format!("holding {number}."), 0);
            worker.kill();
            // Both, or neither.
            let left = queues.left().await.contains(&number);
            assert_eq!((booked(&shared).contains(&number), left), (commits, !commits));
        }
        queues.send([Order { number: 2, act: Act::Book }]).await;
        let worker = start_worker(&shared, &ALONE);
        queues.is_done().await;
        dismiss(worker, "TERM");
        assert_eq!(booked(&shared), [0, 1, 2]);
    });
}

#[test]
fn kill_9_under_load_repeats_nothing_that_is_in_one_transaction_with_its_acknowledgement() {
    const ORDERS: u64 = 400;
    const KILLS: usize = 4;
    let shared = SharedBackend::sqlite();
    on_threads(async {
        let queues = Queues::at(&shared).await;
        create_booked_table(&shared);
        queues.send((0..ORDERS).map(|number| Order { number, act: Act::Book })).await;
        for kill in 1..=KILLS {
            let worker = start_worker(&shared, &SETUP);
            let (end, before) = (Instant::now() + TIMEOUT, booked(&shared).len());
            while booked(&shared).len() < before + 50 {
                assert!(Instant::now() < end, "only {} at kill {kill}", booked(&shared).len());
                std::thread::sleep(Duration::from_millis(2));
            }
            worker.kill();
        }
        assert!(!queues.left().await.is_empty(), "killed too late");
        let last = start_worker(&shared, &SETUP);
        queues.is_done().await;
        dismiss(last, "TERM");
        assert_eq!(booked(&shared), (0..ORDERS).collect::<Vec<_>>(), "each once");
    });
}

/// Restarts a process whenever it ends, as a supervisor would, and returns the exit codes.
async fn restart_until_done(
    queues: &Queues,
    shared: &SharedBackend,
    setup: &Setup,
) -> Vec<ExitStatus> {
    let end = Instant::now() + TIMEOUT;
    let mut ends = Vec::new();
    let mut worker = start_worker(shared, setup);
    while queues.counts().await.total() > 0 {
        assert!(Instant::now() < end, "not done: {:?}, {ends:?}", queues.counts().await);
        if let Some(status) = worker.ended() {
            assert!(!status.success(), "it ended by itself");
            ends.push(status);
            worker = start_worker(shared, setup);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    dismiss(worker, "TERM");
    ends
}
