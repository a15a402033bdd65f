//! Readers of foreign bytes, for the fuzzer: not part of the API.
//!
//! Each function wraps one of the readers or writers of the crate, in public types.

use std::collections::HashMap;
use std::time::Duration;

use pillarbox_core::{
    Counts, Cursor, Delivery, Error, MessageId, Nonce, Outgoing, Partitions, Peeked, QueueName,
    RawMessage, Result, Timestamp,
};
use redis::{RedisResult, Value};

use crate::failure::Failure;
use crate::format::{self, Deliveries, IdText, Keys};
use crate::options::RedisOptions;
use crate::partition_layout::Layout;
use crate::partitioned_queue::Position;
use crate::reply::{Reply, ReplyReader};
use crate::{backend, diagnose, operations, partition, servers};

fn reply(value: Value) -> Reply {
    Reply::new(value, &"redis://fuzz".into())
}

fn reader(value: Value) -> ReplyReader {
    reply(value).into_reader()
}

fn error(failure: Failure) -> Error {
    failure.into_error(None, "read")
}

/// Reads the answer of `send.lua` and `settle.lua` to this number of entries.
pub fn characters(value: Value, entries: usize) -> Result<(Vec<u8>, bool)> {
    let characters = reply(value).characters(entries).map_err(error)?;
    Ok((characters.0, characters.1.must_announce))
}

/// Reads the answer of `receive.lua` to receivers that want these numbers of messages.
pub fn receive(value: Value, wanted: &[usize]) -> Result<(Vec<Vec<Delivery>>, Option<Duration>)> {
    let nonces: Vec<_> = (0..wanted.iter().sum()).map(|_| Nonce::from_bytes([7; 12])).collect();
    let mut given = vec![Vec::new(); wanted.len()];
    let queue = QueueName::new("fuzz")?;
    let give = |receiver: usize, delivery| given[receiver].push(delivery);
    let next = operations::deliveries(&queue, reader(value), wanted.iter().copied(), &nonces, give);
    next.map(|next| (given, next)).map_err(error)
}

/// Reads the answer of `look.lua`.
pub fn look(value: Value) -> Result<(u64, Option<Duration>)> {
    let mut reader = reader(value);
    let ready = reader.count().map_err(error)?;
    Ok((ready, reader.micros().map_err(error)?))
}

/// Reads the answer of `counts.lua`.
pub fn counts(value: Value) -> Result<Option<Counts>> {
    partition::counts(reader(value)).map_err(error)
}

/// Reads the answer of `peek.lua`. Also returns the end of the page as text.
pub fn peek(value: Value) -> Result<(Vec<Peeked>, Option<String>)> {
    let mut reader = reader(value);
    let part = reader.bytes().map_err(error)?;
    let (messages, end) = partition::page(reader, part == b"r").map_err(error)?;
    Ok((messages, end.map(|end| end.to_string())))
}

/// Parses a cursor and writes it again.
pub fn cursor(text: &str) -> Result<String> {
    let queue = QueueName::new("fuzz")?;
    Position::parse(&Cursor::new(text), &queue)
        .map(|position| Cursor::from(position).as_str().to_owned())
}

/// Reads the answer of `layout.lua` and `spread.lua`.
pub fn layout(value: Value) -> Result<Option<Partitions>> {
    let text = reader(value).optional_bytes().map_err(error)?;
    Ok(text.and_then(|text| Layout::read(&text)).map(Into::into))
}

/// Reads the list of queues.
pub fn queues(value: Value) -> Result<Vec<(QueueName, f64)>> {
    backend::read_registry(reply(value).into_flat_reader()).map_err(error)
}

/// Reads the answer of `CLUSTER SLOTS`: the primaries, and the number of slots without one.
pub fn slots(value: Value) -> RedisResult<(Vec<String>, usize)> {
    let map = servers::slot_map(value, "host")?;
    Ok((map.primaries().iter().map(ToString::to_string).collect(), map.uncovered()))
}

/// Reads the answers of a sentinel.
pub fn primary(about: Value, named: Value) -> RedisResult<(String, u16)> {
    servers::parse_primary(about, named)
}

/// Formats the facts that a server reports.
pub fn server(info: String, settings: HashMap<String, String>) -> Vec<String> {
    diagnose::describe(info, settings)
}

/// Reads a value of `data`.
pub fn message(id: MessageId, data: Vec<u8>) -> RawMessage {
    format::message(id, data, Deliveries::default())
}

/// Returns the value of `data` that `send.lua` makes of a message sent now.
pub fn data(message: &Outgoing, now: Timestamp) -> Vec<u8> {
    let head = format::head(message);
    let mut parts = head.splitn(3, ' ').skip(1);
    let at = parts.next().filter(|at| *at != "-");
    let at = at.map_or_else(|| now.as_nanos().to_string(), str::to_owned);
    let extra = parts.next().map_or(String::new(), |extra| format!(" {extra}"));
    [format!("{at}{extra}\n").as_bytes(), &message.body[..]].concat()
}

/// Reads a stored id.
pub fn id(text: &[u8]) -> Option<MessageId> {
    IdText::parse(text)
}

/// Returns the stored form of an id.
pub fn id_text(id: MessageId) -> Vec<u8> {
    IdText::new(id).as_bytes().to_vec()
}

/// Reads a value of `meta`: whether it has a secret; the numbers of deliveries, of unsettled and of uncounted
/// ones.
pub fn meta(value: &[u8]) -> Option<(bool, [u32; 3])> {
    format::meta(value).map(|(has_secret, deliveries)| {
        let Deliveries { count, unsettled, uncounted } = deliveries;
        (has_secret, [count, unsettled, uncounted])
    })
}

/// Returns the queue and partition that a key belongs to, and the key as these write it.
pub fn owner(key: &str) -> Option<(QueueName, u16, String)> {
    let (queue, partition, rest) = Keys::owner(key)?;
    let keys = Keys::new(&queue, partition);
    let tag = keys.data.strip_suffix("data").unwrap_or_default();
    Some((queue, partition, format!("{tag}{rest}")))
}

/// Returns the URL of the servers without secrets, and whether all settings are within their bounds.
pub fn place(options: &RedisOptions) -> (String, bool) {
    (options.endpoint(), options.settings.is_within_bounds())
}
