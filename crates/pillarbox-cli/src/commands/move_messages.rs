//! `pillarbox move`: copy, then acknowledge.
//!
//! A message stays at the source until it is at the destination, and is at both for a moment. If the command is killed
//! in that moment and run again, it sends the message again with the same id, which stores nothing; the message is then
//! acknowledged only if the existing one is the same and not in flight (see [`duplicate`](super::duplicate)). Of two
//! commands that move a message in opposite directions, each has its own copy in flight while it looks at the other's:
//! they cannot both see the other copy not in flight, so at least one of them keeps its own.
//!
//! Ids are per queue. If the destination has a different message with the same id, the copy gets a new id, which is
//! derived from its origin and therefore the same in every run.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{
    Delivery, Error, Mailboxes, MessageId, Outgoing, Queue, QueueName, QueueOptions, Receipt,
    Receive, Settle, Timestamp,
};
use pillarbox_core::internal::{BatchSizer, Emptiness};
use serde::Serialize;

use super::duplicate::{Existing, RETRY_AFTER, find_by_id, set_deduplication};
use super::settle::settle;
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Progress, text};

/// Maximum size of a batch; larger ones are not faster.
const MAX_BATCH: usize = 500;
/// Maximum wait for a message before checking whether the queue is empty.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Lease of a message that the target rejects, so that it is not received again.
const REFUSED_LEASE: Duration = Duration::from_secs(600);
/// Minimum lease: a shorter one would expire before its message is copied.
const MIN_VISIBILITY: Duration = Duration::from_secs(1);
/// Maximum number of leases that expire before it is known whether the queues differ.
const MAX_UNDECIDED: u32 = 20;
/// Maximum number of rejected messages whose reason is printed.
const MAX_REASONS: usize = 10;

#[derive(Serialize)]
struct MoveJson<'a> {
    queue: &'a QueueName,
    dest_queue: &'a QueueName,
    moved: u64,
    /// Moved messages that have a new id.
    renamed: u64,
    refused: u64,
    /// Copies whose originals could not be acknowledged.
    duplicates: u64,
    /// Messages in the source; `None` if it is unreachable.
    remaining: Option<u64>,
}

pub(crate) async fn run(context: &mut Context, args: args::Move) -> Result<()> {
    if args.visibility < MIN_VISIBILITY {
        let text =
            "leases would expire before messages are copied: --visibility must be at least 1s";
        return Err(Failure::Usage(text.to_owned()));
    }
    let interrupt = Interrupt::listen()?;
    with_backend(interrupt.or(context.open_existing()).await??, async |source| {
        let target = interrupt.or(pillarbox::open(args.to_url.reveal())).await?;
        let target =
            target.map_err(|error| Failure::from(error).without_secrets_of(&args.to_url))?;
        with_backend(target, async |target| {
            move_all(context, source, target, &interrupt, &args).await
        })
        .await
    })
    .await
}

async fn move_all(
    context: &mut Context,
    source: &Mailboxes,
    target: &Mailboxes,
    interrupt: &Interrupt,
    args: &args::Move,
) -> Result<()> {
    if !target.capabilities().durable {
        return Err(Failure::Usage(format!(
            "messages moved to {} would be lost when this command ends",
            args.to_url
        )));
    }
    if !target.capabilities().idempotent_send {
        context.out.note(&format!(
            "{} does not deduplicate by id: if this command is interrupted, or a lease expires before its \
             message is copied, a message is duplicated",
            args.to_url
        ));
    }
    let mut mover = Mover::new(
        source.queue(&args.queue, QueueOptions::new())?,
        target.queue(&args.to_queue, QueueOptions::new())?,
        args,
    );
    let before = mover.source.counts().await?.total();
    if before == 0 {
        context.note_if_unknown(source, &args.queue).await?;
    }
    let progress = context.out.progress(before, "messages");
    let result = mover.run(interrupt, &progress).await;
    mover.release_refused().await;
    drop(progress);
    if let Err(failure @ Failure::Usage(_)) = result {
        return Err(failure);
    }
    print_summary(context, args, &mover).await?;
    match result {
        Ok(()) if mover.refused.is_empty() && mover.duplicates() == 0 => Ok(()),
        Ok(()) => Err(Failure::Reported),
        Err(failure) => {
            context.out.note(
                "no message was deleted before the destination had it; run the same command again to continue",
            );
            Err(failure)
        }
    }
}

async fn print_summary(context: &mut Context, args: &args::Move, mover: &Mover<'_>) -> Result<()> {
    for error in &mover.reasons {
        context.out.error(&format!("not moved: {error}"));
    }
    let (moved, refused) = (mover.moved, mover.refused.len() as u64);
    if refused > mover.reasons.len() as u64 {
        context.out.error(&format!("{refused} messages in total were not moved"));
    }
    if mover.renamed > 0 {
        let messages = text::count(mover.renamed, "message");
        let queue = &args.to_queue;
        context.out.note(&format!(
            "{messages} moved with a new id: '{queue}' has a different message with the same id"
        ));
    }
    let duplicates = mover.duplicates();
    if duplicates > 0 {
        let messages = text::count(duplicates, "message");
        context.out.error(&format!(
            "{messages} copied but not acknowledged here, since their leases expired: they may be processed \
             twice. Use a longer --visibility"
        ));
    }
    // If the source is unreachable, the error is printed after this.
    let remaining = mover.source.counts().await.ok().map(|counts| counts.total());
    if context.out.is_json() {
        let (queue, dest_queue, renamed) = (&args.queue, &args.to_queue, mover.renamed);
        let line = MoveJson { queue, dest_queue, moved, renamed, refused, duplicates, remaining };
        return context.out.json(&line);
    }
    let remaining = match remaining {
        Some(0) => "; none remaining".to_owned(),
        Some(number) => format!("; {number} remaining"),
        None => String::new(),
    };
    let moved = text::count(moved, "message");
    context.out.line(&format!("{moved} moved to '{}' at {}{remaining}", args.to_queue, args.to_url))
}

struct Mover<'a> {
    source: Arc<dyn Queue>,
    target: Arc<dyn Queue>,
    args: &'a args::Move,
    sizer: BatchSizer,
    emptiness: Emptiness,
    moved: u64,
    renamed: u64,
    /// Messages that were copied but could not be acknowledged, because their leases had expired.
    in_both: HashSet<MessageId>,
    /// Number of those that were copied again because the first copy was gone.
    copied_again: u64,
    /// Messages that the target rejects, with the receipt whose lease keeps them from being received again.
    refused: HashMap<MessageId, Receipt>,
    /// Errors of the first of them.
    reasons: Vec<Error>,
    /// Whether source and target are known to be different queues.
    differ: bool,
    /// Number of times that this could not be determined.
    undecided: u32,
}

impl<'a> Mover<'a> {
    fn new(source: Arc<dyn Queue>, target: Arc<dyn Queue>, args: &'a args::Move) -> Self {
        let (from, to) = (source.capabilities(), target.capabilities());
        let limits = [MAX_BATCH, from.max_receive, from.max_batch, to.max_batch];
        Self {
            sizer: BatchSizer::new(limits.into_iter().min().unwrap_or(1)),
            emptiness: Emptiness::new(from),
            source,
            target,
            args,
            moved: 0,
            renamed: 0,
            in_both: HashSet::new(),
            copied_again: 0,
            refused: HashMap::new(),
            reasons: Vec::new(),
            differ: false,
            undecided: 0,
        }
    }

    async fn run(&mut self, interrupt: &Interrupt, progress: &Progress) -> Result<()> {
        let mut waiting = false;
        while let Some(request) = self.next_request(waiting) {
            if interrupt.is_interrupted() {
                return Err(Failure::Interrupted);
            }
            let deliveries = interrupt.or(self.source.receive(request)).await??;
            let deliveries = self.hold_refused(deliveries).await?;
            if self.emptiness.record(deliveries.is_empty()) {
                if self.is_done(progress).await? {
                    return Ok(());
                }
                waiting = true;
            } else if !deliveries.is_empty() {
                waiting = false;
                progress.set_message("");
                let moved = self.moved;
                let copied = self.copy(deliveries).await;
                progress.add(self.moved - moved);
                tracing::debug!(moved = self.moved, next = self.sizer.next_size(), "moved a batch");
                copied?;
            }
        }
        Ok(())
    }

    /// Returns the next request, or `None` if enough messages were moved.
    fn next_request(&self, waiting: bool) -> Option<Receive> {
        let taken = self.moved + self.in_both.len() as u64;
        let wanted = self.args.max.map_or(u64::MAX, |max| max as u64).saturating_sub(taken);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        // A single message at first: if the queues are the same it is released.
        let max = if self.differ { self.sizer.next_size().min(wanted) } else { wanted.min(1) };
        let wait = self.emptiness.wait();
        let wait = if waiting && !self.args.no_wait { POLL_INTERVAL.max(wait) } else { wait };
        (max > 0).then(|| Receive::up_to(max).visibility(self.args.visibility).wait(wait))
    }

    /// Returns whether there is nothing left to wait for, after an empty receive.
    async fn is_done(&mut self, progress: &Progress) -> Result<bool> {
        if self.args.no_wait {
            return Ok(true);
        }
        if self.args.follow {
            progress.set_message("waiting for messages");
            return Ok(false);
        }
        let counts = self.source.counts().await?;
        let refused = self.refused.len() as u64;
        if counts.total() <= refused {
            return Ok(true);
        }
        let in_flight = counts.in_flight.saturating_sub(refused);
        progress
            .set_message(format!("waiting for {in_flight} in flight, {} delayed", counts.delayed));
        Ok(false)
    }

    /// Filters out messages that are known to be rejected, and extends their leases.
    async fn hold_refused(&mut self, deliveries: Vec<Delivery>) -> Result<Vec<Delivery>> {
        let (known, new): (Vec<_>, Vec<_>) = deliveries
            .into_iter()
            .partition(|delivery| self.refused.contains_key(&delivery.message.id));
        let mut extend = Vec::with_capacity(known.len());
        for delivery in known {
            extend.push(Settle::extend(delivery.receipt.clone(), REFUSED_LEASE));
            self.refused.insert(delivery.message.id, delivery.receipt);
        }
        settle(&self.source, extend).await?;
        Ok(new)
    }

    /// Sends received messages, and acknowledges those that the target has taken.
    async fn copy(&mut self, deliveries: Vec<Delivery>) -> Result<()> {
        let bytes = deliveries.iter().map(|delivery| delivery.message.body.len()).sum();
        self.sizer.record(deliveries.len(), bytes);
        let receipts: Vec<Receipt> = deliveries.iter().map(|one| one.receipt.clone()).collect();
        if !self.differ {
            match self.check_different(&receipts[0]).await {
                Ok(Some(())) => self.differ = true,
                // The lease expired before it could be determined; the message is received again.
                Ok(None) if self.undecided < MAX_UNDECIDED => {
                    self.undecided += 1;
                    return Ok(());
                }
                Ok(None) => {
                    let text =
                        "leases expire before a message can be copied: use a longer --visibility";
                    return Err(Failure::Usage(text.to_owned()));
                }
                Err(failure) => {
                    self.release(receipts).await;
                    return Err(failure);
                }
            }
        }
        let messages: Vec<_> = deliveries.into_iter().map(|one| self.outgoing(one)).collect();
        let outcomes = match self.store(&messages).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.release(receipts).await;
                return Err(error.into());
            }
        };
        let mut stored = Vec::new();
        let mut stored_ids = Vec::new();
        let mut others = Vec::new();
        let mut failed = Vec::new();
        let mut reason = None;
        for ((receipt, message), outcome) in receipts.into_iter().zip(&messages).zip(outcomes) {
            match outcome {
                Ok(CopyOutcome::Stored { is_renamed, is_new }) => {
                    self.renamed += u64::from(is_renamed);
                    self.copied_again += u64::from(is_new && self.in_both.contains(&message.id));
                    stored.push(Settle::acknowledge(receipt));
                    stored_ids.push(message.id);
                }
                Ok(CopyOutcome::InFlight) => {
                    let delay = self.source.capabilities().round_up(RETRY_AFTER);
                    others.push(Settle::release(receipt, delay));
                }
                Err(error @ Error::InvalidParameter { .. }) => {
                    others.push(Settle::extend(receipt.clone(), REFUSED_LEASE));
                    self.refused.insert(message.id, receipt);
                    if self.reasons.len() < MAX_REASONS {
                        self.reasons.push(error);
                    }
                }
                Err(error) => {
                    failed.push(receipt);
                    reason = Some(error);
                }
            }
        }
        self.release(failed).await;
        // Until the acknowledgement is confirmed.
        self.in_both.extend(&stored_ids);
        for (id, result) in stored_ids.iter().zip(settle(&self.source, stored).await?) {
            match result {
                Ok(()) => {
                    self.in_both.remove(id);
                    self.moved += 1;
                }
                // The lease has expired: the message is received again, unless another consumer has it.
                Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        settle(&self.source, others).await?;
        reason.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Returns the number of messages that may be processed twice.
    fn duplicates(&self) -> u64 {
        self.in_both.len() as u64 + self.copied_again
    }

    /// Sends copies to the target, and returns the outcome of each.
    async fn store(
        &self,
        messages: &[Outgoing],
    ) -> pillarbox::Result<Vec<pillarbox::Result<CopyOutcome>>> {
        let sent = self.target.send(messages.to_vec()).await?;
        let copied = |is_new| CopyOutcome::Stored { is_renamed: false, is_new };
        let mut outcomes: Vec<_> =
            sent.into_iter().map(|sent| sent.map(|sent| copied(sent.is_new))).collect();
        // A message that was not stored may exist for several reasons.
        let is_duplicate =
            |index: &usize| matches!(&outcomes[*index], Ok(one) if *one == copied(false));
        let duplicates: Vec<_> = (0..messages.len()).filter(is_duplicate).collect();
        if duplicates.is_empty() {
            return Ok(outcomes);
        }
        let renamed: HashMap<_, _> =
            duplicates.iter().map(|index| (*index, self.renamed(&messages[*index]))).collect();
        let ids = duplicates.iter().flat_map(|index| [messages[*index].id, renamed[index].id]);
        let found = find_by_id(&self.target, &ids.collect()).await?;
        let existing = |message: &Outgoing| Existing::compare(message, found.get(&message.id));
        let renamed_before = CopyOutcome::Stored { is_renamed: true, is_new: false };
        let mut again = Vec::new();
        for index in duplicates {
            match existing(&messages[index]) {
                Existing::Same => {}
                Existing::InFlight => outcomes[index] = Ok(CopyOutcome::InFlight),
                Existing::Absent => again.push((index, &messages[index], false)),
                Existing::Different => match existing(&renamed[&index]) {
                    Existing::Same => outcomes[index] = Ok(renamed_before),
                    Existing::Absent => again.push((index, &renamed[&index], true)),
                    Existing::InFlight => outcomes[index] = Ok(CopyOutcome::InFlight),
                    Existing::Different => {
                        let (queue, id) = (self.target.name(), messages[index].id.to_string());
                        let allowed = "an id that no other message of the destination has";
                        outcomes[index] = Err(Error::invalid(Some(queue), "id", id, allowed));
                    }
                },
            }
        }
        if again.is_empty() {
            return Ok(outcomes);
        }
        let batch = again.iter().map(|(_, message, _)| (*message).clone()).collect();
        for ((index, _, is_renamed), sent) in again.iter().zip(self.target.send(batch).await?) {
            outcomes[*index] = sent.map(|sent| match sent.is_new {
                true => CopyOutcome::Stored { is_renamed: *is_renamed, is_new: true },
                // Another sender was faster: it is looked at when the message is received again.
                false => CopyOutcome::InFlight,
            });
        }
        Ok(outcomes)
    }

    /// Returns the message to send to the target.
    fn outgoing(&self, delivery: Delivery) -> Outgoing {
        let Delivery { message, receipt, .. } = delivery;
        let mut outgoing = Outgoing::with_id(message.id, message.body);
        outgoing.attributes = message.attributes;
        outgoing.reply_to = message.reply_to;
        outgoing.enqueued_at = Some(message.enqueued_at);
        set_deduplication(&*self.target, &mut outgoing, &format!("move by {receipt}"));
        outgoing
    }

    /// Returns the message with a new id, which is unique and the same in every run.
    fn renamed(&self, message: &Outgoing) -> Outgoing {
        let (id, queue) = (message.id, self.source.name());
        let at = message.enqueued_at.map_or(0, Timestamp::as_nanos);
        let mut renamed = message.clone();
        renamed.id = MessageId::from_key(&format!("{id} of {queue}, sent at {at}, moved"));
        renamed
    }

    /// Checks that source and target are different queues: otherwise every message would be found at the target, and
    /// then be acknowledged. Returns `None` if this receipt cannot decide it.
    ///
    /// Different URLs may refer to the same queue. But a receipt is valid in a single queue only: if the target does
    /// not know it, and the source still does after that, the queues are different.
    async fn check_different(&self, receipt: &Receipt) -> Result<Option<()>> {
        let extend = || vec![Settle::extend(receipt.clone(), self.args.visibility)];
        let is_unknown = |error: &Error| {
            matches!(error, Error::ReceiptHandleExpired { .. } | Error::InvalidParameter { .. })
        };
        match settle(&self.target, extend()).await?.pop() {
            Some(Err(error)) if is_unknown(&error) => {}
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(())) | None => {
                let text = "source and destination are the same queue";
                return Err(Failure::Usage(text.to_owned()));
            }
        }
        match settle(&self.source, extend()).await?.pop() {
            Some(Ok(())) => Ok(Some(())),
            Some(Err(error)) if !is_unknown(&error) => Err(error.into()),
            _ => Ok(None),
        }
    }

    async fn release_refused(&self) {
        self.release(self.refused.values().cloned().collect()).await;
    }

    /// Makes messages ready again. If that fails, their leases expire.
    async fn release(&self, receipts: Vec<Receipt>) {
        let release = |receipt| Settle::release(receipt, Duration::ZERO);
        let _ = settle(&self.source, receipts.into_iter().map(release).collect()).await;
    }
}

/// Outcome of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyOutcome {
    /// The target has it, with its own id or a new one, stored now or by an earlier run.
    Stored { is_renamed: bool, is_new: bool },
    /// The target has a message with its id that is in flight or was just stored.
    InFlight,
}

#[cfg(test)]
mod tests {
    use pillarbox::{Backend, MemoryBackend};
    use pillarbox_testing::{FaultQueue, Faults};

    use super::*;
    use crate::limited_queue::LimitedQueue;

    fn args() -> args::Move {
        args::Move {
            queue: "jobs".parse().unwrap(),
            to_url: "memory:".parse().unwrap(),
            to_queue: "jobs".parse().unwrap(),
            max: None,
            no_wait: false,
            follow: false,
            visibility: Duration::from_secs(30),
        }
    }

    fn queue(backend: &MemoryBackend, name: &str) -> Arc<dyn Queue> {
        backend.queue(&name.parse().unwrap(), QueueOptions::new()).unwrap()
    }

    fn queues() -> (Arc<dyn Queue>, Arc<dyn Queue>) {
        let backend = MemoryBackend::new();
        (queue(&backend, "source"), queue(&backend, "target"))
    }

    async fn fill(queue: &Arc<dyn Queue>, bodies: impl IntoIterator<Item = &'static str>) {
        for body in bodies {
            queue.send(vec![Outgoing::new(body)]).await.unwrap().remove(0).unwrap();
        }
    }

    async fn bodies(queue: &Arc<dyn Queue>) -> Vec<String> {
        let page = queue.peek(1000, None).await.unwrap();
        let text =
            |peeked: pillarbox::Peeked| String::from_utf8(peeked.message.body.to_vec()).unwrap();
        page.messages.into_iter().map(text).collect()
    }

    async fn run(mover: &mut Mover<'_>) -> Result<()> {
        let progress = Progress::new(false, 0, "messages");
        let result = mover.run(&Interrupt::listen().unwrap(), &progress).await;
        mover.release_refused().await;
        result
    }

    #[tokio::test]
    async fn a_limited_target_gets_the_messages_it_accepts_and_the_rest_stays() {
        let (source, target) = queues();
        fill(&source, ["a", "far too long for it", "b", "c"].into_iter().cycle().take(60)).await;
        let args = args();
        let mut mover =
            Mover::new(source.clone(), Arc::new(LimitedQueue::over(target.clone())), &args);
        run(&mut mover).await.unwrap();
        assert_eq!((mover.moved, mover.refused.len(), mover.reasons.len()), (45, 15, MAX_REASONS));
        assert!(mover.reasons[0].to_string().contains("body"), "{}", mover.reasons[0]);
        assert_eq!(bodies(&target).await.len(), 45);
        let counts = source.counts().await.unwrap();
        assert_eq!((counts.ready, counts.in_flight), (15, 0), "they are ready again");
    }

    #[tokio::test]
    async fn a_limited_source_is_moved_in_small_batches_and_polled_more_than_once() {
        let (source, target) = queues();
        fill(&source, ["a"; 35]).await;
        let limited = Arc::new(LimitedQueue::over(source.clone()));
        for no_wait in [true, false] {
            let args = args::Move { no_wait, ..args() };
            run(&mut Mover::new(limited.clone(), target.clone(), &args)).await.unwrap();
            assert_eq!(source.counts().await.unwrap().total(), 0);
        }
        assert_eq!(bodies(&target).await.len(), 35);
    }

    /// A lease that expires at once does not show whether the queues are the same, so nothing may be acknowledged.
    #[tokio::test]
    async fn an_expired_lease_does_not_prove_that_the_queues_differ() {
        let backend = MemoryBackend::new();
        let source = queue(&backend, "source");
        fill(&source, ["a", "b", "c"]).await;
        let args = args::Move { visibility: Duration::ZERO, ..args() };
        for target in ["source", "target"] {
            let mut mover = Mover::new(source.clone(), queue(&backend, target), &args);
            let Err(Failure::Usage(text)) = run(&mut mover).await else {
                panic!("the queue was moved")
            };
            assert!(text.contains("a longer --visibility"), "{text}");
            assert_eq!((mover.moved, source.counts().await.unwrap().total()), (0, 3));
        }
    }

    /// A slow target: leases expire before anything can be acknowledged.
    #[tokio::test]
    async fn at_most_the_requested_number_is_copied_when_leases_expire_too_early() {
        let (source, target) = queues();
        fill(&source, ["a"; 30]).await;
        let args = args::Move { max: Some(5), visibility: Duration::from_millis(40), ..args() };
        let delay = Faults::none().delay(1.0, Duration::from_millis(60));
        let slow = FaultQueue::new(target.clone(), delay, 1);
        let mut mover = Mover { differ: true, ..Mover::new(source.clone(), slow, &args) };
        run(&mut mover).await.unwrap();
        assert_eq!(mover.moved + mover.in_both.len() as u64, 5);
        assert!(!mover.in_both.is_empty(), "no lease expired");
        assert_eq!(bodies(&target).await.len(), 5);
        assert_eq!(source.counts().await.unwrap().total(), 30 - mover.moved);
    }

    /// Leases expire before anything can be acknowledged, and another consumer takes the messages.
    #[tokio::test]
    async fn copies_whose_originals_could_not_be_acknowledged_are_counted() {
        let (source, target) = queues();
        fill(&source, ["a"; 5]).await;
        let args = args::Move { visibility: Duration::from_millis(40), ..args() };
        let delay = Faults::none().delay(1.0, Duration::from_millis(200));
        let slow = FaultQueue::new(target.clone(), delay, 1);
        let other = async {
            while source.counts().await.unwrap().in_flight == 0 {
                tokio::task::yield_now().await;
            }
            while source.counts().await.unwrap().total() > 0 {
                let request = Receive::up_to(5).wait(Duration::from_millis(10));
                let taken = source.receive(request).await.unwrap();
                let done = taken.into_iter().map(|one| Settle::acknowledge(one.receipt));
                source.settle(done.collect()).await.unwrap();
            }
        };
        let mut mover = Mover { differ: true, ..Mover::new(source.clone(), slow, &args) };
        let (result, ()) = tokio::join!(run(&mut mover), other);
        result.unwrap();
        let copied = bodies(&target).await.len() as u64;
        assert!(copied > 0);
        assert_eq!((mover.moved, mover.duplicates()), (0, copied));
    }

    #[tokio::test]
    async fn a_message_in_flight_at_the_target_is_waited_for() {
        let (source, target) = queues();
        let mut message = Outgoing::new("a");
        message.enqueued_at = Some(pillarbox::Timestamp::from_secs(7));
        for queue in [&source, &target] {
            queue.send(vec![message.clone()]).await.unwrap().remove(0).unwrap();
        }
        let delivery = target.receive(Receive::one()).await.unwrap().remove(0);
        let args = args();
        let mut mover = Mover::new(source.clone(), target.clone(), &args);
        let settled = async {
            // Until the mover has found it.
            while source.counts().await.unwrap().delayed == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(source.counts().await.unwrap().total(), 1, "nothing is acknowledged");
            target.settle(vec![Settle::acknowledge(delivery.receipt)]).await.unwrap();
        };
        let (result, ()) = tokio::join!(run(&mut mover), settled);
        result.unwrap();
        assert_eq!((mover.moved, bodies(&target).await), (1, vec!["a".to_owned()]));
    }

    #[tokio::test]
    async fn the_same_queue_is_rejected_and_nothing_stays_in_flight() {
        let backend = MemoryBackend::new();
        let source = queue(&backend, "source");
        fill(&source, ["a", "b", "c"]).await;
        let args = args();
        let failure = run(&mut Mover::new(source.clone(), queue(&backend, "source"), &args)).await;
        assert!(matches!(failure, Err(Failure::Usage(_))));
        let counts = source.counts().await.unwrap();
        assert_eq!((counts.ready, counts.in_flight), (3, 0));
    }
}
