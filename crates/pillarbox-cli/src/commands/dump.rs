//! `pillarbox dump`

use std::collections::HashSet;
use std::sync::Arc;

use pillarbox::{MessageId, Queue, QueueOptions};

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::Result;
use crate::line::{Fidelity, Line};
use crate::output::{Out, Progress};
use crate::pace::Pace;

/// How often the queue is gone through while messages turn up that were not seen before.
const MAX_PASSES: u32 = 20;

pub(crate) async fn run(context: &mut Context, args: args::Dump) -> Result<()> {
    using(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        context.write_to(&args.file)?;
        let total = queue.counts().await?.total();
        if total == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
        }
        let progress = context.out.progress(total, "messages");
        dump(&mut context.out, &queue, &progress).await?;
        context.out.keep()
    })
    .await
}

/// Writes each message once. One whose lease or delay ends while the queue is gone through changes
/// its place, and may be passed over: so the queue is gone through until nothing new is found.
async fn dump(out: &mut Out, queue: &Arc<dyn Queue>, progress: &Progress) -> Result<()> {
    let mut seen = HashSet::new();
    for _ in 0..MAX_PASSES {
        if pass(out, queue, progress, &mut seen).await? == 0 {
            break;
        }
    }
    Ok(())
}

/// Goes through the queue and writes what was not seen before. Says how much that was.
async fn pass(
    out: &mut Out,
    queue: &Arc<dyn Queue>,
    progress: &Progress,
    seen: &mut HashSet<MessageId>,
) -> Result<u64> {
    let mut pace = Pace::new(queue.capabilities().max_receive);
    let mut written = 0;
    let mut after = None;
    loop {
        let page = queue.peek(pace.next(), after).await?;
        let mut bytes = 0;
        for peeked in &page.messages {
            bytes += peeked.message.body.len();
            if seen.insert(peeked.message.id) {
                out.json(&Line::peeked(queue.name(), peeked, Fidelity::Exact))?;
                progress.add(1);
                written += 1;
            }
        }
        pace.seen(page.messages.len(), bytes);
        after = page.next;
        if after.is_none() {
            return Ok(written);
        }
    }
}
