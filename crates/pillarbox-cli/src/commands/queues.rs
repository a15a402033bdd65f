//! `pillarbox queues`

use serde::Serialize;

use super::using;
use crate::context::Context;
use crate::failure::Result;

#[derive(Serialize)]
struct Line<'a> {
    queue: &'a str,
}

pub(crate) async fn run(context: &mut Context) -> Result<()> {
    using(context.open_existing().await?, async |backend| {
        let queues = backend.queues().await?;
        for queue in &queues {
            if context.out.is_json() {
                context.out.json(&Line { queue: queue.as_str() })?;
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
