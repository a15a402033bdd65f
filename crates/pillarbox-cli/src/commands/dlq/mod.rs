//! `pillarbox dlq`: inspect, replay and discard dead letters.
//!
//! | to find | look at |
//! |---|---|
//! | filters | `filter` |
//! | a command | the file of its name |
//! | the common part of `replay` and `discard` | `bulk_action` |
//!
//! Only one page of dead letters is in memory at a time.

mod bulk_action;
mod discard;
mod filter;
mod list;
mod replay;
mod show;
mod stats;

use pillarbox::dead_letters::{DeadLetterCodec, ErrorGroup, PeekedDeadLetter, Summary};
use pillarbox::{Codec, MessageId, QueueName, Raw, Timestamp};
use serde::Serialize;

use crate::args::{self, DlqCommand};
use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::message_json;
use crate::output::{Out, Table, text, time};

pub(crate) async fn run(context: &mut Context, args: args::Dlq) -> Result<()> {
    match args.command {
        DlqCommand::List(args) => list::run(context, args).await,
        DlqCommand::Show(args) => show::run(context, args).await,
        DlqCommand::Stats(args) => stats::run(context, args).await,
        DlqCommand::Replay(args) => replay::run(context, args).await,
        DlqCommand::Discard(args) => discard::run(context, args).await,
    }
}

/// Fields that come before those of the dead letter itself.
#[derive(Serialize)]
struct DeadLetterHeadJson<'a> {
    queue: &'a QueueName,
    id: MessageId,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<&'a str>,
}

/// Writes a dead letter as a line of JSON: its own id and state, and then its stored form.
fn write_json(out: &mut Out, queue: &QueueName, found: &PeekedDeadLetter) -> Result<()> {
    let (state, until) = message_json::state(found.state);
    let head = DeadLetterHeadJson { queue, id: found.id, state, until, unreadable: None };
    let letter = match &found.letter {
        Ok(letter) => letter,
        Err(error) => return out.json(&DeadLetterHeadJson { unreadable: Some(error), ..head }),
    };
    let mut line = encoded(serde_json::to_string(&head))?;
    let letter = encoded(DeadLetterCodec(Raw).encode(letter))?;
    let letter = encoded(str::from_utf8(&letter))?;
    // Merges two objects into one.
    line.pop();
    line.push(',');
    line.push_str(&letter[1..]);
    out.json_line(&line)
}

fn encoded<T>(encoded: std::result::Result<T, impl std::fmt::Display>) -> Result<T> {
    encoded.map_err(|error| Failure::Other(format!("cannot write a dead letter: {error}")))
}

/// Returns a table of the most frequent errors.
fn error_table(summary: &Summary, top: usize, now: Timestamp) -> Table {
    let mut table =
        Table::new(&[">COUNT", ">SHARE", "FIRST", "LAST", "SOURCE", "ERROR TYPE", "ERROR"]);
    for group in summary.errors.iter().take(top) {
        table.row([
            group.count.to_string(),
            percent(group.count, summary.dead_letters),
            time::ago(group.first_at, now),
            time::ago(group.last_at, now),
            group.source_mailbox.clone(),
            error_type(&group.error_type),
            group.error.clone(),
        ]);
    }
    table
}

/// Group of dead letters with the same error.
#[derive(Serialize)]
struct ErrorGroupJson<'a> {
    #[serde(flatten)]
    group: &'a ErrorGroup,
    share: f64,
    first_age_seconds: f64,
    last_age_seconds: f64,
}

impl<'a> ErrorGroupJson<'a> {
    fn most_frequent(summary: &'a Summary, top: usize, now: Timestamp) -> Vec<Self> {
        let age = |at: Timestamp| now.since(at).as_millis() as f64 / 1e3;
        let groups = summary.errors.iter().take(top).map(|group| Self {
            group,
            share: (group.count as f64 / summary.dead_letters as f64 * 1e4).round() / 1e4,
            first_age_seconds: age(group.first_at),
            last_age_seconds: age(group.last_at),
        });
        groups.collect()
    }
}

/// Returns the number of dead letters whose errors are not among the first `top`.
fn other_errors(summary: &Summary, top: usize) -> u64 {
    let rest = summary.errors.iter().skip(top).map(|group| group.count);
    rest.sum::<u64>() + summary.further
}

fn percent(part: u64, whole: u64) -> String {
    match part as f64 / whole.max(1) as f64 * 100.0 {
        share if share > 0.0 && share < 1.0 => "<1%".to_owned(),
        share => format!("{share:.0}%"),
    }
}

/// Returns the type of an error, cut at the front if it is long, since the end distinguishes it.
fn error_type(name: &str) -> String {
    const MAX_CHARS: usize = 40;
    let name = text::printable(name);
    match name.char_indices().rev().nth(MAX_CHARS - 1) {
        Some((cut, _)) if cut > 0 => format!("…{}", &name[cut..]),
        _ => name.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_types_fit_their_columns() {
        assert_eq!([percent(1, 3), percent(1, 1000), percent(7, 7)], ["33%", "<1%", "100%"]);
        assert_eq!(percent(0, 0), "0%");
        assert_eq!(error_type("shop::OutOfStock"), "shop::OutOfStock");
        assert_eq!(error_type(&"x".repeat(40)), "x".repeat(40));
        let long = error_type(&format!("{}::Ü", "x".repeat(60)));
        assert!(long.starts_with('…') && long.ends_with("::Ü") && long.chars().count() == 41);
    }
}
