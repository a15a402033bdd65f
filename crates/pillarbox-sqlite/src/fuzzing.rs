//! Parsers of untrusted bytes, for the fuzzer. Not part of the API.

use pillarbox_core::{Cursor, RawMessage};
use rusqlite::Connection;
use rusqlite::types::Value;

use crate::store::{PeekFrom, read_message};

/// Reads a row of the table of messages, with any content: key, id, enqueued_at, reply_to, attributes, body.
pub fn row(connection: &Connection, row: [Value; 6]) -> rusqlite::Result<RawMessage> {
    connection
        .prepare_cached("SELECT ?1, ?2, ?3, ?4, ?5, ?6")?
        .query_row(rusqlite::params_from_iter(row), read_message)
}

/// Parses a cursor and formats it again.
pub fn cursor(text: &str) -> Option<String> {
    let from = PeekFrom::of_cursor(&Cursor::new(text))?;
    Some(from.to_cursor().as_str().to_owned())
}
