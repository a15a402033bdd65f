//! `pillarbox dump`

use pillarbox::QueueOptions;

use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::Result;
use crate::line::{Fidelity, Line};
use crate::pace::Pace;

pub(crate) async fn run(context: &mut Context, args: args::Dump) -> Result<()> {
    using(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let total = queue.counts().await?.total();
        if total == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
        }
        let progress = context.out.progress(total, "messages");
        let mut pace = Pace::new(queue.capabilities().max_receive);
        let mut after = None;
        loop {
            let page = queue.peek(pace.next(), after).await?;
            let mut bytes = 0;
            for peeked in &page.messages {
                bytes += peeked.message.body.len();
                context.out.json(&Line::peeked(&args.queue, peeked, Fidelity::Exact))?;
            }
            pace.seen(page.messages.len(), bytes);
            progress.add(page.messages.len() as u64);
            after = page.next;
            if after.is_none() {
                return context.out.keep();
            }
        }
    })
    .await
}
