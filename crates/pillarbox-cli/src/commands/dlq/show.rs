//! `pillarbox dlq show`

use pillarbox::Timestamp;
use pillarbox::dead_letters::{DeadLetter, Dlq, PeekedDeadLetter};

use super::write_json;
use crate::args;
use crate::commands::peek::state;
use crate::commands::with_backend;
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::output::{Out, json, text, time};

pub(super) async fn run(context: &mut Context, args: args::DlqShow) -> Result<()> {
    let args::DlqShow { queue, id, body } = args;
    with_backend(context.open_existing().await?, async |backend| {
        let Some(found) = Dlq::open(backend, &queue)?.find(id).await? else {
            context.note_if_unknown(backend, &queue).await?;
            return Err(Failure::Other(format!(
                "'{queue}' has no dead letter with the id {id}, nor one of a message with that id: `pillarbox dlq \
                 list {queue}` shows all"
            )));
        };
        match &found.letter {
            Err(error) => Err(Failure::Other(format!(
                "message {id} in '{queue}' is not a valid dead letter: {error}. `pillarbox dump {queue}` writes \
                 it unchanged"
            ))),
            Ok(letter) if body => context.out.bytes(&letter.body),
            Ok(_) if context.out.is_json() => write_json(&mut context.out, &queue, &found),
            Ok(letter) => describe(&mut context.out, &found, letter),
        }
    })
    .await
}

fn describe(out: &mut Out, found: &PeekedDeadLetter, letter: &DeadLetter) -> Result<()> {
    let now = Timestamp::now();
    let when = |at: Timestamp| format!("{at} ({})", time::ago(at, now));
    let style = out.style();
    let mut field = |name: &str, value: &str| {
        let name = format!("{name:<14}");
        match value {
            "" => out.parts(&[style.heading(name.trim_end())]),
            value => out.parts(&[style.heading(name), format!("  {value}").into()]),
        }
    };
    field("message", &letter.message_id.to_string())?;
    field("dead letter", &id_and_state(found, now))?;
    let source = match &letter.source_backend {
        Some(kind) => format!("{}, on another backend ({kind})", letter.source_mailbox),
        None => letter.source_mailbox.to_string(),
    };
    field("source", &source)?;
    field("dead-lettered", &when(letter.dead_lettered_at))?;
    field("sent", &when(letter.sent_at))?;
    // A backend that does not record it has the time of sending.
    if letter.first_received_at != letter.sent_at {
        field("first received", &when(letter.first_received_at))?;
    }
    field("deliveries", &letter.delivery_count.to_string())?;
    let replays = match letter.replayed_at {
        Some(at) => format!("{}, the last at {}", letter.replay_count, when(at)),
        None => letter.replay_count.to_string(),
    };
    field("replays", &replays)?;
    field("failure", letter.failure.as_str())?;
    field("error type", &letter.last_error_type)?;
    for (index, line) in letter.last_error.lines().enumerate() {
        field(if index == 0 { "error" } else { "" }, line)?;
    }
    for (depth, cause) in letter.error_chain.iter().enumerate() {
        let indent = "  ".repeat(depth);
        for (index, line) in cause.lines().enumerate() {
            let name = if index == 0 { "caused by" } else { "" };
            field(name, &format!("{indent}  {line}"))?;
        }
    }
    field("worker", &letter.worker)?;
    if let Some(request) = letter.request_id {
        field("request", &request.to_string())?;
    }
    if let Some(trace) = &letter.trace_id {
        field("trace", trace)?;
    }
    if let Some(reply_to) = &letter.reply_to {
        field("reply to", reply_to)?;
    }
    for (name, value) in letter.attributes.iter() {
        field("attribute", &format!("{name}={value}"))?;
    }
    field("body", &text::bytes(letter.body.len() as u64))?;
    let Ok(body) = std::str::from_utf8(&letter.body) else {
        return out.line(&format!("  {}", text::preview(&letter.body)));
    };
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(body).is_ok();
    let pretty = is_json.then(|| json::pretty(body)).flatten();
    let body = pretty.as_deref().unwrap_or(body);
    body.lines().try_for_each(|line| out.parts(&["  ".into(), line.into()]))
}

/// Returns the id and the state of the dead letter itself.
fn id_and_state(found: &PeekedDeadLetter, now: Timestamp) -> String {
    let state = state(found.state, now);
    let delivered = match found.delivery_count {
        0 => String::new(),
        number => format!(", delivered {}", text::count(number.into(), "time")),
    };
    format!("{} ({state}{delivered})", found.id)
}
