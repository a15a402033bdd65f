//! `pillarbox peek`

use pillarbox::{MessageState, Peeked, QueueOptions, Timestamp};
use pillarbox_core::internal::BatchSizer;

use super::with_backend;
use crate::args;
use crate::context::Context;
use crate::failure::Result;
use crate::message_json::{Fidelity, MessageJson};
use crate::output::{Table, text, time};

pub(crate) async fn run(context: &mut Context, args: args::Peek) -> Result<()> {
    with_backend(context.open_existing().await?, async |backend| {
        let queue = backend.queue(&args.queue, QueueOptions::new())?;
        let mut sizer = BatchSizer::new(queue.capabilities().max_receive);
        let mut table = Table::new(&["STATE", "ID", ">DELIVERIES", "SENT", ">SIZE", "BODY"]);
        let mut seen = 0;
        let mut after = None;
        while seen < args.max {
            let page = queue.peek(sizer.next_size().min(args.max - seen), after).await?;
            let page = page.whole(&args.queue)?;
            let now = Timestamp::now();
            for peeked in &page.messages {
                if context.out.is_json() {
                    context.out.json(&MessageJson::peeked(
                        &args.queue,
                        peeked,
                        Fidelity::Convenient,
                    ))?;
                } else {
                    table.row(cells(peeked, now));
                }
            }
            seen += page.messages.len();
            sizer.record(
                page.messages.len(),
                page.messages.iter().map(|m| m.message.body.len()).sum(),
            );
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if seen == 0 {
            context.note_if_unknown(backend, &args.queue).await?;
            return Ok(());
        }
        if !context.out.is_json() {
            context.out.table(&table)?;
            let total = queue.counts().await?.total();
            if total > seen as u64 {
                context.out.note(&format!("{seen} of {total} messages; --max shows more"));
            }
        }
        Ok(())
    })
    .await
}

/// Returns a message as a row: state, id, deliveries, sent, size, body.
pub(crate) fn cells(peeked: &Peeked, now: Timestamp) -> [String; 6] {
    let message = &peeked.message;
    let state = match peeked.state {
        MessageState::Ready => "ready".to_owned(),
        MessageState::InFlight { until } => format!("in flight, {}", left(until, now)),
        MessageState::Delayed { until } => format!("delayed, {}", left(until, now)),
    };
    [
        state,
        message.id.to_string(),
        message.delivery_count.to_string(),
        time::ago(message.enqueued_at, now),
        text::bytes(message.body.len() as u64),
        text::preview(&message.body),
    ]
}

fn left(until: Timestamp, now: Timestamp) -> String {
    format!("{} left", time::show(until.since(now)))
}
