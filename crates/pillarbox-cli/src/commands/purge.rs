//! `pillarbox purge`

use pillarbox::{Counts, QueueName, QueueOptions};
use serde::Serialize;

use super::{must_be_there, using, want};
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::text;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    purged: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Purge) -> Result<()> {
    if !args.yes {
        must_be_there("purge; say --yes")?;
    }
    using(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let counts = queue.counts().await?;
        if counts.total() == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
        } else if !args.yes && !confirmed(context, &args.queue, &counts)? {
            return Err(Failure::Other("nothing was deleted".to_owned()));
        }
        let purged = queue.purge().await?;
        if context.out.is_json() {
            context.out.json(&Line { queue: &args.queue, purged })
        } else {
            context.out.line(&format!("{} deleted", text::count(purged, "message")))
        }
    })
    .await
}

fn confirmed(context: &Context, queue: &QueueName, counts: &Counts) -> Result<bool> {
    let held = match counts.in_flight {
        0 => String::new(),
        number => format!(" ({number} of them in flight)"),
    };
    let (messages, url) = (text::count(counts.total(), "message"), context.url());
    want(&format!("Delete {messages}{held} of '{queue}' at {url}?"))
}
