//! What all handles of one queue in this process share: its partitions, as one queue.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use pillarbox_core::{
    Counts, Cursor, Delivery, Error, Outgoing, PeekPage, QueueName, Receive, Result, Settle,
};
use tokio::time::timeout;

use crate::engine::Engine;
use crate::failure::Failure;
use crate::format;
use crate::layout::{Layout, MAX_PARTITIONS, Number};
use crate::link::Pauses;
use crate::operations::{self, Claim, Stored};
use crate::partition::{PageEnd, Partition};
use crate::state::QueueState;

/// How long a partition may be silent before others are used instead.
const SILENCE: Duration = Duration::from_secs(3);

/// What all handles of one queue in this process share.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) state: Arc<QueueState>,
    /// Those that were used.
    partitions: Mutex<BTreeMap<Number, Arc<Partition>>>,
    /// Which partition is asked first.
    first: AtomicU16,
}

/// What has become of each entry of a batch, of which some may have failed together.
pub(crate) type Outcomes<T> = Vec<Result<T, Failure>>;

impl Hub {
    pub(crate) fn new(name: QueueName, engine: Arc<Engine>) -> Self {
        Self {
            state: Arc::new(QueueState::new(name, engine)),
            partitions: Mutex::default(),
            // Programs that begin at the same time begin at different places.
            first: AtomicU16::new(rand::random()),
        }
    }

    pub(crate) fn name(&self) -> &QueueName {
        &self.state.name
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.state.engine
    }

    /// One partition.
    pub(crate) fn partition(&self, number: Number) -> Arc<Partition> {
        let make = || Arc::new(Partition::new(self.state.clone(), number));
        self.partitions().entry(number).or_insert_with(make).clone()
    }

    /// All partitions that may hold messages.
    pub(crate) fn all(&self, layout: Layout) -> Vec<Arc<Partition>> {
        (0..layout.held_in).map(|number| self.partition(number)).collect()
    }

    /// Held for moments, never across an await.
    fn partitions(&self) -> MutexGuard<'_, BTreeMap<Number, Arc<Partition>>> {
        self.partitions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores messages.
    pub(crate) async fn send(
        self: &Arc<Self>,
        batch: Vec<Outgoing>,
        max_size: Option<u64>,
        layout: Layout,
    ) -> Outcomes<Stored> {
        if layout.sent_to == 1 {
            return self.store(0, batch, max_size).await;
        }
        let places = self.places(&batch, layout);
        let Some(max_size) = max_size else {
            return divided(batch, &places, |partition, batch| self.store(partition, batch, None))
                .await;
        };
        let share = Some(layout.share(max_size));
        // Those that have no group are sent elsewhere where there is no room.
        let spare: Vec<_> = batch
            .iter()
            .map(|message| message.group().is_none().then(|| message.clone()))
            .collect();
        let mut outcomes =
            divided(batch, &places, |partition, batch| self.store(partition, batch, share)).await;
        for further in 1..layout.sent_to {
            let left = outcomes.iter().zip(&spare).enumerate();
            let left = left.filter(|(_, (outcome, _))| matches!(outcome, Ok(Stored::Full)));
            let left = left.filter_map(|(order, (_, spare))| Some((order, spare.clone()?)));
            let (left, batch): (Vec<_>, Vec<_>) = left.unzip();
            if left.is_empty() {
                break;
            }
            let next = |order: &usize| (places[*order] + further) % layout.sent_to;
            let next: Vec<_> = left.iter().map(next).collect();
            let stored =
                divided(batch, &next, |partition, batch| self.store(partition, batch, share)).await;
            for (order, stored) in left.into_iter().zip(stored) {
                outcomes[order] = stored;
            }
        }
        outcomes
    }

    /// Where messages go. Those that have no group pass over a partition that does not answer.
    fn places(&self, batch: &[Outgoing], layout: Layout) -> Vec<Number> {
        let line = self.state.line();
        let place = |message: &Outgoing| {
            let place = layout.place(message);
            if !line.is_silent(place) || message.group().is_some() {
                return place;
            }
            let mut next = (1..layout.sent_to).map(|further| (place + further) % layout.sent_to);
            next.find(|next| !line.is_silent(*next)).unwrap_or(place)
        };
        batch.iter().map(place).collect()
    }

    /// Asks a partition, no longer than it may be silent: then there is no answer, and it is passed over
    /// until it answers a task that asks from then on. (A delivery that comes too late goes back.)
    async fn ask<T, F: Future<Output = T>>(
        self: &Arc<Self>,
        number: Number,
        patience: Duration,
        question: impl FnOnce(Arc<Partition>) -> F,
    ) -> Option<T> {
        let answer = question(self.partition(number));
        if self.state.line().all_silent() {
            // There is no other to be asked instead.
            return Some(answer.await);
        }
        let answer = timeout(patience, answer).await.ok();
        if answer.is_none() {
            self.is_silent(number);
        }
        answer
    }

    /// Waits for an answer of a partition. What takes too long may be a large batch, or replicas that are
    /// waited for; or the partition does not answer at all, and is passed over by what comes next.
    async fn noticed<T>(self: &Arc<Self>, number: Number, answer: impl Future<Output = T>) -> T {
        if self.is_whole() {
            return answer.await;
        }
        let mut answer = pin!(answer);
        if let Ok(answer) = timeout(SILENCE, &mut answer).await {
            return answer;
        }
        let hub = self.clone();
        self.engine().spawn(async move {
            let look = |partition: Arc<Partition>| async move { partition.look().await };
            let _ = hub.ask(number, SILENCE, look).await;
        });
        answer.await
    }

    /// Whether there is no other partition than the first, as far as is known.
    fn is_whole(&self) -> bool {
        self.state.known_layout().held_in == 1
    }

    /// Notes that a partition does not answer, and asks it until it does.
    fn is_silent(self: &Arc<Self>, number: Number) {
        if !self.state.line().set_silent(number, true) {
            return;
        }
        let queue = self.name();
        tracing::warn!(%queue, number, "a partition does not answer; others are used meanwhile");
        let (hub, partition) = (Arc::downgrade(self), self.partition(number));
        self.engine().spawn(async move {
            let mut pauses = Pauses::new();
            while let Err(failure) = partition.look().await {
                if matches!(failure, Failure::Closed) || hub.strong_count() == 0 {
                    return;
                }
                tokio::time::sleep(pauses.next()).await;
            }
            let queue = &partition.queue;
            queue.line().set_silent(number, false);
            tracing::info!(queue = %queue.name, number, "a partition answers again");
        });
    }

    /// Stores messages in one partition.
    async fn store(
        self: &Arc<Self>,
        partition: Number,
        batch: Vec<Outgoing>,
        max_size: Option<u64>,
    ) -> Outcomes<Stored> {
        let (number, partition) = (partition, self.partition(partition));
        let mut stored = Vec::with_capacity(batch.len());
        let mut failed: Option<Failure> = None;
        for part in parts(batch) {
            let entries = part.len();
            // Of what comes before a part that failed, we know.
            let answers = match &failed {
                None => self.noticed(number, partition.send(part, max_size)).await,
                Some(failure) => Err(failure.clone()),
            };
            failed = answers.as_ref().err().cloned();
            stored.extend(each(answers, entries));
        }
        stored
    }

    /// Ends or extends leases. Says of each whether its receipt was good.
    pub(crate) async fn settle(&self, batch: Vec<Settle>) -> Outcomes<bool> {
        let place = |settle: &Settle| match settle.receipt.token() {
            // One that was made up belongs nowhere.
            Some((_, nonce)) if u32::from(nonce.mark()) < MAX_PARTITIONS => nonce.mark(),
            _ => 0,
        };
        let places: Vec<_> = batch.iter().map(place).collect();
        divided(batch, &places, |partition, batch| async move {
            let entries = batch.len();
            each(self.partition(partition).settle(batch).await, entries)
        })
        .await
    }

    /// Delivers what is ready in these partitions, the next one's turn first: from one of them, if that
    /// has something and others need not be asked as well to deliver all that is wanted.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        request: Receive,
        partitions: &[Number],
        wants_all: bool,
    ) -> Result<Vec<Delivery>, Failure> {
        let Some(first) = self.first_of(partitions) else { return Ok(Vec::new()) };
        if self.is_whole() {
            let claim = self.partition(partitions[first]).receive(request).await?;
            return Ok(claim.map_or_else(Vec::new, Claim::take));
        }
        let mut taking = Taking { hub: self, request, claims: Vec::new(), failed: None };
        let is_answered = taking.from(&[(partitions[first], request.max)], SILENCE).await;
        if partitions.len() > 1 && taking.has_room() && (wants_all || taking.claims.is_empty()) {
            // All others at once, without taking anything: one may have more than enough. What was
            // claimed must not be held for long.
            let patience = if taking.claims.is_empty() { SILENCE } else { request.visibility / 4 };
            let patience = patience.min(SILENCE);
            let others = partitions[first + 1..].iter().chain(&partitions[..first]);
            let (ready, others_answered) = taking.look_at(others.copied(), patience).await;
            if !is_answered && !others_answered && self.state.line().all_silent() {
                // Then it is not about one server that fails while others go on.
                taking.from(&[(partitions[first], request.max)], SILENCE).await;
            } else {
                taking.from(&ready, patience).await;
            }
        }
        taking.end()
    }

    /// Which of the partitions is asked first.
    fn first_of(&self, partitions: &[Number]) -> Option<usize> {
        match partitions.len() {
            0 => None,
            1 => Some(0),
            all => Some(usize::from(self.first.fetch_add(1, Ordering::Relaxed)) % all),
        }
    }

    /// Deletes all messages and says how many.
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
        // Partitions may be on several servers, with a clock each: of the one that is behind, nothing is older
        // than it says.
        let counted_at = counted.iter().filter_map(|counts| counts.counted_at).min();
        Ok(counts.with_oldest_age(oldest).with_sent(Some(sent)).with_counted_at(counted_at))
    }

    /// Shows messages of one partition after the other, from the first one or from where a page ended.
    pub(crate) async fn peek(
        &self,
        max: usize,
        after: Option<Page>,
        layout: Layout,
    ) -> Result<PeekPage, Failure> {
        let Page { mut partition, mut end } = after.unwrap_or_else(Page::beginning);
        let mut messages = Vec::new();
        loop {
            let left = max - messages.len();
            let (more, ended) = self.partition(partition).peek(left, &end).await?;
            messages.extend(more);
            match ended {
                // Entries without a message are not shown, and others are.
                Some(next) if messages.len() < max => end = next,
                Some(end) => {
                    let next = Page { partition, end };
                    return Ok(PeekPage::new(messages, Some(next.into())));
                }
                None if partition + 1 >= layout.held_in => {
                    return Ok(PeekPage::new(messages, None));
                }
                None => {
                    (partition, end) = (partition + 1, PageEnd::beginning());
                    if messages.len() == max {
                        let next = Page { partition, end };
                        return Ok(PeekPage::new(messages, Some(next.into())));
                    }
                }
            }
        }
    }

    /// Takes away the last partitions, if they are no longer sent to and hold nothing.
    pub(crate) fn narrow(self: &Arc<Self>, layout: Layout) {
        if layout.held_in <= layout.sent_to || !self.state.may_narrow() {
            return;
        }
        let hub = self.clone();
        self.engine().spawn(async move {
            if let Err(failure) = hub.narrow_now(layout).await {
                tracing::debug!(queue = %hub.name(), %failure, "a partition could not be taken away");
            }
        });
    }

    async fn narrow_now(&self, layout: Layout) -> Result<(), Failure> {
        let mut left = layout.held_in;
        while left > layout.sent_to && self.partition(left - 1).forget().await? {
            left -= 1;
        }
        if left < layout.held_in { self.state.narrow(layout, left).await } else { Ok(()) }
    }

    /// Deletes what is left of the queue if it holds no message, so that short-lived queues do not
    /// pile up. One that was only looked at is left as it is.
    pub(crate) async fn forget(&self) {
        if self.state.is_used()
            && let Err(failure) = self.forget_now().await
        {
            tracing::debug!(queue = %self.name(), %failure, "a queue was not forgotten");
        }
    }

    async fn forget_now(&self) -> Result<(), Failure> {
        let layout = self.state.known_layout();
        let all = self.all(layout);
        if all.len() > 1 && self.counts(layout).await?.total() > 0 {
            return Ok(());
        }
        let forgotten = join_all(all.iter().map(|partition| partition.forget())).await;
        let forgotten: Vec<bool> = forgotten.into_iter().collect::<Result<_, _>>()?;
        if layout != Layout::WHOLE && forgotten.iter().all(|forgotten| *forgotten) {
            self.state.narrow(layout, 0).await?;
        }
        Ok(())
    }
}

/// A receive from several partitions.
struct Taking<'a> {
    hub: &'a Arc<Hub>,
    request: Receive,
    claims: Vec<Claim>,
    failed: Option<Failure>,
}

impl Taking<'_> {
    /// How many messages are still wanted.
    fn wanted(&self) -> usize {
        self.request.max - self.claims.iter().map(Claim::len).sum::<usize>()
    }

    /// Whether more can be taken.
    fn has_room(&self) -> bool {
        let bytes: usize = self.claims.iter().map(Claim::bytes).sum();
        self.wanted() > 0 && bytes < operations::MOST_BYTES
    }

    /// Takes so many messages from each of these partitions, but no more than are wanted. Says whether
    /// one has answered.
    async fn from(&mut self, partitions: &[(Number, usize)], patience: Duration) -> bool {
        let mut wanted = self.wanted();
        let mut asked = Vec::new();
        for (number, messages) in partitions {
            let mut request = self.request;
            request.max = wanted.min(*messages);
            wanted -= request.max;
            if request.max > 0 {
                let receive = move |partition: Arc<Partition>| async move {
                    partition.receive(request).await
                };
                asked.push(self.hub.ask(*number, patience, receive));
            }
        }
        let answers: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let is_answered = !answers.is_empty();
        for answer in answers {
            match answer {
                Ok(claim) => self.claims.extend(claim),
                Err(failure) => self.failed = Some(failure),
            }
        }
        is_answered
    }

    /// How many messages are ready in those of the partitions that have some, and whether one has
    /// answered.
    async fn look_at(
        &mut self,
        partitions: impl Iterator<Item = Number>,
        patience: Duration,
    ) -> (Vec<(Number, usize)>, bool) {
        let look =
            |partition: Arc<Partition>| async move { (partition.number, partition.look().await) };
        let asked: Vec<_> = partitions.map(|number| self.hub.ask(number, patience, look)).collect();
        let answers: Vec<_> = join_all(asked).await.into_iter().flatten().collect();
        let is_answered = !answers.is_empty();
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
        (ready, is_answered)
    }

    /// What was claimed; or, where there is nothing that can be had, why something cannot.
    ///
    /// Deliveries are taken out of their claims in the same poll that returns them, so a dropped future
    /// holds none.
    fn end(self) -> Result<Vec<Delivery>, Failure> {
        match self.failed {
            Some(failure) if self.claims.is_empty() => Err(failure),
            _ => Ok(self.claims.into_iter().flat_map(Claim::take).collect()),
        }
    }
}

/// The answers of entries that were done together, or the failure of each.
fn each<T>(answers: Result<Vec<T>, Failure>, entries: usize) -> Outcomes<T> {
    match answers {
        Ok(answers) => answers.into_iter().map(Ok).collect(),
        Err(failure) => std::iter::repeat_n(failure, entries).map(Err).collect(),
    }
}

/// Has the entries of each partition done together, all partitions at once, and puts the outcomes in order.
async fn divided<E, T, F: Future<Output = Outcomes<T>>>(
    batch: Vec<E>,
    places: &[Number],
    done: impl Fn(Number, Vec<E>) -> F,
) -> Outcomes<T> {
    let Some(first) = places.first() else { return Vec::new() };
    if places.iter().all(|place| place == first) {
        return done(*first, batch).await;
    }
    let mut groups: BTreeMap<Number, (Vec<usize>, Vec<E>)> = BTreeMap::new();
    for (order, (entry, place)) in batch.into_iter().zip(places).enumerate() {
        let (orders, entries) = groups.entry(*place).or_default();
        orders.push(order);
        entries.push(entry);
    }
    let (orders, groups): (Vec<_>, Vec<_>) =
        groups.into_iter().map(|(place, (orders, entries))| (orders, (place, entries))).unzip();
    let outcomes = join_all(groups.into_iter().map(|(place, entries)| done(place, entries))).await;
    let mut in_order: Vec<_> =
        orders.into_iter().flatten().zip(outcomes.into_iter().flatten()).collect();
    in_order.sort_unstable_by_key(|(order, _)| *order);
    in_order.into_iter().map(|(_, outcome)| outcome).collect()
}

/// The most bytes of messages that go to the server at once: it refuses too much.
const MOST_BYTES: usize = 64 << 20;

/// Cuts a batch into parts that a server takes. Most often there is only one.
fn parts(mut batch: Vec<Outgoing>) -> Vec<Vec<Outgoing>> {
    let mut parts = Vec::new();
    loop {
        let mut bytes = 0;
        let mut fits = |message: &Outgoing| {
            bytes += format::size_of(message);
            bytes <= MOST_BYTES
        };
        // A body of its own may be larger.
        let end = batch.iter().take_while(|message| fits(message)).count().max(1);
        if end >= batch.len() {
            parts.push(batch);
            return parts;
        }
        let rest = batch.split_off(end);
        parts.push(std::mem::replace(&mut batch, rest));
    }
}

/// Where a page of the messages of a queue ended.
#[derive(Debug)]
pub(crate) struct Page {
    partition: Number,
    end: PageEnd,
}

impl Page {
    fn beginning() -> Self {
        Self { partition: 0, end: PageEnd::beginning() }
    }

    /// Reads a cursor that was given before.
    pub(crate) fn of(cursor: &Cursor, queue: &QueueName) -> Result<Self> {
        let read = || {
            let (partition, end) = cursor.as_str().split_once(' ')?;
            let partition = partition.parse().ok()?;
            let is_sound = u32::from(partition) < MAX_PARTITIONS;
            is_sound.then_some(Self { partition, end: PageEnd::parse(end)? })
        };
        read().ok_or_else(|| {
            let allowed = "a cursor that this queue gave";
            Error::invalid(Some(queue), "cursor", cursor.as_str(), allowed)
        })
    }
}

impl From<Page> for Cursor {
    fn from(Page { partition, end }: Page) -> Self {
        Self::new(format!("{partition} {end}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_cut_where_it_is_too_large_to_go_at_once() {
        let of = |sizes: &[usize]| {
            let body = bytes::Bytes::from(vec![0; 80 << 20]);
            let batch = sizes.iter().map(|size| Outgoing::new(body.slice(..size << 20))).collect();
            parts(batch).iter().map(Vec::len).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [0]);
        assert_eq!(of(&[1, 2, 3]), [3]);
        assert_eq!(of(&[60, 4, 1, 80, 80, 2]), [2, 1, 1, 1, 1]);
    }

    #[tokio::test]
    async fn outcomes_come_back_in_the_order_of_their_entries() {
        let batch: Vec<_> = (0..100_u32).collect();
        let places: Vec<_> = batch.iter().map(|n| (n * n % 7) as Number).collect();
        let outcomes = divided(batch, &places, |place, entries: Vec<u32>| async move {
            assert!(entries.iter().all(|n| n * n % 7 == u32::from(place)));
            if place == 4 {
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
