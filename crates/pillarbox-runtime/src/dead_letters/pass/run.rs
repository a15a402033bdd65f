//! The execution of a pass.
//!
//! A queue can only be received from at its head, so the pass receives all ready dead letters. It keeps the
//! ones that are not selected under their leases, with only their receipts in memory, and releases them in
//! their order at the end. If the process ends before that, their leases expire.
//!
//! Delayed dead letters cannot be received. They are skipped, unless the pass is to wait until they are ready.

use std::collections::{HashSet, VecDeque};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use pillarbox_core::clock::later;
use pillarbox_core::internal::Emptiness;
use pillarbox_core::{
    Counts, Delivery, Error, MessageId, MessageState, Queue, Receipt, Receive, Result, Settle,
    Timestamp,
};
use tokio::time::Instant;

use super::held::HeldReceipts;
use super::{Pass, PassAction, PassReport, has_id};
use crate::batch_results::per_entry;
use crate::dead_letters::dead_letter::DeadLetter;
use crate::dead_letters::dlq::{Dlq, PeekedDeadLetter, backend_time, batch_sizer, record};
use crate::dead_letters::replay::send_back;

/// Maximum number of receipts that are held. Beyond it, dead letters that are not selected are released early,
/// to the tail of the queue, and the pass ends when it has received as many as there were.
const MAX_HELD: usize = 500_000;
/// Additional time to wait for the last delayed dead letter: a receive that times out just when it becomes
/// ready may have claimed it, and releases it a moment later.
const GRACE: Duration = Duration::from_secs(1);
/// Maximum number of refusals whose reasons are reported.
const MAX_REASONS: usize = 10;

/// A selected dead letter that was received.
struct Selected {
    /// The id of the dead letter itself.
    id: MessageId,
    letter: DeadLetter,
    receipt: Receipt,
}

/// A running pass.
pub(super) struct PassRun {
    pub(super) pass: Pass,
    /// When the pass began by the clock of this process, which stamps replays.
    pub(super) began: Timestamp,
    /// When it began by the clock of the backend, which stamps dead letters, if their age matters.
    pub(super) now: Option<Timestamp>,
    /// Number of dead letters with the given ids that are still to be received, if it is known.
    pub(super) remaining_ids: Option<u64>,
    pub(super) held: HeldReceipts,
    pub(super) report: PassReport,
    /// Whether held dead letters were released before the end.
    pub(super) has_released: bool,
}

impl PassRun {
    pub(super) async fn run(
        &mut self,
        mut stop: std::pin::Pin<&mut impl Future<Output = ()>>,
    ) -> Result<()> {
        self.pass.validate()?;
        let queue = self.pass.dlq.queue.clone();
        let capabilities = queue.capabilities().clone();
        let before = queue.counts().await?;
        self.report.unseen = before.in_flight + before.delayed;
        if self.pass.older_than.is_some() {
            self.now = backend_time(&*queue, before)?;
        }
        let wait_until = self.delayed_deadline(before).await?;
        if !self.pass.ids.is_empty() && capabilities.peek {
            // Those that are delayed for longer than the pass waits are never received. Then it ends as it
            // would without this number.
            let counts_delayed = wait_until.is_some();
            self.remaining_ids =
                Some(count_ids(&self.pass.dlq, &self.pass.ids, counts_delayed).await?);
        }
        let mut emptiness = Emptiness::new(&capabilities);
        let mut sizer = batch_sizer(capabilities.max_receive.min(capabilities.max_batch));
        let (mut seen, mut is_empty) = (0, false);
        let mut next_at = Instant::now();
        // If some were released early, they would be received again and again: then the pass ends when it has
        // received as many as there were, and waits for none.
        while !(self.is_complete() || self.has_released && seen >= before.ready) {
            let wait = self.next_wait(wait_until);
            if wait.is_none() && is_empty {
                break;
            }
            let request = Receive::up_to(self.batch_size(sizer.next_size()))
                .visibility(self.pass.lease)
                .wait(wait.unwrap_or(emptiness.wait()));
            let held = &mut self.held;
            let receive = async {
                held.keep_until(next_at).await?;
                queue.receive(request).await
            };
            let deliveries = tokio::select! {
                biased;
                () = stop.as_mut() => return Ok(()),
                deliveries = receive => deliveries?,
            };
            is_empty = emptiness.record(deliveries.is_empty() && wait.is_none());
            if deliveries.is_empty() {
                continue;
            }
            seen += deliveries.len() as u64;
            record(&mut sizer, deliveries.iter().map(|one| &one.message));
            let before = self.processed();
            self.process(deliveries).await?;
            if let Some(interval) = self.pass.interval() {
                let processed = u32::try_from(self.processed() - before).unwrap_or(u32::MAX);
                next_at = later(next_at.max(Instant::now()), interval.saturating_mul(processed));
            }
            (self.pass.progress)(&self.report);
        }
        // Other consumers may have received some meanwhile. Those that this pass skips are in flight, too.
        let after = queue.counts().await?;
        let others = (after.in_flight + after.delayed).saturating_sub(self.held.len() as u64);
        self.report.unseen = self.report.unseen.max(others);
        Ok(())
    }

    /// Returns the time until which delayed dead letters are waited for. `None` if there are none.
    async fn delayed_deadline(&mut self, before: Counts) -> Result<Option<Instant>> {
        let Some(within) = self.pass.delayed else { return Ok(None) };
        let (dlq, now) = (self.pass.dlq.clone(), before.counted_at.unwrap_or_else(Timestamp::now));
        // Taken after the answer, so that times derived from it are never ahead of the backend's clock.
        let counted = Instant::now();
        if !dlq.queue.capabilities().peek {
            self.report.awaited = std::mem::take(&mut self.report.unseen);
            return Ok((self.report.awaited > 0).then(|| later(counted, within)));
        }
        // Delayed ones that are not waited for are counted at the end.
        self.report.unseen = before.in_flight;
        let mut last = None;
        dlq.peek(|peeked| {
            let MessageState::Delayed { until } = peeked.state else {
                return ControlFlow::Continue(());
            };
            let remaining = until.since(now);
            if remaining <= within
                && let Ok(letter) = &peeked.letter
                && self.pass.selects(peeked.id, peeked.enqueued_at, letter, self.now)
                && !self.pass.is_exhausted(letter)
                && (self.pass.action == PassAction::Discard
                    || dlq.target.check(letter, dlq.name()).is_ok())
            {
                self.report.awaited += 1;
                last = last.max(Some(remaining));
            }
            ControlFlow::Continue(())
        })
        .await?;
        Ok(last.map(|remaining| later(counted, remaining.saturating_add(GRACE))))
    }

    /// Returns the time that the next receive waits for delayed dead letters, and reports it. `None` once that is
    /// over.
    fn next_wait(&mut self, wait_until: Option<Instant>) -> Option<Duration> {
        let remaining = wait_until.map(|until| until.saturating_duration_since(Instant::now()));
        self.report.waiting = remaining.filter(|remaining| !remaining.is_zero());
        let remaining = self.report.waiting?;
        (self.pass.progress)(&self.report);
        // At most until the leases of the held ones must be extended.
        let wait = remaining.min(self.held.extend_in());
        Some(self.pass.dlq.queue.capabilities().fit_wait(wait))
    }

    /// Returns the number of dead letters that were replayed or deleted.
    const fn processed(&self) -> u64 {
        self.report.done + self.report.unacknowledged
    }

    fn is_complete(&self) -> bool {
        self.remaining_ids == Some(0) || self.pass.max.is_some_and(|max| self.processed() >= max)
    }

    /// Returns the number of dead letters to receive next: at a limited rate, those of a tenth of a second.
    fn batch_size(&self, next: usize) -> usize {
        let in_time = self.pass.interval().map_or(usize::MAX, |interval| {
            let tenth = Duration::from_millis(100).as_nanos() / interval.as_nanos().max(1);
            usize::try_from(tenth).unwrap_or(usize::MAX).max(1)
        });
        // At most as many as are still wanted, in case all of them are selected.
        let wanted = self.pass.max.map_or(u64::MAX, |max| max.saturating_sub(self.processed()));
        next.min(in_time).min(usize::try_from(wanted).unwrap_or(usize::MAX)).max(1)
    }

    /// Replays or discards the selected ones of a batch, and holds the others.
    async fn process(&mut self, deliveries: Vec<Delivery>) -> Result<()> {
        let mut selected = Vec::with_capacity(deliveries.len());
        for Delivery { message, receipt, .. } in deliveries {
            let letter = DeadLetter::read(&message);
            if let (Some(remaining), Ok(letter)) = (&mut self.remaining_ids, &letter)
                && has_id(&self.pass.ids, message.id, letter)
            {
                *remaining = remaining.saturating_sub(1);
            }
            match letter {
                Err(_) => self.report.unreadable += 1,
                Ok(letter)
                    if !self.pass.selects(message.id, message.enqueued_at, &letter, self.now) =>
                {
                    self.report.skipped += 1;
                }
                // Replayed by this pass: it would be replayed again and again.
                Ok(letter)
                    if self.pass.action == PassAction::Replay
                        && letter.replayed_at >= Some(self.began) =>
                {
                    self.report.failed_again += 1;
                }
                Ok(letter) if self.pass.is_exhausted(&letter) => self.report.exhausted += 1,
                Ok(letter) if self.pass.action == PassAction::Replay && self.refuses(&letter) => {}
                Ok(letter) => {
                    selected.push(Selected { id: message.id, letter, receipt });
                    continue;
                }
            }
            self.held.push(receipt);
        }
        match self.pass.action {
            PassAction::Discard => self.acknowledge(selected).await?,
            PassAction::Replay => self.replay(selected).await?,
        }
        if self.held.len() >= MAX_HELD {
            self.has_released = true;
            self.held.release().await?;
        }
        Ok(())
    }

    /// Whether the target of this pass refuses a message, which is counted.
    fn refuses(&mut self, letter: &DeadLetter) -> bool {
        let dlq = &self.pass.dlq;
        let refused = dlq.target.check(letter, dlq.name());
        refused.is_err_and(|error| {
            self.count_refusal(error);
            true
        })
    }

    fn count_refusal(&mut self, error: Error) {
        self.report.refused += 1;
        if self.report.reasons.len() < MAX_REASONS {
            self.report.reasons.push(error);
        }
    }

    /// Sends messages to their queues, and acknowledges the dead letters of those that were stored.
    async fn replay(&mut self, selected: Vec<Selected>) -> Result<()> {
        let mut selected: VecDeque<_> = selected.into();
        while let Some(first) = selected.front() {
            let source = first.letter.source_mailbox.clone();
            let target = self.pass.dlq.target.queue(&source, self.pass.dlq.name());
            let target = match target {
                Ok(target) => target,
                Err(error) => {
                    self.hold_all(selected);
                    return Err(error);
                }
            };
            // The next ones that go to the same queue, in their order.
            let max = target.capabilities().max_batch;
            let same =
                selected.iter().take(max).take_while(|one| one.letter.source_mailbox == source);
            let some: Vec<_> = selected.drain(..same.count()).collect();
            if let Err(error) = self.replay_some(&target, some).await {
                self.hold_all(selected);
                return Err(error);
            }
        }
        Ok(())
    }

    async fn replay_some(&mut self, target: &Arc<dyn Queue>, some: Vec<Selected>) -> Result<()> {
        let answers = send_back(target, some.iter().map(|one| (one.id, &one.letter))).await;
        let mut stored = Vec::with_capacity(some.len());
        let mut failed = None;
        for (one, answer) in some.into_iter().zip(answers) {
            match answer {
                Ok(_) => stored.push(one),
                Err(error) => {
                    self.held.push(one.receipt);
                    if matches!(error, Error::InvalidParameter { .. }) {
                        self.count_refusal(error);
                    } else {
                        failed = Some(error);
                    }
                }
            }
        }
        self.acknowledge(stored).await?;
        failed.map_or(Ok(()), Err)
    }

    async fn acknowledge(&mut self, some: Vec<Selected>) -> Result<()> {
        if some.is_empty() {
            return Ok(());
        }
        let queue = self.pass.dlq.queue.clone();
        let (letters, settles): (Vec<_>, Vec<_>) =
            some.into_iter().map(|one| (one.letter, Settle::acknowledge(one.receipt))).unzip();
        let mut failed = None;
        let answers =
            per_entry(queue.settle(settles).await, letters.len(), Some(queue.name()), "settle");
        for (letter, answer) in letters.into_iter().zip(answers) {
            match answer {
                Ok(()) => {
                    self.report.done += 1;
                    self.pass.action.report(queue.name(), &letter);
                }
                Err(error) => {
                    if self.pass.action == PassAction::Replay {
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

    fn hold_all(&mut self, some: VecDeque<Selected>) {
        some.into_iter().for_each(|one| self.held.push(one.receipt));
    }
}

/// Returns the number of dead letters with these ids that are ready, or delayed if those count. A pass counts
/// them first so that it need not receive all others; a message may have several dead letters.
async fn count_ids(dlq: &Dlq, ids: &HashSet<MessageId>, counts_delayed: bool) -> Result<u64> {
    let mut count = 0;
    dlq.peek(|peeked: PeekedDeadLetter| {
        let is_receivable = match peeked.state {
            MessageState::Ready => true,
            MessageState::Delayed { .. } => counts_delayed,
            MessageState::InFlight { .. } => false,
        };
        let has_id = peeked.letter.is_ok_and(|letter| has_id(ids, peeked.id, &letter));
        count += u64::from(is_receivable && has_id);
        ControlFlow::Continue(())
    })
    .await?;
    Ok(count)
}
