//! Bodies, as printed for people and scripts.

use bytes::Bytes;
use pillarbox_cli::fuzzing as cli;
use pillarbox_core::{BodyEncoding, Json, MessagePack, ReadableBody};
use serde_json::Value;

use super::accepted;
use super::stored_messages::round_trip;
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    "{\"n\": 1.10}",
    "[",
    "]",
    "{",
    "}",
    "\"text\"",
    "//4=",
    "null",
    "true",
    "1e5",
    "\u{1b}[2J",
    "\u{200b}",
    "日本語",
];

pub(super) fn run(input: &[u8]) {
    let exact = ReadableBody::exact(input);
    record_outcome(&format!("{:?}", exact.encoding));
    assert!(!exact.value.get().contains(['\n', '\r']), "a body is on one line");
    let bytes = exact.bytes().expect("what was written can be read");
    assert_eq!(bytes, input, "an exact body is exact");
    let easy = ReadableBody::convenient(input);
    assert!(!easy.value.get().contains(['\n', '\r']), "a body is on one line");
    let easy_bytes = easy.bytes().expect("what was written can be read");
    if easy.encoding == BodyEncoding::Json {
        let (one, other) =
            (serde_json::from_slice::<Value>(input), serde_json::from_slice::<Value>(&easy_bytes));
        assert_eq!(one.ok(), other.ok(), "a convenient body means the same");
    } else {
        assert_eq!(easy_bytes, input);
    }
    for encoding in [BodyEncoding::Json, BodyEncoding::Text, BodyEncoding::Base64] {
        accepted(ReadableBody::read(encoding, &exact.value));
    }
    let bytes = Bytes::copy_from_slice(input);
    round_trip::<Value>("JSON", &Json, &bytes);
    round_trip::<Value>("MessagePack", &MessagePack, &bytes);
    for room in [0, 1, 7, 80] {
        let (line, size) = cli::shown(input, room);
        assert!(!line.contains(char::is_control), "a body cannot talk to the terminal");
        assert!(!size.is_empty());
    }
}
