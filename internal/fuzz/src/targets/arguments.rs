//! Arguments of the command line.

use std::ffi::OsString;
use std::time::Duration;

use pillarbox_cli::fuzzing as cli;
use serde_json::Value;

use super::{SECRET, accepted, refused, text};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "\n",
    "queues\n",
    "stats\n",
    "--watch=2s\n",
    "send\n",
    "orders\n",
    "{}\n",
    "--file\n",
    "receive\n",
    "-n\n",
    "--max\n",
    "--wait\n",
    "20s\n",
    "peek\n",
    "ack\n",
    "nack\n",
    "extend\n",
    "0197b3a2-5f3c-7c1e-9d53-0b8f5d0c6a11.3pQx-Zk_9TfR2mLa\n",
    "purge\n",
    "--yes\n",
    "dump\n",
    "drain\n",
    "load\n",
    "move\n",
    "dlq\n",
    "list\n",
    "show\n",
    "replay\n",
    "--rate\n",
    "50/s\n",
    "discard\n",
    "--json-path\n",
    "$.a=1\n",
    "--kind\n",
    "panic\n",
    "--older\n",
    "1h30m\n",
    "eval\n",
    "submit\n",
    "collect\n",
    "report\n",
    "--evaluator\n",
    "numeric_close:0.01:0.5\n",
    "--experiment\n",
    "small={\"model\":\"s\"}\n",
    "--fail-under\n",
    "90%\n",
    "partitions\n",
    "redrive\n",
    "--to\n",
    "--after\n",
    "top\n",
    "bench\n",
    "doctor\n",
    "--fix\n",
    "demo\n",
    "completions\n",
    "bash\n",
    "man\n",
    "help\n",
    "--help\n",
    "--version\n",
    "-u\n",
    "--url\n",
    "--url=",
    "redis://me:hunter2@host\n",
    "redis://me:hu\"nter2@host\n",
    "?password=hunter2\n",
    "--json\n",
    "-vv\n",
    "--\n",
    "-\n",
    "=",
    "--to-url\n",
    "--id\n",
    "--attr\n",
    "hunter2",
];

/// A command line, one argument per line.
pub(super) fn run(input: &[u8]) {
    let args: Vec<OsString> = input.split(|byte| *byte == b'\n').map(os).collect();
    // Outside of the password of a URL, the text is no secret.
    let is_secret = args.iter().map(|arg| arg.to_string_lossy()).all(|arg| {
        let value = value(&arg);
        let name = &arg[..arg.len() - value.len()];
        let shown = if arg.contains("://") { &cli::hidden(value, "").0 } else { value };
        !may_read_as_secret(name) && !may_read_as_secret(shown)
    });
    let text = match cli::arguments(&args) {
        Ok(understood) => {
            // A valid command line. Its URL is printed, and must not show the secret.
            record_outcome(understood.split(['(', '{']).nth(2).unwrap_or_default());
            return;
        }
        Err(text) => text,
    };
    refused(&text.lines().next().unwrap_or_default());
    assert!(!is_secret || !text.contains(SECRET), "a secret is shown: {text}");
}

/// Whether a text contains the secret once control characters are removed, as errors do.
fn may_read_as_secret(text: &str) -> bool {
    let mut rest = text.chars();
    SECRET.chars().all(|character| rest.any(|c| c == character))
}

/// Returns the value of an argument, without the name of its option.
fn value(arg: &str) -> &str {
    match arg.split_once('=') {
        Some((_, value)) if arg.starts_with('-') => value,
        _ => arg,
    }
}

#[cfg(unix)]
fn os(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn os(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

pub(super) const CONDITIONS: &[&str] = &[
    "$",
    ".customer",
    ".id",
    "[0]",
    "[\"odd name\"]",
    "=",
    "!=",
    "<=",
    ">",
    "42",
    "\"42\"",
    "true",
    "null",
    "[1]",
    "{\"a\":{\"b\":[1,2]}}",
    "\n",
    "1500ms",
    "30s",
    "5m",
    "1h",
    "2d",
    "1h30m",
    "ms",
    "d",
];

/// A condition and, after a line break, the body to check. Without a body, it may be a duration.
pub(super) fn condition(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let (condition, body) =
        text.split_once('\n').unwrap_or((text, "{\"a\":{\"b\":[1,2]},\"c\":\"x\"}"));
    let body: Value = serde_json::from_str(body).unwrap_or_default();
    if let Some(holds) = accepted(cli::holds(condition, &body)) {
        record_outcome(if holds { "holds" } else { "does not hold" });
        let path = condition.split(['=', '<', '>', '!']).next().unwrap_or_default();
        // A missing value fulfils no condition.
        let is_there = condition.contains('[') || cli::holds(path, &body) == Ok(true);
        assert!(!holds || is_there, "it is there");
    }
    if let Some((duration, shown)) = accepted(cli::duration(text)) {
        record_outcome("duration");
        // Milliseconds of seconds are not shown, nor are minutes of days.
        let (again, shown_again) = cli::duration(&shown).expect("a formatted duration parses");
        assert!(again <= duration && duration - again <= duration / 2 + Duration::from_millis(1));
        assert_eq!(shown_again, shown);
    }
}
