//! `pillarbox drain`

use std::sync::Arc;
use std::time::Duration;

use pillarbox::{Delivery, Mailboxes, Queue, QueueOptions, Receive, Settle};

use super::settle::settle_all;
use super::using;
use crate::args;
use crate::context::Context;
use crate::emptiness::Emptiness;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::line::Line;
use crate::output::{Out, text};
use crate::pace::Pace;

pub(crate) async fn run(context: &mut Context, args: args::Drain) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    using(context.open_existing().await?, async |backend| {
        drain(context, backend, &interrupt, &args).await
    })
    .await
}

async fn drain(
    context: &mut Context,
    backend: &Mailboxes,
    interrupt: &Interrupt,
    args: &args::Drain,
) -> Result<()> {
    let queue = backend.queue(&args.queue, QueueOptions::new())?;
    context.write_to(&args.file)?;
    if context.out.is_discarded() {
        let text = "what is drained would be gone, for stdout is closed or /dev/null: nothing was drained. \
                    Say where to by --output FILE; `pillarbox purge` deletes messages";
        return Err(Failure::Usage(text.to_owned()));
    }
    let progress = context.out.progress(queue.counts().await?.ready, "messages");
    let mut pace = Pace::new(queue.capabilities().max_receive.min(queue.capabilities().max_batch));
    let mut emptiness = Emptiness::new(queue.capabilities());
    let max = args.max.unwrap_or(usize::MAX);
    let mut drained = 0;
    while drained < max && !interrupt.is_told() {
        let request = Receive::up_to(pace.next_up_to(max - drained))
            .visibility(args.visibility)
            .wait(emptiness.patience());
        let deliveries = interrupt.or(queue.receive(request)).await??;
        if emptiness.saw(deliveries.is_empty()) {
            break;
        }
        drained += deliveries.len();
        pace.seen(deliveries.len(), deliveries.iter().map(|one| one.message.body.len()).sum());
        progress.add(deliveries.len() as u64);
        write(&mut context.out, &queue, deliveries).await?;
        tracing::debug!(drained, next = pace.next(), "drained a batch");
    }
    drop(progress);
    let left = queue.counts().await?;
    let (drained, left) = (drained as u64, left.total());
    if left > 0 {
        let (drained, left) = (text::count(drained, "message"), text::count(left, "message"));
        context.out.note(&format!("{drained} drained; {left} still there: `stats` tells why"));
    } else if drained == 0 {
        context.note_if_unknown(backend, &args.queue).await?;
    }
    if interrupt.is_told() { Err(Failure::Interrupted) } else { Ok(()) }
}

/// Writes a batch and acknowledges it, once it is where it was sent to. If it cannot be written it
/// goes back.
async fn write(out: &mut Out, queue: &Arc<dyn Queue>, deliveries: Vec<Delivery>) -> Result<()> {
    let name = queue.name();
    let written = deliveries
        .iter()
        .try_for_each(|delivery| out.json(&Line::drained(name, delivery)))
        .and_then(|()| out.keep());
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt);
    let settles = match &written {
        Ok(()) => receipts.map(Settle::acknowledge).collect(),
        Err(_) => receipts.map(|receipt| Settle::nack(receipt, Duration::ZERO)).collect(),
    };
    let settled = settle_all(out, queue, settles).await;
    written.and(settled)
}
