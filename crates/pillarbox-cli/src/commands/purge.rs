//! `pillarbox purge`

use pillarbox::{Counts, QueueName, QueueOptions};
use serde::Serialize;

use super::{confirm, require_terminal, with_backend};
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::text;

#[derive(Serialize)]
struct PurgeJson<'a> {
    queue: &'a QueueName,
    purged: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Purge) -> Result<()> {
    if !args.yes {
        require_terminal("add --yes to purge")?;
    }
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let counts = queue.counts().await?;
        if counts.total() == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
        } else if !args.yes && !confirmed(context, &args.queue, &counts)? {
            return Err(Failure::Other("nothing was deleted".to_owned()));
        }
        let purged = queue.purge().await?;
        if context.out.is_json() {
            context.out.json(&PurgeJson { queue: &args.queue, purged })
        } else {
            context.out.line(&format!("{} deleted", text::count(purged, "message")))
        }
    })
    .await
}

fn confirmed(context: &Context, queue: &QueueName, counts: &Counts) -> Result<bool> {
    let in_flight = match counts.in_flight {
        0 => String::new(),
        number => format!(" ({number} of them in flight)"),
    };
    let (messages, url) = (text::count(counts.total(), "message"), context.url());
    confirm(&format!("Delete {messages}{in_flight} of '{queue}' at {url}?"))
}
