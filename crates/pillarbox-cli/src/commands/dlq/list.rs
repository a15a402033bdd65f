//! `pillarbox dlq list`

use std::ops::ControlFlow;

use pillarbox::dead_letters::{Dlq, PeekedDeadLetter};
use pillarbox::{MessageState, QueueOptions, Timestamp};

use super::filter::Filter;
use super::{error_type, write_json};
use crate::args;
use crate::commands::with_backend;
use crate::context::Context;
use crate::failure::Result;
use crate::output::{Table, text, time};

const HEADINGS: [&str; 7] =
    ["MESSAGE", ">AGE", "SOURCE", ">DELIVERIES", ">REPLAYS", "ERROR TYPE", "ERROR"];

pub(super) async fn run(context: &mut Context, args: args::DlqList) -> Result<()> {
    let args::DlqList { queue, max, filters } = args;
    let now = Timestamp::now();
    let filter = Filter::new(filters, now);
    with_backend(context.open_existing().await?, async |backend| {
        let dlq = Dlq::open(backend, &queue)?;
        let mut table = Table::new(&HEADINGS);
        let (mut shown, mut matching, mut unreadable, mut not_ready) = (0, 0, 0, 0);
        let mut written = Ok(());
        let is_json = context.out.is_json();
        dlq.peek(|found| {
            let is_match = match &found.letter {
                Ok(letter) => filter.matches(found.id, letter),
                Err(_) => filter.is_all(),
            };
            unreadable += u64::from(found.letter.is_err());
            if !is_match {
                return ControlFlow::Continue(());
            }
            matching += 1;
            if shown < max {
                shown += 1;
                not_ready += u64::from(found.state != MessageState::Ready);
                if is_json {
                    written = write_json(&mut context.out, &queue, &found);
                } else {
                    table.row(cells(&found, now));
                }
            }
            // The other matches are only counted for the note below.
            let is_enough = shown == max && (is_json || filter.is_all());
            let is_done = is_enough || written.is_err();
            if is_done { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .await?;
        written?;
        let total = backend.queue(&queue, QueueOptions::new())?.counts().await?.total();
        if total == 0 {
            return context.note_if_unknown(backend, &queue).await;
        }
        if is_json {
            return Ok(());
        }
        if shown > 0 {
            context.out.table(&table)?;
        }
        let (shown, all) = (shown as u64, filter.is_all());
        if shown == 0 {
            context.out.note(&format!("none of {} matches", text::count(total, "message")));
        } else if all && total > shown {
            context.out.note(&format!("{shown} of {total} dead letters; --max shows more"));
        } else if matching > shown {
            context.out.note(&format!("{shown} of {matching} that match; --max shows more"));
        }
        if not_ready > 0 {
            context.out.note(&format!(
                "{not_ready} of these in flight or delayed: `replay` and `discard` skip them, unless --delayed \
                 waits for the delayed ones"
            ));
        }
        if !all && unreadable > 0 {
            context.out.note(&super::bulk_action::unreadable_note(unreadable, &queue));
        }
        Ok(())
    })
    .await
}

/// Returns a dead letter as a row.
fn cells(found: &PeekedDeadLetter, now: Timestamp) -> [String; 7] {
    match &found.letter {
        Ok(letter) => [
            letter.message_id.to_string(),
            time::show(letter.age(now)),
            letter.source_mailbox.to_string(),
            letter.delivery_count.to_string(),
            letter.replay_count.to_string(),
            error_type(&letter.last_error_type),
            letter.last_error.clone(),
        ],
        Err(error) => {
            let none = || "-".to_owned();
            let why = format!("not a valid dead letter: {error}");
            [found.id.to_string(), none(), none(), none(), none(), none(), why]
        }
    }
}
