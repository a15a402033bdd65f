//! `pillarbox drain`
//!
//! Drained messages may be loaded into the same queue, as in `drain q | jq … | load q`. A message that comes back while
//! the command runs is held until the end and then released: otherwise the command would drain its own output forever.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use pillarbox::{Delivery, Queue, QueueOptions, Receive, Settle};
use pillarbox_core::internal::{BatchSizer, Emptiness};

use super::settle::{settle, settle_written};
use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::message_json::MessageJson;
use crate::output::{Out, text};

pub(crate) async fn run(context: &mut Context, args: args::Drain) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        context.write_to(&args.file)?;
        if context.out.is_discarded() {
            let text = "stdout is closed or /dev/null, so the messages would be lost: nothing was drained. \
                        Use --output FILE; `pillarbox purge` deletes messages";
            return Err(Failure::Usage(text.to_owned()));
        }
        let progress = context.out.progress(queue.counts().await?.ready, "messages");
        let capabilities = queue.capabilities();
        let mut sizer = BatchSizer::new(capabilities.max_receive.min(capabilities.max_batch));
        let mut emptiness = Emptiness::new(capabilities);
        let max = args.max.unwrap_or(usize::MAX);
        let mut drained = 0;
        let mut seen = HashSet::new();
        let mut returned = HashMap::new();
        let result: Result<()> = async {
            while drained < max && !interrupt.is_interrupted() {
                let request = Receive::up_to(sizer.next_size().min(max - drained))
                    .visibility(args.visibility)
                    .wait(emptiness.wait());
                let deliveries = interrupt.or(queue.receive(request)).await??;
                let bytes = deliveries.iter().map(|one| one.message.body.len()).sum();
                sizer.record(deliveries.len(), bytes);
                let (back, deliveries): (Vec<_>, Vec<_>) =
                    deliveries.into_iter().partition(|one| seen.contains(&one.message.id));
                returned.extend(back.into_iter().map(|one| (one.message.id, one.receipt)));
                if emptiness.record(deliveries.is_empty()) {
                    break;
                }
                drained += deliveries.len();
                progress.add(deliveries.len() as u64);
                let ids: Vec<_> = deliveries.iter().map(|one| one.message.id).collect();
                write(&mut context.out, &queue, deliveries).await?;
                seen.extend(ids);
                tracing::debug!(drained, next = sizer.next_size(), "drained a batch");
            }
            Ok(())
        }
        .await;
        // If that fails, their leases expire.
        let release = |receipt| Settle::release(receipt, Duration::ZERO);
        let _ = settle(&queue, returned.into_values().map(release).collect()).await;
        if let Err(Failure::Output(error)) = &result
            && error.kind() == io::ErrorKind::BrokenPipe
        {
            let drained = text::count(seen.len() as u64, "message");
            return Err(Failure::Other(format!(
                "the output was closed: {drained} written and acknowledged, the last of which may not have been \
                 read; the others are still in the queue"
            )));
        }
        result?;
        drop(progress);
        let left = queue.counts().await?;
        let (drained, left) = (drained as u64, left.total());
        if left > 0 {
            let (drained, left) = (text::count(drained, "message"), text::count(left, "message"));
            context
                .out
                .note(&format!("{drained} drained; {left} still in the queue: see `pillarbox stats`"));
        } else if drained == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
        }
        if interrupt.is_interrupted() { Err(Failure::Interrupted) } else { Ok(()) }
    })
    .await
}

/// Writes a batch and then acknowledges it, or releases it if it cannot be written.
async fn write(out: &mut Out, queue: &Arc<dyn Queue>, deliveries: Vec<Delivery>) -> Result<()> {
    let name = queue.name();
    let written = deliveries
        .iter()
        .try_for_each(|delivery| out.json(&MessageJson::drained(name, delivery)))
        .and_then(|()| out.sync());
    let receipts = deliveries.into_iter().map(|delivery| delivery.receipt);
    let settles = match &written {
        Ok(()) => receipts.map(Settle::acknowledge).collect(),
        Err(_) => receipts.map(|receipt| Settle::release(receipt, Duration::ZERO)).collect(),
    };
    settle_written(out, queue, settles, written).await
}
