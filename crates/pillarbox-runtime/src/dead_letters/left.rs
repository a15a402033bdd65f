//! Dead letters that a handler has left where they are: ready for everybody else, and not handled again here.
//!
//! Nothing but a receive gets past a message that is ready. So [`FreshOnly`] receives, gives back at once
//! what was left, and delivers the rest. When a letter comes for the second time in a *round*, all that is
//! ready was left. Then it *rests*: it counts the letters once a second, which takes none, and begins another
//! round when there are more of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, MessageId, Outgoing, PeekPage, Queue,
    QueueName, RawMessage, Receive, Result, Sent, Settle, Timestamp,
};
use tokio::time::Instant;

/// Interval between two counts while resting.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between two rounds, where the backend counts what was sent.
const ROUND_EVERY: Duration = Duration::from_secs(600);
/// The same where it does not: then a letter that comes as another goes is not noticed.
const ROUND_EVERY_UNCOUNTED: Duration = Duration::from_secs(60);
/// How many letters are remembered. Then the oldest is forgotten, and handled again.
const MOST: usize = 100_000;

/// A dead letter. One that is stored anew under the same id is another.
type Key = (MessageId, Timestamp);

fn key(message: &RawMessage) -> Key {
    (message.id, message.enqueued_at)
}

/// What a consumer remembers of the letters that its handler has left.
#[derive(Debug, Default)]
pub(super) struct Left(Mutex<Rounds>);

impl Left {
    /// Remembers a letter, which is about to be given back.
    pub(super) fn add(&self, message: &RawMessage) {
        self.rounds().add(key(message));
    }

    /// Number of the ready letters that may not have been left: all of them, or none.
    pub(super) fn unknown(&self, counts: &Counts) -> u64 {
        match &self.rounds().rest {
            Some(rest) if !rest.is_over(counts, Instant::now()) => 0,
            _ => counts.ready,
        }
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Which letters were left, and which of them came again since the round began. Pure.
#[derive(Debug, Default)]
struct Rounds {
    /// The round in which each was last met.
    met: HashMap<Key, u64>,
    /// In the order in which they were left, to forget the oldest.
    order: VecDeque<Key>,
    round: u64,
    /// Number of letters met in this round.
    count: u64,
    /// Number of messages ever sent, as of the beginning of this round.
    sent: Option<u64>,
    /// Nothing but left letters was ready when this round ended.
    rest: Option<Rest>,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    since: Instant,
    /// Number of ready letters that are known to be left.
    ready: u64,
    sent: Option<u64>,
}

impl Rest {
    /// Whether there may be letters that were not left.
    fn is_over(&self, counts: &Counts, now: Instant) -> bool {
        let every = if counts.sent.is_some() { ROUND_EVERY } else { ROUND_EVERY_UNCOUNTED };
        counts.ready > self.ready || counts.sent != self.sent || now - self.since >= every
    }
}

impl Rounds {
    fn add(&mut self, key: Key) {
        // It lines up behind all others: to meet it again in this round is to have come round.
        if self.met.insert(key, self.round).is_none() {
            self.order.push_back(key);
        }
        self.count += 1;
        if let Some(rest) = &mut self.rest {
            rest.ready += 1;
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.met.remove(&oldest);
        }
    }

    /// Whether a letter that was received was left before.
    fn meet(&mut self, key: Key, now: Instant) -> bool {
        let Some(round) = self.met.get_mut(&key) else { return false };
        if std::mem::replace(round, self.round) == self.round {
            self.rest = Some(Rest { since: now, ready: self.count, sent: self.sent });
        } else {
            self.count += 1;
        }
        true
    }

    /// Takes in what was counted while resting, and says whether the rest goes on.
    fn goes_on_resting(&mut self, counts: &Counts, now: Instant) -> bool {
        let Some(rest) = &mut self.rest else { return false };
        if rest.is_over(counts, now) {
            self.rest = None;
            self.round += 1;
            (self.count, self.sent) = (0, counts.sent);
            return false;
        }
        // Others took some away.
        rest.ready = rest.ready.min(counts.ready);
        true
    }
}

/// A queue that delivers only letters that were not left.
#[derive(Debug)]
pub(super) struct FreshOnly {
    queue: Arc<dyn Queue>,
    left: Arc<Left>,
}

impl FreshOnly {
    pub(super) fn new(queue: Arc<dyn Queue>, left: Arc<Left>) -> Self {
        Self { queue, left }
    }

    async fn receive_fresh(&self, request: Receive) -> Result<Vec<Delivery>> {
        let until = after(request.wait);
        loop {
            if !self.rest(until).await? {
                return Ok(Vec::new());
            }
            let wait = until.saturating_duration_since(Instant::now());
            let deliveries = self.queue.receive(request.wait(wait)).await?;
            let (left, fresh) = self.tell_apart(deliveries);
            let is_over = left.is_empty() || !fresh.is_empty();
            if !left.is_empty() {
                self.give_back(left).await;
            }
            if is_over || Instant::now() >= until {
                return Ok(fresh);
            }
        }
    }

    /// Waits while nothing but left letters is ready, and says whether that ended in time.
    async fn rest(&self, until: Instant) -> Result<bool> {
        while self.left.rounds().rest.is_some() {
            let counts = self.queue.counts().await?;
            let now = Instant::now();
            if !self.left.rounds().goes_on_resting(&counts, now) {
                break;
            }
            if now >= until {
                return Ok(false);
            }
            tokio::time::sleep_until(until.min(now + LOOK_EVERY)).await;
        }
        Ok(true)
    }

    fn tell_apart(&self, deliveries: Vec<Delivery>) -> (Vec<Settle>, Vec<Delivery>) {
        let now = Instant::now();
        let mut rounds = self.left.rounds();
        let (left, fresh): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|one| rounds.meet(key(&one.message), now));
        let give_back = |one: Delivery| Settle::release(one.receipt, Duration::ZERO);
        (left.into_iter().map(give_back).collect(), fresh)
    }

    /// Gives letters back, also if whoever receives goes away meanwhile.
    async fn give_back(&self, mut settles: Vec<Settle>) {
        let queue = self.queue.clone();
        let task = tokio::spawn(async move {
            let most = queue.capabilities().max_batch.max(1);
            while !settles.is_empty() {
                let some = settles.drain(..settles.len().min(most)).collect();
                if let Err(error) = queue.settle(some).await {
                    // They come back when their leases end.
                    tracing::warn!(queue = %queue.name(), %error, "cannot give back dead letters that were left");
                }
            }
        });
        // It does not panic; where it was cancelled, the runtime is being shut down.
        let _ = task.await;
    }
}

impl Queue for FreshOnly {
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
        Box::pin(self.receive_fresh(request))
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
        self.queue.close()
    }

    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(name: &str) -> Key {
        (MessageId::from_key(name), Timestamp::from_secs(7))
    }

    #[test]
    fn a_letter_that_comes_twice_in_a_round_ends_it() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        rounds.add(letter("a"));
        rounds.add(letter("b"));
        assert!(!rounds.meet(letter("new"), now) && rounds.rest.is_none());
        // Nothing is known of what came during the first round: there is another one.
        assert!(rounds.meet(letter("a"), now) && rounds.rest.is_some());
        let counts = Counts::new(2, 0, 0).with_sent(Some(5));
        assert!(!rounds.goes_on_resting(&counts, now));
        for name in ["a", "b"] {
            assert!(rounds.meet(letter(name), now) && rounds.rest.is_none(), "{name}");
        }
        assert!(rounds.meet(letter("a"), now));
        assert!(rounds.goes_on_resting(&counts, now));
    }

    #[test]
    fn a_rest_ends_when_letters_come_or_become_ready_or_time_is_up() {
        let now = Instant::now();
        let rest = Rest { since: now, ready: 2, sent: Some(5) };
        let counts = |ready, sent| Counts::new(ready, 0, 3).with_sent(sent);
        assert!(!rest.is_over(&counts(2, Some(5)), now) && !rest.is_over(&counts(1, Some(5)), now));
        assert!(rest.is_over(&counts(3, Some(5)), now), "one that was kept is due");
        assert!(rest.is_over(&counts(2, Some(6)), now), "one came as another went");
        assert!(rest.is_over(&counts(2, Some(5)), now + ROUND_EVERY));
        let uncounted = Rest { sent: None, ..rest };
        assert!(!uncounted.is_over(&counts(2, None), now));
        assert!(uncounted.is_over(&counts(2, None), now + ROUND_EVERY_UNCOUNTED));
    }

    #[test]
    fn what_others_take_away_makes_room_for_news() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        rounds.rest = Some(Rest { since: now, ready: 2, sent: None });
        assert!(rounds.goes_on_resting(&Counts::new(1, 0, 0), now));
        assert!(!rounds.goes_on_resting(&Counts::new(2, 0, 0), now));
    }

    #[test]
    fn the_oldest_is_forgotten() {
        let mut rounds = Rounds::default();
        let keys: Vec<_> =
            (0..=MOST).map(|n| (MessageId::new(), Timestamp::from_secs(n as i64))).collect();
        keys.iter().for_each(|key| rounds.add(*key));
        let now = Instant::now();
        assert!(!rounds.meet(keys[0], now) && rounds.meet(keys[1], now));
        assert_eq!(rounds.met.len(), MOST);
    }
}
