//! Parsers of untrusted input, for the fuzzer only. Not part of the API.

use std::ffi::OsString;
use std::time::Duration;

use clap::Parser;
use pillarbox::{MessageId, MessageState, Outgoing, Peeked, QueueName, RawMessage, Timestamp};
use serde_json::Value;

use crate::args::{self, Cli, Command};
use crate::commands::send;
use crate::failure::{Failure, Result};
use crate::input_lines;
use crate::json_path::JsonPath;
use crate::message_json::{self, Fidelity, MessageJson};
use crate::output::{text, time};
use crate::url::BackendUrl;

/// Parses a command line without the program name, and returns its debug form or the error.
pub fn arguments(args: &[OsString]) -> Result<String, String> {
    let cli = parse(args)?;
    Ok(format!("{cli:?}"))
}

fn parse(args: &[OsString]) -> Result<Cli, String> {
    let all = std::iter::once("pillarbox".into()).chain(args.iter().cloned());
    Cli::try_parse_from(all)
        .map_err(|error| crate::redact(&error.to_string(), args.iter().cloned()))
}

/// Returns the messages that `send` makes of its arguments and standard input, or `None` for another command.
pub fn send(args: &[OsString], input: &[u8]) -> Result<Option<Vec<Outgoing>>, String> {
    let Command::Send(args) = parse(args)?.command else { return Ok(None) };
    let messages = match (&args.file, &args.body) {
        (Some(_), _) => {
            input_lines::read_all(input, |line| send::read_line(&args, line)).map_err(text_of)?
        }
        (None, Some(body)) if body == "-" => vec![one(&args, input.to_vec())],
        (None, body) => vec![one(&args, body.clone().unwrap_or_default().into())],
    };
    Ok(Some(messages))
}

fn one(args: &args::Send, body: Vec<u8>) -> Outgoing {
    send::outgoing(args, args.id.unwrap_or_else(MessageId::new), body.into())
}

fn text_of(failure: Failure) -> String {
    failure.text().unwrap_or_default()
}

/// Returns the messages that `load` reads from its input.
pub fn load(input: &[u8], now: Timestamp) -> Result<Vec<Outgoing>, String> {
    input_lines::read_all(input, |text| message_json::parse(text, now)).map_err(text_of)
}

/// Returns the line that `dump` writes for a message.
pub fn dump(queue: &QueueName, message: RawMessage, state: MessageState) -> Option<String> {
    let peeked = Peeked::new(message, state);
    serde_json::to_string(&MessageJson::peeked(queue, &peeked, Fidelity::Exact)).ok()
}

/// Returns the line that `receive --json` writes for a message.
pub fn convenient(queue: &QueueName, message: RawMessage) -> Option<String> {
    let peeked = Peeked::new(message, MessageState::Ready);
    serde_json::to_string(&MessageJson::peeked(queue, &peeked, Fidelity::Convenient)).ok()
}

/// Parses a duration, and formats it.
pub fn duration(text: &str) -> Result<(Duration, String), String> {
    time::parse(text).map(|duration| (duration, time::show(duration)))
}

/// Returns whether a body fulfils a condition.
pub fn holds(condition: &str, body: &Value) -> Result<bool, String> {
    condition.parse::<JsonPath>().map(|path| path.holds(body))
}

/// Returns a URL as it is printed, and a text without its secrets.
pub fn hidden(url: &str, text: &str) -> (String, String) {
    let Ok(url) = url.parse::<BackendUrl>();
    (url.to_string(), url.hide_secrets_in(text))
}

/// Returns a preview of a body for a terminal of this width, and its size.
pub fn shown(body: &[u8], width: usize) -> (String, String) {
    let line = text::preview(body);
    (text::shorten(&line, Some(width)).into_owned(), text::bytes(body.len() as u64))
}
