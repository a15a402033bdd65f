//! `pillarbox partitions`

use pillarbox::{Partitions, QueueName};
use serde::Serialize;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::Result;
use crate::output::text;

#[derive(Serialize)]
struct PartitionsJson<'a> {
    queue: &'a QueueName,
    sent_to: u32,
    received_from: u32,
}

pub(crate) async fn run(context: &mut Context, args: args::Partitions) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let Partitions { sent_to, received_from, .. } = match args.number {
            Some(number) => backend.set_partitions(&args.queue, number).await?,
            None => {
                let partitions = backend.partitions(&args.queue).await?;
                if partitions == Partitions::SINGLE {
                    context.note_if_unknown(backend, &args.queue).await?;
                }
                partitions
            }
        };
        if context.out.is_json() {
            return context.out.json(&PartitionsJson {
                queue: &args.queue,
                sent_to,
                received_from,
            });
        }
        let removed = match received_from - sent_to {
            0 => String::new(),
            more => {
                format!(", and {more} removed ones that are received from until they are empty")
            }
        };
        let partitions = text::count(sent_to.into(), "partition");
        context.out.line(&format!("{partitions}{removed}"))
    })
    .await
}
