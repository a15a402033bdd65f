//! `pillarbox move`: copy, then acknowledge.
//!
//! A message is at the source until it is at the destination, and at both for a moment. Whoever
//! kills the command in that moment and runs it again sends the message a second time under the
//! same id, which stores nothing. So nothing is lost, and nothing is there twice in the end.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{
    Delivery, Error, Mailboxes, MessageId, Outgoing, Queue, QueueName, QueueOptions, Receipt,
    Receive, Settle,
};
use serde::Serialize;

use super::settle::settle;
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::output::{Progress, text};
use crate::pace::Pace;

/// More at a time makes it no faster.
const MAX_BATCH: usize = 500;
/// How long to wait for a message before looking whether the queue is empty.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How often in a row a queue must be found empty where counts lag behind.
const LAGGING_LOOKS: u32 = 5;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    dest_queue: &'a QueueName,
    moved: u64,
    refused: u64,
    left: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Move) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    using(context.open_existing().await?, async |source| {
        let target = pillarbox::open(args.to_url.reveal()).await?;
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
            "{} stores an id again that it holds: if this is interrupted, a message may be there twice",
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

    for (_, error) in mover.refused.values() {
        context.out.error(&format!("left where it was: {error}"));
    }
    let left = mover.source.counts().await?.total();
    let (moved, refused) = (mover.moved, mover.refused.len() as u64);
    if context.out.is_json() {
        let (queue, dest_queue) = (&args.queue, &args.to_queue);
        context.out.json(&Line { queue, dest_queue, moved, refused, left })?;
    } else {
        let left = if left == 0 { "none".to_owned() } else { left.to_string() };
        let moved = text::count(moved, "message");
        context.out.line(&format!(
            "{moved} moved to '{}' at {}; {left} left",
            args.to_queue, args.to_url
        ))?;
    }
    match result {
        Ok(()) if refused > 0 => Err(Failure::Reported),
        Ok(()) => Ok(()),
        Err(failure) => {
            context.out.note("nothing is lost; run the same command again to go on");
            Err(failure)
        }
    }
}

struct Mover<'a> {
    source: Arc<dyn Queue>,
    target: Arc<dyn Queue>,
    args: &'a args::Move,
    pace: Pace,
    moved: u64,
    /// What the target does not take, with the receipt that keeps it from coming back at once.
    refused: HashMap<MessageId, (Receipt, Error)>,
    known_to_differ: bool,
}

impl<'a> Mover<'a> {
    fn new(source: Arc<dyn Queue>, target: Arc<dyn Queue>, args: &'a args::Move) -> Self {
        let (from, to) = (source.capabilities(), target.capabilities());
        let limits = [MAX_BATCH, from.max_receive, from.max_batch, to.max_batch];
        let pace = Pace::new(limits.into_iter().min().unwrap_or(1));
        let refused = HashMap::new();
        Self { source, target, args, pace, moved: 0, refused, known_to_differ: false }
    }

    async fn run(&mut self, interrupt: &Interrupt, progress: &Progress) -> Result<()> {
        let mut found_empty = 0;
        loop {
            let wanted = self.args.max.map_or(u64::MAX, |max| max as u64) - self.moved;
            if wanted == 0 {
                return Ok(());
            }
            if interrupt.is_told() {
                return Err(Failure::Interrupted);
            }
            let max = self.pace.next_up_to(usize::try_from(wanted).unwrap_or(usize::MAX));
            // The first time without waiting; later it is known that there is something to wait for.
            let wait =
                if found_empty == 0 || self.args.no_wait { Duration::ZERO } else { LOOK_EVERY };
            let request = Receive::up_to(max).visibility(self.args.visibility).wait(wait);
            let deliveries = interrupt.or(self.source.receive(request)).await??;
            if deliveries.is_empty() {
                found_empty += 1;
                if self.is_done(found_empty, progress).await? {
                    return Ok(());
                }
                continue;
            }
            found_empty = 0;
            progress.say("");
            let bytes = deliveries.iter().map(|delivery| delivery.message.body.len()).sum();
            self.pace.seen(deliveries.len(), bytes);
            let moved = self.copy(deliveries).await?;
            self.moved += moved;
            progress.add(moved);
        }
    }

    /// Whether there is nothing more to wait for, when nothing was ready.
    async fn is_done(&self, found_empty: u32, progress: &Progress) -> Result<bool> {
        if self.args.no_wait {
            return Ok(true);
        }
        if self.args.follow {
            progress.say("waiting for messages");
            return Ok(false);
        }
        let counts = self.source.counts().await?;
        let held = self.refused.len() as u64;
        if counts.total() > held {
            let in_flight = counts.in_flight.saturating_sub(held);
            progress.say(format!("waiting for {in_flight} in flight, {} delayed", counts.delayed));
            return Ok(false);
        }
        let looks = if self.source.capabilities().exact_counts { 1 } else { LAGGING_LOOKS };
        Ok(found_empty >= looks)
    }

    /// Sends what was received, and acknowledges what the target has taken. Says how many.
    async fn copy(&mut self, deliveries: Vec<Delivery>) -> Result<u64> {
        let mut receipts: Vec<Receipt> = deliveries.iter().map(|one| one.receipt.clone()).collect();
        let copied = self.copy_unless_same(deliveries).await;
        let results = match copied {
            Ok(results) => results,
            Err(failure) => {
                self.give_back(receipts).await;
                return Err(failure);
            }
        };
        let mut stored = Vec::new();
        let mut failed = Vec::new();
        let mut reason = None;
        for (receipt, (id, result)) in receipts.drain(..).zip(results) {
            match result {
                Ok(_) => stored.push(Settle::acknowledge(receipt)),
                Err(error @ Error::InvalidParameter { .. }) => {
                    self.refused.insert(id, (receipt, error));
                }
                Err(error) => {
                    failed.push(receipt);
                    reason = Some(error);
                }
            }
        }
        self.give_back(failed).await;
        let mut moved = 0;
        for result in settle(&self.source, stored).await? {
            match result {
                Ok(()) => moved += 1,
                // The lease has ended meanwhile: the message comes again, and is not stored again.
                Err(Error::ReceiptHandleExpired { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match reason {
            Some(error) => Err(error.into()),
            None => Ok(moved),
        }
    }

    async fn copy_unless_same(
        &mut self,
        deliveries: Vec<Delivery>,
    ) -> Result<Vec<(MessageId, pillarbox::Result<MessageId>)>> {
        if let Some(first) = deliveries.first()
            && !self.known_to_differ
        {
            self.refuse_same_queue(&first.receipt).await?;
        }
        let ids: Vec<_> = deliveries.iter().map(|delivery| delivery.message.id).collect();
        let messages = deliveries.into_iter().map(outgoing).collect();
        Ok(ids.into_iter().zip(self.target.send(messages).await?).collect())
    }

    /// Refuses to move a queue onto itself: its messages would be found there, and acknowledged.
    ///
    /// Two URLs may lead to one place. But a receipt is valid in one queue of the world only.
    async fn refuse_same_queue(&mut self, receipt: &Receipt) -> Result<()> {
        let extend = Settle::extend(receipt.clone(), self.args.visibility);
        if let Ok(results) = self.target.settle(vec![extend]).await
            && results.iter().any(Result::is_ok)
        {
            let text = "the queue cannot be moved: this and the destination are the same queue";
            return Err(Failure::Usage(text.to_owned()));
        }
        self.known_to_differ = true;
        Ok(())
    }

    async fn release_refused(&self) {
        self.give_back(self.refused.values().map(|(receipt, _)| receipt.clone()).collect()).await;
    }

    /// Makes messages ready again. Where that fails, their leases end by themselves.
    async fn give_back(&self, receipts: Vec<Receipt>) {
        let nack = |receipt| Settle::nack(receipt, Duration::ZERO);
        let _ = settle(&self.source, receipts.into_iter().map(nack).collect()).await;
    }
}

/// The same message, to be sent elsewhere.
fn outgoing(delivery: Delivery) -> Outgoing {
    let message = delivery.message;
    let mut outgoing = Outgoing::with_id(message.id, message.body);
    outgoing.attributes = message.attributes;
    outgoing.reply_to = message.reply_to;
    outgoing.enqueued_at = Some(message.enqueued_at);
    outgoing
}
