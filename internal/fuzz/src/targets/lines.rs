//! Lines of JSON that commands read.

use std::ffi::OsString;

use bytes::Bytes;
use pillarbox_cli::fuzzing as cli;
use pillarbox_core::{MessageState, Outgoing, QueueName, RawMessage, Timestamp};

use super::{accepted, refused, text};
use crate::driver::record_outcome;

pub(super) const LOAD: &[&str] = &[
    "{\"body\":1}",
    "\"body\":",
    "\"id\":\"0193b1f4-0000-7000-8000-000000000001\"",
    "\"body_encoding\":\"text\"",
    "\"body_encoding\":\"base64\"",
    "\"attributes\":{\"a\":\"b\"}",
    "\"reply_to\":\"client\"",
    "\"enqueued_at\":\"2026-11-16T10:00:00Z\"",
    "\"until\":\"2026-11-16T10:00:00Z\"",
    "\"state\":\"in_flight\"",
    "\"state\":\"delayed\"",
    "\n",
    ",",
    "{",
    "}",
    "\"//4=\"",
];

/// Output of `dump` and `drain`, or any other input.
pub(super) fn load(input: &[u8]) {
    let now = Timestamp::from_secs(1_763_000_000);
    let Some(messages) = accepted(cli::load(input, now)) else { return };
    let lines = input.split(|byte| *byte == b'\n').count();
    assert!(messages.len() <= lines, "a line is a message, or none");
    for message in messages {
        let is_ready = message.delay.is_zero();
        let (has_reply, is_bare) = (message.reply_to.is_some(), message.attributes.is_empty());
        record_outcome(&format!("{is_ready} {has_reply} {is_bare}"));
        let queue = QueueName::new("fuzz").expect("a name");
        let delayed = MessageState::Delayed { until: now + message.delay };
        let state = if is_ready { MessageState::Ready } else { delayed };
        let stored = stored(&message, now);
        let line = cli::dump(&queue, stored.clone(), state).expect("a message is a line");
        assert!(!line.contains(['\n', '\r']), "a message is one line");
        let again = cli::load(line.as_bytes(), now).expect("what was dumped can be loaded");
        let [again] = &again[..] else { panic!("a line is a message") };
        assert_eq!((again.id, &again.body), (message.id, &message.body), "it survives its line");
        assert_eq!((&again.reply_to, &again.attributes), (&message.reply_to, &message.attributes));
        assert_eq!((again.enqueued_at, again.delay), (Some(stored.enqueued_at), message.delay));
        assert!(cli::convenient(&queue, stored).is_some_and(|line| !line.contains('\n')));
    }
}

fn stored(message: &Outgoing, now: Timestamp) -> RawMessage {
    let mut stored =
        RawMessage::new(message.id, message.body.clone(), message.enqueued_at.unwrap_or(now));
    stored.attributes = message.attributes.clone();
    stored.reply_to = message.reply_to.clone();
    stored
}

pub(super) const SEND: &[&str] = &[
    "send\n",
    "orders\n",
    "-\n",
    "--file\n",
    "--delay\n",
    "5m\n",
    "--attr\n",
    "a=b\n",
    "--reply-to\n",
    "--group\n",
    "--id\n",
    "--key\n",
    "--deduplication\n",
    "--\n",
    "\n\n",
    "{\"n\": 1}\n",
    "[1,2]\n",
    "\"x\"\n",
    "null\n",
];

/// The arguments of `send`, one per line; then an empty line and standard input.
pub(super) fn send(input: &[u8]) {
    let (args, stdin) = match input.windows(2).position(|two| two == b"\n\n") {
        Some(place) => (&input[..place], &input[place + 2..]),
        None => (input, &b""[..]),
    };
    let Some(args) = text(args) else { return };
    let args: Vec<OsString> = args.split('\n').map(Into::into).collect();
    let messages = match cli::send(&args, stdin) {
        Ok(Some(messages)) => messages,
        Ok(None) => return record_outcome("another command"),
        Err(error) => return refused(&error),
    };
    let first = messages.first();
    let first = first.map(|message| (message.attributes.is_empty(), message.delay.is_zero()));
    record_outcome(&format!("{first:?}"));
    let is_option = |arg: &OsString| arg.to_string_lossy().starts_with("--file");
    if args.iter().take_while(|arg| *arg != "--").any(is_option) {
        let bodies = messages.iter().map(|message| &message.body);
        let is_line = |body: &Bytes| !body.is_empty() && !body.contains(&b'\n');
        assert!(bodies.clone().all(is_line), "a line is a body");
        let sent: usize = bodies.map(|body| body.len()).sum();
        assert!(sent <= stdin.len());
    } else {
        assert_eq!(messages.len(), 1);
    }
}
