//! One way through a queue of dead letters: replaying or discarding those that are meant.
//!
//! A queue can only be received from at its head. So all dead letters that are ready are received; those
//! that are not meant are kept under their leases, with nothing but their receipts in memory, and are given
//! back in their order at the end. Whatever ends in between, their leases end by themselves.
//!
//! What is delayed cannot be received, and is left, unless the pass is told to wait until it is ready.
//!
//! A message is replayed by sending it, and then acknowledging its dead letter (see `replay.rs`).

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::{after, later};
use pillarbox_core::{
    Counts, Delivery, Error, MessageId, MessageState, Queue, QueueName, Receipt, Receive, Result,
    Settle, Timestamp,
};
use tokio::time::Instant;

use super::dlq::time_of;
use super::paging::Paging;
use super::replay::send_back;
use super::{DeadLetter, Dlq, Found, metrics};
use crate::answers::each;

/// How long dead letters are kept from others while a pass looks at them; extended as needed.
const LEASE: Duration = Duration::from_secs(120);
/// With a shorter one they would come back while they are looked at.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);
/// How many receipts are kept at most. With more, those that are not meant go back earlier, behind all
/// others, and the pass ends when it has seen as many as there were.
const MOST_HELD: usize = 500_000;
/// How often nothing has to come from a backend whose counts lag, until nothing is left.
const LAGGING_LOOKS: u32 = 4;
/// How much longer than until the last delayed one is ready it waits: a receive that times out in that moment may
/// have it, and gives it back a moment later.
const GRACE: Duration = Duration::from_secs(1);
/// Of how many that could not be replayed it is told why.
const REASONS: usize = 10;

/// What is done with the dead letters that are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    Replay,
    Discard,
}

/// A way through a queue of dead letters. Made by [`Dlq::replay`] and [`Dlq::discard`].
///
/// It may be killed at any moment and run again, and several may run at a time: nothing is lost. A message
/// that was replayed just before, and whose dead letter was not yet acknowledged, is replayed again, under
/// the id that this replay had; if it is still in its queue, that changes nothing.
#[must_use = "a pass does nothing until it is run"]
pub struct Pass {
    dlq: Dlq,
    task: Task,
    is_meant: Box<dyn FnMut(&DeadLetter) -> bool + Send>,
    /// All if it is empty.
    ids: HashSet<MessageId>,
    older_than: Option<Duration>,
    max: Option<u64>,
    /// No more than so many in so long.
    rate: Option<(u32, Duration)>,
    max_replays: u32,
    /// Those that are ready within this time are waited for.
    delayed: Option<Duration>,
    lease: Duration,
    progress: Box<dyn FnMut(&Report) + Send>,
}

/// What a pass has done.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Report {
    /// How many were replayed, or discarded.
    pub done: u64,
    /// How many were looked at and left, for they were not meant. Where [ids](Pass::ids) were named, it
    /// looks only as far as those are.
    pub left: u64,
    /// How many were left because they were replayed too often before.
    pub exhausted: u64,
    /// How many were replayed by this very pass, have failed again, and were left.
    pub failed_again: u64,
    /// How many could not be read, and were left.
    pub unreadable: u64,
    /// How many their queue did not take, or whose queue is on another backend, and were left.
    pub refused: u64,
    /// Why, of the first few.
    pub reasons: Vec<Error>,
    /// How many were replayed and not acknowledged, for their leases had ended: they are still there, and
    /// are replayed again by the next pass.
    pub unacknowledged: u64,
    /// How many were not looked at, for they were in flight or delayed when it began, or when it ended: others
    /// have them, or keep them.
    pub unseen: u64,
    /// Number of delayed ones that it has waited for, or still does, because it was
    /// [told to](Pass::delayed). They are among those above.
    pub awaited: u64,
    /// Time for which it still waits at most, while it waits for them. `None` before and after.
    pub waiting: Option<Duration>,
}

/// A pass that could not come to its end.
#[derive(thiserror::Error)]
#[error("{error} (after {} were done)", report.done)]
#[non_exhaustive]
pub struct PassFailed {
    /// What it has done until then.
    pub report: Report,
    /// Why it ended.
    #[source]
    pub error: Error,
}

pillarbox_core::__error_debug!(struct PassFailed { report, error });

impl From<PassFailed> for Error {
    fn from(failed: PassFailed) -> Self {
        failed.error
    }
}

impl Pass {
    pub(super) fn new(dlq: Dlq, task: Task) -> Self {
        Self {
            dlq,
            task,
            is_meant: Box::new(|_| true),
            ids: HashSet::new(),
            older_than: None,
            max: None,
            rate: None,
            max_replays: DEFAULT_MAX_REPLAYS,
            delayed: None,
            lease: LEASE,
            progress: Box::new(|_| {}),
        }
    }

    /// Selects the dead letters. Defaults to all. Several calls must all agree. The function may be called more
    /// than once for a dead letter.
    pub fn matching(
        mut self,
        mut is_meant: impl FnMut(&DeadLetter) -> bool + Send + 'static,
    ) -> Self {
        let mut before = self.is_meant;
        self.is_meant = Box::new(move |letter| before(letter) && is_meant(letter));
        self
    }

    /// Those that came to this queue at least so long ago, by the clock of the backend, when the pass begins.
    pub fn older_than(mut self, age: Duration) -> Self {
        self.older_than = self.older_than.max(Some(age));
        self
    }

    /// Those of these ids, be it their own or those of their messages. All if none is named.
    pub fn ids(mut self, ids: impl IntoIterator<Item = MessageId>) -> Self {
        self.ids.extend(ids);
        self
    }

    /// The most to be replayed or discarded.
    pub fn max(mut self, letters: u64) -> Self {
        self.max = Some(letters);
        self
    }

    /// No more than so many in so long, evenly: what comes back must not be too much at once. At least 1.
    pub fn rate(mut self, letters: u32, per: Duration) -> Self {
        self.rate = Some((letters, per));
        self
    }

    /// Leaves messages that were replayed so often before: what fails each time is not to go round for
    /// ever. 3 unless said otherwise.
    pub fn max_replays(mut self, replays: u32) -> Self {
        self.max_replays = replays;
        self
    }

    /// Takes dead letters that are delayed, too, if they become ready within this time: those that a consumer
    /// [keeps](super::DlqAction::keep_for), or has failed on. It waits for them, and takes each as it comes.
    /// Defaults to leaving what is delayed.
    ///
    /// It ends a second after the last of those that are meant is ready; on a backend that cannot be looked into
    /// ([`peek`](pillarbox_core::Capabilities::peek)), after all of this time if anything is in flight or
    /// delayed when it begins. Until then it keeps those that are not meant from others. A consumer that
    /// receives them at the same time may come first: stop it before.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use pillarbox_core::{Mailboxes, MemoryBackend};
    /// # use pillarbox_runtime::Dlq;
    /// # async fn f(backend: Mailboxes) -> Result<(), Box<dyn std::error::Error>> {
    /// let hour = Duration::from_secs(3600);
    /// let report = Dlq::open(&backend, "orders-dlq")?.replay().delayed(hour).run().await?;
    /// println!("{} replayed, {} left to whoever has them", report.done, report.unseen);
    /// # Ok(()) }
    /// ```
    pub fn delayed(mut self, within: Duration) -> Self {
        self.delayed = Some(within);
        self
    }

    /// How long dead letters are kept from others while it looks at them: if it is killed, they come back
    /// after at most so long. Extended as long as it takes. 2 minutes unless said otherwise.
    pub fn visibility(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Calls this after each batch.
    pub fn progress(mut self, progress: impl FnMut(&Report) + Send + 'static) -> Self {
        self.progress = Box::new(progress);
        self
    }

    /// Whether the dead letter of this id, which came to its queue then, is meant.
    fn means(
        &mut self,
        id: MessageId,
        enqueued_at: Timestamp,
        letter: &DeadLetter,
        now: Option<Timestamp>,
    ) -> bool {
        let age = now.map_or(Duration::ZERO, |now| now.since(enqueued_at));
        self.older_than.is_none_or(|least| age >= least)
            && (self.ids.is_empty() || is_named(&self.ids, id, letter))
            && (self.is_meant)(letter)
    }

    /// Whether a dead letter was replayed too often to be replayed by this pass.
    fn is_exhausted(&self, letter: &DeadLetter) -> bool {
        self.task == Task::Replay && letter.replay_count >= self.max_replays
    }

    /// The time between two of them.
    fn interval(&self) -> Option<Duration> {
        self.rate.map(|(letters, per)| per / letters.max(1))
    }

    /// Refuses what cannot work.
    fn check(&self) -> Result<()> {
        let name = Some(self.dlq.name());
        if self.lease < SHORTEST_LEASE {
            let value = format!("{:?}", self.lease);
            return Err(Error::invalid(name, "visibility", value, "at least 1 s"));
        }
        if self.rate.is_some_and(|(letters, _)| letters == 0) {
            return Err(Error::invalid(name, "rate", "0", "at least 1"));
        }
        Ok(())
    }

    /// Goes through all that are ready, and says what it has done.
    ///
    /// # Errors
    ///
    /// Where a queue does not answer, or something is wrong with what was asked for. What was done until
    /// then is told, and what is left can be done by another pass.
    pub async fn run(self) -> std::result::Result<Report, PassFailed> {
        self.run_until(std::future::pending()).await
    }

    /// The same, until `stop` comes, which ends it in good order.
    ///
    /// # Errors
    ///
    /// Those of [`run`](Self::run).
    pub async fn run_until(
        self,
        stop: impl Future<Output = ()>,
    ) -> std::result::Result<Report, PassFailed> {
        let queue = self.dlq.queue().clone();
        let mut walk = Walk {
            held: Held::new(queue.clone(), self.lease),
            report: Report::default(),
            began: Timestamp::now(),
            now: None,
            named: None,
            pass: self,
        };
        let ended = {
            let mut stop = std::pin::pin!(stop);
            walk.run(stop.as_mut()).await
        };
        let given_back = walk.held.give_back().await;
        let report = Report { waiting: None, ..walk.report };
        match ended.and(given_back) {
            Ok(()) => Ok(report),
            Err(error) => Err(PassFailed { report, error }),
        }
    }
}

/// How often a message is replayed at most, unless it is said otherwise.
pub(super) const DEFAULT_MAX_REPLAYS: u32 = 3;

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass")
            .field("dlq", &self.dlq)
            .field("task", &self.task)
            .finish_non_exhaustive()
    }
}

/// A dead letter that was received and is meant.
struct Meant {
    /// Its own id.
    id: MessageId,
    letter: DeadLetter,
    receipt: Receipt,
}

/// A pass under way.
struct Walk {
    pass: Pass,
    /// By the clock of this process, which stamps replays.
    began: Timestamp,
    /// The same by the clock of the backend, which stamps dead letters, where it matters.
    now: Option<Timestamp>,
    /// How many of those that are named by their ids were there at the beginning, and are still to come.
    named: Option<u64>,
    held: Held,
    report: Report,
}

impl Walk {
    async fn run(&mut self, mut stop: std::pin::Pin<&mut impl Future<Output = ()>>) -> Result<()> {
        self.pass.check()?;
        let queue = self.pass.dlq.queue().clone();
        let capabilities = queue.capabilities().clone();
        let before = queue.counts().await?;
        self.report.unseen = before.in_flight + before.delayed;
        if self.pass.older_than.is_some() {
            self.now = time_of(&*queue, before)?;
        }
        let awaited = self.awaited(before).await?;
        if !self.pass.ids.is_empty() && capabilities.peek {
            // Those that are delayed for longer than it waits never come; then it ends as without this number.
            let counts_delayed = awaited.is_some();
            let named = count_named(&self.pass.dlq, &self.pass.ids, counts_delayed);
            self.named = Some(named.await?);
        }
        let patience =
            if capabilities.exact_counts { Duration::ZERO } else { Duration::from_secs(1) };
        let looks = if capabilities.exact_counts { 1 } else { LAGGING_LOOKS };
        let mut paging = Paging::new(capabilities.max_receive.min(capabilities.max_batch));
        let (mut seen, mut empty) = (0, 0);
        let mut may_begin = Instant::now();
        // With more than can be held, it ends when it has seen as many as there were, and waits for none: what
        // went back would come again and again.
        while !(self.is_enough() || self.held.is_windowed && seen >= before.ready) {
            let waits = self.wait(awaited);
            if waits.is_none() && empty == looks {
                break;
            }
            let request = Receive::up_to(self.batch(paging.next()))
                .visibility(self.pass.lease)
                .wait(waits.unwrap_or(patience));
            let held = &mut self.held;
            let receive = async {
                held.keep_until(may_begin).await?;
                queue.receive(request).await
            };
            let deliveries = tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                deliveries = receive => deliveries?,
            };
            if deliveries.is_empty() {
                empty = if waits.is_some() { 0 } else { empty + 1 };
                continue;
            }
            empty = 0;
            seen += deliveries.len() as u64;
            paging.saw(deliveries.iter().map(|one| &one.message));
            let taken = self.taken();
            self.take(deliveries).await?;
            if let Some(interval) = self.pass.interval() {
                let taken = u32::try_from(self.taken() - taken).unwrap_or(u32::MAX);
                let begin = may_begin.max(Instant::now());
                may_begin = later(begin, interval.saturating_mul(taken));
            }
            (self.pass.progress)(&self.report);
        }
        // Others may have come for some meanwhile. Those that were seen and left are held here.
        let after = queue.counts().await?;
        let others = (after.in_flight + after.delayed).saturating_sub(self.held.len() as u64);
        self.report.unseen = self.report.unseen.max(others);
        Ok(())
    }

    /// Until when those are waited for that are delayed. `None` where there are none.
    async fn awaited(&mut self, before: Counts) -> Result<Option<Instant>> {
        let Some(within) = self.pass.delayed else { return Ok(None) };
        let (dlq, now) = (self.pass.dlq.clone(), before.counted_at.unwrap_or_else(Timestamp::now));
        // From when the answer is here: what is worked out from it is never ahead of the backend's clock.
        let counted = Instant::now();
        if !dlq.queue().capabilities().peek {
            self.report.awaited = std::mem::take(&mut self.report.unseen);
            return Ok((self.report.awaited > 0).then(|| later(counted, within)));
        }
        // What is delayed and not waited for is counted at the end.
        self.report.unseen = before.in_flight;
        let mut last = None;
        dlq.look(|found| {
            let MessageState::Delayed { until } = found.state else {
                return ControlFlow::Continue(());
            };
            let left = until.since(now);
            if left <= within
                && let Ok(letter) = &found.letter
                && self.pass.means(found.id, found.enqueued_at, letter, self.now)
                && !self.pass.is_exhausted(letter)
                && (self.pass.task == Task::Discard
                    || dlq.target().check(letter, dlq.name()).is_ok())
            {
                self.report.awaited += 1;
                last = last.max(Some(left));
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(last.map(|left| later(counted, left.saturating_add(GRACE))))
    }

    /// How long the next receive waits for those that are delayed, which is told. `None` once that is over.
    fn wait(&mut self, awaited: Option<Instant>) -> Option<Duration> {
        let left = awaited.map(|until| until.saturating_duration_since(Instant::now()));
        self.report.waiting = left.filter(|left| !left.is_zero());
        let left = self.report.waiting?;
        (self.pass.progress)(&self.report);
        // No longer than until the leases of those that are held must be extended.
        let wait = left.min(self.held.extend_in());
        Some(self.pass.dlq.queue().capabilities().fit_wait(wait))
    }

    /// How many were sent, or deleted.
    const fn taken(&self) -> u64 {
        self.report.done + self.report.unacknowledged
    }

    fn is_enough(&self) -> bool {
        self.named == Some(0) || self.pass.max.is_some_and(|max| self.taken() >= max)
    }

    /// How many to receive next. At a given rate, what a tenth of a second takes.
    fn batch(&self, next: usize) -> usize {
        let in_time = self.pass.interval().map_or(usize::MAX, |interval| {
            let tenth = Duration::from_millis(100).as_nanos() / interval.as_nanos().max(1);
            usize::try_from(tenth).unwrap_or(usize::MAX).max(1)
        });
        // No more than are still wanted, if all of them are meant.
        let wanted = self.pass.max.map_or(u64::MAX, |max| max.saturating_sub(self.taken()));
        next.min(in_time).min(usize::try_from(wanted).unwrap_or(usize::MAX)).max(1)
    }

    /// Does with a batch what is to be done.
    async fn take(&mut self, deliveries: Vec<Delivery>) -> Result<()> {
        let mut meant = Vec::with_capacity(deliveries.len());
        for Delivery { message, receipt, .. } in deliveries {
            let letter = DeadLetter::read(&message);
            if let (Some(named), Ok(letter)) = (&mut self.named, &letter)
                && is_named(&self.pass.ids, message.id, letter)
            {
                *named = named.saturating_sub(1);
            }
            match letter {
                Err(_) => self.report.unreadable += 1,
                Ok(letter)
                    if !self.pass.means(message.id, message.enqueued_at, &letter, self.now) =>
                {
                    self.report.left += 1;
                }
                // Replayed by this very pass: it would go round and round.
                Ok(letter)
                    if self.pass.task == Task::Replay && letter.replayed_at >= Some(self.began) =>
                {
                    self.report.failed_again += 1;
                }
                Ok(letter) if self.pass.is_exhausted(&letter) => self.report.exhausted += 1,
                Ok(letter) if self.pass.task == Task::Replay && self.refuses(&letter) => {}
                Ok(letter) => {
                    meant.push(Meant { id: message.id, letter, receipt });
                    continue;
                }
            }
            self.held.push(receipt);
        }
        match self.pass.task {
            Task::Discard => self.acknowledge(meant).await?,
            Task::Replay => self.replay(meant).await?,
        }
        if self.held.len() >= MOST_HELD {
            self.held.is_windowed = true;
            self.held.give_back().await?;
        }
        Ok(())
    }

    /// Whether a message is not to be sent where this pass would send it.
    fn refuses(&mut self, letter: &DeadLetter) -> bool {
        let dlq = &self.pass.dlq;
        let refused = dlq.target().check(letter, dlq.name());
        refused.is_err_and(|error| {
            self.refused(error);
            true
        })
    }

    fn refused(&mut self, error: Error) {
        self.report.refused += 1;
        if self.report.reasons.len() < REASONS {
            self.report.reasons.push(error);
        }
    }

    /// Sends messages to their queues, and acknowledges the dead letters of those that were stored.
    async fn replay(&mut self, meant: Vec<Meant>) -> Result<()> {
        let mut meant: VecDeque<_> = meant.into();
        while let Some(first) = meant.front() {
            let source = first.letter.source_mailbox.clone();
            let target = self.pass.dlq.target().queue(&source, self.pass.dlq.name());
            let target = match target {
                Ok(target) => target,
                Err(error) => {
                    self.hold_all(meant);
                    return Err(error);
                }
            };
            // In their order, as far as they go to one queue.
            let most = target.capabilities().max_batch;
            let same =
                meant.iter().take(most).take_while(|one| one.letter.source_mailbox == source);
            let some: Vec<_> = meant.drain(..same.count()).collect();
            if let Err(error) = self.replay_some(&target, some).await {
                self.hold_all(meant);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn replay_some(&mut self, target: &Arc<dyn Queue>, some: Vec<Meant>) -> Result<()> {
        let answers = send_back(target, some.iter().map(|one| (one.id, &one.letter))).await;
        let mut stored = Vec::with_capacity(some.len());
        let mut failed = None;
        for (one, answer) in some.into_iter().zip(answers) {
            match answer {
                Ok(_) => stored.push(one),
                Err(error) => {
                    self.held.push(one.receipt);
                    if matches!(error, Error::InvalidParameter { .. }) {
                        self.refused(error);
                    } else {
                        failed = Some(error);
                    }
                }
            }
        }
        self.acknowledge(stored).await?;
        failed.map_or(Ok(()), Err)
    }

    async fn acknowledge(&mut self, some: Vec<Meant>) -> Result<()> {
        if some.is_empty() {
            return Ok(());
        }
        let queue = self.pass.dlq.queue().clone();
        let (letters, settles): (Vec<_>, Vec<_>) =
            some.into_iter().map(|one| (one.letter, Settle::acknowledge(one.receipt))).unzip();
        let mut failed = None;
        let answers =
            each(queue.settle(settles).await, letters.len(), Some(queue.name()), "settle");
        for (letter, answer) in letters.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    self.report.done += 1;
                    self.pass.task.tell(queue.name(), &letter);
                }
                Err(error) => {
                    if self.pass.task == Task::Replay {
                        self.report.unacknowledged += 1;
                    }
                    if !matches!(error, Error::ReceiptHandleExpired { .. }) {
                        failed = Some(error);
                    }
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn hold_all(&mut self, some: VecDeque<Meant>) {
        some.into_iter().for_each(|one| self.held.push(one.receipt));
    }
}

/// Whether a dead letter of this id is among those, by its own id or that of its message.
fn is_named(ids: &HashSet<MessageId>, id: MessageId, letter: &DeadLetter) -> bool {
    [id, letter.message_id].iter().any(|id| ids.contains(id))
}

/// How many of those that are named are ready, or delayed if those count, too. It is looked for them first, so
/// that all others need not be received: a message may have several dead letters.
async fn count_named(dlq: &Dlq, ids: &HashSet<MessageId>, counts_delayed: bool) -> Result<u64> {
    let mut named = 0;
    let count = |found: Found| {
        let may_come = match found.state {
            MessageState::Ready => true,
            MessageState::Delayed { .. } => counts_delayed,
            MessageState::InFlight { .. } => false,
        };
        let is_named = found.letter.is_ok_and(|letter| is_named(ids, found.id, &letter));
        named += u64::from(may_come && is_named);
        ControlFlow::Continue(())
    };
    dlq.look(count).await?;
    Ok(named)
}

impl Task {
    fn tell(self, queue: &QueueName, letter: &DeadLetter) {
        let action = match self {
            Self::Replay => {
                metrics::replayed(queue);
                "replay"
            }
            Self::Discard => {
                metrics::discarded(queue);
                "discard"
            }
        };
        tell(queue, letter.message_id, letter.request_id, letter.age(Timestamp::now()), action);
    }
}

/// Says what was done with a dead letter.
pub(super) fn tell(
    queue: &QueueName,
    message_id: MessageId,
    request_id: Option<uuid::Uuid>,
    age: Duration,
    action: &'static str,
) {
    metrics::age(queue, age);
    tracing::info!(
        %queue,
        %message_id,
        request_id = request_id.map(tracing::field::display),
        age_seconds = age.as_secs_f64(),
        action,
        "processing a dead letter"
    );
}

/// Dead letters that were received and are not meant.
struct Held {
    queue: Arc<dyn Queue>,
    lease: Duration,
    /// In their order.
    receipts: VecDeque<Receipt>,
    /// When the leases of all are extended.
    extend_at: Instant,
    /// Some went back before the end.
    is_windowed: bool,
}

impl Held {
    fn new(queue: Arc<dyn Queue>, lease: Duration) -> Self {
        let extend_at = after(lease / 2);
        Self { queue, lease, receipts: VecDeque::new(), extend_at, is_windowed: false }
    }

    fn len(&self) -> usize {
        self.receipts.len()
    }

    fn push(&mut self, receipt: Receipt) {
        self.receipts.push_back(receipt);
    }

    /// Time until the leases of all must be extended.
    fn extend_in(&self) -> Duration {
        self.extend_at.saturating_duration_since(Instant::now())
    }

    /// Waits until then, and extends leases meanwhile, so that none ends: each was begun, or extended, less
    /// than half of its time ago.
    async fn keep_until(&mut self, then: Instant) -> Result<()> {
        loop {
            tokio::time::sleep_until(then.min(self.extend_at)).await;
            if Instant::now() < self.extend_at {
                return Ok(());
            }
            self.extend_at = after(self.lease / 2);
            let receipts: Vec<&Receipt> = self.receipts.iter().collect();
            for some in receipts.chunks(self.queue.capabilities().max_batch) {
                let settles =
                    some.iter().map(|receipt| Settle::extend((*receipt).clone(), self.lease));
                // One that is lost comes again, and is looked at again.
                self.queue.settle(settles.collect()).await?;
            }
        }
    }

    /// Gives all back, in their order.
    async fn give_back(&mut self) -> Result<()> {
        let most = self.queue.capabilities().max_batch;
        while !self.receipts.is_empty() {
            let some = self.receipts.drain(..most.min(self.receipts.len()));
            let settles = some.map(|receipt| Settle::release(receipt, Duration::ZERO));
            self.queue.settle(settles.collect()).await?;
        }
        Ok(())
    }
}
