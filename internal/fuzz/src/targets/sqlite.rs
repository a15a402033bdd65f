//! Rows of a SQLite file from any writer.

use pillarbox_redis::redis::Value as Word;
use pillarbox_sqlite::fuzzing as reader;
use pillarbox_sqlite::rusqlite::Connection;
use pillarbox_sqlite::rusqlite::types::Value;

use super::accepted;
use super::values::{lines, value};
use crate::driver::record_outcome;

pub(super) const WORDS: &[&str] = &[
    ":1\n",
    "$0123456789abcdef\n",
    ":1763200000123456000\n",
    "_\n",
    "+client-7\n",
    "+{\"tenant\":\"acme\"}\n",
    "$body\n",
    "+{}",
    ",1.5\n",
    "{\"a\":1}",
    "\"a\":null",
    "{\"a\":\"b\",\"a\":\"c\"}",
    "\\xff",
    "\\n",
];

thread_local! {
    static CONNECTION: Connection = Connection::open_in_memory().expect("SQLite has memory");
}

/// A row of the table of messages: six values, one per line.
pub(super) fn run(input: &[u8]) {
    let mut lines = lines(input);
    let row: [Value; 6] = std::array::from_fn(|_| match value(&mut lines) {
        Some(Word::Int(number)) => Value::Integer(number),
        Some(Word::Double(number)) => Value::Real(number),
        Some(Word::SimpleString(text)) => Value::Text(text),
        Some(Word::BulkString(bytes)) => Value::Blob(bytes),
        _ => Value::Null,
    });
    let read = |row| CONNECTION.with(|connection| reader::row(connection, row));
    let Some(message) = accepted(read(row.clone())) else { return };
    let (is_bare, has_reply) = (message.attributes.is_empty(), message.reply_to.is_some());
    record_outcome(&format!("{is_bare} {has_reply}"));
    assert_eq!(Value::Blob(message.id.as_bytes().to_vec()), row[1]);
    assert_eq!(Value::Integer(message.enqueued_at.as_nanos()), row[2]);
    assert_eq!(Value::Blob(message.body.to_vec()), row[5]);
    let written = serde_json::to_string(&message.attributes).expect("attributes are JSON");
    let mut again = row;
    again[4] = Value::Text(written);
    assert_eq!(read(again).ok(), Some(message), "attributes survive");
}
