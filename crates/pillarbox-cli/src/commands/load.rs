//! `pillarbox load`

use std::path::PathBuf;

use pillarbox::{QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::send::send_batch;
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::interrupt::Interrupt;
use crate::line;
use crate::lines::Lines;
use crate::output::text;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    loaded: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Load) -> Result<()> {
    let interrupt = Interrupt::listen()?;
    let path = args.file.unwrap_or_else(|| PathBuf::from("-"));
    using(context.open_to_send().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let mut lines = Lines::open(&path, |text| {
            let mut message = line::read(text, Timestamp::now())?;
            message.delay = queue.capabilities().round_up(message.delay);
            let checked = queue.capabilities().check_outgoing(queue.name(), &message);
            checked.map(|()| message).map_err(|error| error.to_string())
        })?;
        let progress = context.out.progress(lines.total(), "messages");
        let mut loaded = 0;
        let again = |loaded| format!("{loaded} messages were loaded; load it again to go on");
        loop {
            let batch = match lines.next_batch(queue.capabilities().max_batch, &interrupt).await {
                Ok(Some(batch)) => batch,
                Ok(None) => break,
                Err(failure) => {
                    context.out.note(&again(loaded));
                    return Err(failure);
                }
            };
            let (stored, failure) = send_batch(&queue, batch).await;
            loaded += stored.len() as u64;
            progress.add(stored.len() as u64);
            if let Some(error) = failure {
                return Err(Failure::Other(format!("{error}\n{}", again(loaded))));
            }
        }
        drop(progress);
        if context.out.is_json() {
            context.out.json(&Line { queue: &args.queue, loaded })
        } else {
            context.out.line(&format!("{} loaded", text::count(loaded, "message")))
        }
    })
    .await
}
