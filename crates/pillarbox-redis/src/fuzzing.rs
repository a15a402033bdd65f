//! What reads foreign bytes, for the fuzzer alone: no part of the API.
//!
//! Thin: each function is one of the readers or writers of the crate, in types that can be seen from outside.

use std::collections::HashMap;
use std::time::Duration;

use pillarbox_core::{
    Counts, Cursor, Delivery, Error, MessageId, Nonce, Outgoing, Partitions, Peeked, QueueName,
    RawMessage, Result, Timestamp,
};
use redis::{RedisResult, Value};

use crate::failure::Failure;
use crate::format::{self, Deliveries, IdText, Keys};
use crate::hub::Page;
use crate::layout::Layout;
use crate::options::RedisOptions;
use crate::reply::{Reply, Words};
use crate::{backend, diagnose, operations, partition, servers};

fn reply(value: Value) -> Reply {
    Reply::new(value, &"redis://fuzz".into())
}

fn words(value: Value) -> Words {
    reply(value).words()
}

fn told(failure: Failure) -> Error {
    failure.on(None, "read")
}

/// What `send.lua` and `settle.lua` answer to so many entries.
pub fn characters(value: Value, entries: usize) -> Result<(Vec<u8>, bool)> {
    let characters = reply(value).characters(entries).map_err(told)?;
    Ok((characters.0, characters.1.is_unknown))
}

/// What `receive.lua` answers to receivers who want so many.
pub fn receive(value: Value, wanted: &[usize]) -> Result<(Vec<Vec<Delivery>>, Option<Duration>)> {
    let nonces: Vec<_> = (0..wanted.iter().sum()).map(|_| Nonce::from_bytes([7; 12])).collect();
    let mut given = vec![Vec::new(); wanted.len()];
    let queue = QueueName::new("fuzz")?;
    let give = |place: usize, delivery| given[place].push(delivery);
    let next = operations::deliveries(&queue, words(value), wanted.iter().copied(), &nonces, give);
    next.map(|next| (given, next)).map_err(told)
}

/// What `look.lua` answers.
pub fn look(value: Value) -> Result<(u64, Option<Duration>)> {
    let mut words = words(value);
    let ready = words.count().map_err(told)?;
    Ok((ready, words.micros().map_err(told)?))
}

/// What `counts.lua` answers.
pub fn counts(value: Value) -> Result<Option<Counts>> {
    partition::counts(words(value)).map_err(told)
}

/// What `peek.lua` answers to who wants so many, with the text of where the page ends.
pub fn peek(value: Value, max: usize) -> Result<(Vec<Peeked>, Option<String>)> {
    let mut words = words(value);
    let part = words.bytes().map_err(told)?;
    let (messages, end) = partition::page(words, part == b"r", max).map_err(told)?;
    Ok((messages, end.map(|end| end.to_string())))
}

/// A cursor that is said to be ours, written again.
pub fn cursor(text: &str) -> Result<String> {
    let queue = QueueName::new("fuzz")?;
    Page::of(&Cursor::new(text), &queue).map(|page| Cursor::from(page).as_str().to_owned())
}

/// What `layout.lua` and its kin answer.
pub fn layout(value: Value) -> Result<Option<Partitions>> {
    let text = words(value).bytes_or_nothing().map_err(told)?;
    Ok(text.and_then(|text| Layout::read(&text)).map(Into::into))
}

/// The list of queues.
pub fn queues(value: Value) -> Result<Vec<(QueueName, f64)>> {
    backend::listed(reply(value).flat_words()).map_err(told)
}

/// What `CLUSTER SLOTS` answers: which primaries there are, and how many slots have none.
pub fn slots(value: Value) -> RedisResult<(Vec<String>, usize)> {
    let map = servers::slot_map(value, "host")?;
    Ok((map.primaries().iter().map(ToString::to_string).collect(), map.uncovered()))
}

/// What sentinels answer.
pub fn primary(about: Value, named: Value) -> RedisResult<(String, u16)> {
    servers::named(about, named)
}

/// What a server says of itself, told to people.
pub fn server(info: String, settings: HashMap<String, String>) -> Vec<String> {
    diagnose::told(info, settings)
}

/// A value of `data`.
pub fn message(id: MessageId, data: Vec<u8>) -> RawMessage {
    format::message(id, data, Deliveries::default())
}

/// The value of `data` that `send.lua` makes of a message, sent at this moment.
pub fn data(message: &Outgoing, now: Timestamp) -> Vec<u8> {
    let head = format::head(message);
    let mut parts = head.splitn(3, ' ').skip(1);
    let at = parts.next().filter(|at| *at != "-");
    let at = at.map_or_else(|| now.as_nanos().to_string(), str::to_owned);
    let extra = parts.next().map_or(String::new(), |extra| format!(" {extra}"));
    [format!("{at}{extra}\n").as_bytes(), &message.body[..]].concat()
}

/// An id as it is stored.
pub fn id(text: &[u8]) -> Option<MessageId> {
    IdText::parse(text)
}

/// How an id is stored.
pub fn id_text(id: MessageId) -> Vec<u8> {
    IdText::new(id).as_bytes().to_vec()
}

/// A value of `meta`: whether somebody holds a receipt; the numbers of deliveries, of unsettled and of
/// uncounted ones.
pub fn meta(value: &[u8]) -> Option<(bool, [u32; 3])> {
    format::meta(value).map(|(is_held, deliveries)| {
        let Deliveries { count, unsettled, uncounted } = deliveries;
        (is_held, [count, unsettled, uncounted])
    })
}

/// Which queue and partition a key belongs to, and the key that these have for the same.
pub fn owner(key: &str) -> Option<(QueueName, u16, String)> {
    let (queue, partition, what) = Keys::owner(key)?;
    let keys = Keys::new(&queue, partition);
    let tag = keys.data.strip_suffix("data").unwrap_or_default();
    Some((queue, partition, format!("{tag}{what}")))
}

/// Where the servers are, for people; and what was said of times and numbers, in which none is out of bounds.
pub fn place(options: &RedisOptions) -> (String, bool) {
    (options.place(), options.usage.is_sensible())
}
