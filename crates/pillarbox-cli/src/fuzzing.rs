//! What reads foreign bytes, for the fuzzer alone: no part of the API.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use pillarbox::{MessageId, MessageState, Outgoing, Peeked, QueueName, RawMessage, Timestamp};
use serde_json::Value;

use crate::args::{self, Cli, Command};
use crate::commands::send;
use crate::failure::{Failure, Result};
use crate::json_path::JsonPath;
use crate::line::{self, Fidelity, Line};
use crate::lines;
use crate::output::{text, time};
use crate::url::BackendUrl;

/// A command line, the name of the command not included. Gives what it was understood as, or what is said of it.
pub fn arguments(args: &[OsString]) -> Result<String, String> {
    let cli = parse(args)?;
    Ok(format!("{cli:?}"))
}

fn parse(args: &[OsString]) -> Result<Cli, String> {
    let all = std::iter::once("pillarbox".into()).chain(args.iter().cloned());
    Cli::try_parse_from(all)
        .map_err(|error| crate::refusal(&error.to_string(), args.iter().cloned()))
}

/// The messages that `send` makes of its arguments and standard input. `None` where it is another command.
pub fn send(args: &[OsString], input: &[u8]) -> Result<Option<Vec<Outgoing>>, String> {
    let Command::Send(args) = parse(args)?.command else { return Ok(None) };
    let messages = match (&args.file, &args.body) {
        (Some(_), _) => {
            lines::read_all(input, |line| send::read_line(&args, line)).map_err(told)?
        }
        (None, Some(body)) if body == "-" => vec![one(&args, input.to_vec())],
        (None, body) => vec![one(&args, body.clone().unwrap_or_default().into())],
    };
    Ok(Some(messages))
}

fn one(args: &args::Send, body: Vec<u8>) -> Outgoing {
    send::outgoing(args, args.id.unwrap_or_else(MessageId::new), body.into())
}

fn told(failure: Failure) -> String {
    failure.text().unwrap_or_default()
}

/// The messages that `load` finds in its input.
pub fn load(input: &[u8], now: Timestamp) -> Result<Vec<Outgoing>, String> {
    lines::read_all(input, |text| line::read(text, now)).map_err(told)
}

/// The line that `dump` writes of a message.
pub fn dump(queue: &QueueName, message: RawMessage, state: MessageState) -> Option<String> {
    let peeked = Peeked::new(message, state);
    serde_json::to_string(&Line::peeked(queue, &peeked, Fidelity::Exact)).ok()
}

/// The line that `receive --json` writes of a message.
pub fn convenient(queue: &QueueName, message: RawMessage) -> Option<String> {
    let peeked = Peeked::new(message, MessageState::Ready);
    serde_json::to_string(&Line::peeked(queue, &peeked, Fidelity::Convenient)).ok()
}

/// A duration, and how it is shown.
pub fn duration(text: &str) -> Result<(Duration, String), String> {
    time::parse(text).map(|duration| (duration, time::show(duration)))
}

/// Whether a body fulfils a condition.
pub fn holds(condition: &str, body: &Value) -> Result<bool, String> {
    condition.parse::<JsonPath>().map(|path| path.holds(body))
}

/// A URL as it is printed, and a text in which its secrets are not to be seen.
pub fn hidden(url: &str, text: &str) -> (String, String) {
    let Ok(url) = url.parse::<BackendUrl>();
    (url.to_string(), url.hide_secrets_in(text))
}

/// A body on a line of a terminal of this width, and how large it is.
pub fn shown(body: &[u8], room: usize) -> (String, String) {
    let line = text::preview(body);
    (text::shorten(&line, Some(room)).into_owned(), text::bytes(body.len() as u64))
}
