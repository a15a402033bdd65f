//! The partitions of a queue as one queue, shared by all handles of the queue in this process.

mod batch_split;
mod gathering;
mod responsiveness;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use futures_util::future::join_all;
use pillarbox_core::internal::lock;
use pillarbox_core::{
    Counts, Cursor, Delivery, Error, Outgoing, PeekPage, QueueName, Receive, Result, Settle,
};

pub(crate) use self::batch_split::Outcomes;
use self::batch_split::{chunks, outcome_of_each, split};
use self::gathering::Gathering;
use self::responsiveness::RESPONSE_TIMEOUT;
use crate::context::BackendContext;
use crate::failure::Failure;
use crate::operations::{SendOutcome, UnclaimedDeliveries};
use crate::partition::{PageEnd, Partition};
use crate::partition_layout::{Layout, MAX_PARTITIONS, PartitionNumber};
use crate::queue_state::QueueState;

/// A queue as its handles in this process share it.
#[derive(Debug)]
pub(crate) struct PartitionedQueue {
    pub(crate) state: Arc<QueueState>,
    /// Partitions that were used.
    partitions: Mutex<BTreeMap<PartitionNumber, Arc<Partition>>>,
    /// Counter that selects the partition to receive from first.
    rotation: AtomicU16,
}

impl PartitionedQueue {
    pub(crate) fn new(name: QueueName, context: Arc<BackendContext>) -> Self {
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

    pub(crate) fn context(&self) -> &Arc<BackendContext> {
        &self.state.context
    }

    pub(crate) fn partition(&self, number: PartitionNumber) -> Arc<Partition> {
        let create = || Arc::new(Partition::new(self.state.clone(), number));
        lock(&self.partitions).entry(number).or_insert_with(create).clone()
    }

    /// Returns all partitions that may hold messages.
    pub(crate) fn all(&self, layout: Layout) -> Vec<Arc<Partition>> {
        (0..layout.received_from).map(|number| self.partition(number)).collect()
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
            return self.send_parts(batch, &numbers, None).await;
        };
        let share = Some(layout.share(max_size));
        // Messages without a group go to another partition if theirs has no room.
        let movable: Vec<_> = batch
            .iter()
            .map(|message| message.group().is_none().then(|| message.clone()))
            .collect();
        let mut outcomes = self.send_parts(batch, &numbers, share).await;
        for offset in 1..layout.sent_to {
            let full = outcomes.iter().zip(&movable).enumerate();
            let full = full.filter(|(_, (outcome, _))| matches!(outcome, Ok(SendOutcome::Full)));
            let full = full.filter_map(|(index, (_, message))| Some((index, message.clone()?)));
            let (full, batch): (Vec<_>, Vec<_>) = full.unzip();
            if full.is_empty() {
                break;
            }
            let next = |index: &usize| (numbers[*index] + offset) % layout.sent_to;
            let next: Vec<_> = full.iter().map(next).collect();
            let sent = self.send_parts(batch, &next, share).await;
            for (index, outcome) in full.into_iter().zip(sent) {
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

    /// Stores each message in the partition that is given for it, in all partitions at the same time.
    async fn send_parts(
        self: &Arc<Self>,
        batch: Vec<Outgoing>,
        numbers: &[PartitionNumber],
        max_size: Option<u64>,
    ) -> Outcomes<SendOutcome> {
        let (parts, order) = split(batch, numbers);
        let sends = parts.into_iter().map(|(number, part)| self.send_to(number, part, max_size));
        order.restore(join_all(sends).await)
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
                None => self.answer_or_probe(number, partition.send(chunk, max_size)).await,
                Some(failure) => Err(failure.clone()),
            };
            failed = answers.as_ref().err().cloned();
            outcomes.extend(outcome_of_each(answers, entries));
        }
        outcomes
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

    /// Ends or extends leases, and returns for each whether its receipt was valid.
    pub(crate) async fn settle(&self, batch: Vec<Settle>) -> Outcomes<bool> {
        let number = |settle: &Settle| match settle.receipt.token() {
            // A receive marks its nonces with the partition, so that a receipt leads back to it. One that is
            // forged may name a partition that cannot exist.
            Some((_, nonce)) if u32::from(nonce.mark()) < MAX_PARTITIONS => nonce.mark(),
            _ => 0,
        };
        let numbers: Vec<_> = batch.iter().map(number).collect();
        let (parts, order) = split(batch, &numbers);
        let settles = parts.into_iter().map(|(number, part)| async move {
            let entries = part.len();
            outcome_of_each(self.partition(number).settle(part).await, entries)
        });
        order.restore(join_all(settles).await)
    }

    /// Returns whether there is only the first partition, as far as known.
    fn is_single(&self) -> bool {
        self.state.known_layout().received_from == 1
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
            let is_enough = messages.len() == max || !messages.is_empty() && ended.is_some();
            let next = match ended {
                Some(end) => Position { partition, end },
                None if partition + 1 >= layout.received_from => {
                    return Ok(PeekPage::new(messages, None));
                }
                None => Position { partition: partition + 1, end: PageEnd::beginning() },
            };
            // A page ends early if the messages are large. One is empty if no entry of it is a message.
            if is_enough {
                return Ok(PeekPage::new(messages, Some(next.into())));
            }
            Position { partition, end } = next;
        }
    }

    /// Removes the last partitions in the background if they are no longer sent to and are empty.
    pub(crate) fn remove_empty_partitions(self: &Arc<Self>, layout: Layout) {
        if layout.received_from <= layout.sent_to || !self.state.may_narrow() {
            return;
        }
        let queue = self.clone();
        self.context().spawn(async move {
            if let Err(failure) = queue.remove_empty_partitions_now(layout).await {
                tracing::debug!(queue = %queue.name(), %failure, "a partition was not removed");
            }
        });
    }

    async fn remove_empty_partitions_now(&self, layout: Layout) -> Result<(), Failure> {
        let mut left = layout.received_from;
        while left > layout.sent_to && self.partition(left - 1).delete_if_empty().await? {
            left -= 1;
        }
        if left < layout.received_from { self.state.narrow(layout, left).await } else { Ok(()) }
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
