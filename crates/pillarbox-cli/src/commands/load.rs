//! `pillarbox load`

use std::path::{Path, PathBuf};

use pillarbox::{QueueName, QueueOptions, Timestamp};
use serde::Serialize;

use super::send::{Lines, send_batch};
use super::using;
use crate::args;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::line;
use crate::output::text;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a QueueName,
    loaded: u64,
}

pub(crate) async fn run(context: &mut Context, args: args::Load) -> Result<()> {
    let path = args.file.unwrap_or_else(|| PathBuf::from("-"));
    let now = Timestamp::now();
    let mut lines = Lines::open(Path::new(&path), |text| line::read(text, now).map(drop))?;
    let total = lines.total();
    using(context.open().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let progress = context.out.progress(total, "messages");
        let mut loaded = 0;
        while let Some(batch) = lines.next_batch(queue.capabilities().max_batch)? {
            let messages: Result<_, _> = batch.iter().map(|text| line::read(text, now)).collect();
            let sent = send_batch(&queue, messages.map_err(Failure::Other)?, &mut loaded).await?;
            progress.add(sent.len() as u64);
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
