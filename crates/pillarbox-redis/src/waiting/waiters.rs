//! The receives of this process that wait for a message of one queue. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::poll_interval::PollIntervals;
use crate::partition_layout::PartitionNumber;

/// Waiters of a queue in order of arrival, and the last known status of each of its partitions.
///
/// * A wake-up notifies one waiter, which queries the server. The answer says when there will be more
///   messages, perhaps at once, and the first waiter queries then.
/// * A notified waiter that leaves without a query passes the notification on.
/// * Only the first waiter watches the clock.
/// * A partition that the server reported as empty is not queried until a wake-up arrives or a message is
///   due.
#[derive(Debug)]
pub(crate) struct Waiters {
    waiters: BTreeMap<WaiterId, Waiter>,
    next_id: u64,
    partitions: Vec<PartitionStatus>,
}

/// Order of arrival of a waiter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(u64);

#[derive(Debug)]
struct Waiter {
    signal: Arc<Notify>,
    is_notified: bool,
}

/// Last known status of a partition.
#[derive(Debug, Default)]
struct PartitionStatus {
    contents: Contents,
    wake_up: WakeUp,
    /// Number of wake-ups so far, by which a query notices one that arrives while it is under way.
    wake_ups: u64,
    /// Whether wake-ups are received.
    is_subscribed: bool,
    /// Whether the server does not answer. A task probes it, and no waiter.
    is_unresponsive: bool,
    /// When the next message becomes ready by time alone, as far as known.
    due: Option<Instant>,
    last_query: Option<Instant>,
}

/// Contents of a partition by the last answer of the server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Contents {
    /// It may have messages.
    #[default]
    Unknown,
    /// It has none, and there was no wake-up since.
    Empty,
}

/// Whether a waiter must query a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum WakeUp {
    #[default]
    None,
    /// There was a wake-up since the last query, or the last query got no answer.
    Pending,
}

/// A query under way, with the number of wake-ups before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query {
    wake_ups: u64,
}

impl PartitionStatus {
    /// When the server must be queried even without a wake-up.
    fn next_poll(&self, intervals: PollIntervals) -> Option<Instant> {
        let interval =
            if self.is_subscribed { intervals.subscribed } else { intervals.unsubscribed };
        let next = self.last_query? + interval;
        Some(self.due.map_or(next, |due| due.min(next)))
    }
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self { waiters: BTreeMap::new(), next_id: 0, partitions: vec![PartitionStatus::default()] }
    }

    /// Sets the number of partitions.
    pub(super) fn set_partitions(&mut self, partitions: PartitionNumber) {
        if self.partitions.len() != usize::from(partitions) {
            let new = || PartitionStatus { wake_up: WakeUp::Pending, ..Default::default() };
            self.partitions.resize_with(partitions.into(), new);
            self.notify_next();
        }
    }

    /// Returns the number of partitions.
    pub(crate) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    fn status(&mut self, partition: PartitionNumber) -> Option<&mut PartitionStatus> {
        self.partitions.get_mut(usize::from(partition))
    }

    /// Adds a waiter behind the others.
    pub(super) fn join(&mut self) -> (WaiterId, Arc<Notify>) {
        self.next_id += 1;
        let id = WaiterId(self.next_id);
        let signal = Arc::new(Notify::new());
        self.waiters.insert(id, Waiter { signal: signal.clone(), is_notified: false });
        (id, signal)
    }

    /// Removes a waiter.
    pub(super) fn leave(&mut self, id: WaiterId) {
        let was_first = self.is_first(id);
        if self.waiters.remove(&id).is_some_and(|waiter| waiter.is_notified) {
            self.notify_next();
        }
        if was_first && let Some((_, first)) = self.waiters.first_key_value() {
            // It watches the clock from now on.
            first.signal.notify_one();
        }
    }

    /// Records a wake-up and notifies one waiter.
    pub(crate) fn wake(&mut self, partition: PartitionNumber) {
        self.expect_wake_up(partition);
        self.require_query(partition);
    }

    /// Has a waiter query a partition.
    pub(crate) fn require_query(&mut self, partition: PartitionNumber) {
        if let Some(status) = self.status(partition) {
            status.wake_up = WakeUp::Pending;
            self.notify_next();
        }
    }

    /// Records that there may be a message, for which a wake-up is on its way.
    pub(crate) fn expect_wake_up(&mut self, partition: PartitionNumber) {
        if let Some(status) = self.status(partition) {
            status.wake_ups += 1;
            status.contents = Contents::Unknown;
        }
    }

    /// Records whether wake-ups are received from now on. Messages may have been published before, so
    /// the partition is queried.
    pub(super) fn set_subscribed(&mut self, partition: PartitionNumber, is_subscribed: bool) {
        if let Some(status) = self.status(partition) {
            status.is_subscribed = is_subscribed;
            self.wake(partition);
        }
    }

    pub(crate) fn is_subscribed(&self, partition: PartitionNumber) -> bool {
        self.partitions.get(usize::from(partition)).is_some_and(|status| status.is_subscribed)
    }

    /// Notifies the first waiter that is not notified yet.
    pub(super) fn notify_next(&mut self) {
        if let Some(waiter) = self.waiters.values_mut().find(|waiter| !waiter.is_notified) {
            waiter.is_notified = true;
            waiter.signal.notify_one();
        }
    }

    /// Takes the notification of a waiter and returns the partitions that it must query: those with a
    /// pending wake-up if it was notified, and those whose time has come if it is the first.
    pub(super) fn take_queries(
        &mut self,
        id: WaiterId,
        now: Instant,
        intervals: PollIntervals,
    ) -> Vec<PartitionNumber> {
        let Some(waiter) = self.waiters.get_mut(&id) else { return Vec::new() };
        let (notified, first) = (std::mem::take(&mut waiter.is_notified), self.is_first(id));
        self.responsive_that(|status| {
            let is_time = || status.next_poll(intervals).is_some_and(|next| next <= now);
            notified && status.wake_up == WakeUp::Pending || first && is_time()
        })
    }

    /// Returns the partitions that may have a ready message: those that a new waiter queries. If a query got no
    /// answer while nobody else waited, the next waiter has to query.
    pub(crate) fn maybe_ready(&self, now: Instant) -> Vec<PartitionNumber> {
        self.responsive_that(|status| {
            status.contents != Contents::Empty
                || status.wake_up == WakeUp::Pending
                || !status.is_subscribed
                || status.due.is_some_and(|due| due <= now)
        })
    }

    /// Records whether a partition answers, and returns whether that has changed.
    pub(crate) fn set_unresponsive(
        &mut self,
        partition: PartitionNumber,
        is_unresponsive: bool,
    ) -> bool {
        let Some(status) = self.status(partition) else { return false };
        let before = std::mem::replace(&mut status.is_unresponsive, is_unresponsive);
        let has_changed = before != is_unresponsive;
        if has_changed && !is_unresponsive {
            self.require_query(partition);
        }
        has_changed
    }

    pub(crate) fn is_unresponsive(&self, partition: PartitionNumber) -> bool {
        self.partitions.get(usize::from(partition)).is_some_and(|status| status.is_unresponsive)
    }

    /// Returns whether no partition answers: then none is better than another.
    pub(crate) fn all_unresponsive(&self) -> bool {
        self.partitions.iter().all(|status| status.is_unresponsive)
    }

    /// Returns those of the first `partitions` that answer, or all of them if none does.
    pub(crate) fn responsive(&self, partitions: PartitionNumber) -> Vec<PartitionNumber> {
        let responsive = (0..partitions).filter(|number| !self.is_unresponsive(*number));
        match responsive.collect::<Vec<_>>() {
            none if none.is_empty() => (0..partitions).collect(),
            some => some,
        }
    }

    /// Returns the partitions whose wake-ups are not received.
    pub(crate) fn unsubscribed(&self) -> Vec<PartitionNumber> {
        self.responsive_that(|status| !status.is_subscribed)
    }

    /// Returns the matching ones of the partitions that answer, or of all if none does.
    fn responsive_that(&self, matches: impl Fn(&PartitionStatus) -> bool) -> Vec<PartitionNumber> {
        let all_unresponsive = self.all_unresponsive();
        let responsive = self.partitions.iter().zip(0..);
        let responsive =
            responsive.filter(|(status, _)| all_unresponsive || !status.is_unresponsive);
        responsive.filter(|(status, _)| matches(status)).map(|(_, number)| number).collect()
    }

    /// Records that the server is queried now.
    pub(crate) fn begin_query(&mut self, partition: PartitionNumber, now: Instant) -> Query {
        self.status(partition).map_or(Query { wake_ups: 0 }, |status| {
            status.last_query = Some(now);
            status.wake_up = WakeUp::None;
            status.due = status.due.filter(|due| *due > now);
            Query { wake_ups: status.wake_ups }
        })
    }

    /// Records that the server had nothing, and when it will have something.
    pub(crate) fn found_nothing(
        &mut self,
        partition: PartitionNumber,
        query: Query,
        due: Option<Instant>,
    ) {
        if let Some(status) = self.status(partition) {
            let is_current = query.wake_ups == status.wake_ups;
            status.contents = if is_current { Contents::Empty } else { Contents::Unknown };
            if let Some(due) = due {
                self.query_at(partition, due);
            }
        }
    }

    /// Records that this process has received messages, and when there will be more: others, or the same
    /// ones when their leases expire.
    pub(crate) fn found_messages(&mut self, partition: PartitionNumber, next: Instant) {
        if let Some(status) = self.status(partition) {
            status.contents = Contents::Unknown;
            self.query_at(partition, next);
        }
    }

    /// Has the first waiter query the server by then.
    fn query_at(&mut self, partition: PartitionNumber, due: Instant) {
        let Some(status) = self.status(partition) else { return };
        if status.due.is_none_or(|known| due < known) {
            status.due = Some(due);
            if let Some((_, first)) = self.waiters.first_key_value() {
                first.signal.notify_one();
            }
        }
    }

    /// Returns until when this waiter sleeps if it is not notified. `None` if it is not the first.
    pub(super) fn next_poll(&self, id: WaiterId, intervals: PollIntervals) -> Option<Instant> {
        let all_unresponsive = self.all_unresponsive();
        let responsive =
            self.partitions.iter().filter(|status| all_unresponsive || !status.is_unresponsive);
        let times = responsive.filter_map(|status| status.next_poll(intervals));
        times.min().filter(|_| self.is_first(id))
    }

    fn is_first(&self, id: WaiterId) -> bool {
        self.waiters.first_key_value().is_some_and(|(first, _)| *first == id)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const INTERVALS: PollIntervals = PollIntervals {
        subscribed: Duration::from_secs(3600),
        unsubscribed: Duration::from_secs(3600),
    };
    const IMMEDIATE: PollIntervals =
        PollIntervals { subscribed: Duration::ZERO, unsubscribed: Duration::ZERO };

    fn now() -> Instant {
        Instant::now()
    }

    fn take_queries(waiters: &mut Waiters, id: WaiterId) -> Vec<PartitionNumber> {
        waiters.take_queries(id, now(), INTERVALS)
    }

    fn in_seconds(seconds: u64) -> Instant {
        now() + Duration::from_secs(seconds)
    }

    /// Queries an empty partition.
    fn finds_nothing(waiters: &mut Waiters, partition: PartitionNumber, due: Option<Instant>) {
        let query = waiters.begin_query(partition, now());
        waiters.found_nothing(partition, query, due);
    }

    #[tokio::test]
    async fn a_wake_up_notifies_the_first_waiter_that_is_not_notified_yet() {
        let mut waiters = Waiters::new();
        let (one, _) = waiters.join();
        let (two, signal) = waiters.join();
        waiters.wake(0);
        assert_eq!(take_queries(&mut waiters, two), [0; 0]);
        waiters.wake(0);
        signal.notified().await;
        assert_eq!(
            (take_queries(&mut waiters, one), take_queries(&mut waiters, two)),
            (vec![0], vec![0])
        );
        waiters.begin_query(0, now());
        waiters.wake(0);
        assert_eq!(take_queries(&mut waiters, one), [0]);
    }

    #[tokio::test]
    async fn a_notified_waiter_does_not_repeat_the_query_of_another() {
        let mut waiters = Waiters::new();
        let (one, _) = waiters.join();
        let (two, _) = waiters.join();
        waiters.wake(0);
        waiters.wake(0);
        assert_eq!(take_queries(&mut waiters, one), [0]);
        waiters.begin_query(0, now());
        assert_eq!(take_queries(&mut waiters, two), [0; 0]);
    }

    #[tokio::test]
    async fn a_waiter_that_leaves_without_a_query_passes_the_notification_on() {
        let mut waiters = Waiters::new();
        let (one, _) = waiters.join();
        let (two, signal) = waiters.join();
        waiters.wake(0);
        waiters.leave(one);
        signal.notified().await;
        assert_eq!(take_queries(&mut waiters, two), [0]);
        // So does a query that got no answer.
        waiters.begin_query(0, now());
        waiters.require_query(0);
        assert_eq!(take_queries(&mut waiters, two), [0]);
    }

    #[tokio::test]
    async fn a_new_waiter_repeats_a_query_that_got_no_answer_while_nobody_else_waited() {
        let mut waiters = Waiters::new();
        waiters.set_subscribed(0, true);
        let (one, _) = waiters.join();
        finds_nothing(&mut waiters, 0, None);
        waiters.begin_query(0, now());
        waiters.require_query(0);
        waiters.leave(one);
        assert_eq!(waiters.maybe_ready(now()), [0]);
        finds_nothing(&mut waiters, 0, None);
        assert_eq!(waiters.maybe_ready(now()), [0; 0]);
    }

    #[tokio::test]
    async fn the_first_waiter_watches_the_clock() {
        let mut waiters = Waiters::new();
        let (one, _) = waiters.join();
        let (two, signal) = waiters.join();
        finds_nothing(&mut waiters, 0, Some(in_seconds(5)));
        let later = in_seconds(6);
        assert!(waiters.next_poll(one, INTERVALS).is_some_and(|until| until < later));
        assert_eq!(waiters.next_poll(two, INTERVALS), None);
        assert_eq!(waiters.take_queries(one, later, INTERVALS), [0]);
        assert_eq!(waiters.take_queries(two, later, INTERVALS), [0; 0]);
        waiters.leave(one);
        signal.notified().await;
        assert_eq!(waiters.take_queries(two, later, INTERVALS), [0]);
        assert_eq!(waiters.take_queries(two, now(), INTERVALS), [0; 0]);
        assert_eq!(waiters.take_queries(two, now(), IMMEDIATE), [0]);
    }

    #[tokio::test]
    async fn waiters_know_when_the_lease_of_another_receive_expires() {
        let mut waiters = Waiters::new();
        let (one, _) = waiters.join();
        let (two, signal) = waiters.join();
        finds_nothing(&mut waiters, 0, None);
        waiters.leave(one);
        signal.notified().await;
        let soon = in_seconds(5);
        waiters.found_messages(0, soon);
        signal.notified().await;
        assert_eq!(waiters.next_poll(two, INTERVALS), Some(soon));
        assert_eq!(waiters.take_queries(two, soon, INTERVALS), [0]);
        assert_eq!(waiters.maybe_ready(now()), [0]);
    }

    #[tokio::test]
    async fn an_empty_partition_is_not_queried_until_a_wake_up_arrives_or_a_message_is_due() {
        let mut waiters = Waiters::new();
        waiters.set_partitions(2);
        assert_eq!((waiters.maybe_ready(now()), waiters.unsubscribed()), (vec![0, 1], vec![0, 1]));
        waiters.set_subscribed(0, true);
        waiters.set_subscribed(1, true);
        finds_nothing(&mut waiters, 0, None);
        finds_nothing(&mut waiters, 1, None);
        assert_eq!((waiters.maybe_ready(now()), waiters.unsubscribed()), (vec![], vec![]));
        waiters.wake(1);
        assert_eq!(waiters.maybe_ready(now()), [1]);

        // A wake-up arrives while the query is under way.
        let query = waiters.begin_query(1, now());
        waiters.wake(1);
        waiters.found_nothing(1, query, None);
        assert_eq!(waiters.maybe_ready(now()), [1]);

        finds_nothing(&mut waiters, 1, Some(in_seconds(9)));
        assert_eq!(waiters.maybe_ready(now()), [0; 0]);
        assert_eq!(waiters.maybe_ready(in_seconds(10)), [1]);
        waiters.set_subscribed(0, false);
        assert_eq!(waiters.maybe_ready(now()), [0]);
    }

    #[tokio::test]
    async fn an_unresponsive_partition_does_not_delay_others() {
        let mut waiters = Waiters::new();
        waiters.set_partitions(2);
        let (one, signal) = waiters.join();
        finds_nothing(&mut waiters, 0, None);
        finds_nothing(&mut waiters, 1, None);
        assert!(waiters.set_unresponsive(1, true) && !waiters.set_unresponsive(1, true));
        waiters.wake(1);
        assert_eq!(
            (take_queries(&mut waiters, one), waiters.maybe_ready(now())),
            (vec![], vec![0])
        );
        assert_eq!(
            (waiters.take_queries(one, now(), IMMEDIATE), waiters.unsubscribed()),
            (vec![0], vec![0])
        );
        waiters.set_unresponsive(0, true);
        assert!(waiters.all_unresponsive());
        assert_eq!(waiters.take_queries(one, now(), IMMEDIATE), [0, 1]);
        waiters.set_unresponsive(0, false);
        signal.notified().await;
        assert!(waiters.set_unresponsive(1, false));
        assert_eq!(take_queries(&mut waiters, one), [0, 1]);
    }

    #[tokio::test]
    async fn waiters_query_a_new_partition() {
        let mut waiters = Waiters::new();
        let (one, signal) = waiters.join();
        finds_nothing(&mut waiters, 0, None);
        waiters.set_partitions(3);
        signal.notified().await;
        assert_eq!(take_queries(&mut waiters, one), [1, 2]);
        waiters.set_partitions(1);
        waiters.wake(2);
        waiters.set_subscribed(2, true);
        assert!(!waiters.is_subscribed(2));
        assert_eq!(take_queries(&mut waiters, one), [0; 0]);
    }
}
