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
                    let line = MessageJson::peeked(&args.queue, peeked, Fidelity::Convenient);
                    context.out.json(&line)?;
                } else {
                    table.row(cells(peeked, now));
                }
            }
            seen += page.messages.len();
            let bytes = page.messages.iter().map(|peeked| peeked.message.body.len()).sum();
            sizer.record(page.messages.len(), bytes);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        if seen == 0 {
            return context.note_if_unknown(backend, &args.queue).await;
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
    [
        state(peeked.state, now),
        message.id.to_string(),
        message.delivery_count.to_string(),
        time::ago(message.enqueued_at, now),
        text::bytes(message.body.len() as u64),
        text::preview(&message.body),
    ]
}

/// Returns a state with the time that is left of it.
pub(crate) fn state(state: MessageState, now: Timestamp) -> String {
    let left = |until: Timestamp| time::show(until.since(now));
    match state {
        MessageState::Ready => "ready".to_owned(),
        MessageState::InFlight { until } => format!("in flight, {} left", left(until)),
        MessageState::Delayed { until } => format!("delayed, {} left", left(until)),
    }
}
