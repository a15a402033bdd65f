//! `pillarbox dump`

use std::collections::HashSet;
use std::sync::Arc;

use pillarbox::{MessageId, Queue, QueueOptions};

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::line::{Fidelity, Line};
use crate::output::{Out, Progress, text};
use crate::pace::Pace;

/// How often the queue is gone through while messages turn up that were not seen before.
const MAX_PASSES: u32 = 20;

pub(crate) async fn run(context: &mut Context, args: args::Dump) -> Result<()> {
    using(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        context.write_to(&args.file)?;
        if context.out.is_closed() {
            let text = "stdout is closed: nothing was dumped. Say where to by --output FILE";
            return Err(Failure::Usage(text.to_owned()));
        }
        // If it cannot be counted, it may be damaged, and what can be read is still to be had.
        let total = queue.counts().await.map(|counts| counts.total());
        if matches!(total, Ok(0)) {
            context.note_if_unknown(backend, &args.queue).await?;
        }
        let progress = context.out.progress(total.unwrap_or(0), "messages");
        let dumped = dump(&mut context.out, &queue, &progress).await?;
        drop(progress);
        context.out.keep()?;
        dumped.report(&context.out)
    })
    .await
}

/// What was written, and what could not be read.
#[derive(Debug, Default)]
struct Dumped {
    seen: HashSet<MessageId>,
    /// In the order in which it was found, and each once.
    unreadable: Vec<String>,
    known: HashSet<String>,
}

impl Dumped {
    /// Takes down what could not be read, unless an earlier pass has found it too.
    fn missed(&mut self, unreadable: Vec<String>) {
        for text in unreadable {
            if self.known.insert(text.clone()) {
                self.unreadable.push(text);
            }
        }
    }

    /// Fails if something could not be read, and says what.
    fn report(&self, out: &Out) -> Result<()> {
        if self.unreadable.is_empty() {
            return Ok(());
        }
        for text in &self.unreadable {
            out.note(&format!("could not be read: {text}"));
        }
        Err(Failure::Other(format!(
            "the queue is damaged, and this dump is not whole: {} could be read. `pillarbox doctor` tells more",
            text::count(self.seen.len() as u64, "message")
        )))
    }
}

/// Writes each message once. One whose lease or delay ends while the queue is gone through changes
/// its place, and may be passed over: so the queue is gone through until nothing new is found.
async fn dump(out: &mut Out, queue: &Arc<dyn Queue>, progress: &Progress) -> Result<Dumped> {
    let mut dumped = Dumped::default();
    for _ in 0..MAX_PASSES {
        if pass(out, queue, progress, &mut dumped).await? == 0 {
            break;
        }
    }
    Ok(dumped)
}

/// Goes through the queue and writes what was not seen before. Says how much that was.
async fn pass(
    out: &mut Out,
    queue: &Arc<dyn Queue>,
    progress: &Progress,
    dumped: &mut Dumped,
) -> Result<u64> {
    let mut pace = Pace::new(queue.capabilities().max_receive);
    let mut written = 0;
    let mut after = None;
    loop {
        let page = queue.peek(pace.next(), after).await?;
        let mut bytes = 0;
        for peeked in &page.messages {
            bytes += peeked.message.body.len();
            if dumped.seen.insert(peeked.message.id) {
                out.json(&Line::peeked(queue.name(), peeked, Fidelity::Exact))?;
                progress.add(1);
                written += 1;
            }
        }
        pace.seen(page.messages.len(), bytes);
        dumped.missed(page.unreadable);
        after = page.next;
        if after.is_none() {
            return Ok(written);
        }
    }
}
