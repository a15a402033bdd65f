//! Dead letters that a handler returned `leave()` for: ready for everybody else, and not handled again by this
//! consumer.
//!
//! Nothing but a receive gets past a message that is ready. So [`FreshOnly`] receives, releases at once what was
//! left, and delivers the rest. A letter that comes for the second time in a *round* ends the round: on a
//! queue in FIFO order all that is ready was left; elsewhere that is believed after some rounds without a
//! fresh letter. Then the queue *rests*: it counts the letters once a second, which takes none, and begins
//! another round when there are more of them.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pillarbox_core::clock::after;
use pillarbox_core::{
    BoxFuture, Capabilities, Counts, Cursor, Delivery, MessageId, Outgoing, PeekPage, Queue,
    QueueName, RawMessage, Receive, Result, Sent, Settle, Timestamp,
};
use tokio::sync::watch;
use tokio::time::Instant;

/// Interval between two counts while resting.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Interval between two rounds, where the backend counts what was sent.
const ROUND_EVERY: Duration = Duration::from_secs(600);
/// The same where it does not: then a letter that comes as another goes is not noticed.
const ROUND_EVERY_UNCOUNTED: Duration = Duration::from_secs(60);
/// Number of rounds in a row without a fresh letter after which there is none, in whatever order they come.
const BARREN_ROUNDS: u32 = 10;
/// Number of letters that are remembered. Then the oldest is forgotten, and handled again.
const MOST: usize = 100_000;

/// A dead letter. One that is stored anew under the same id is another.
type Key = (MessageId, Timestamp);

fn key(message: &RawMessage) -> Key {
    (message.id, message.enqueued_at)
}

/// What a consumer remembers of the letters that its handler has left.
#[derive(Debug, Default)]
pub(super) struct Left {
    rounds: Mutex<Rounds>,
    /// Number of tasks that release letters.
    releasing: watch::Sender<usize>,
}

impl Left {
    /// Remembers a letter, which is about to be released.
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

    /// Waits until all that was received and left before is released.
    pub(super) async fn released(&self) {
        // The sender is here, so it cannot fail.
        let _ = self.releasing.subscribe().wait_for(|tasks| *tasks == 0).await;
    }

    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A task that releases letters, for as long as it lives.
struct Releasing(Arc<Left>);

impl Releasing {
    fn begin(left: &Arc<Left>) -> Self {
        left.releasing.send_modify(|tasks| *tasks += 1);
        Self(left.clone())
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releasing.send_modify(|tasks| *tasks -= 1);
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
    /// Whether this round brought a letter that was not left.
    has_fresh: bool,
    /// Number of rounds in a row that brought none.
    barren: u32,
    /// Nothing but left letters was ready when this round ended.
    rest: Option<Rest>,
}

#[derive(Debug, Clone, Copy)]
struct Rest {
    since: Instant,
    /// When to count next.
    look_at: Instant,
    /// Number of ready letters that are taken for left.
    ready: u64,
    sent: Option<u64>,
}

impl Rest {
    /// Whether there may be letters that were not left.
    fn is_over(&self, counts: &Counts, now: Instant) -> bool {
        counts.ready > self.ready || counts.sent != self.sent || self.is_long(counts, now)
    }

    /// Whether it is time for another round, whatever was counted.
    fn is_long(&self, counts: &Counts, now: Instant) -> bool {
        let every = if counts.sent.is_some() { ROUND_EVERY } else { ROUND_EVERY_UNCOUNTED };
        now - self.since >= every
    }
}

impl Rounds {
    fn add(&mut self, key: Key) {
        // It goes to the tail: to receive it again in this round is to have been through all.
        if self.met.insert(key, self.round).is_none() {
            self.order.push_back(key);
        }
        self.count += 1;
        if let Some(rest) = &mut self.rest {
            rest.ready = rest.ready.saturating_add(1);
        }
        if self.order.len() > MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.met.remove(&oldest);
        }
    }

    /// Whether a letter that was received was left before.
    fn meet(&mut self, key: Key, now: Instant) -> bool {
        let Some(round) = self.met.get_mut(&key) else {
            self.has_fresh = true;
            return false;
        };
        if std::mem::replace(round, self.round) != self.round {
            self.count += 1;
        } else if self.rest.is_none() {
            self.end_round(now);
        }
        true
    }

    fn end_round(&mut self, now: Instant) {
        self.barren = if self.has_fresh { 0 } else { self.barren + 1 };
        // Where the order is not FIFO, one comes twice before all have come once.
        let ready = if self.barren < BARREN_ROUNDS { self.count } else { u64::MAX };
        // Of what came during the first round nothing is known: there is another one at once.
        let look_at = if self.round == 0 { now } else { now + LOOK_EVERY };
        self.rest = Some(Rest { since: now, look_at, ready, sent: self.sent });
    }

    /// Takes in what was counted while resting, and says whether the rest goes on.
    fn goes_on_resting(&mut self, counts: &Counts, now: Instant) -> bool {
        let Some(rest) = &mut self.rest else { return false };
        if rest.is_over(counts, now) {
            if rest.sent != counts.sent || rest.is_long(counts, now) {
                self.barren = 0;
            }
            self.rest = None;
            self.round += 1;
            (self.count, self.sent, self.has_fresh) = (0, counts.sent, false);
            return false;
        }
        // Others took some away.
        rest.ready = rest.ready.min(counts.ready);
        rest.look_at = now + LOOK_EVERY;
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
            // Deliveries are held at no await: who drops this future strands none.
            self.left.released().await;
            if !self.rest(until).await? {
                return Ok(Vec::new());
            }
            let wait = until.saturating_duration_since(Instant::now());
            let wait = self.queue.capabilities().fit_wait(wait);
            let deliveries = self.queue.receive(request.wait(wait)).await?;
            let (left, fresh) = self.tell_apart(deliveries);
            if left.is_empty() {
                return Ok(fresh);
            }
            self.release(left);
            if !fresh.is_empty() || Instant::now() >= until {
                return Ok(fresh);
            }
        }
    }

    /// Waits while nothing but left letters is ready, and says whether that ended in time.
    async fn rest(&self, until: Instant) -> Result<bool> {
        loop {
            let Some(look_at) = self.left.rounds().rest.map(|rest| rest.look_at) else {
                return Ok(true);
            };
            let now = Instant::now();
            if now >= look_at {
                let counts = self.queue.counts().await?;
                if !self.left.rounds().goes_on_resting(&counts, Instant::now()) {
                    return Ok(true);
                }
            } else if now >= until {
                return Ok(false);
            } else {
                tokio::time::sleep_until(until.min(look_at)).await;
            }
        }
    }

    fn tell_apart(&self, deliveries: Vec<Delivery>) -> (Vec<Settle>, Vec<Delivery>) {
        let now = Instant::now();
        let mut rounds = self.left.rounds();
        let (left, fresh): (Vec<_>, Vec<_>) =
            deliveries.into_iter().partition(|one| rounds.meet(key(&one.message), now));
        let release = |one: Delivery| Settle::release(one.receipt, Duration::ZERO);
        (left.into_iter().map(release).collect(), fresh)
    }

    /// Releases letters, also if whoever receives goes away meanwhile; [`Left::released`] waits for it.
    fn release(&self, mut settles: Vec<Settle>) {
        let (queue, releasing) = (self.queue.clone(), Releasing::begin(&self.left));
        tokio::spawn(async move {
            let _releasing = releasing;
            let most = queue.capabilities().max_batch.max(1);
            while !settles.is_empty() {
                let some = settles.drain(..settles.len().min(most)).collect();
                if let Err(error) = queue.settle(some).await {
                    // They come back when their leases end.
                    tracing::warn!(queue = %queue.name(), %error, "cannot release dead letters that were left");
                }
            }
        });
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

    /// Who drops the future strands nothing: there is no moment at which it holds deliveries.
    #[tokio::test]
    async fn what_is_fresh_is_delivered_without_waiting_for_the_release_of_the_rest() {
        let name = QueueName::new("orders-dlq").unwrap();
        let queue = MemoryBackend::new().queue(&name, QueueOptions::new()).unwrap();
        queue.send(vec![Outgoing::new("left"), Outgoing::new("fresh")]).await.unwrap();
        let left = Arc::new(Left::default());
        let skipping = FreshOnly::new(queue.clone(), left.clone());
        let first = skipping.receive(Receive::one()).await.unwrap().remove(0);
        left.add(&first.message);
        queue.settle(vec![Settle::release(first.receipt, Duration::ZERO)]).await.unwrap();

        let fresh = skipping.receive(Receive::up_to(2)).now_or_never().expect("at once").unwrap();
        assert_eq!(fresh.len(), 1);
        left.released().await;
        let counts = queue.counts().await.unwrap();
        assert_eq!((counts.ready, counts.in_flight), (1, 1));
    }

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
        let rest = Rest { since: now, look_at: now, ready: 2, sent: Some(5) };
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
    fn where_letters_come_in_any_order_rounds_without_a_fresh_one_end_the_search() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        for name in ["a", "b", "c"] {
            rounds.add(letter(name));
        }
        let counts = Counts::new(3, 0, 0).with_sent(Some(5));
        rounds.meet(letter("a"), now);
        for round in 0..BARREN_ROUNDS {
            assert!(!rounds.goes_on_resting(&counts, now), "only one is ever met: {round}");
            assert!(rounds.meet(letter("a"), now) && rounds.meet(letter("a"), now));
            let look_at = rounds.rest.map(|rest| rest.look_at);
            assert_eq!(look_at, Some(now + LOOK_EVERY), "a round a second at most");
        }
        assert!(rounds.goes_on_resting(&counts, now));
        // What comes begins the search anew.
        assert!(!rounds.goes_on_resting(&counts.with_sent(Some(6)), now));
        assert!(rounds.meet(letter("a"), now) && rounds.meet(letter("a"), now));
        assert!(!rounds.goes_on_resting(&counts.with_sent(Some(6)), now));
    }

    #[test]
    fn what_others_take_away_makes_room_for_news() {
        let (mut rounds, now) = (Rounds::default(), Instant::now());
        rounds.rest = Some(Rest { since: now, look_at: now, ready: 2, sent: None });
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
