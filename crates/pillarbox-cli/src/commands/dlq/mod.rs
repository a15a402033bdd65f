//! `pillarbox dlq`: dead letters, to look at, to replay, to discard.
//!
//! | to find | look at |
//! |---|---|
//! | which dead letters are meant | `filter` |
//! | what a command does | the file of its name |
//! | what `replay` and `discard` have in common | `round` |
//!
//! However many dead letters there are, none but the ones of a page are in memory.

mod discard;
mod filter;
mod list;
mod replay;
mod round;
mod show;
mod stats;

use pillarbox::runtime::{DeadLetter, DeadLetterCodec, ErrorGroup, PeekedDeadLetter, Summary};
use pillarbox::{Codec, MessageId, MessageState, QueueName, Raw, Timestamp};
use serde::Serialize;

use crate::args::{self, DlqCommand};
use crate::context::Context;
use crate::failure::{Failure, Result};
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

/// What is said of a dead letter before what is stored of it.
#[derive(Serialize)]
struct Head<'a> {
    queue: &'a QueueName,
    id: MessageId,
    state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<&'a str>,
}

/// Writes a dead letter as a line of JSON: as it is stored, after its own id and state.
fn write_json(out: &mut Out, queue: &QueueName, found: &PeekedDeadLetter) -> Result<()> {
    let (state, until) = match found.state {
        MessageState::Ready => ("ready", None),
        MessageState::InFlight { until } => ("in_flight", Some(until)),
        MessageState::Delayed { until } => ("delayed", Some(until)),
    };
    let head = Head { queue, id: found.id, state, until, unreadable: None };
    let letter = match &found.letter {
        Ok(letter) => letter,
        Err(error) => return out.json(&Head { unreadable: Some(error), ..head }),
    };
    let (mut line, letter) = (written(serde_json::to_string(&head))?, stored(letter)?);
    // Two objects, the fields of both in one.
    line.pop();
    line.push(',');
    line.push_str(&letter[1..]);
    out.json_line(&line)
}

fn stored(letter: &DeadLetter) -> Result<String> {
    let stored = written(DeadLetterCodec(Raw).encode(letter))?;
    written(String::from_utf8(stored.into()))
}

fn written<T>(written: std::result::Result<T, impl std::fmt::Display>) -> Result<T> {
    written.map_err(|error| Failure::Other(format!("cannot write a dead letter: {error}")))
}

/// The errors of a summary, for people: the first so many.
fn groups(summary: &Summary, top: usize, now: Timestamp) -> Table {
    let mut table =
        Table::new(&[">COUNT", ">SHARE", "FIRST", "LAST", "SOURCE", "ERROR TYPE", "ERROR"]);
    for group in summary.errors.iter().take(top) {
        table.row([
            group.count.to_string(),
            percent(group.count, summary.letters),
            time::ago(group.first_at, now),
            time::ago(group.last_at, now),
            group.source_mailbox.clone(),
            error_type(&group.error_type),
            group.error.clone(),
        ]);
    }
    table
}

/// An error of a summary, for scripts.
#[derive(Serialize)]
struct Group<'a> {
    #[serde(flatten)]
    group: &'a ErrorGroup,
    share: f64,
    first_age_seconds: f64,
    last_age_seconds: f64,
}

impl<'a> Group<'a> {
    fn all(summary: &'a Summary, top: usize, now: Timestamp) -> Vec<Self> {
        let age = |at: Timestamp| now.since(at).as_millis() as f64 / 1e3;
        let groups = summary.errors.iter().take(top).map(|group| Self {
            group,
            share: (group.count as f64 / summary.letters as f64 * 1e4).round() / 1e4,
            first_age_seconds: age(group.first_at),
            last_age_seconds: age(group.last_at),
        });
        groups.collect()
    }
}

/// How many dead letters have errors that are not among the first so many.
fn beyond(summary: &Summary, top: usize) -> u64 {
    let rest = summary.errors.iter().skip(top).map(|group| group.count);
    rest.sum::<u64>() + summary.further
}

fn percent(part: u64, whole: u64) -> String {
    match part as f64 / whole.max(1) as f64 * 100.0 {
        share if share > 0.0 && share < 1.0 => "<1%".to_owned(),
        share => format!("{share:.0}%"),
    }
}

/// The type of an error, by its end if it is long: there is what tells it from others.
fn error_type(name: &str) -> String {
    const ROOM: usize = 40;
    let name = text::printable(name);
    match name.char_indices().rev().nth(ROOM - 1) {
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
