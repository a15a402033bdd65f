//! `pillarbox dump`

use std::collections::HashSet;
use std::sync::Arc;

use pillarbox::{MessageId, Queue, QueueOptions};
use pillarbox_core::internal::BatchSizer;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::message_json::{Fidelity, MessageJson};
use crate::output::{Out, Progress, text};

/// Maximum number of passes over the queue while new messages are found.
const MAX_PASSES: u32 = 20;

pub(crate) async fn run(context: &mut Context, args: args::Dump) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        context.write_to(&args.file)?;
        if context.out.is_closed() {
            let text = "stdout is closed: nothing was dumped. Use --output FILE";
            return Err(Failure::Usage(text.to_owned()));
        }
        // A damaged queue may not be countable; the messages that can be read are still dumped.
        let total = queue.counts().await.map(|counts| counts.total());
        if matches!(total, Ok(0)) {
            context.note_if_unknown(backend, &args.queue).await?;
        }
        let progress = context.out.progress(total.unwrap_or(0), "messages");
        let dumped = dump(&mut context.out, &queue, &progress).await?;
        drop(progress);
        context.out.sync()?;
        dumped.report(&context.out)
    })
    .await
}

/// Messages that were written, and those that could not be read.
#[derive(Debug, Default)]
struct Dumped {
    seen: HashSet<MessageId>,
    /// In the order they were found, each once.
    unreadable: Vec<String>,
    known: HashSet<String>,
}

impl Dumped {
    /// Records unreadable messages, unless an earlier pass has found them.
    fn add_unreadable(&mut self, unreadable: Vec<String>) {
        for text in unreadable {
            if self.known.insert(text.clone()) {
                self.unreadable.push(text);
            }
        }
    }

    /// Fails if a message could not be read.
    fn report(&self, out: &Out) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        for text in &self.unreadable {
            out.note(&format!("cannot be read: {text}"));
        }
        Err(Failure::Other(format!(
            "the queue is damaged and this dump is incomplete: {} could be read. See `pillarbox doctor`",
            text::count(self.seen.len() as u64, "message")
        )))
    }
}

/// Writes each message once. A message whose lease or delay ends during a pass changes its position and may be missed,
/// so passes are repeated until one finds nothing new.
async fn dump(out: &mut Out, queue: &Arc<dyn Queue>, progress: &Progress) -> Result<Dumped> {
    let mut dumped = Dumped::default();
    for _ in 0..MAX_PASSES {
        if pass(out, queue, progress, &mut dumped).await? == 0 {
            break;
        }
    }
    Ok(dumped)
}

/// Writes the messages that were not seen before, and returns their number.
async fn pass(
    out: &mut Out,
    queue: &Arc<dyn Queue>,
    progress: &Progress,
    dumped: &mut Dumped,
) -> Result<u64> {
    let mut sizer = BatchSizer::new(queue.capabilities().max_receive);
    let mut written = 0;
    let mut after = None;
    loop {
        let page = queue.peek(sizer.next_size(), after).await?;
        let mut bytes = 0;
        for peeked in &page.messages {
            bytes += peeked.message.body.len();
            if dumped.seen.insert(peeked.message.id) {
                out.json(&MessageJson::peeked(queue.name(), peeked, Fidelity::Exact))?;
                progress.add(1);
                written += 1;
            }
        }
        sizer.record(page.messages.len(), bytes);
        dumped.add_unreadable(page.unreadable);
        after = page.next;
        if after.is_none() {
            return Ok(written);
        }
    }
}
