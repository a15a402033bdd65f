//! `pillarbox queues`

use serde::Serialize;

use super::with_backend;
use crate::context::Context;
use crate::failure::Result;

#[derive(Serialize)]
struct QueueJson<'a> {
    queue: &'a str,
}

pub(crate) async fn run(context: &mut Context) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let queues = backend.queues().await?;
        for queue in &queues {
            if context.out.is_json() {
                context.out.json(&QueueJson { queue: queue.as_str() })?;
            } else {
                context.out.line(queue.as_str())?;
            }
        }
        if queues.is_empty() {
            context.out.note(&format!("{} has no queues", context.url()));
        }
        Ok(())
    })
    .await
}
