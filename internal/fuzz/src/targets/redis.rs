//! Stored values and replies of Redis servers.

use std::collections::HashMap;

use pillarbox_core::{MessageId, Outgoing, Peeked, RawMessage};
use pillarbox_redis::fuzzing as reader;
use pillarbox_redis::redis::Value;

use super::values::{lines, value};
use super::{accepted, refused, text};
use crate::driver::record_outcome;

pub(super) const DATA: &[&str] = &[
    "1763200000123456000",
    " ",
    "\n",
    "{\"reply_to\":\"client-7\"}",
    "{\"attributes\":{\"a\":\"b\"}}",
    "\"attributes\":",
    "\"reply_to\":null",
    "0123456789abcdef1",
    "4294967298",
    "-",
    "zzzzzzzzzzzzzzzzzzzzzz",
    "-0Nq9xBmBjkPkT-DE_vdA1",
    "7zzzzzzzzzzzzzzzzzzzzz",
];

/// Values of hashes: `data`, `meta`, and the ids that are their fields.
pub(super) fn data(input: &[u8]) {
    let id = MessageId::from_key("fuzz");
    let message = reader::message(id, input.to_vec());
    assert!(input.ends_with(&message.body), "a body is the end of its data");
    record_outcome(if message.body.len() == input.len() { "all body" } else { "head and body" });
    let mut sent = outgoing(&message);
    sent.enqueued_at = None;
    let at = message.enqueued_at;
    for sent in [outgoing(&message), sent] {
        let again = reader::message(id, reader::data(&sent, at));
        assert_eq!(again, message, "a message survives its data");
    }
    if let Some(id) = reader::id(input) {
        record_outcome("id");
        assert_eq!(reader::id_text(id), input, "an id has one text");
    }
    if let Some((is_held, [count, unsettled, uncounted])) = reader::meta(input) {
        record_outcome(if is_held { "held" } else { "not held" });
        let number = (u64::from(unsettled) << 32) + u64::from(count);
        let text = match (input, uncounted) {
            ([], _) => String::new(),
            (_, 0) => number.to_string(),
            _ => format!("{number}:{uncounted}"),
        };
        let secret = if is_held { "0123456789abcdef" } else { "" };
        let again = reader::meta(format!("{secret}{text}").as_bytes());
        // No script writes a text that is long enough to look like a secret.
        let same = again == Some((is_held, [count, unsettled, uncounted]));
        assert!(number > 1 << 53 || text.len() > 16 || same, "{again:?}");
    }
}

/// Returns the message to send again.
pub(super) fn outgoing(message: &RawMessage) -> Outgoing {
    let mut outgoing = Outgoing::with_id(message.id, message.body.clone());
    outgoing.attributes = message.attributes.clone();
    outgoing.reply_to = message.reply_to.clone();
    outgoing.enqueued_at = Some(message.enqueued_at);
    outgoing
}

pub(super) const REPLIES: &[&str] = &[
    "send 3\n",
    "settle 2\n",
    "receive 2 1\n",
    "look\n",
    "counts\n",
    "peek 2\n",
    "layout\n",
    "queues\n",
    "slots\n",
    "sentinel\n",
    "\n*\n",
    "\n.\n",
    "\n%\n",
    "\n_\n",
    "\n:1\n",
    "\n:-1\n",
    "\n:9223372036854775807\n",
    "\n$+\n",
    "\n$10F!\n",
    "\n,1.5\n",
    "\n#\n",
    "\n$-0Nq9xBmBjkPkT-DE_vdA1\n",
    "\n$1763200000123456000\\nbody\n",
    "\n$1763200000123456\n",
    "\n$r\n",
    "\n$i\n",
    "\n$m\n",
    "\n$4 12 7 1\n",
    "\n$0123456789abcdef1\n",
    "\n$orders\n",
    "\n:16383\n",
    "\n$127.0.0.1\n",
    "\n$config-epoch\n$4\n",
    "\n$inf\n",
    "\n$a b\n",
    "\\n",
    "\\xff",
];

/// Replies of scripts and commands: the name of the script, optionally with numbers, then the reply.
pub(super) fn reply(input: &[u8]) {
    let mut lines = lines(input);
    let asked = text(lines.next().unwrap_or_default()).unwrap_or_default();
    let mut words = asked.split(' ');
    let name = words.next().unwrap_or_default();
    let numbers = words.filter_map(|word| word.parse::<usize>().ok());
    let numbers: Vec<_> = numbers.map(|number| number % 300).take(8).collect();
    let number = numbers.first().copied().unwrap_or(1);
    let answer = value(&mut lines).unwrap_or(Value::Nil);
    if REPLIES.iter().any(|word| word.trim_end().split(' ').next() == Some(name)) {
        record_outcome(name);
    }
    match name {
        "send" | "settle" => {
            if let Some((characters, _)) = accepted(reader::characters(answer, number)) {
                assert_eq!(characters.len(), number, "an answer for each entry");
            }
        }
        "receive" => {
            if let Some((given, _)) = accepted(reader::receive(answer, &numbers)) {
                let is_given = given.iter().map(|given| !given.is_empty());
                record_outcome(&format!("{:?}", is_given.collect::<Vec<_>>()));
                for (given, wanted) in given.iter().zip(&numbers) {
                    assert!(given.len() <= *wanted, "no receive is given more than it asked for");
                    for delivery in given {
                        assert_eq!(delivery.receipt.message_id(), Some(delivery.message.id));
                        assert!(delivery.message.delivery_count > 0, "it is delivered");
                    }
                }
            }
        }
        "look" => drop(accepted(reader::look(answer))),
        "counts" => {
            if let Some(counts) = accepted(reader::counts(answer)) {
                record_outcome(if counts.is_some() { "counts" } else { "more" });
            }
        }
        "peek" => {
            if let Some((messages, end)) = accepted(reader::peek(answer)) {
                peeked(&messages, end);
            }
        }
        "layout" => match reader::layout(answer) {
            Ok(Some(layout)) => {
                record_outcome("layout");
                let (sent_to, received_from) = (layout.sent_to, layout.received_from);
                assert!(
                    1 <= sent_to && sent_to <= received_from && received_from <= 1000,
                    "{layout:?}"
                );
            }
            Ok(None) => record_outcome("no layout"),
            Err(error) => refused(&error),
        },
        "queues" => drop(accepted(reader::queues(answer).inspect(|_| record_outcome("list")))),
        "slots" => {
            if let Some((primaries, uncovered)) = accepted(reader::slots(answer)) {
                record_outcome(if primaries.is_empty() { "no primary" } else { "primaries" });
                assert!(uncovered <= 16384 && (!primaries.is_empty() || uncovered == 16384));
            }
        }
        "sentinel" => {
            let role = value(&mut lines).unwrap_or(Value::Nil);
            if let Some((host, port)) = accepted(reader::primary(answer, role)) {
                assert!(!host.is_empty() && port > 0, "a primary can be reached");
            }
        }
        _ => {}
    }
}

fn peeked(messages: &[Peeked], end: Option<String>) {
    record_outcome(&format!("{} {:?}", messages.is_empty(), end.is_some()));
    for message in messages {
        record_outcome(&format!("{:?}", std::mem::discriminant(&message.state)));
    }
    if let Some(end) = end {
        let cursor = format!("0 {end}");
        assert_eq!(reader::cursor(&cursor).expect("the end of a page is a cursor"), cursor);
    }
}

pub(super) const SERVER: &[&str] = &[
    "connected_slaves:",
    "slave0:ip=1,state=online,lag=0",
    "redis_version:7.0.15",
    "valkey_version:9.1.2",
    "role:master",
    "aof_enabled:1",
    "maxmemory:",
    "used_memory:",
    "maxmemory_policy:allkeys-lru",
    "used_memory_human:1M",
    "\r\n",
    "=appendonly yes\n",
    "=appendfsync always\n",
    "=save \n",
    "=maxmemory-policy noeviction\n",
    "=min-replicas-to-write 1\n",
];

/// A server's settings, in lines that start with `=`, and `INFO`, in the others.
pub(super) fn server(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let (settings, info): (Vec<_>, Vec<_>) =
        text.split('\n').partition(|line| line.starts_with('='));
    let pair = |line: &str| {
        line[1..].split_once(' ').map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let settings: HashMap<_, _> = settings.into_iter().filter_map(pair).collect();
    for line in reader::server(info.join("\n"), settings) {
        // It contains text of the server.
        assert!(!line.is_empty());
        record_outcome(&line.chars().take(12).collect::<String>());
    }
}
