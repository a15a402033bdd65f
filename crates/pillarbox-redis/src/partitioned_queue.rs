//! The partitions of a queue as one queue, shared by all handles of the queue in this process.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::internal::lock;
use pillarbox_core::{
    Counts, Cursor, Delivery, Error, Outgoing, PeekPage, QueueName, Receive, Result, Settle,
};
use tokio::time::timeout;

use crate::context::Context;
use crate::failure::Failure;
use crate::format;
use crate::layout::{Layout, MAX_PARTITIONS, PartitionNumber};
use crate::operations::{self, SendOutcome, UnclaimedDeliveries};
use crate::partition::{PageEnd, Partition};
use crate::queue_state::QueueState;
use crate::retrying_client::retry_delay;

/// Time without an answer after which other partitions are used instead.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A queue as its handles in this process share it.
#[derive(Debug)]
pub(crate) struct PartitionedQueue {
    pub(crate) state: Arc<QueueState>,
    /// Partitions that were used.
    partitions: Mutex<BTreeMap<PartitionNumber, Arc<Partition>>>,
    /// Counter that selects the partition to receive from first.
    rotation: AtomicU16,
}

/// Outcome of each entry of a batch.
pub(crate) type Outcomes<T> = Vec<Result<T, Failure>>;

impl PartitionedQueue {
    pub(crate) fn new(name: QueueName, context: Arc<Context>) -> Self {
        Self {
            state: Arc::new(QueueState::new(name, context)),
            partitions: Mutex::default(),
            // Programs that start at the same time begin with different partitions.
            rotation: AtomicU16::new(rand::random()),
        }
    }

    pub(crate) fn name(&self) -> &QueueName {
        &self.state.name
    }

    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.state.context
    }

    pub(crate) fn partition(&self, number: PartitionNumber) -> Arc<Partition> {
        let create = || Arc::new(Partition::new(self.state.clone(), number));
        lock(&self.partitions).entry(number).or_insert_with(create).clone()
    }

    /// Returns all partitions that may hold messages.
    pub(crate) fn all(&self, layout: Layout) -> Vec<Arc<Partition>> {
        (0..layout.held_in).map(|number| self.partition(number)).collect()
    }

    /// Subscribes to the wake-ups of partitions, as far as that is possible at present.
    pub(crate) async fn subscribe(&self, partitions: &[PartitionNumber]) {
        let channel = |number: &PartitionNumber| self.partition(*number).channel();
        let channels = partitions.iter().map(channel).collect();
        self.context().subscriptions.subscribe(channels).await;
    }

    /// Stores messages.
    pub(crate) async fn send(
        self: &Arc<Self>,
        batch: Vec<Outgoing>,
        max_size: Option<u64>,
        layout: Layout,
    ) -> Outcomes<SendOutcome> {
        if layout.sent_to == 1 {
            return self.send_to(0, batch, max_size).await;
        }
        let numbers = self.assign(&batch, layout);
        let Some(max_size) = max_size else {
            return dispatch(batch, &numbers, |number, batch| self.send_to(number, batch, None))
                .await;
        };
        let share = Some(layout.share(max_size));
        // Messages without a group go to another partition if theirs has no room.
        let movable: Vec<_> = batch
            .iter()
            .map(|message| message.group().is_none().then(|| message.clone()))
            .collect();
        let mut outcomes =
            dispatch(batch, &numbers, |number, batch| self.send_to(number, batch, share)).await;
        for offset in 1..layout.sent_to {
            let left = outcomes.iter().zip(&movable).enumerate();
            let left = left.filter(|(_, (outcome, _))| matches!(outcome, Ok(SendOutcome::Full)));
            let left = left.filter_map(|(index, (_, message))| Some((index, message.clone()?)));
            let (left, batch): (Vec<_>, Vec<_>) = left.unzip();
            if left.is_empty() {
                break;
            }
            let next = |index: &usize| (numbers[*index] + offset) % layout.sent_to;
            let next: Vec<_> = left.iter().map(next).collect();
            let sent =
                dispatch(batch, &next, |number, batch| self.send_to(number, batch, share)).await;
            for (index, outcome) in left.into_iter().zip(sent) {
                outcomes[index] = outcome;
            }
        }
        outcomes
    }

    /// Returns the partition of each message. Messages without a group skip an unresponsive partition.
    fn assign(&self, batch: &[Outgoing], layout: Layout) -> Vec<PartitionNumber> {
        let waiters = self.state.waiters.lock();
        let assign = |message: &Outgoing| {
            let number = layout.partition_of(message);
            if !waiters.is_unresponsive(number) || message.group().is_some() {
                return number;
            }
            let mut next = (1..layout.sent_to).map(|offset| (number + offset) % layout.sent_to);
            next.find(|next| !waiters.is_unresponsive(*next)).unwrap_or(number)
        };
        batch.iter().map(assign).collect()
    }

    /// Queries a partition. One that does not answer in time is unresponsive, and skipped until it answers a
    /// task that probes it. (A delivery that arrives too late is released.)
    async fn query<T, F: Future<Output = T>>(
        self: &Arc<Self>,
        number: PartitionNumber,
        limit: Duration,
        query: impl FnOnce(Arc<Partition>) -> F,
    ) -> Option<T> {
        let answer = query(self.partition(number));
        if self.state.waiters.lock().all_unresponsive() {
            // There is no other to be used instead.
            return Some(answer.await);
        }
        let answer = timeout(limit, answer).await.ok();
        if answer.is_none() {
            self.set_unresponsive(number);
        }
        answer
    }

    /// Waits for an answer of a partition, and probes the partition if that takes long. The cause may be a
    /// large batch or slow replicas; or the partition is unresponsive, and later calls skip it.
    async fn watch<T>(
        self: &Arc<Self>,
        number: PartitionNumber,
        answer: impl Future<Output = T>,
    ) -> T {
        if self.is_single() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout(RESPONSE_TIMEOUT, &mut answer).await {
            return answer;
        }
        let queue = self.clone();
        self.context().spawn(async move {
            let probe = |partition: Arc<Partition>| async move { partition.count_ready().await };
            let _ = queue.query(number, RESPONSE_TIMEOUT, probe).await;
        });
        answer.await
    }

    /// Returns whether there is only the first partition, as far as known.
    fn is_single(&self) -> bool {
        self.state.known_layout().held_in == 1
    }

    /// Marks a partition as unresponsive, and probes it until it answers.
    fn set_unresponsive(self: &Arc<Self>, number: PartitionNumber) {
        if !self.state.waiters.lock().set_unresponsive(number, true) {
            return;
        }
        let queue = self.name();
        tracing::warn!(%queue, number, "a partition does not answer; others are used meanwhile");
        let (queue, partition) = (Arc::downgrade(self), self.partition(number));
        self.context().spawn(async move {
            let mut delay = retry_delay();
            while let Err(failure) = partition.count_ready().await {
                if matches!(failure, Failure::Closed) || queue.strong_count() == 0 {
                    return;
                }
                tokio::time::sleep(delay.next_delay()).await;
            }
            let queue = partition.queue();
            queue.waiters.lock().set_unresponsive(number, false);
            tracing::info!(queue = %queue.name, number, "a partition answers again");
        });
    }

    /// Stores messages in one partition.
    async fn send_to(
        self: &Arc<Self>,
        number: PartitionNumber,
        batch: Vec<Outgoing>,
        max_size: Option<u64>,
    ) -> Outcomes<SendOutcome> {
        let partition = self.partition(number);
        let mut outcomes = Vec::with_capacity(batch.len());
        let mut failed: Option<Failure> = None;
        for chunk in chunks(batch) {
            let entries = chunk.len();
            // After a chunk that failed, the others are not sent.
            let answers = match &failed {
                None => self.watch(number, partition.send(chunk, max_size)).await,
                Some(failure) => Err(failure.clone()),
            };
            failed = answers.as_ref().err().cloned();
            outcomes.extend(each(answers, entries));
        }
        outcomes
    }

    /// Ends or extends leases, and returns for each whether its receipt was valid.
    pub(crate) async fn settle(&self, batch: Vec<Settle>) -> Outcomes<bool> {
        let number = |settle: &Settle| match settle.receipt.token() {
            // A forged receipt may name a partition that cannot exist.
            Some((_, nonce)) if u32::from(nonce.mark()) < MAX_PARTITIONS => nonce.mark(),
            _ => 0,
        };
        let numbers: Vec<_> = batch.iter().map(number).collect();
        dispatch(batch, &numbers, |number, batch| async move {
            let entries = batch.len();
            each(self.partition(number).settle(batch).await, entries)
        })
        .await
    }

    /// Delivers messages that are ready in these partitions. One of them, in rotation, is queried first; the
    /// others only if it has none, or fewer than requested and `wants_all`.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        request: Receive,
        partitions: &[PartitionNumber],
        wants_all: bool,
    ) -> Result<Vec<Delivery>, Failure> {
        let Some(first) = self.next_first(partitions) else { return Ok(Vec::new()) };
        if self.is_single() {
            let received = self.partition(partitions[first]).receive(request).await?;
            return Ok(received.map_or_else(Vec::new, UnclaimedDeliveries::take));
        }
        let mut gathering = Gathering { queue: self, request, received: Vec::new(), failed: None };
        let first_only = [(partitions[first], request.max)];
        let has_answered = gathering.receive_from(&first_only, RESPONSE_TIMEOUT).await;
        if partitions.len() > 1
            && gathering.has_room()
            && (wants_all || gathering.received.is_empty())
        {
            // All others are counted at once, which leases nothing: one may have more than enough. What was
            // received already must not be kept for long.
            let limit = if gathering.received.is_empty() {
                RESPONSE_TIMEOUT
            } else {
                RESPONSE_TIMEOUT.min(request.visibility / 4)
            };
            let others = partitions[first + 1..].iter().chain(&partitions[..first]);
            let (ready, others_answered) = gathering.count_ready(others.copied(), limit).await;
            let none_answered = !has_answered && !others_answered;
            if none_answered && self.state.waiters.lock().all_unresponsive() {
                // It is not one server that fails while others go on.
                gathering.receive_from(&first_only, RESPONSE_TIMEOUT).await;
            } else {
                gathering.receive_from(&ready, limit).await;
            }
        }
        gathering.finish()
    }

    /// Returns the index of the partition to query first.
    fn next_first(&self, partitions: &[PartitionNumber]) -> Option<usize> {
        match partitions.len() {
            0 => None,
            1 => Some(0),
            all => Some(usize::from(self.rotation.fetch_add(1, Ordering::Relaxed)) % all),
        }
    }

    /// Deletes all messages and returns their number.
    pub(crate) async fn purge(&self, layout: Layout) -> Result<u64, Failure> {
        let all = self.all(layout);
        let purged = join_all(all.iter().map(|partition| partition.purge())).await;
        purged.into_iter().sum()
    }

    /// Counts the messages.
    pub(crate) async fn counts(&self, layout: Layout) -> Result<Counts, Failure> {
        let all = self.all(layout);
        let counted = join_all(all.iter().map(|partition| partition.counts())).await;
        let counted: Vec<Counts> = counted.into_iter().collect::<Result<_, _>>()?;
        let sum = |count: fn(&Counts) -> u64| counted.iter().map(count).sum();
        let counts = Counts::new(
            sum(|counts| counts.ready),
            sum(|counts| counts.in_flight),
            sum(|counts| counts.delayed),
        );
        let oldest = counted.iter().filter_map(|counts| counts.oldest_age).max();
        let sent = counted.iter().filter_map(|counts| counts.sent).sum();
        // Partitions may be on servers with different clocks. By the earliest, no age is overstated.
        let counted_at = counted.iter().filter_map(|counts| counts.counted_at).min();
        Ok(counts.with_oldest_age(oldest).with_sent(Some(sent)).with_counted_at(counted_at))
    }

    /// Returns a page of messages, one partition after the other.
    pub(crate) async fn peek(
        &self,
        max: usize,
        after: Option<Position>,
        layout: Layout,
    ) -> Result<PeekPage, Failure> {
        let Position { mut partition, mut end } = after.unwrap_or_else(Position::beginning);
        let mut messages = Vec::new();
        loop {
            let left = max - messages.len();
            let (more, ended) = self.partition(partition).peek(left, &end).await?;
            messages.extend(more);
            match ended {
                // Entries without a message were skipped, so the page is not full.
                Some(next) if messages.len() < max => end = next,
                Some(end) => {
                    let next = Position { partition, end };
                    return Ok(PeekPage::new(messages, Some(next.into())));
                }
                None if partition + 1 >= layout.held_in => {
                    return Ok(PeekPage::new(messages, None));
                }
                None => {
                    (partition, end) = (partition + 1, PageEnd::beginning());
                    if messages.len() == max {
                        let next = Position { partition, end };
                        return Ok(PeekPage::new(messages, Some(next.into())));
                    }
                }
            }
        }
    }

    /// Removes the last partitions in the background if they are no longer sent to and are empty.
    pub(crate) fn narrow(self: &Arc<Self>, layout: Layout) {
        if layout.held_in <= layout.sent_to || !self.state.may_narrow() {
            return;
        }
        let queue = self.clone();
        self.context().spawn(async move {
            if let Err(failure) = queue.narrow_now(layout).await {
                tracing::debug!(queue = %queue.name(), %failure, "a partition was not removed");
            }
        });
    }

    async fn narrow_now(&self, layout: Layout) -> Result<(), Failure> {
        let mut left = layout.held_in;
        while left > layout.sent_to && self.partition(left - 1).delete_if_empty().await? {
            left -= 1;
        }
        if left < layout.held_in { self.state.narrow(layout, left).await } else { Ok(()) }
    }

    /// Deletes what is left of the queue if it holds no message, so that short-lived queues do not
    /// accumulate. A queue that was only inspected is left as it is.
    pub(crate) async fn delete_if_empty(&self) {
        if self.state.is_used()
            && let Err(failure) = self.delete_if_empty_now().await
        {
            tracing::debug!(queue = %self.name(), %failure, "an empty queue was not deleted");
        }
    }

    async fn delete_if_empty_now(&self) -> Result<(), Failure> {
        let layout = self.state.known_layout();
        let all = self.all(layout);
        if all.len() > 1 && self.counts(layout).await?.total() > 0 {
            return Ok(());
        }
        let deleted = join_all(all.iter().map(|partition| partition.delete_if_empty())).await;
        let deleted: Vec<bool> = deleted.into_iter().collect::<Result<_, _>>()?;
        if layout != Layout::SINGLE && deleted.iter().all(|deleted| *deleted) {
            self.state.narrow(layout, 0).await?;
        }
        Ok(())
    }
}

/// A receive from several partitions.
struct Gathering<'a> {
    queue: &'a Arc<PartitionedQueue>,
    request: Receive,
    received: Vec<UnclaimedDeliveries>,
    failed: Option<Failure>,
}

impl Gathering<'_> {
    /// Returns the number of messages still wanted.
    fn wanted(&self) -> usize {
        self.request.max - self.received.iter().map(UnclaimedDeliveries::len).sum::<usize>()
    }

    /// Returns whether more messages can be received.
    fn has_room(&self) -> bool {
        let bytes: usize = self.received.iter().map(UnclaimedDeliveries::bytes).sum();
        self.wanted() > 0 && bytes < operations::MAX_BYTES
    }

    /// Receives at most the given number of messages from each partition, and no more than wanted in all.
    /// Returns whether any partition has answered.
    async fn receive_from(
        &mut self,
        partitions: &[(PartitionNumber, usize)],
        limit: Duration,
    ) -> bool {
        let mut wanted = self.wanted();
        let mut queries = Vec::new();
        for (number, messages) in partitions {
            let mut request = self.request;
            request.max = wanted.min(*messages);
            wanted -= request.max;
            if request.max > 0 {
                let receive = move |partition: Arc<Partition>| async move {
                    partition.receive(request).await
                };
                queries.push(self.queue.query(*number, limit, receive));
            }
        }
        let answers: Vec<_> = join_all(queries).await.into_iter().flatten().collect();
        let has_answered = !answers.is_empty();
        for answer in answers {
            match answer {
                Ok(received) => self.received.extend(received),
                Err(failure) => self.failed = Some(failure),
            }
        }
        has_answered
    }

    /// Returns the number of ready messages of each partition that has some, and whether any has answered.
    async fn count_ready(
        &mut self,
        partitions: impl Iterator<Item = PartitionNumber>,
        limit: Duration,
    ) -> (Vec<(PartitionNumber, usize)>, bool) {
        let count = |partition: Arc<Partition>| async move {
            (partition.number(), partition.count_ready().await)
        };
        let queries: Vec<_> =
            partitions.map(|number| self.queue.query(number, limit, count)).collect();
        let answers: Vec<_> = join_all(queries).await.into_iter().flatten().collect();
        let has_answered = !answers.is_empty();
        let mut ready = Vec::new();
        for (number, answer) in answers {
            match answer {
                Ok(0) => {}
                Ok(messages) => {
                    ready.push((number, usize::try_from(messages).unwrap_or(usize::MAX)));
                }
                Err(failure) => self.failed = Some(failure),
            }
        }
        (ready, has_answered)
    }

    /// Returns what was received; or, if that is nothing, the failure of a partition.
    ///
    /// The deliveries are taken in the same poll that returns them, so that a dropped future holds none.
    fn finish(self) -> Result<Vec<Delivery>, Failure> {
        match self.failed {
            Some(failure) if self.received.is_empty() => Err(failure),
            _ => Ok(self.received.into_iter().flat_map(UnclaimedDeliveries::take).collect()),
        }
    }
}

/// Returns the answers of entries that shared a call, or its failure for each of them.
fn each<T>(answers: Result<Vec<T>, Failure>, entries: usize) -> Outcomes<T> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(failure) => std::iter::repeat_n(failure, entries).map(Err).collect(),
    }
}

/// Splits a batch by partition, processes all partitions concurrently, and returns the outcomes in order.
async fn dispatch<E, T, F: Future<Output = Outcomes<T>>>(
    batch: Vec<E>,
    numbers: &[PartitionNumber],
    process: impl Fn(PartitionNumber, Vec<E>) -> F,
) -> Outcomes<T> {
    let Some(first) = numbers.first() else { return Vec::new() };
    if numbers.iter().all(|number| number == first) {
        return process(*first, batch).await;
    }
    let mut parts: BTreeMap<PartitionNumber, (Vec<usize>, Vec<E>)> = BTreeMap::new();
    for (index, (entry, number)) in batch.into_iter().zip(numbers).enumerate() {
        let (indices, entries) = parts.entry(*number).or_default();
        indices.push(index);
        entries.push(entry);
    }
    let (indices, parts): (Vec<_>, Vec<_>) =
        parts.into_iter().map(|(number, (indices, part))| (indices, (number, part))).unzip();
    let outcomes = join_all(parts.into_iter().map(|(number, part)| process(number, part))).await;
    let mut in_order: Vec<_> =
        indices.into_iter().flatten().zip(outcomes.into_iter().flatten()).collect();
    in_order.sort_unstable_by_key(|(index, _)| *index);
    in_order.into_iter().map(|(_, outcome)| outcome).collect()
}

/// Maximum number of bytes of messages in one call: the server refuses too large a command.
const MAX_BYTES: usize = 64 << 20;

/// Splits a batch into chunks that a server accepts. Most often there is only one.
fn chunks(mut batch: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut chunks = Vec::new();
    loop {
        let mut bytes = 0;
        let mut fits = |message: &Outgoing| {
            bytes += format::size_of(message);
            bytes <= MAX_BYTES
        };
        // A single message may be larger.
        let end = batch.iter().take_while(|message| fits(message)).count().max(1);
        if end >= batch.len() {
            chunks.push(batch);
            return chunks;
        }
        let rest = batch.split_off(end);
        chunks.push(std::mem::replace(&mut batch, rest));
    }
}

/// Position in a queue at which a page ended.
#[derive(Debug)]
pub(crate) struct Position {
    partition: PartitionNumber,
    end: PageEnd,
}

impl Position {
    fn beginning() -> Self {
        Self { partition: 0, end: PageEnd::beginning() }
    }

    /// Parses a cursor.
    pub(crate) fn parse(cursor: &Cursor, queue: &QueueName) -> Result<Self> {
        let read = || {
            let (partition, end) = cursor.as_str().split_once(' ')?;
            let partition = partition.parse().ok()?;
            let is_valid = u32::from(partition) < MAX_PARTITIONS;
            is_valid.then_some(Self { partition, end: PageEnd::parse(end)? })
        };
        read().ok_or_else(|| {
            let allowed = "a cursor that this queue gave";
            Error::invalid(Some(queue), "cursor", cursor.as_str(), allowed)
        })
    }
}

impl From<Position> for Cursor {
    fn from(Position { partition, end }: Position) -> Self {
        Self::new(format!("{partition} {end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_too_large_for_one_call_is_split() {
        let of = |sizes: &[usize]| {
            let body = bytes::Bytes::from(vec![0; 80 << 20]);
            let batch = sizes.iter().map(|size| Outgoing::new(body.slice(..size << 20))).collect();
            chunks(batch).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[60, 4, 1, 80, 80, 2]), [2, 1, 1, 1, 1]);
    }

    #[tokio::test]
    async fn outcomes_come_back_in_the_order_of_their_entries() {
        let batch: Vec<_> = (0..100_u32).collect();
        let numbers: Vec<_> = batch.iter().map(|n| (n * n % 7) as PartitionNumber).collect();
        let outcomes = dispatch(batch, &numbers, |number, entries: Vec<u32>| async move {
            assert!(entries.iter().all(|n| n * n % 7 == u32::from(number)));
            if number == 4 {
                return each(Err(Failure::Closed), entries.len());
            }
            each(Ok(entries), 0)
        })
        .await;
        assert_eq!(outcomes.len(), 100);
        for (n, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(entry) => assert_eq!(entry as usize, n),
                Err(_) => assert_eq!(n * n % 7, 4),
            }
        }
    }
}
