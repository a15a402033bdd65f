//! Many clients on one queue at once, and a check of what they saw.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pillarbox_core::{Delivery, Error, Outgoing, Queue, Receive, Settle, SettleAction};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::history::{History, Interval, Outcome, Summary};

/// Options of a stress test.
#[derive(Debug, Clone)]
#[must_use]
pub struct Stress {
    /// Number of tasks that send.
    pub producers: usize,
    /// Number of tasks that receive and settle.
    pub consumers: usize,
    /// Total number of messages.
    pub messages: usize,
    /// Lease of a delivery. Consumers let some expire.
    pub visibility: Duration,
    /// Seed of the clients' choices.
    pub seed: u64,
    /// Whether a delivery may go unseen, so that delivery counts have gaps. On a backend that waits
    /// for a disk or a network, a caller may stop waiting while its deliveries are on their way. They
    /// are returned, but if that takes longer than the lease, the count stays raised.
    pub may_go_unseen: bool,
}

impl Default for Stress {
    fn default() -> Self {
        Self {
            producers: 4,
            consumers: 4,
            messages: 4000,
            visibility: Duration::from_millis(100),
            seed: 1,
            may_go_unseen: false,
        }
    }
}

impl Stress {
    /// Sends all messages through the queue with random nacks, delays, extensions and expiries
    /// until each is acknowledged, and checks the history.
    ///
    /// The queue must be empty at the start, and is at the end.
    ///
    /// # Panics
    ///
    /// If the history breaks the contract, or a call fails that should not.
    pub async fn run(&self, queue: Arc<dyn Queue>) -> Summary {
        let acknowledged = Arc::new(AtomicUsize::new(0));
        let mut clients = JoinSet::new();
        for producer in 0..self.producers {
            let share = self.messages / self.producers
                + usize::from(producer < self.messages % self.producers);
            clients.spawn(produce(queue.clone(), share, self.seed ^ (producer as u64) << 32));
        }
        for consumer in 0..self.consumers {
            let client = Consumer {
                queue: queue.clone(),
                random: StdRng::seed_from_u64(self.seed ^ (consumer as u64 + 1) << 16),
                visibility: self.visibility,
                history: History::new(),
            };
            clients.spawn(client.consume(acknowledged.clone(), self.messages));
        }
        let mut history = History::new();
        if self.may_go_unseen {
            history.receive_lost();
        }
        for part in clients.join_all().await {
            history.merge(part);
        }
        let summary = history.check(&HashSet::new());
        let summary = summary.unwrap_or_else(|violations| panic!("{violations}"));
        let left = queue.counts().await.expect("counts");
        assert_eq!(left.total(), 0, "every message is acknowledged and {left:?} are left");
        summary
    }
}

async fn produce(queue: Arc<dyn Queue>, messages: usize, seed: u64) -> History {
    let mut random = StdRng::seed_from_u64(seed);
    let mut history = History::new();
    let mut left = messages;
    while left > 0 {
        let size = random.random_range(1..=left.min(10));
        let batch = (0..size).map(|_| {
            let mut message = Outgoing::new("stress");
            if random.random_bool(0.1) {
                message.delay = Duration::from_millis(random.random_range(1..30));
            }
            message
        });
        for sent in queue.send(batch.collect()).await.expect("sent") {
            history.sent(sent.expect("stored").id);
        }
        left -= size;
        if random.random_bool(0.2) {
            tokio::task::yield_now().await;
        }
    }
    history
}

struct Consumer {
    queue: Arc<dyn Queue>,
    random: StdRng,
    visibility: Duration,
    history: History,
}

impl Consumer {
    async fn consume(mut self, acknowledged: Arc<AtomicUsize>, messages: usize) -> History {
        // Long enough for every lease and delay to end many times over.
        let timeout = (self.visibility * 50).max(Duration::from_secs(5));
        let mut progress = Instant::now();
        // Stop when no message comes: the check of the history reports what is lost.
        while acknowledged.load(Ordering::Relaxed) < messages && progress.elapsed() < timeout {
            let request = Receive::up_to(self.random.random_range(1..=10))
                .visibility(self.visibility)
                .wait(Duration::from_millis(50));
            let start = Instant::now();
            let deliveries = self.queue.receive(request).await.expect("received");
            let received = Interval::since(start);
            if !deliveries.is_empty() {
                progress = Instant::now();
            }
            for delivery in &deliveries {
                self.history.delivered(delivery, received, self.visibility);
            }
            for delivery in deliveries {
                let done = self.handle(&delivery).await;
                acknowledged.fetch_add(usize::from(done), Ordering::Relaxed);
            }
        }
        self.history
    }

    /// Does something with a delivery and says whether it was acknowledged.
    async fn handle(&mut self, delivery: &Delivery) -> bool {
        let nack = |delay| SettleAction::Nack { delay };
        match self.random.random_range(0..100) {
            0..70 => self.settle(delivery, SettleAction::Acknowledge).await,
            70..77 => self.settle(delivery, nack(Duration::ZERO)).await,
            77..80 => {
                self.settle(delivery, SettleAction::Start { timeout: self.visibility }).await;
                self.settle(delivery, SettleAction::Release { delay: Duration::ZERO }).await
            }
            80..85 => {
                self.settle(delivery, nack(self.visibility / 4)).await;
                self.settle(delivery, SettleAction::Acknowledge).await
            }
            85..90 => false,
            90..93 => {
                // Too late, unless this machine is much slower than its clock.
                tokio::time::sleep(self.visibility + self.visibility / 4).await;
                self.settle(delivery, SettleAction::Acknowledge).await
            }
            _ => {
                self.settle(delivery, SettleAction::Extend { timeout: self.visibility * 2 }).await;
                self.settle(delivery, SettleAction::Acknowledge).await
            }
        }
    }

    /// Settles a delivery and says whether it was acknowledged.
    async fn settle(&mut self, delivery: &Delivery, action: SettleAction) -> bool {
        let start = Instant::now();
        let settle = Settle { receipt: delivery.receipt.clone(), action };
        let outcome = match &self.queue.settle(vec![settle]).await.expect("answered")[..] {
            [Ok(())] => Outcome::Done,
            [Err(Error::ReceiptHandleExpired { .. })] => Outcome::Refused,
            other => panic!("{other:?}"),
        };
        self.history.settled(delivery, action, Interval::since(start), outcome);
        outcome == Outcome::Done && action == SettleAction::Acknowledge
    }
}
