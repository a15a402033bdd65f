//! Dead-lettering and replaying in processes that are killed: exactly one dead letter for each message, and none lost.
//!
//! Each test runs on a SQLite file and on a Redis server.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use pillarbox_core::{Mailbox, Mailboxes, MessageId};
use pillarbox_runtime::dead_letters::{DeadLetter, Dlq};
use pillarbox_testing::on_threads;
use pillarbox_testing::process::{Child, assignment};

use crate::common::shared_backend::{SharedBackend, on_both, open};
use crate::common::worker_process::{
    Act, DEAD, Order, QUEUE, Setup, effects, end_with_the_parent, report, start_worker,
};

/// Timeout of every step, for slow machines.
const TIMEOUT: Duration = Duration::from_secs(40);
/// Number of kills, and the maximum until one has hit a process between two steps.
const KILLS: u64 = 5;
const MOST_KILLS: u64 = 25;
/// Duration of leases, which is waited for after each kill.
const LEASE: Duration = Duration::from_secs(1);

/// The process that replays. Not a test.
#[test]
#[ignore = "runs in a process of its own, started by the other tests"]
fn replayer() {
    let Some((url, _)) = assignment() else { return };
    end_with_the_parent();
    on_threads(async move {
        let backend = open(&url).await;
        let dlq = Dlq::open(&backend, DEAD).expect("a queue");
        // Slowly, so that it is killed while it replays.
        let pass = dlq.replay().visibility(LEASE).rate(1_000, Duration::from_secs(1));
        pass.matching(is_selected).run().await.unwrap_or_else(|error| panic!("{error}"));
        backend.close().await;
        report("replayed");
    });
}

/// Selects all orders but every tenth.
fn is_selected(letter: &DeadLetter) -> bool {
    let order: Order = serde_json::from_slice(&letter.body).expect("an order");
    !order.number.is_multiple_of(10)
}

on_both! {
    kill_9_while_dead_lettering_makes_one_dead_letter_of_each_and_loses_none;
    kill_9_while_replaying_loses_no_message_and_doubles_none;
}

/// The queues, opened by the parent process.
struct Queues {
    backend: Mailboxes,
    orders: Mailbox<Order>,
    dead: Mailbox<DeadLetter<Order>>,
}

impl Queues {
    async fn at(shared: &SharedBackend) -> Self {
        let backend = open(&shared.url).await;
        let orders = backend.mailbox(QUEUE).expect("a mailbox");
        Self { orders, dead: backend.mailbox(DEAD).expect("a mailbox"), backend }
    }

    async fn send(&self, count: u64) -> BTreeSet<MessageId> {
        let orders: Vec<_> = (0..count).map(|number| Order { number, act: Act::Reject }).collect();
        let ids = self.orders.send_batch(&orders).await.expect("sent").all().expect("sent");
        ids.into_iter().collect()
    }

    /// Returns the message of each dead letter.
    async fn dead(&self) -> Vec<MessageId> {
        let mut ids = Vec::new();
        let dlq = Dlq::of(&self.dead);
        dlq.peek(|found| {
            ids.push(found.letter.expect("a dead letter").message_id);
            std::ops::ControlFlow::Continue(())
        })
        .await
        .expect("peeked");
        ids
    }

    async fn left(&self) -> u64 {
        self.orders.approximate_count().await.expect("counted")
    }

    /// Returns the number of messages that are in both queues, out of `all`.
    async fn in_both(&self, all: u64) -> u64 {
        let dead = self.dead.approximate_count().await.expect("counted");
        self.left().await + dead - all
    }

    /// Waits until a condition holds.
    async fn until(&self, what: &str, is_so: impl AsyncFn(&Self) -> bool) {
        let end = Instant::now() + TIMEOUT;
        while !is_so(self).await {
            assert!(Instant::now() < end, "not {what}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

fn kill_9_while_dead_lettering_makes_one_dead_letter_of_each_and_loses_none(shared: SharedBackend) {
    const ORDERS: u64 = 3_000;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let sent = queues.send(ORDERS).await;
        let setup =
            Setup { workers: 4, prefetch: 32, results: 16, visibility: LEASE, retries: Some(9) };
        let (mut kills, mut both) = (0, 0);
        while kills < KILLS || both == 0 {
            kills += 1;
            assert!(kills <= MOST_KILLS, "no kill came between a store and its acknowledgement");
            let worker = start_worker(&shared, &setup);
            queues
                .until("far enough", async |queues| {
                    queues.left().await <= ORDERS - kills * ORDERS / (MOST_KILLS + 2)
                })
                .await;
            worker.kill();
            assert!(queues.left().await > 0, "killed too late, at {kills}");
            both = queues.in_both(ORDERS).await.max(both);
        }
        let last = start_worker(&shared, &setup);
        queues.until("done", async |queues| queues.left().await == 0).await;
        last.signal("TERM");
        let (status, _) = last.end_within(TIMEOUT);
        assert!(status.success(), "{status}");
        let dead = queues.dead().await;
        assert_eq!(dead.len() as u64, ORDERS, "one of each");
        assert_eq!(dead.into_iter().collect::<BTreeSet<_>>(), sent);
        assert!(effects(&shared).is_empty(), "no order was carried out");
        assert!(both <= kills * setup.max_in_flight() as u64, "{both} in both queues");
        println!(
            "{}: {ORDERS} dead letters, {kills} kills; stored and not yet acknowledged when killed, at \
             most: {both}",
            shared.name()
        );
    });
}

fn kill_9_while_replaying_loses_no_message_and_doubles_none(shared: SharedBackend) {
    const ORDERS: u64 = 3_000;
    on_threads(async {
        let queues = Queues::at(&shared).await;
        let sent = queues.send(ORDERS).await;
        let setup =
            Setup { workers: 4, prefetch: 256, results: 64, visibility: TIMEOUT, retries: Some(9) };
        let worker = start_worker(&shared, &setup);
        queues.until("dead", async |queues| queues.left().await == 0).await;
        worker.signal("TERM");
        worker.end_within(TIMEOUT);

        let (mut kills, mut between) = (0, 0);
        while kills < KILLS || between == 0 {
            kills += 1;
            assert!(kills <= MOST_KILLS, "no kill came between a send and its acknowledgement");
            let replayer = Child::start("dead_letter_processes::replayer", &shared.url, "");
            queues
                .until("far enough", async |queues| {
                    queues.left().await >= kills * ORDERS / (MOST_KILLS + 2)
                })
                .await;
            replayer.kill();
            assert!(queues.left().await < ORDERS * 9 / 10, "killed too late, at {kills}");
            between = queues.in_both(ORDERS).await.max(between);
            // Its leases expire.
            queues
                .until("back", async |queues| {
                    queues.dead.counts().await.expect("counted").in_flight == 0
                })
                .await;
        }
        let replayer = Child::start("dead_letter_processes::replayer", &shared.url, "");
        replayer.wait_for("replayed", 0);
        replayer.end_within(TIMEOUT);
        let mut times: HashMap<MessageId, u32> = HashMap::new();
        let mut after = None;
        loop {
            let page = queues.orders.queue().peek(500, after).await.expect("a page");
            for one in page.messages {
                let first = one.message.attributes.get("pillarbox.original_id");
                let first = first.expect("it was replayed").parse().expect("an id");
                *times.entry(first).or_default() += 1;
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        assert!(times.values().all(|times| *times == 1), "doubled: {times:?}");
        let dead = queues.dead().await;
        assert_eq!((times.len() as u64, dead.len() as u64), (ORDERS * 9 / 10, ORDERS / 10));
        let all: BTreeSet<_> = times.into_keys().chain(dead).collect();
        assert_eq!(all, sent);
        println!(
            "{}: {ORDERS} dead letters, {kills} kills; sent and not yet acknowledged when killed, at \
             most: {between}",
            shared.name()
        );
        queues.backend.close().await;
    });
}
