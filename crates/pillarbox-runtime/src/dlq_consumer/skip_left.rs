//! A queue that skips the dead letters for which the handler returned `leave()`: they stay ready for others, and
//! are not handled again by this consumer.
//!
//! Only a receive gets past a ready message. So [`SkipLeftQueue`] receives, releases at once what was left, and
//! delivers the rest. A dead letter that is received for the second time in a *round* ends the round. On a FIFO
//! queue, everything that is ready was left then; on other queues that is assumed after a number of rounds
//! without a new one. Then the queue is *idle*: it counts the messages once a second, without receiving any, and
//! starts another round when there are more.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::internal::lock;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, MessageId, Outgoing, PeekPage, Queue,
    QueueName, RawMessage, Receive, Result, Sent, Settle, Timestamp,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// Interval between two counts while idle.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum interval between two rounds, if the backend counts the messages that were sent.
const ROUND_INTERVAL: Duration = Duration::from_secs(600);
/// Maximum interval if it does not: then a dead letter that is sent while another one is deleted goes unnoticed.
const ROUND_INTERVAL_UNCOUNTED: Duration = Duration::from_secs(60);
/// Number of rounds in a row without a new dead letter after which none is assumed, in whatever order they are
/// received.
const MAX_ROUNDS_WITHOUT_NEW: u32 = 10;
/// Number of dead letters that are remembered. Beyond it the oldest is evicted, and handled again.
const MAX_REMEMBERED: usize = 100_000;

/// Identifies a dead letter. One that is sent again under the same id is another one.
type DeadLetterKey = (MessageId, Timestamp);

fn key(message: &RawMessage) -> DeadLetterKey {
    (message.id, message.enqueued_at)
}

/// The dead letters that the handler of a consumer has left.
#[derive(Debug, Default)]
pub(super) struct LeftDeadLetters {
    rounds: Mutex<Rounds>,
    /// Number of running tasks that release dead letters.
    releasing: watch::Sender<usize>,
}

impl LeftDeadLetters {
    /// Remembers a dead letter, which is about to be released.
    pub(super) fn add(&self, message: &RawMessage) {
        self.rounds().add(key(message));
    }

    /// Returns the number of ready dead letters that may not have been left: all of them, or none.
    pub(super) fn possibly_new(&self, counts: &Counts) -> u64 {
        match &self.rounds().idle {
            Some(idle) if !idle.is_over(counts, Instant::now()) => 0,
            _ => counts.ready,
        }
    }

    /// Waits until all dead letters that were received and had been left before are released.
    pub(super) async fn released(&self) {
        // The sender is a field of `self`, so it cannot fail.
        let _ = self.releasing.subscribe().wait_for(|tasks| *tasks == 0).await;
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        lock(&self.rounds)
    }
}

/// Counts a task that releases dead letters until it is dropped.
struct Releasing(Arc<LeftDeadLetters>);

impl Releasing {
    fn begin(left: &Arc<LeftDeadLetters>) -> Self {
        left.releasing.send_modify(|tasks| *tasks += 1);
        Self(left.clone())
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releasing.send_modify(|tasks| *tasks -= 1);
    }
}

/// The dead letters that were left, and which of them were received again in the current round. Pure.
#[derive(Debug, Default)]
struct Rounds {
    /// The round in which each was last received.
    last_round: HashMap<DeadLetterKey, u64>,
    /// In the order in which they were left, to evict the oldest.
    order: VecDeque<DeadLetterKey>,
    round: u64,
    /// Number of left dead letters received in this round.
    received: u64,
    /// Number of messages ever sent to the queue, when this round began.
    sent: Option<u64>,
    /// Whether a dead letter that was not left was received in this round.
    has_new: bool,
    /// Number of rounds in a row without a new one.
    rounds_without_new: u32,
    /// Set if nothing but left dead letters was ready when this round ended.
    idle: Option<Idle>,
}

#[derive(Debug, Clone, Copy)]
struct Idle {
    since: Instant,
    /// When to count next.
    count_at: Instant,
    /// Number of ready dead letters, all of which are taken for left.
    ready: u64,
    sent: Option<u64>,
}

impl Idle {
    /// Whether there may be dead letters that were not left.
    fn is_over(&self, counts: &Counts, now: Instant) -> bool {
        counts.ready > self.ready || counts.sent != self.sent || self.is_expired(counts, now)
    }

    /// Whether it is time for another round, regardless of the counts.
    fn is_expired(&self, counts: &Counts, now: Instant) -> bool {
        let interval =
            if counts.sent.is_some() { ROUND_INTERVAL } else { ROUND_INTERVAL_UNCOUNTED };
        now - self.since >= interval
    }
}

impl Rounds {
    fn add(&mut self, key: DeadLetterKey) {
        // It is released to the tail: when it is received again in this round, all others have been received.
        if self.last_round.insert(key, self.round).is_none() {
            self.order.push_back(key);
        }
        self.received += 1;
        if let Some(idle) = &mut self.idle {
            idle.ready = idle.ready.saturating_add(1);
        }
        if self.order.len() > MAX_REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.last_round.remove(&oldest);
        }
    }

    /// Records a dead letter that was received, and returns whether it was left before.
    fn record(&mut self, key: DeadLetterKey, now: Instant) -> bool {
        let Some(round) = self.last_round.get_mut(&key) else {
            self.has_new = true;
            return false;
        };
        if std::mem::replace(round, self.round) != self.round {
            self.received += 1;
        } else if self.idle.is_none() {
            self.end_round(now);
        }
        true
    }

    fn end_round(&mut self, now: Instant) {
        self.rounds_without_new = if self.has_new { 0 } else { self.rounds_without_new + 1 };
        // If the order is not FIFO, one may be received twice before all have been received once.
        let ready =
            if self.rounds_without_new < MAX_ROUNDS_WITHOUT_NEW { self.received } else { u64::MAX };
        // The number that was sent before the first round is not known, so another round follows at once.
        let count_at = if self.round == 0 { now } else { now + COUNT_INTERVAL };
        self.idle = Some(Idle { since: now, count_at, ready, sent: self.sent });
    }

    /// Records counts while idle, and returns whether the queue stays idle. If not, a round starts.
    fn stays_idle(&mut self, counts: &Counts, now: Instant) -> bool {
        let Some(idle) = &mut self.idle else { return false };
        if idle.is_over(counts, now) {
            if idle.sent != counts.sent || idle.is_expired(counts, now) {
                self.rounds_without_new = 0;
            }
            self.idle = None;
            self.round += 1;
            (self.received, self.sent, self.has_new) = (0, counts.sent, false);
            return false;
        }
        // Other consumers may have received some.
        idle.ready = idle.ready.min(counts.ready);
        idle.count_at = now + COUNT_INTERVAL;
        true
    }
}

/// A queue that delivers only dead letters that were not left.
#[derive(Debug)]
pub(super) struct SkipLeftQueue {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) left: Arc<LeftDeadLetters>,
}

impl SkipLeftQueue {
    async fn receive_new(&self, request: Receive) -> Result<Vec<Delivery>> {
        let until = after(request.wait);
        loop {
            // No delivery is held across an await, so dropping this future loses none.
            self.left.released().await;
            if !self.wait_while_idle(until).await? {
                return Ok(Vec::new());
            }
            let wait = until.saturating_duration_since(Instant::now());
            let wait = self.queue.capabilities().fit_wait(wait);
            let deliveries = self.queue.receive(request.wait(wait)).await?;
            let (left, new) = self.split(deliveries);
            if left.is_empty() {
                return Ok(new);
            }
            self.release(left);
            if !new.is_empty() || Instant::now() >= until {
                return Ok(new);
            }
        }
    }

    /// Waits while nothing but left dead letters is ready, and returns whether that ended before `until`.
    async fn wait_while_idle(&self, until: Instant) -> Result<bool> {
        loop {
            let Some(count_at) = self.left.rounds().idle.map(|idle| idle.count_at) else {
                return Ok(true);
            };
            let now = Instant::now();
            if now >= count_at {
                let counts = self.queue.counts().await?;
                if !self.left.rounds().stays_idle(&counts, Instant::now()) {
                    return Ok(true);
                }
            } else if now >= until {
                return Ok(false);
            } else {
                tokio::time::sleep_until(until.min(count_at)).await;
            }
        }
    }

    /// Splits deliveries into those to release, which were left before, and the others.
    fn split(&self, deliveries: Vec<Delivery>) -> (Vec<Settle>, Vec<Delivery>) {
        let now = Instant::now();
        let mut rounds = self.left.rounds();
        let (left, new): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|one| rounds.record(key(&one.message), now));
        let release = |one: Delivery| Settle::release(one.receipt, Duration::ZERO);
        (left.into_iter().map(release).collect(), new)
    }

    /// Releases dead letters in a task, also if the receive is dropped; [`LeftDeadLetters::released`] waits for it.
    fn release(&self, mut settles: Vec<Settle>) {
        let (queue, releasing) = (self.queue.clone(), Releasing::begin(&self.left));
        tokio::spawn(async move {
            let _releasing = releasing;
            let max = queue.capabilities().max_batch.max(1);
            while !settles.is_empty() {
                let some = settles.drain(..settles.len().min(max)).collect();
                if let Err(error) = queue.settle(some).await {
                    // They are ready again when their leases expire.
                    tracing::warn!(queue = %queue.name(), %error, "cannot release dead letters that were left");
                }
            }
        });
    }
}

impl Queue for SkipLeftQueue {
    fn name(&self) -> &QueueName {
        self.queue.name()
    }

    fn capabilities(&self) -> &Capabilities {
        self.queue.capabilities()
    }

    fn send(&self, batch: Vec<Outgoing>) -> BoxFuture<'_, Result<Vec<Result<Sent>>>> {
        self.queue.send(batch)
    }

    fn receive(&self, request: Receive) -> BoxFuture<'_, Result<Vec<Delivery>>> {
        Box::pin(self.receive_new(request))
    }

    fn settle(&self, batch: Vec<Settle>) -> BoxFuture<'_, Result<Vec<Result<()>>>> {
        self.queue.settle(batch)
    }

    fn peek(&self, max: usize, after: Option<Cursor>) -> BoxFuture<'_, Result<PeekPage>> {
        self.queue.peek(max, after)
    }

    fn counts(&self) -> BoxFuture<'_, Result<Counts>> {
        self.queue.counts()
    }

    fn purge(&self) -> BoxFuture<'_, Result<u64>> {
        self.queue.purge()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            self.left.released().await;
            self.queue.close().await;
        })
    }

    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use pillarbox_core::{Backend, MemoryBackend, QueueOptions};

    use super::*;

    /// So that dropping the future loses nothing: it never holds deliveries across an await.
    #[tokio::test]
    async fn a_new_dead_letter_is_delivered_without_waiting_for_the_release_of_others() {
        let name = QueueName::new("orders-dlq").unwrap();
        let queue = MemoryBackend::new().queue(&name, QueueOptions::new()).unwrap();
        queue.send(vec![Outgoing::new("left"), Outgoing::new("new")]).await.unwrap();
        let left = Arc::new(LeftDeadLetters::default());
        let skipping = SkipLeftQueue { queue: queue.clone(), left: left.clone() };
        let first = skipping.receive(Receive::one()).await.unwrap().remove(0);
        left.add(&first.message);
        queue.settle(vec![Settle::release(first.receipt, Duration::ZERO)]).await.unwrap();

        let new = skipping.receive(Receive::up_to(2)).now_or_never().expect("at once").unwrap();
        assert_eq!(new.len(), 1);
        left.released().await;
        let counts = queue.counts().await.unwrap();
        assert_eq!((counts.ready, counts.in_flight), (1, 1));
    }

    fn dead_letter(name: &str) -> DeadLetterKey {
        (MessageId::from_key(name), Timestamp::from_secs(7))
    }

    #[test]
    fn a_dead_letter_that_is_received_twice_in_a_round_ends_it() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        rounds.add(dead_letter("a"));
        rounds.add(dead_letter("b"));
        assert!(!rounds.record(dead_letter("new"), now) && rounds.idle.is_none());
        // The number that was sent before the first round is not known, so another one follows.
        assert!(rounds.record(dead_letter("a"), now) && rounds.idle.is_some());
        let counts = Counts::new(2, 0, 0).with_sent(Some(5));
        assert!(!rounds.stays_idle(&counts, now));
        for name in ["a", "b"] {
            assert!(rounds.record(dead_letter(name), now) && rounds.idle.is_none(), "{name}");
        }
        assert!(rounds.record(dead_letter("a"), now));
        assert!(rounds.stays_idle(&counts, now));
    }

    #[test]
    fn an_idle_queue_starts_a_round_when_dead_letters_are_sent_or_ready_or_after_a_time() {
        let now = Instant::now();
        let idle = Idle { since: now, count_at: now, ready: 2, sent: Some(5) };
        let counts = |ready, sent| Counts::new(ready, 0, 3).with_sent(sent);
        assert!(!idle.is_over(&counts(2, Some(5)), now) && !idle.is_over(&counts(1, Some(5)), now));
        assert!(idle.is_over(&counts(3, Some(5)), now), "a delayed one is ready");
        assert!(idle.is_over(&counts(2, Some(6)), now), "one was sent while another was deleted");
        assert!(idle.is_over(&counts(2, Some(5)), now + ROUND_INTERVAL));
        let uncounted = Idle { sent: None, ..idle };
        assert!(!uncounted.is_over(&counts(2, None), now));
        assert!(uncounted.is_over(&counts(2, None), now + ROUND_INTERVAL_UNCOUNTED));
    }

    #[test]
    fn on_a_queue_without_order_a_number_of_rounds_without_a_new_one_make_it_idle() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        for name in ["a", "b", "c"] {
            rounds.add(dead_letter(name));
        }
        let counts = Counts::new(3, 0, 0).with_sent(Some(5));
        rounds.record(dead_letter("a"), now);
        for round in 0..MAX_ROUNDS_WITHOUT_NEW {
            assert!(!rounds.stays_idle(&counts, now), "only one is ever received: {round}");
            assert!(rounds.record(dead_letter("a"), now) && rounds.record(dead_letter("a"), now));
            let count_at = rounds.idle.map(|idle| idle.count_at);
            assert_eq!(count_at, Some(now + COUNT_INTERVAL), "at most one round per second");
        }
        assert!(rounds.stays_idle(&counts, now));
        // One that is sent starts the rounds again.
        assert!(!rounds.stays_idle(&counts.with_sent(Some(6)), now));
        assert!(rounds.record(dead_letter("a"), now) && rounds.record(dead_letter("a"), now));
        assert!(!rounds.stays_idle(&counts.with_sent(Some(6)), now));
    }

    #[test]
    fn what_other_consumers_receive_does_not_hide_new_ones() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        rounds.idle = Some(Idle { since: now, count_at: now, ready: 2, sent: None });
        assert!(rounds.stays_idle(&Counts::new(1, 0, 0), now));
        assert!(!rounds.stays_idle(&Counts::new(2, 0, 0), now));
    }

    #[test]
    fn the_oldest_is_evicted() {
        let mut rounds = Rounds::default();
        let keys: Vec<_> = (0..=MAX_REMEMBERED)
            .map(|n| (MessageId::new(), Timestamp::from_secs(n as i64)))
            .collect();
        keys.iter().for_each(|key| rounds.add(*key));
        let now = Instant::now();
        assert!(!rounds.record(keys[0], now) && rounds.record(keys[1], now));
        assert_eq!(rounds.last_round.len(), MAX_REMEMBERED);
    }
}
