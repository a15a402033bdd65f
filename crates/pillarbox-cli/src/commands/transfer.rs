//! `pillarbox move`: copy, then acknowledge.
//!
//! A message is at the source until it is at the destination, and at both for a moment. Whoever
//! kills the command in that moment and runs it again sends the message a second time under the
//! same id, which stores nothing; it is then acknowledged only if what is there is the same message
//! and nobody holds it (see [`duplicate`](super::duplicate)). Of two commands that move a message in
//! opposite directions, each holds its own copy while it looks at the other: both cannot see the
//! other's copy unheld, so one of them leaves its own.
//!
//! Ids are per queue. Where the destination has another message of the same id, the copy gets an id of
//! its own, made of where it comes from: the same one each time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{
    Delivery, Error, Mailboxes, MessageId, Outgoing, Queue, QueueName, QueueOptions, Receipt,
    Receive, Settle, Timestamp,
};
use serde::Serialize;

use super::duplicate::{RETRY_AFTER, There, look_for, store_anew};
use super::settle::settle;
use super::using;
use crate::args;
use crate::context::Context;
use crate::emptiness::Emptiness;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Progress, text};
use crate::pace::Pace;

/// More at a time makes it no faster.
const MAX_BATCH: usize = 500;
/// How long to wait for a message before looking whether the queue is empty.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long a message that the target refuses is kept from coming back.
const REFUSED_LEASE: Duration = Duration::from_secs(600);
/// A lease that is shorter does not last until its message is copied.
const MIN_VISIBILITY: Duration = Duration::from_secs(1);
/// How often a lease may end before it is known whether the queues differ.
const UNDECIDED: u32 = 20;
/// Of how many refused messages it is said why.
const REASONS: usize = 10;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    dest_queue: &'a QueueName,
    moved: u64,
    /// Of those, how many have another id now.
    renamed: u64,
    refused: u64,
    /// How many copies were made whose originals could not be acknowledged.
    duplicates: u64,
    /// Not known if the source does not answer.
    left: Option<u64>,
}

pub(crate) async fn run(context: &mut Context, args: args::Move) -> Result<()> {
    if args.visibility < MIN_VISIBILITY {
        let text = "leases end before messages are copied: say --visibility of at least 1s";
        return Err(Failure::Usage(text.to_owned()));
    }
    let interrupt = Interrupt::listen()?;
    using(interrupt.or(context.open_existing()).await??, async |source| {
        let target = interrupt.or(pillarbox::open(args.to_url.reveal())).await?;
        let target =
            target.map_err(|error| Failure::from(error).without_secrets_of(&args.to_url))?;
        using(target, async |target| transfer(context, source, target, &interrupt, &args).await)
            .await
    })
    .await
}

async fn transfer(
    context: &mut Context,
    source: &Mailboxes,
    target: &Mailboxes,
    interrupt: &Interrupt,
    args: &args::Move,
) -> Result<()> {
    if !target.capabilities().durable {
        return Err(Failure::Usage(format!(
            "what is moved to {} would be gone when this command ends",
            args.to_url
        )));
    }
    if !target.capabilities().idempotent_send {
        context.out.note(&format!(
            "{} stores an id again that it holds: if this is interrupted, or a lease ends before its \
             message is copied, a message is there twice",
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
    summarise(context, args, &mover).await?;
    match result {
        Ok(()) if mover.refused.is_empty() && mover.duplicates() == 0 => Ok(()),
        Ok(()) => Err(Failure::Reported),
        Err(failure) => {
            context.out.note(
                "no message was deleted before the destination had it; run the same command again to go on",
            );
            Err(failure)
        }
    }
}

async fn summarise(context: &mut Context, args: &args::Move, mover: &Mover<'_>) -> Result<()> {
    for error in &mover.reasons {
        context.out.error(&format!("left where it was: {error}"));
    }
    let (moved, refused) = (mover.moved, mover.refused.len() as u64);
    if refused > mover.reasons.len() as u64 {
        context.out.error(&format!("and others: {refused} messages were left where they were"));
    }
    if mover.renamed > 0 {
        let messages = text::count(mover.renamed, "message");
        let queue = &args.to_queue;
        context.out.note(&format!(
            "{messages} moved under a new id: '{queue}' has another message of the same id"
        ));
    }
    let duplicates = mover.duplicates();
    if duplicates > 0 {
        let messages = text::count(duplicates, "message");
        context.out.error(&format!(
            "{messages} copied and not acknowledged here: their leases expired before that, and they may be \
             handled twice. Move with a longer --visibility"
        ));
    }
    // If the source does not answer, the reason is told after this.
    let left = mover.source.counts().await.ok().map(|counts| counts.total());
    if context.out.is_json() {
        let (queue, dest_queue, renamed) = (&args.queue, &args.to_queue, mover.renamed);
        let line = Line { queue, dest_queue, moved, renamed, refused, duplicates, left };
        return context.out.json(&line);
    }
    let left = match left {
        Some(0) => "; none left".to_owned(),
        Some(left) => format!("; {left} left"),
        None => String::new(),
    };
    let moved = text::count(moved, "message");
    context.out.line(&format!("{moved} moved to '{}' at {}{left}", args.to_queue, args.to_url))
}

struct Mover<'a> {
    source: Arc<dyn Queue>,
    target: Arc<dyn Queue>,
    args: &'a args::Move,
    pace: Pace,
    emptiness: Emptiness,
    moved: u64,
    renamed: u64,
    /// What was copied and could not be acknowledged, for its lease had expired.
    in_both: HashSet<MessageId>,
    /// How many were copied again after that, for the first copy was gone.
    copied_again: u64,
    /// What the target does not take, with the receipt that keeps it from coming back.
    refused: HashMap<MessageId, Receipt>,
    /// Why, for the first of them.
    reasons: Vec<Error>,
    /// Whether source and target are known not to be the same queue.
    differ: bool,
    /// How often that could not be told.
    undecided: u32,
}

impl<'a> Mover<'a> {
    fn new(source: Arc<dyn Queue>, target: Arc<dyn Queue>, args: &'a args::Move) -> Self {
        let (from, to) = (source.capabilities(), target.capabilities());
        let limits = [MAX_BATCH, from.max_receive, from.max_batch, to.max_batch];
        Self {
            pace: Pace::new(limits.into_iter().min().unwrap_or(1)),
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
            if interrupt.is_told() {
                return Err(Failure::Interrupted);
            }
            let deliveries = interrupt.or(self.source.receive(request)).await??;
            let deliveries = self.hold_refused(deliveries).await?;
            if self.emptiness.saw(deliveries.is_empty()) {
                if self.is_done(progress).await? {
                    return Ok(());
                }
                waiting = true;
            } else if !deliveries.is_empty() {
                waiting = false;
                progress.say("");
                let moved = self.moved;
                let copied = self.copy(deliveries).await;
                progress.add(self.moved - moved);
                tracing::debug!(moved = self.moved, next = self.pace.next(), "moved a batch");
                copied?;
            }
        }
        Ok(())
    }

    /// What to receive next. `None`: enough were moved.
    fn next_request(&self, waiting: bool) -> Option<Receive> {
        let taken = self.moved + self.in_both.len() as u64;
        let wanted = self.args.max.map_or(u64::MAX, |max| max as u64).saturating_sub(taken);
        let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
        // One to begin with, for if the queues are the same it is given back.
        let max = if self.differ { self.pace.next_up_to(wanted) } else { wanted.min(1) };
        let patience = self.emptiness.patience();
        let wait = if waiting && !self.args.no_wait { LOOK_EVERY.max(patience) } else { patience };
        (max > 0).then(|| Receive::up_to(max).visibility(self.args.visibility).wait(wait))
    }

    /// Whether there is nothing more to wait for, when nothing came.
    async fn is_done(&mut self, progress: &Progress) -> Result<bool> {
        if self.args.no_wait {
            return Ok(true);
        }
        if self.args.follow {
            progress.say("waiting for messages");
            return Ok(false);
        }
        let counts = self.source.counts().await?;
        let held = self.refused.len() as u64;
        if counts.total() <= held {
            return Ok(true);
        }
        let in_flight = counts.in_flight.saturating_sub(held);
        progress.say(format!("waiting for {in_flight} in flight, {} delayed", counts.delayed));
        Ok(false)
    }

    /// Sets apart what is known to be refused, and keeps it from coming back for a while.
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

    /// Sends what was received, and acknowledges what the target has taken.
    async fn copy(&mut self, deliveries: Vec<Delivery>) -> Result<()> {
        let bytes = deliveries.iter().map(|delivery| delivery.message.body.len()).sum();
        self.pace.seen(deliveries.len(), bytes);
        let receipts: Vec<Receipt> = deliveries.iter().map(|one| one.receipt.clone()).collect();
        if !self.differ {
            match self.compare(&receipts[0]).await {
                Ok(Some(())) => self.differ = true,
                // The lease ended before anything could be told; the message comes again.
                Ok(None) if self.undecided < UNDECIDED => {
                    self.undecided += 1;
                    return Ok(());
                }
                Ok(None) => {
                    let text =
                        "leases end before a message can be copied: say a longer --visibility";
                    return Err(Failure::Usage(text.to_owned()));
                }
                Err(failure) => {
                    self.give_back(receipts).await;
                    return Err(failure);
                }
            }
        }
        let messages: Vec<_> = deliveries.into_iter().map(|one| self.outgoing(one)).collect();
        let outcomes = match self.store(&messages).await {
            Ok(outcomes) => outcomes,
            Err(error) => {
                self.give_back(receipts).await;
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
                Ok(Copied::There { is_renamed, is_new }) => {
                    self.renamed += u64::from(is_renamed);
                    self.copied_again += u64::from(is_new && self.in_both.contains(&message.id));
                    stored.push(Settle::acknowledge(receipt));
                    stored_ids.push(message.id);
                }
                Ok(Copied::InFlight) => {
                    let delay = self.source.capabilities().round_up(RETRY_AFTER);
                    others.push(Settle::release(receipt, delay));
                }
                Err(error @ Error::InvalidParameter { .. }) => {
                    others.push(Settle::extend(receipt.clone(), REFUSED_LEASE));
                    self.refused.insert(message.id, receipt);
                    if self.reasons.len() < REASONS {
                        self.reasons.push(error);
                    }
                }
                Err(error) => {
                    failed.push(receipt);
                    reason = Some(error);
                }
            }
        }
        self.give_back(failed).await;
        // Until it is known to be acknowledged.
        self.in_both.extend(&stored_ids);
        for (id, result) in stored_ids.iter().zip(settle(&self.source, stored).await?) {
            match result {
                Ok(()) => {
                    self.in_both.remove(id);
                    self.moved += 1;
                }
                // The lease has expired meanwhile: the message comes again, unless somebody else has it.
                Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        settle(&self.source, others).await?;
        reason.map_or(Ok(()), |error| Err(error.into()))
    }

    /// The number of messages that may be handled twice.
    fn duplicates(&self) -> u64 {
        self.in_both.len() as u64 + self.copied_again
    }

    /// Sends copies to the target, and says of each whether it is there.
    async fn store(
        &self,
        messages: &[Outgoing],
    ) -> pillarbox::Result<Vec<pillarbox::Result<Copied>>> {
        let sent = self.target.send(messages.to_vec()).await?;
        let copied = |is_new| Copied::There { is_renamed: false, is_new };
        let mut outcomes: Vec<_> =
            sent.into_iter().map(|sent| sent.map(|sent| copied(sent.is_new))).collect();
        // What was not stored may be there for many reasons.
        let is_duplicate =
            |place: &usize| matches!(&outcomes[*place], Ok(one) if *one == copied(false));
        let places: Vec<_> = (0..messages.len()).filter(is_duplicate).collect();
        if places.is_empty() {
            return Ok(outcomes);
        }
        let renamed: HashMap<_, _> =
            places.iter().map(|place| (*place, self.renamed(&messages[*place]))).collect();
        let ids = places.iter().flat_map(|place| [messages[*place].id, renamed[place].id]);
        let found = look_for(&self.target, &ids.collect()).await?;
        let there = |message: &Outgoing| There::of(message, found.get(&message.id));
        let mut again = Vec::new();
        for place in places {
            match there(&messages[place]) {
                There::Same => {}
                There::InFlight => outcomes[place] = Ok(Copied::InFlight),
                There::Nothing => again.push((place, &messages[place], false)),
                There::Other => match there(&renamed[&place]) {
                    There::Same => {
                        outcomes[place] = Ok(Copied::There { is_renamed: true, is_new: false });
                    }
                    There::Nothing => again.push((place, &renamed[&place], true)),
                    There::InFlight => outcomes[place] = Ok(Copied::InFlight),
                    There::Other => {
                        let (queue, id) = (self.target.name(), messages[place].id.to_string());
                        let allowed = "an id that no other message of the destination has";
                        outcomes[place] = Err(Error::invalid(Some(queue), "id", id, allowed));
                    }
                },
            }
        }
        if again.is_empty() {
            return Ok(outcomes);
        }
        let batch = again.iter().map(|(_, message, _)| (*message).clone()).collect();
        for ((place, _, is_renamed), sent) in again.iter().zip(self.target.send(batch).await?) {
            outcomes[*place] = sent.map(|sent| match sent.is_new {
                true => Copied::There { is_renamed: *is_renamed, is_new: true },
                // Somebody else was quicker: it is looked at when it comes again.
                false => Copied::InFlight,
            });
        }
        Ok(outcomes)
    }

    /// The same message, to be sent to the target.
    fn outgoing(&self, delivery: Delivery) -> Outgoing {
        let Delivery { message, receipt, .. } = delivery;
        let mut outgoing = Outgoing::with_id(message.id, message.body);
        outgoing.attributes = message.attributes;
        outgoing.reply_to = message.reply_to;
        outgoing.enqueued_at = Some(message.enqueued_at);
        store_anew(&*self.target, &mut outgoing, &format!("move by {receipt}"));
        outgoing
    }

    /// The same message under an id that no message of the target has but itself.
    fn renamed(&self, message: &Outgoing) -> Outgoing {
        let (id, queue) = (message.id, self.source.name());
        let at = message.enqueued_at.map_or(0, Timestamp::as_nanos);
        let mut renamed = message.clone();
        renamed.id = MessageId::from_key(&format!("{id} of {queue}, sent at {at}, moved"));
        renamed
    }

    /// Makes sure that a queue is not moved onto itself, where its messages would be found to be
    /// already, and then be acknowledged. `None`: it cannot be told by this receipt.
    ///
    /// Two URLs may lead to one place. But a receipt is valid in one queue of the world only: if the
    /// target does not know it, and the source still does after that, they are not the same.
    async fn compare(&self, receipt: &Receipt) -> Result<Option<()>> {
        let extend = || vec![Settle::extend(receipt.clone(), self.args.visibility)];
        let is_unknown = |error: &Error| {
            matches!(error, Error::ReceiptHandleExpired { .. } | Error::InvalidParameter { .. })
        };
        match settle(&self.target, extend()).await?.pop() {
            Some(Err(error)) if is_unknown(&error) => {}
            Some(Err(error)) => return Err(error.into()),
            Some(Ok(())) | None => {
                let text = "the queue cannot be moved: this and the destination are the same queue";
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
        self.give_back(self.refused.values().cloned().collect()).await;
    }

    /// Makes messages ready again. Where that fails, their leases end by themselves.
    async fn give_back(&self, receipts: Vec<Receipt>) {
        let release = |receipt| Settle::release(receipt, Duration::ZERO);
        let _ = settle(&self.source, receipts.into_iter().map(release).collect()).await;
    }
}

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copied {
    /// It is at the target, under its own id or another one; stored now, or by an earlier run.
    There { is_renamed: bool, is_new: bool },
    /// The target has a message of its id that is in flight, or that has just come.
    InFlight,
}

#[cfg(test)]
mod tests {
    use pillarbox::{Backend, MemoryBackend};
    use pillarbox_testing::{FaultQueue, Faults};

    use super::*;
    use crate::narrow::Narrow;

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
    async fn a_narrow_target_gets_what_it_takes_and_the_rest_stays() {
        let backend = MemoryBackend::new();
        let (source, target) = (queue(&backend, "source"), queue(&backend, "target"));
        fill(&source, ["a", "far too long for it", "b", "c"].into_iter().cycle().take(60)).await;
        let args = args();
        let mut mover = Mover::new(source.clone(), Arc::new(Narrow::over(target.clone())), &args);
        run(&mut mover).await.unwrap();
        assert_eq!((mover.moved, mover.refused.len(), mover.reasons.len()), (45, 15, REASONS));
        assert!(mover.reasons[0].to_string().contains("body"), "{}", mover.reasons[0]);
        assert_eq!(bodies(&target).await.len(), 45);
        let left = source.counts().await.unwrap();
        assert_eq!((left.ready, left.in_flight), (15, 0), "they are ready again");
    }

    #[tokio::test]
    async fn a_narrow_source_is_moved_in_small_batches_and_asked_more_than_once() {
        let backend = MemoryBackend::new();
        let (source, target) = (queue(&backend, "source"), queue(&backend, "target"));
        fill(&source, ["a"; 35]).await;
        let narrow = Arc::new(Narrow::over(source.clone()));
        for no_wait in [true, false] {
            let args = args::Move { no_wait, ..args() };
            run(&mut Mover::new(narrow.clone(), target.clone(), &args)).await.unwrap();
            assert_eq!(source.counts().await.unwrap().total(), 0);
        }
        assert_eq!(bodies(&target).await.len(), 35);
    }

    /// A lease that ends at once tells nothing of whether the queues are the same: nothing may be
    /// acknowledged by it.
    #[tokio::test]
    async fn an_ended_lease_is_no_proof_that_the_queues_differ() {
        let backend = MemoryBackend::new();
        let source = queue(&backend, "source");
        fill(&source, ["a", "b", "c"]).await;
        let args = args::Move { visibility: Duration::ZERO, ..args() };
        for target in ["source", "target"] {
            let mut mover = Mover::new(source.clone(), queue(&backend, target), &args);
            let Err(Failure::Usage(text)) = run(&mut mover).await else { panic!("it was moved") };
            assert!(text.contains("a longer --visibility"), "{text}");
            assert_eq!((mover.moved, source.counts().await.unwrap().total()), (0, 3));
        }
    }

    /// A target that takes its time: leases end before anything can be acknowledged.
    #[tokio::test]
    async fn no_more_than_asked_for_is_copied_when_leases_end_too_early() {
        let backend = MemoryBackend::new();
        let (source, target) = (queue(&backend, "source"), queue(&backend, "target"));
        fill(&source, ["a"; 30]).await;
        let args = args::Move { max: Some(5), visibility: Duration::from_millis(40), ..args() };
        let slow = FaultQueue::new(
            target.clone(),
            Faults::none().delay(1.0, Duration::from_millis(60)),
            1,
        );
        let mut mover = Mover { differ: true, ..Mover::new(source.clone(), slow, &args) };
        run(&mut mover).await.unwrap();
        assert_eq!(mover.moved + mover.in_both.len() as u64, 5);
        assert!(!mover.in_both.is_empty(), "no lease ended");
        assert_eq!(bodies(&target).await.len(), 5);
        assert_eq!(source.counts().await.unwrap().total(), 30 - mover.moved);
    }

    /// Leases expire before anything can be acknowledged, and somebody else takes the messages.
    #[tokio::test]
    async fn what_was_copied_and_could_not_be_acknowledged_is_counted() {
        let backend = MemoryBackend::new();
        let (source, target) = (queue(&backend, "source"), queue(&backend, "target"));
        fill(&source, ["a"; 5]).await;
        let args = args::Move { visibility: Duration::from_millis(40), ..args() };
        let delay = Faults::none().delay(1.0, Duration::from_millis(200));
        let slow = FaultQueue::new(target.clone(), delay, 1);
        let other = {
            let source = source.clone();
            tokio::spawn(async move {
                while source.counts().await.unwrap().in_flight == 0 {
                    tokio::task::yield_now().await;
                }
                while source.counts().await.unwrap().total() > 0 {
                    let request = Receive::up_to(5).wait(Duration::from_millis(10));
                    let taken = source.receive(request).await.unwrap();
                    let done = taken.into_iter().map(|one| Settle::acknowledge(one.receipt));
                    source.settle(done.collect()).await.unwrap();
                }
            })
        };
        let mut mover = Mover { differ: true, ..Mover::new(source.clone(), slow, &args) };
        run(&mut mover).await.unwrap();
        other.await.unwrap();
        let copied = bodies(&target).await.len() as u64;
        assert!(copied > 0);
        assert_eq!((mover.moved, mover.duplicates()), (0, copied));
    }

    #[tokio::test]
    async fn a_message_that_somebody_holds_at_the_target_is_waited_for() {
        let backend = MemoryBackend::new();
        let (source, target) = (queue(&backend, "source"), queue(&backend, "target"));
        let mut message = Outgoing::new("a");
        message.enqueued_at = Some(pillarbox::Timestamp::from_secs(7));
        for queue in [&source, &target] {
            queue.send(vec![message.clone()]).await.unwrap().remove(0).unwrap();
        }
        let held = target.receive(Receive::one()).await.unwrap().remove(0);
        let args = args();
        let mut mover = Mover::new(source.clone(), target.clone(), &args);
        let settled = async {
            // Until the mover has met it.
            while source.counts().await.unwrap().delayed == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(source.counts().await.unwrap().total(), 1, "nothing is acknowledged");
            target.settle(vec![Settle::acknowledge(held.receipt)]).await.unwrap();
        };
        let (result, ()) = tokio::join!(run(&mut mover), settled);
        result.unwrap();
        assert_eq!((mover.moved, bodies(&target).await), (1, vec!["a".to_owned()]));
    }

    #[tokio::test]
    async fn the_same_queue_is_refused_and_nothing_is_held() {
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
