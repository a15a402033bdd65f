//! Bodies, as printed for people and scripts.

use bytes::Bytes;
use pillarbox_cli::fuzzing as cli;
use pillarbox_core::{BodyEncoding, Codec, Json, ReadableBody};
use serde_json::Value;

use super::refused;
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
    assert_eq!(
        exact.bytes().expect("what was written can be read"),
        input,
        "an exact body is exact"
    );
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
        if let Err(error) = ReadableBody::read(encoding, &exact.value) {
            refused(&error);
        }
    }
    codecs(input);
    for room in [0, 1, 7, 80] {
        let (line, size) = cli::shown(input, room);
        assert!(!line.contains(char::is_control), "a body cannot talk to the terminal");
        assert!(!size.is_empty());
    }
}

fn codecs(input: &[u8]) {
    let bytes = Bytes::copy_from_slice(input);
    match Codec::<Value>::decode(&Json, &bytes) {
        Ok(value) => {
            record_outcome("JSON");
            let again = Json.encode(&value).expect("JSON is JSON");
            assert_eq!(
                Codec::<Value>::decode(&Json, &again).expect("what was written can be read"),
                value
            );
        }
        Err(error) => refused(&error),
    }
    match Codec::<Value>::decode(&pillarbox_core::MessagePack, &bytes) {
        Ok(value) => {
            record_outcome("MessagePack");
            let again = pillarbox_core::MessagePack.encode(&value).expect("a value is MessagePack");
            let again: Value =
                pillarbox_core::MessagePack.decode(&again).expect("what was written can be read");
            assert_eq!(again, value);
        }
        Err(error) => refused(&error),
    }
}
